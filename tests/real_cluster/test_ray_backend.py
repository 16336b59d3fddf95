"""Workers as Ray actors on three Ray nodes of this machine."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from worker_talk import gang, hear, of_kind, over, run_gang, some, spec, train

from hadoppler.envs.errors import MissingExtraError
from hadoppler.real_system.cluster import ray_nodes
from hadoppler.real_system.cluster.backend import Slot, WorkerError
from hadoppler.real_system.cluster.learner import Learner, unpack
from hadoppler.real_system.cluster.messages import Ended, Failed, Lost, Ready, Saved, Started, Stop
from hadoppler.real_system.cluster.ray_nodes import LOOPBACK, JoinedNodes, PrivateNodes, label
from hadoppler.real_system.cluster.ray_workers import RayBackend

ray = pytest.importorskip("ray", reason="Ray is not installed; pip install hadoppler[ray]")

NODES = ("fast", "middle", "slow")


@pytest.fixture(scope="module")
def backend() -> Iterator[RayBackend]:
    before = os.environ.get("RAY_ADDRESS")
    os.environ["RAY_ADDRESS"] = "10.255.255.1:1"  # somebody else's; never joined
    made = RayBackend([Slot(0, 0), Slot(1, 0), Slot(2, 0)], nodes=NODES)
    try:
        made.start()
        hear(made, some(Ready, 3), 60)
        yield made
    finally:
        made.close()
        os.environ.pop("RAY_ADDRESS")
        if before is not None:
            os.environ["RAY_ADDRESS"] = before


def nodes_of(backend: RayBackend) -> PrivateNodes:
    """Its own Ray nodes."""
    assert isinstance(backend.places, PrivateNodes)
    return backend.places


def test_each_worker_is_on_its_node_and_on_loopback(backend: RayBackend) -> None:
    alive = [node for node in ray.nodes() if node["Alive"]]
    assert len(alive) == 4  # one more for Ray's own books
    assert {node["NodeManagerAddress"] for node in alive} == {LOOPBACK}
    for name in NODES:
        assert sum(label(name) in node["Resources"] for node in alive) == 1


def test_a_job_gives_the_same_weights_as_without_ray(backend: RayBackend) -> None:
    command = train(spec(), 40, save_every=10)
    backend.send(1, command)
    heard = hear(backend, over(command.gang))
    (ended,) = of_kind(heard, Ended)
    assert [answer.steps for answer in of_kind(heard, Saved)] == [10, 20, 30]
    alone = Learner(spec())
    for at in range(40):
        alone.step(at, 1, slice(0, 32), None, at)
    assert ended.state is not None
    for name, value in alone.state()["model"].items():
        torch.testing.assert_close(unpack(ended.state)["model"][name], value)


def test_a_gang_over_three_nodes(backend: RayBackend) -> None:
    heard = run_gang(backend, gang(backend, spec(), 30, [1, 1, 0.5], pace_s=0.03))
    ended = of_kind(heard, Ended)
    assert {(e.reason, e.steps) for e in ended} == {("quota", 30)}
    alone = Learner(spec())
    for at in range(0, 30, 3):
        alone.step(at, 3, slice(0, 96), None, at)
    state = unpack(next(e.state for e in ended if e.rank == 0))
    for name, value in alone.state()["model"].items():
        torch.testing.assert_close(state["model"][name], value, rtol=1e-3, atol=1e-5)


def test_stop_gets_through_while_it_trains(backend: RayBackend) -> None:
    command = train(spec(), 10, pace_s=30.0)
    backend.send(0, command)
    hear(backend, some(Started))
    begin = time.monotonic()
    backend.send(0, Stop(command.gang))
    (ended,) = of_kind(hear(backend, over(command.gang)), Ended)
    assert time.monotonic() - begin < 2
    assert (ended.reason, ended.steps) == ("stopped", 1)


def test_a_killed_worker_is_lost_and_replaced(backend: RayBackend) -> None:
    backend.send(2, train(spec(exit_code=3), 5))
    (lost,) = of_kind(hear(backend, some(Lost)), Lost)
    assert "slow" in lost.reason
    backend.restart(2)
    hear(backend, some(Ready), 30)
    backend.end(2)
    hear(backend, some(Lost))
    backend.restart(2)
    hear(backend, some(Ready), 30)


def test_a_killed_node_takes_its_worker_along_and_comes_back(backend: RayBackend) -> None:
    commands = gang(backend, spec(), 100_000, [1, 1], pace_s=0.02)
    other = train(spec(), 100_000, pace_s=0.02)
    for slot, command in enumerate([*commands, other]):
        backend.send(slot, command)
    hear(backend, some(Started, 3))
    begin = time.monotonic()
    nodes_of(backend).remove_node("middle")
    heard = hear(backend, lambda heard: bool(of_kind(heard, Lost) and of_kind(heard, Failed)))
    assert time.monotonic() - begin < 8
    assert [slot for slot, answer in heard if isinstance(answer, Lost)] == [1]
    (failed,) = of_kind(heard, Failed)
    assert (failed.gang, failed.rank, failed.fault) == (commands[0].gang, 0, "peer")
    backend.restart(1)  # there is no node for it yet
    backend.send(2, Stop(other.gang))
    heard = hear(backend, over(other.gang))
    assert not of_kind(heard, Ready)
    nodes_of(backend).add_node("middle")
    hear(backend, some(Ready), 30)
    assert len(of_kind(run_gang(backend, gang(backend, spec(), 6, [1, 1, 1])), Ended)) == 3


def ray_node(number: int, processors: int, *names: str) -> dict[str, Any]:
    """As ``ray.nodes`` tells it."""
    resources = {"CPU": processors} | {label(name): 1 for name in names}
    return {"NodeID": f"{number:056x}", "NodeManagerAddress": f"10.0.0.{number}", "Alive": True, "Resources": resources}


class StandIn:
    """What of Ray is asked for the nodes of a cluster."""

    def __init__(self, nodes: list[dict[str, Any]]) -> None:
        self.nodes = lambda: nodes
        self.util = SimpleNamespace(get_node_ip_address=lambda: "10.0.0.9")
        self.is_initialized = lambda: True


def taken(options: dict[str, Any] | None) -> str | None:
    """The Ray node that options pin an actor to."""
    return None if options is None else f"id{int(options['scheduling_strategy'].node_id, 16)}"


def test_without_ray_one_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"hadoppler\[ray\]"):
        RayBackend([Slot(0, 0)]).start()


def test_how_nodes_of_a_running_cluster_are_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [ray_node(1, 2), ray_node(2, 4, "b"), ray_node(3, 4), ray_node(4, 1)]
    monkeypatch.setattr(ray_nodes, "import_ray", lambda: StandIn(nodes))
    joined = JoinedNodes("auto", {"a": 4, "b": 4, "c": 1, "d": 1})
    assert joined.host == "10.0.0.9"
    assert joined.options("b") == {"resources": {"hadoppler_b": 0.25}}
    assert taken(joined.options("a")) == "id3"  # the first has too few processors, the second is b's
    assert taken(joined.options("c")) == "id1"
    assert taken(joined.options("d")) == "id4"
    assert taken(joined.options("a")) == "id3"
    del nodes[0]
    assert joined.options("c") is None  # waits for another
    nodes.append(ray_node(5, 1))
    assert taken(joined.options("c")) == "id5"
    with pytest.raises(WorkerError, match="no node for e"):
        JoinedNodes("auto", {"a": 4, "b": 4, "e": 5})


def test_nothing_is_left_of_a_private_cluster_and_the_wrong_address_is_told(backend: RayBackend) -> None:
    """The last test of the file: it ends what the others used."""
    folder = Path(nodes_of(backend).folder)
    assert folder.is_dir()
    assert len(str(folder)) < 40
    running = ray_processes(folder)
    assert running
    with pytest.raises(WorkerError, match="uses Ray already"):
        PrivateNodes({"a": 1})
    begin = time.monotonic()
    backend.close()
    assert time.monotonic() - begin < 10
    assert not ray.is_initialized()
    assert not folder.exists()
    assert not [pid for pid in running if Path(f"/proc/{pid}").exists()]
    with pytest.raises(WorkerError, match=r"127\.0\.0\.1:1"):
        RayBackend([Slot(0, 0)], address="127.0.0.1:1").start()


def ray_processes(folder: Path) -> list[int]:
    """Processes that name a folder of Ray's in their command line."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if str(folder) in (entry / "cmdline").read_text() and int(entry.name) != os.getpid():
                    found.append(int(entry.name))
            except OSError:
                continue
    return found
