"""Several workers that train one job together."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator

import pytest
import torch
from worker_talk import gang, hear, kill, of_kind, over, run_gang, some, spec, train

from hadoppler.real_system.cluster.backend import Slot
from hadoppler.real_system.cluster.learner import Learner, unpack
from hadoppler.real_system.cluster.local import LocalBackend
from hadoppler.real_system.cluster.messages import Ended, Failed, Lost, Progress, Ready, Saved, Started, Stop

SPEEDS = (1.0, 1.0, 1.0, 0.26)
"""3 V100 + 1 K80, roughly."""


@pytest.fixture(scope="module")
def backend() -> Iterator[LocalBackend]:
    made = LocalBackend([Slot(node, 0) for node in range(4)])
    made.start()
    try:
        hear(made, some(Ready, 4), 60)
        yield made
    finally:
        made.close()


@pytest.mark.parametrize("kind", ["Curve", "Normed"])
def test_a_gang_learns_what_one_process_does_with_the_same_batches(backend: LocalBackend, kind: str) -> None:
    """Losses agree to 1e-4 relative: sums of 32-bit numbers in another order. BatchNorm sees other samples: not so."""
    what = spec(kind)
    heard = run_gang(backend, gang(backend, what, 160, SPEEDS, pace_s=0.08, first=3, save_every=40))
    ended = of_kind(heard, Ended)
    assert {(e.reason, e.steps) for e in ended} == {("quota", 160)}
    assert sorted(e.rank for e in ended if e.state is not None) == [0]
    alone = Learner(what)
    losses = {4 * (k + 1): alone.step(3 + 4 * k, 4, slice(0, 128), None, 4.0 * k) for k in range(40)}
    told = {answer.steps: answer.loss for answer in of_kind(heard, Progress)}
    assert len(told) > 20
    tolerance = 1e-4 if kind == "Curve" else 0.2
    assert all(loss == pytest.approx(losses[steps], rel=tolerance) for steps, loss in told.items())
    assert [answer.steps for answer in of_kind(heard, Saved)] == [40, 80, 120]
    state = unpack(next(e.state for e in ended if e.rank == 0))
    assert state["steps"] == 160
    for name, value in alone.state()["model"].items():
        close = {"rtol": 1e-3, "atol": 1e-5} if kind == "Curve" else {"rtol": 0.2, "atol": 0.1}
        torch.testing.assert_close(state["model"][name], value, **close)


def test_the_rate_is_the_sum_of_the_workers_own(backend: LocalBackend) -> None:
    (ended, *_) = of_kind(run_gang(backend, gang(backend, spec(), 400, SPEEDS, pace_s=0.04)), Ended)
    assert 400 / ended.worked_s == pytest.approx(sum(SPEEDS) / 0.04, rel=0.1)
    assert ended.overruns < 10


@pytest.mark.parametrize("quota", [10, 4, 2, 1])
def test_the_last_step_may_count_fewer(backend: LocalBackend, quota: int) -> None:
    what = spec(batch_size=6)
    ended = of_kind(run_gang(backend, gang(backend, what, quota, SPEEDS)), Ended)
    assert {(e.reason, e.steps) for e in ended} == {("quota", quota)}
    alone = Learner(what)
    for at in range(0, quota, 4):
        width = min(4, quota - at)
        loss = alone.step(at, width, slice(0, 6 * width), None, float(at))
    state = unpack(next(e.state for e in ended if e.rank == 0))
    assert state["steps"] == quota
    for name, value in alone.state()["model"].items():
        torch.testing.assert_close(state["model"][name], value, rtol=1e-3, atol=1e-5)
    assert ended[0].loss > 0
    assert loss > 0


@pytest.mark.parametrize("pace", [0.0, 0.05, 20.0])
def test_all_ranks_stop_after_the_same_step(backend: LocalBackend, pace: float) -> None:
    commands = gang(backend, spec(), 100_000, SPEEDS, pace_s=pace)
    for slot, command in enumerate(commands):
        backend.send(slot, command)
    hear(backend, some(Started, 4))
    time.sleep(0.3)
    begin = time.monotonic()
    for slot in range(4):
        backend.send(slot, Stop(commands[0].gang))
    ended = of_kind(hear(backend, over(commands[0].gang, 4)), Ended)
    assert time.monotonic() - begin < 1
    assert {e.reason for e in ended} == {"stopped"}
    assert len({e.steps for e in ended}) == 1
    assert ended[0].steps >= 4


def test_one_rank_s_wish_is_enough(backend: LocalBackend) -> None:
    commands = gang(backend, spec(), 100_000, [1, 1], pace_s=0.02)
    for slot, command in enumerate(commands):
        backend.send(slot, command)
    hear(backend, some(Started, 2))
    backend.send(1, Stop(commands[0].gang))
    ended = of_kind(hear(backend, over(commands[0].gang, 2)), Ended)
    assert [e.reason for e in ended] == ["stopped", "stopped"]
    assert ended[0].steps == ended[1].steps


def test_all_ranks_end_in_time_after_the_same_step(backend: LocalBackend) -> None:
    begin = time.monotonic()
    ended = of_kind(run_gang(backend, gang(backend, spec(), 100_000, SPEEDS, pace_s=0.05, seconds=1.0)), Ended)
    assert time.monotonic() - begin == pytest.approx(1.0, abs=0.3)
    assert {e.reason for e in ended} == {"time"}
    assert len({e.steps for e in ended}) == 1


def test_ranks_that_are_stopped_while_they_wait_for_a_peer_do_not_begin(backend: LocalBackend) -> None:
    commands = gang(backend, spec(), 10, [1, 1, 1])
    for slot, command in enumerate(commands[:2]):
        backend.send(slot, command)
    time.sleep(0.3)
    for slot in range(2):
        backend.send(slot, Stop(commands[0].gang))
    heard = hear(backend, over(commands[0].gang, 2))
    assert [(e.reason, e.steps) for e in of_kind(heard, Ended)] == [("stopped", 0)] * 2
    backend.send(2, commands[2])  # the third comes late, and finds that nobody begins
    assert of_kind(hear(backend, over(commands[0].gang)), Ended)[0].steps == 0


def test_peers_of_a_killed_worker_notice_and_go_on(backend: LocalBackend) -> None:
    for victim, pace in ((3, 0.0), (0, 0.1)):
        commands = gang(backend, spec(), 100_000, SPEEDS, pace_s=pace)
        for slot, command in enumerate(commands):
            backend.send(slot, command)
        hear(backend, some(Started, 4))
        time.sleep(0.3)
        begin = time.monotonic()
        kill(backend.pids[victim], signal.SIGKILL)
        heard = hear(backend, lambda heard: len(of_kind(heard, Failed)) == 3 and len(of_kind(heard, Lost)) == 1)
        assert time.monotonic() - begin < 2
        assert {(f.fault, f.gang) for f in of_kind(heard, Failed)} == {("peer", commands[0].gang)}
        assert {f.rank for f in of_kind(heard, Failed)} == set(range(4)) - {victim}
        backend.restart(victim)
        hear(backend, some(Ready), 30)
    assert len(of_kind(run_gang(backend, gang(backend, spec(), 8, SPEEDS)), Ended)) == 4


def test_a_rank_whose_job_fails_is_told_from_its_peers(backend: LocalBackend) -> None:
    heard = run_gang(backend, gang(backend, spec(rows=20), 8, SPEEDS))  # the slow rank has 10 samples
    faults = {f.rank: f.fault for f in of_kind(heard, Failed)}
    assert faults == {0: "peer", 1: "peer", 2: "peer", 3: "job"}
    assert of_kind(run_gang(backend, [train(spec(), 3)]), Ended)[0].steps == 3
