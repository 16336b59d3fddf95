"""The same jobs by the table's clock on processes and on three Ray nodes: the same decisions, steps and weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs torch")
pytest.importorskip("sklearn", reason="needs scikit-learn")
pytest.importorskip("ray", reason="Ray is not installed; pip install hadoppler[ray]")

import torch
from saved_states import saved_states

from hadoppler import make_scheduler
from hadoppler.envs.cluster import Cluster, SimulationRules
from hadoppler.envs.cluster.cluster import Node
from hadoppler.real_system.cluster.backend import Backend
from hadoppler.real_system.cluster.crew import Crew
from hadoppler.real_system.cluster.decisions import read_decisions, same_allocation
from hadoppler.real_system.cluster.emulation import OwnPace, node_speeds
from hadoppler.real_system.cluster.job_rates import JobRates
from hadoppler.real_system.cluster.local import LocalBackend
from hadoppler.real_system.cluster.ray_nodes import PrivateNodes
from hadoppler.real_system.cluster.ray_workers import RayBackend
from hadoppler.real_system.cluster.session import RunOutcome, Session
from hadoppler.real_system.cluster.slots import slots_of
from hadoppler.real_system.cluster.workloads import pair_jobs, task_workload

SPEEDS = {"fast": 1.0, "middle": 0.5, "slow": 0.25}
NODES = Cluster(tuple(Node(name, {name: 1}) for name in SPEEDS), "three", SPEEDS)
RULES = SimulationRules(round_s=2.0, restart_s=0.05, consolidation_s=0.1)


@contextmanager
def _crew(backend: Backend) -> Iterator[Crew]:
    backend.start()
    try:
        yield Crew(backend, NODES, OwnPace(node_speeds(NODES)))
    finally:
        backend.close()


def _run(crew: Crew, folder: Path, scheduler: str, clock: str, steps: tuple[int, int], jobs: int = 2) -> RunOutcome:
    folder.mkdir()
    rates = JobRates(NODES, base_s=0.01, rates="table")
    session = Session(folder, NODES, make_scheduler(scheduler), crew, rates, RULES, clock=clock)
    return session.run(pair_jobs(task_workload(jobs=jobs, tasks=("diabetes", "digits"), steps=steps, seed=1), 1))


def test_processes_and_ray_nodes_do_the_same(tmp_path: Path) -> None:
    """Gangs of one and forked copies by nominal quotas; then a Ray node is killed in the middle of a round."""
    with _crew(LocalBackend(slots_of(NODES))) as crew:
        for scheduler in ("gavel", "hadare"):
            _run(crew, tmp_path / f"local-{scheduler}", scheduler, "nominal", (300, 400))
    backend = RayBackend(slots_of(NODES), nodes=tuple(SPEEDS))
    with _crew(backend) as crew:
        for scheduler in ("gavel", "hadare"):
            _run(crew, tmp_path / f"ray-{scheduler}", scheduler, "nominal", (300, 400))
            folders = [tmp_path / f"{kind}-{scheduler}" for kind in ("local", "ray")]
            first, second = (list(read_decisions(folder, NODES)) for folder in folders)
            assert len(first) == len(second) > 1
            assert all(same_allocation(a.allocation, b.allocation) for a, b in zip(first, second, strict=True))
            for (done, state), (other, again) in zip(*map(saved_states, folders), strict=True):
                assert done == other
                for name, value in state["model"].items():
                    torch.testing.assert_close(again["model"][name], value)
        _kill_a_node(crew, backend, tmp_path)


def _kill_a_node(crew: Crew, backend: RayBackend, folder: Path) -> None:
    """By the wall clock, in the middle of a round: at most what was done since the last checkpoint is lost."""
    assert isinstance(backend.places, PrivateNodes)
    places, killed = backend.places, list[float]()

    def watch(run: object) -> None:
        if not killed and run.time > 1.0 and run.posts:
            places.remove_node("fast")
            killed.append(run.time)

    (folder / "killed").mkdir()
    rates = JobRates(NODES, base_s=0.01, rates="table")
    session = Session(folder / "killed", NODES, make_scheduler("srtf"), crew, rates, RULES, watch=watch)
    outcome = session.run(pair_jobs(task_workload(jobs=1, tasks=("diabetes",), steps=(400, 400)), 0))
    assert killed
    assert outcome.result.metrics["finished"] == 1
    assert 0 <= outcome.result.metrics["lost_steps"] <= 100 + 15  # what was done before the loss was noticed
    assert saved_states(folder / "killed")[0][0] == 400
    assert np.isfinite(outcome.result.metrics["ttd_s"])
