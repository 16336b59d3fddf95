"""Workers as processes: how they die, are replaced, and leave nothing behind."""

from __future__ import annotations

import errno
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from worker_talk import (
    all_gone,
    gang,
    hear,
    hear_for,
    kill,
    of_kind,
    open_files,
    over,
    run_gang,
    some,
    spec,
    threads,
    train,
)

from hadoppler.envs.cluster import Cluster
from hadoppler.real_system.cluster import local, python_process
from hadoppler.real_system.cluster.backend import Slot, WorkerError
from hadoppler.real_system.cluster.crew import Crew
from hadoppler.real_system.cluster.job_rates import JobRates
from hadoppler.real_system.cluster.local import LocalBackend
from hadoppler.real_system.cluster.messages import Ended, Lost, Progress, Ready, Saved, Started, Stop

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="looks at /proc")


@pytest.fixture(scope="module")
def before() -> tuple[int, int]:
    """Open files and threads before workers are started."""
    local.host_store()  # the first one opens a pipe that stays, for libuv
    return open_files(), threading.active_count()


@pytest.fixture(scope="module")
def backend(before: tuple[int, int]) -> Iterator[LocalBackend]:
    made = LocalBackend([Slot(0, 0), Slot(1, 1)], nodes=("left", "right"))
    made.start()
    try:
        hear(made, some(Ready, 2), 60)
        yield made
    finally:
        made.close()


def bring_back(backend: LocalBackend, slot: int) -> None:
    """Restart a worker, and wait for it."""
    backend.restart(slot)
    hear(backend, some(Ready), 30)


def test_a_worker_trains(backend: LocalBackend) -> None:
    command = train(spec(), 30, save_every=10)
    backend.send(1, command)
    heard = hear(backend, over(command.gang))
    assert {slot for slot, _ in heard} == {1}
    kinds = [type(answer) for _, answer in heard if not isinstance(answer, Progress)]
    assert kinds == [Started, Saved, Saved, Ended]


def test_a_killed_worker_is_lost_once_after_all_that_it_said(backend: LocalBackend) -> None:
    draw = random.Random(0)
    for _ in range(2):
        command = train(spec(), 100_000, pace_s=0.002, save_every=20)
        backend.send(0, command)
        heard = hear(backend, some(Saved))
        heard += hear_for(backend, draw.uniform(0, 0.3))
        pid = backend.pids[0]
        kill(pid, signal.SIGKILL)
        heard += hear(backend, some(Lost))
        assert isinstance(heard[-1][1], Lost)
        assert heard[-1][1].reason == "SIGKILL"
        saved = [answer.steps for answer in of_kind(heard, Saved)]
        assert saved == list(range(20, saved[-1] + 1, 20))
        backend.send(0, Stop(command.gang))  # does not hear it
        bring_back(backend, 0)
        assert backend.pids[0] != pid
    assert not of_kind(hear_for(backend, 0.7), Lost)


def test_the_exit_code_is_told(backend: LocalBackend) -> None:
    backend.send(0, train(spec(exit_code=3), 5))
    (lost,) = of_kind(hear(backend, some(Lost)), Lost)
    assert lost.reason == "exit code 3"
    bring_back(backend, 0)


def test_a_worker_that_is_held_up_blocks_nobody_and_can_be_ended(backend: LocalBackend) -> None:
    kill(backend.pids[0], signal.SIGSTOP)
    begin = time.monotonic()
    for _ in range(4):
        backend.send(0, train(spec(), 5, state=bytes(2_000_000)))
    assert time.monotonic() - begin < 1
    other = train(spec(), 5)
    backend.send(1, other)
    hear(backend, over(other.gang))
    backend.end(0)
    heard = hear(backend, some(Lost))
    assert [(slot, type(answer)) for slot, answer in heard] == [(0, Lost)]
    bring_back(backend, 0)
    again = train(spec(), 5)
    backend.send(0, again)
    assert of_kind(hear(backend, over(again.gang)), Ended)


def test_the_workers_leave_ctrl_c_to_the_coordinator(backend: LocalBackend) -> None:
    command = train(spec(), 50, pace_s=0.01)
    backend.send(0, command)
    hear(backend, some(Started))
    kill(backend.pids[0], signal.SIGINT)
    (ended,) = of_kind(hear(backend, over(command.gang)), Ended)
    assert (ended.reason, ended.steps) == ("quota", 50)


def test_nothing_grows_over_restarts_of_gangs(backend: LocalBackend) -> None:
    pids = ("self", *backend.pids)

    def counted() -> list[tuple[int, int]]:
        return [(open_files(pid), threads(pid)) for pid in pids]

    for round_ in range(32):
        if round_ == 2:
            time.sleep(0.2)
            before = counted()
        number = run_gang(backend, gang(backend, spec("Normed", job=f"job {round_ % 3}"), 6, [1, 1]))
        assert len(of_kind(number, Ended)) == 2
    until = time.monotonic() + 2
    while counted() > before and time.monotonic() < until:
        time.sleep(0.05)
    assert counted() == before


PARENT = """
import sys, time
from dataclasses import replace
sys.path.insert(0, {tests!r})
from hadoppler.real_system.cluster.backend import Slot
from hadoppler.real_system.cluster.local import LocalBackend
from hadoppler.real_system.cluster.messages import Ready, Started
from worker_talk import gang, hear, some, spec, train

backend = LocalBackend([Slot(0, 0)] * 3)
backend.start()
hear(backend, some(Ready, 3), 60)
for slot, command in enumerate(gang(backend, spec(), 1000, [1, 1])):
    backend.send(slot, replace(command, pace_s=60.0 * slot))
backend.send(2, train(spec(sleep_s=60), 1000))
hear(backend, some(Started, 3))
print(*backend.pids, flush=True)
time.sleep(60)
"""


def test_nothing_is_left_when_the_coordinator_is_killed(tmp_path: Path) -> None:
    """A script without ``if __name__ == "__main__"``; workers that wait for a peer, sleep, and are in a long step."""
    script = tmp_path / "run.py"
    script.write_text(PARENT.format(tests=str(Path(__file__).parents[1])))
    parent = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True, cwd=tmp_path)
    try:
        assert parent.stdout is not None
        pids = [int(word) for word in parent.stdout.readline().split()]
        assert len(pids) == 3
        time.sleep(0.2)
        parent.kill()
        assert all_gone(pids, 1.0)
    finally:
        parent.kill()
        parent.communicate()


def test_close_is_quick_where_nothing_hangs() -> None:
    backend = LocalBackend([Slot(0, 0)])
    backend.start()
    hear(backend, some(Ready), 60)
    begin = time.monotonic()
    backend.close()
    assert time.monotonic() - begin < 0.9


def test_workers_that_never_become_ready_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(python_process, "PROGRAM", "raise SystemExit(7)")
    backend = LocalBackend([Slot(0, 0)])
    backend.start()
    try:
        for _ in range(local.FALSE_STARTS):
            hear(backend, some(Lost))
            backend.restart(0)
        with pytest.raises(WorkerError, match=r"node0 ended 5 times .*exit code 7"):
            hear(backend, some(Lost))
    finally:
        backend.close()


def test_a_worker_that_cannot_be_started_again_is_an_error_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """One sentence with the node's name, through whoever waits for news too; everything can still be closed."""
    cluster = Cluster.parse("v100:1 k80:1")
    backend = LocalBackend([Slot(0, 0), Slot(1, 1)], nodes=[node.name for node in cluster.nodes])
    backend.start()
    try:
        hear(backend, some(Ready, 2), 60)
        begun, pids = open_files(), backend.pids
        monkeypatch.setattr(local, "start_python", _no_process)
        crew = Crew(backend, cluster, JobRates(cluster, base_s=0.05, rates="table").pace)
        kill(pids[0], signal.SIGKILL)
        with pytest.raises(WorkerError, match=f"node {cluster.nodes[0].name} cannot be started again: no room"):
            crew.news(crew.clock() + 10)
        assert open_files() < begun
    finally:
        backend.close()
    assert all_gone(pids, 0)


def _no_process(*arguments: object) -> None:
    raise OSError(errno.EAGAIN, "no room")


def test_close_takes_three_seconds_at_most_and_leaves_nothing(before: tuple[int, int], backend: LocalBackend) -> None:
    """The last test of the file: it ends the workers of the others."""
    pids = backend.pids
    kill(pids[0], signal.SIGSTOP)
    backend.send(0, train(spec(), 5, state=bytes(2_000_000)))
    backend.send(1, train(spec(sleep_s=60), 5))
    time.sleep(0.3)
    begin = time.monotonic()
    backend.close()
    assert time.monotonic() - begin < 3.3
    assert all_gone(pids, 0)
    assert (open_files(), threading.active_count()) == before
    backend.close()
