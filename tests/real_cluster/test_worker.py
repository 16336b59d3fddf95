"""The loop of one worker, in a thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from queue import Empty

import pytest
import torch
from worker_jobs import Curve
from worker_talk import Heard, hear, of_kind, over, some, spec, train

from hadoppler.real_system.cluster.learner import Learner, unpack
from hadoppler.real_system.cluster.messages import Command, Ended, Failed, Progress, Quit, Ready, Saved, Started, Stop
from hadoppler.real_system.cluster.worker import Channel, Worker, prepare_torch


class Threaded:
    """One worker as a backend of one."""

    slots, meeting = (), ("nowhere", 0)

    def __init__(self) -> None:
        self.channel = Channel()
        self.thread = threading.Thread(target=self._work, daemon=True)
        self.thread.start()

    def _work(self) -> None:
        prepare_torch()  # here: OpenMP counts threads per thread
        Worker(self.channel).run()

    def send(self, slot: int, command: Command) -> None:
        self.channel.put(command)

    def receive(self, timeout: float) -> Heard:
        try:
            return [(0, self.channel.outbox.get(timeout=timeout))]
        except Empty:
            return []

    def run(self, command: Command) -> Heard:
        self.send(0, command)
        return hear(self, over(command.gang))


@pytest.fixture
def worker() -> Iterator[Threaded]:
    made = Threaded()
    hear(made, some(Ready))
    yield made
    made.send(0, Quit())
    made.thread.join(5)
    assert not made.thread.is_alive()


def the_end(heard: Heard) -> Ended:
    """The one end."""
    (ended,) = of_kind(heard, Ended)
    return ended


def test_a_quota_is_done_and_equals_the_learner_alone(worker: Threaded) -> None:
    heard = worker.run(train(spec(), 25, first=7))
    ended = the_end(heard)
    assert isinstance(heard[0][1], Started)
    assert isinstance(heard[-1][1], Ended)
    assert (ended.reason, ended.steps, ended.overruns) == ("quota", 25, 0)
    assert 0 < ended.compute_s <= ended.worked_s
    learner = Learner(spec())
    losses = [learner.step(at, 1, slice(0, 32), None, at - 7) for at in range(7, 32)]
    assert ended.loss == pytest.approx(sum(losses[-20:]) / 20)
    assert ended.state is not None
    state = unpack(ended.state)
    assert state["steps"] == 25
    for name, value in learner.state()["model"].items():
        assert torch.equal(state["model"][name], value)


def test_it_goes_on_from_a_state(worker: Threaded) -> None:
    half = the_end(worker.run(train(spec(), 10)))
    rest = the_end(worker.run(train(spec(), 10, first=10, counted=10, state=half.state)))
    whole = the_end(worker.run(train(spec(), 20)))
    assert rest.state == whole.state


def test_a_step_lasts_as_long_as_its_pace(worker: Threaded) -> None:
    heard = worker.run(train(spec(), 40, pace_s=0.02))
    ended = the_end(heard)
    assert ended.worked_s == pytest.approx(0.8, rel=0.1)
    assert ended.compute_s < 0.5 * ended.worked_s
    progress = of_kind(heard, Progress)
    assert 4 <= len(progress) <= 8
    for told in progress:
        assert told.worked_s == pytest.approx(told.steps * 0.02, rel=0.1, abs=0.02)
        assert told.loss > 0


def test_overruns_are_counted_and_large_ones_are_not_made_up(worker: Threaded) -> None:
    ended = the_end(worker.run(train(spec(sleep_s=0.03), 10, pace_s=0.01)))
    assert ended.overruns == 10
    assert ended.worked_s > 0.29
    assert the_end(worker.run(train(spec(sleep_s=0.001), 10, pace_s=0.1))).overruns == 0


def test_stop_cuts_the_padding(worker: Threaded) -> None:
    command = train(spec(), 10, pace_s=30.0)
    worker.send(0, command)
    hear(worker, some(Started))
    time.sleep(0.2)
    begin = time.monotonic()
    worker.send(0, Stop(command.gang))
    ended = the_end(hear(worker, over(command.gang)))
    assert time.monotonic() - begin < 1
    assert (ended.reason, ended.steps) == ("stopped", 1)
    assert ended.worked_s == pytest.approx(30.0, abs=0.5)  # so that its rate is not overestimated
    assert ended.state is not None


def test_it_ends_in_time_counted_from_receipt(worker: Threaded) -> None:
    begin = time.monotonic()
    ended = the_end(worker.run(train(spec(), 1000, pace_s=0.05, seconds=0.52)))
    assert 0.5 < time.monotonic() - begin < 0.9
    assert ended.reason == "time"
    assert 9 <= ended.steps <= 11
    late = the_end(worker.run(train(spec(), 10, seconds=0.0)))
    assert (late.reason, late.steps) == ("time", 0)


def test_a_second_gang_is_kept_until_the_first_has_ended(worker: Threaded) -> None:
    first, second, third = (train(spec(), quota, pace_s=0.05) for quota in (6, 3, 5))
    for command in (first, second, third, Stop(third.gang), Stop(99999)):
        worker.send(0, command)
    heard = hear(worker, over(third.gang))
    assert [(a.gang, a.reason, a.steps) for a in of_kind(heard, Ended)] == [
        (first.gang, "quota", 6),
        (second.gang, "quota", 3),
        (third.gang, "stopped", 0),
    ]
    assert [a.gang for a in of_kind(heard, Started)] == [first.gang, second.gang]


def test_states_are_saved_on_the_way(worker: Threaded) -> None:
    heard = worker.run(train(spec(), 35, save_every=10))
    saved = of_kind(heard, Saved)
    assert [answer.steps for answer in saved] == [10, 20, 30]
    assert [unpack(answer.state)["steps"] for answer in saved] == [10, 20, 30]
    assert not of_kind(worker.run(train(spec(), 35, save_every=0)), Saved)
    assert [a.steps for a in of_kind(worker.run(train(spec(), 20, save_every=10)), Saved)] == [10]


def test_a_job_that_fails_does_not_take_the_worker_along(worker: Threaded) -> None:
    (failed,) = of_kind(worker.run(train(spec(fail=True), 5)), Failed)
    assert failed.fault == "job"
    assert "job 'job'" in failed.sentence
    assert "the job is broken" in failed.sentence
    assert "several lines" not in failed.sentence
    (failed,) = of_kind(worker.run(train(spec("Nothing"), 5)), Failed)
    assert "Nothing" in failed.sentence
    (failed,) = of_kind(worker.run(train(spec(), 5, state=b"cut")), Failed)
    assert failed.fault == "job"
    assert the_end(worker.run(train(spec(), 5))).steps == 5


def test_a_restart_of_a_job_reads_no_data_again(worker: Threaded, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    one = spec(mark=str(mark))
    first = the_end(worker.run(train(one, 10)))
    the_end(worker.run(train(one, 10, state=first.state, first=10)))
    again = the_end(worker.run(train(one, 10)))
    assert again.state == first.state  # from the first weights, not from those that it had
    assert mark.read_text().count("data") == 1
    worker.run(train(replace(one, seed=4), 1))
    assert mark.read_text().count("data") == 2


def test_the_learning_rate_follows_the_whole_job(worker: Threaded) -> None:
    Curve.rates.clear()
    worker.run(train(spec(), 4, counted=100, first=7, stretch=2.5))
    assert Curve.rates == [100, 102.5, 105, 107.5]


def test_quit_ends_it_in_the_middle_of_a_step(worker: Threaded) -> None:
    worker.send(0, train(spec(), 10, pace_s=30.0))
    hear(worker, some(Started))
