"""Runs by the wall clock, in virtual time: as the simulator says, exact in steps, and unshaken by deaths."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs torch")

import torch
from saved_states import saved_states
from scripted_session import RULES, Answered, jobs_of, make_session, run_session, virtual_time
from scripted_workers import state_after

from hadoppler import make_scheduler
from hadoppler.envs.cluster import Cluster, Workload, simulate
from hadoppler.envs.cluster.cluster import Node
from hadoppler.envs.cluster.timeline import find_stays, timeline
from hadoppler.envs.errors import CheckpointError
from hadoppler.real_system.cluster import job_source
from hadoppler.real_system.cluster.apart import Question
from hadoppler.real_system.cluster.decisions import read_decisions, replay
from hadoppler.real_system.cluster.job_rates import JobRates
from hadoppler.real_system.cluster.job_source import submit
from hadoppler.real_system.cluster.learner import State, pack, unpack
from hadoppler.real_system.cluster.messages import Failed, Train
from hadoppler.real_system.cluster.real_run import RunSettings
from hadoppler.real_system.cluster.store import RunStore

SCHEDULERS = ("yarn_cs", "tiresias", "srtf", "gavel_max_min", "gavel_makespan", "hadar", "hadar_horizon", "hadare")


def _named(name: str) -> tuple[str, dict]:
    for objective in ("max_min", "makespan"):
        if name == f"gavel_{objective}":
            return "gavel", {"objective": objective}
    return ("hadar", {"mode": "horizon"}) if name == "hadar_horizon" else (name, {})


TROUBLES: dict[str, tuple[Callable[[State, int], None], str]] = {
    "names": (lambda state, gang: state["model"].update({f"own{gang}": torch.zeros(1)}), "not of one model"),
    "shapes": (lambda state, gang: state["model"].update(more=torch.zeros(gang + 1)), "not of one model"),
    "texts": (lambda state, gang: state["optimizer"].update(name=f"own{gang}"), "the copies disagree about"),
}
"""Name -> what makes the states of different gangs disagree, and what is said of it."""


def disagreeing(trouble: str, whom: Callable[[Train], bool]) -> Callable[[Train, int], bytes]:
    """States of scripted workers, of which some do not go together."""

    def state(train: Train, steps: int) -> bytes:
        found = unpack(state_after(train, steps))
        if whom(train):
            TROUBLES[trouble][0](found, train.gang)
        return pack(found)

    return state


def _states(folder: Path) -> dict[int, int]:
    """Row -> steps of the job in its last saved state, which can be read."""
    return {row: done for row, (done, _) in enumerate(saved_states(folder))}


@pytest.mark.parametrize("name", SCHEDULERS)
def test_measured_times_are_those_of_the_simulator(tmp_path: Path, name: str) -> None:
    """Five jobs on five unequal nodes: total time and mean completion are as simulated, within a tenth."""
    scheduler, options = _named(name)
    pairs = jobs_of(400, 700, 300, 900, 500)
    outcome, _ = run_session(tmp_path, "lab_like", scheduler, pairs, options=options)
    cluster, rates = Cluster.parse("lab_like"), JobRates(Cluster.parse("lab_like"), base_s=0.05, rates="table")
    rates.prepare(spec for _, spec in pairs)
    workload = Workload(tuple(job for job, _ in pairs), rates.table())
    rules = {key: getattr(RULES, key) for key in ("round_s", "restart_s", "consolidation_s")}
    expected = simulate(workload, cluster, make_scheduler(scheduler, **options), **rules).metrics
    measured = outcome.result.metrics
    assert measured["finished"] == 5
    for key in ("ttd_s", "mean_jct_s"):
        assert measured[key] == pytest.approx(expected[key], rel=0.1), key
    assert measured["cru"] == pytest.approx(expected["cru"], abs=0.1)
    assert _states(tmp_path) == dict(enumerate((400, 700, 300, 900, 500)))


@pytest.mark.parametrize("name", ["tiresias", "gavel_max_min", "hadar", "hadar_horizon", "hadare"])
def test_a_scheduler_decides_again_as_it_did(tmp_path: Path, name: str) -> None:
    """Fed with the views of ``decisions.jsonl``, a new scheduler makes the same placements."""
    scheduler, options = _named(name)
    run_session(tmp_path, "lab_like", scheduler, jobs_of(400, 700, 300, 900), options=options, rates="formula")
    again = make_scheduler(scheduler, **options)
    again.reset(Cluster.parse("lab_like"), RULES.round_s, np.random.default_rng(0))
    assert replay(again, read_decisions(tmp_path, Cluster.parse("lab_like"))) > 5


def test_deaths_cost_at_most_what_was_not_saved(tmp_path: Path) -> None:
    """20 runs of 1000 steps, each with a death at a random moment: 1000 steps in the end, at most 100 made again."""
    rng = np.random.default_rng(0)
    for number in range(20):
        made, workers = make_session(tmp_path / str(number), "v100:1 v100:1", "srtf")
        (tmp_path / str(number)).mkdir()
        for slot in range(2):
            workers.kill(slot, float(rng.uniform(0, 50)))
        with virtual_time(workers):
            outcome = made.run(jobs_of(1000))
        assert outcome.result.metrics["finished"] == 1
        lost = sum(event["kind"] == "lost" for event in outcome.events)
        assert outcome.result.metrics["lost_steps"] <= 100 * lost
        assert _states(tmp_path / str(number)) == {0: 1000}


def test_a_job_that_dies_at_every_start_fails_and_the_others_go_on(tmp_path: Path) -> None:
    """Whoever trains job 0 dies: it is given up after three tries, and told so."""
    made, workers = make_session(tmp_path, "v100:1 v100:1", "srtf")
    begin = workers._begin

    def deadly(gang: object) -> None:
        begin(gang)
        if gang.train.spec.id == "j0":
            workers.kill(gang.slots[0], workers.now + 0.1)

    workers._begin = deadly
    with virtual_time(workers):
        outcome = made.run(jobs_of(1000, 400))
    left_out = outcome.result.left_out
    assert list(left_out) == ["j0"]
    assert left_out["j0"].startswith("failed: 3 times")
    assert "SIGKILL" in left_out["j0"]
    assert outcome.result.metrics["finished"] == 1


def test_forks_count_whole_steps_once(tmp_path: Path) -> None:
    """H24: 1000 steps on nodes of 10 and 5 steps/s, rounds of 60 s: 900 after one round, all after 66.7 s."""
    rules = type(RULES)(round_s=60.0, restart_s=0.0, consolidation_s=0.0)
    seen = []
    nodes = Node("n0", {"a": 1}), Node("n1", {"b": 1})
    cluster = Cluster(nodes, relative_speed={"a": 1.0, "b": 0.5})
    made, workers = make_session(tmp_path, cluster, "hadare", base_s=0.1, rules=rules)
    workers.startup_s = 0.0
    made.watch = lambda run: seen.append(run.tracker.jobs[0].done)
    with virtual_time(workers):
        outcome = made.run(jobs_of(1000))
    assert 900 in seen
    assert max(seen) == 1000
    assert outcome.result.metrics["ttd_s"] == pytest.approx(66.7, abs=0.3)
    assert _states(tmp_path) == {0: 1000}


def test_a_lost_copy_counts_nothing_and_the_rest_is_averaged(tmp_path: Path) -> None:
    """One of five copies dies in the first round: its steps are made later, the total is exact."""
    made, workers = make_session(tmp_path, "lab_like", "hadare")
    workers.kill(1, 1.5)
    with virtual_time(workers):
        outcome = made.run(jobs_of(1500))
    assert _states(tmp_path) == {0: 1500}
    assert outcome.result.metrics["lost_steps"] > 0
    assert outcome.result.metrics["finished"] == 1


@pytest.mark.parametrize("clock", ["wall", "nominal"])
@pytest.mark.parametrize("trouble", sorted(TROUBLES))
def test_copies_that_cannot_be_averaged_are_a_failure_of_their_job_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: str, trouble: str
) -> None:
    """Job 0's are never of one model: it is given up after three tries; the other has its steps."""
    monkeypatch.setattr("scripted_workers.state_after", disagreeing(trouble, lambda train: train.spec.id == "j0"))
    outcome, _ = run_session(tmp_path, "lab_like", "hadare", jobs_of(900, 700), clock=clock)
    assert list(outcome.failed) == ["j0"]
    assert outcome.failed["j0"].startswith("failed: 3 times")
    assert TROUBLES[trouble][1] in outcome.failed["j0"]
    assert sum("its copies cannot be averaged" in event["text"] for event in outcome.events) == 3
    assert outcome.result.metrics["lost_steps"] > 0
    assert _states(tmp_path)[0] < 900
    assert _states(tmp_path)[1] == 700


@pytest.mark.parametrize("clock", ["wall", "nominal"])
def test_a_job_whose_copies_did_not_agree_once_goes_on_from_the_state_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: str
) -> None:
    """The gangs of the first round do not go together: their steps are made again, and all are in the end."""
    wrong = disagreeing("names", lambda train: train.gang < 2)
    monkeypatch.setattr("scripted_workers.state_after", wrong)
    outcome, _ = run_session(tmp_path, "lab_like", "hadare", jobs_of(900), clock=clock)
    assert sum("its copies cannot be averaged" in event["text"] for event in outcome.events) == 1
    assert outcome.result.metrics["finished"] == 1
    assert outcome.result.metrics["lost_steps"] > 0
    assert _states(tmp_path) == {0: 900}


def test_a_stalled_worker_is_ended(tmp_path: Path) -> None:
    """A worker that falls silent is ended after ``quiet_s``, and its job goes on elsewhere."""
    made, workers = make_session(tmp_path, "v100:1 v100:1", "srtf", quiet_s=3.0)
    workers.at(5.0, lambda: workers.deaf.update((0, 1)))
    with virtual_time(workers):
        outcome = made.run(jobs_of(600, 500))
    assert outcome.result.metrics["finished"] == 2
    assert any("said nothing" in event["text"] for event in outcome.events)
    assert _states(tmp_path) == {0: 600, 1: 500}


@pytest.mark.parametrize(
    ("quiet_s", "reading_s", "patience_s"),
    [
        (30.0, 40.0, None),
        (30.0, 110.0, None),
        (30.0, 130.0, 120),
        (60.0, 110.0, None),
        (200.0, 190.0, None),
        (3.0, 5.0, 3),
    ],
)
@pytest.mark.parametrize("workers", [1, 2])
def test_a_worker_may_read_its_data_before_the_first_step(
    tmp_path: Path, quiet_s: float, reading_s: float, patience_s: int | None, workers: int
) -> None:
    """It says nothing meanwhile; one that never comes is ended all the same, and its job given up."""
    made, crew = make_session(tmp_path, "v100:1 v100:1", "srtf", quiet_s=quiet_s, rates="formula")
    crew.startup_s = reading_s
    with virtual_time(crew):
        outcome = made.run(jobs_of(60, workers=workers))
    if patience_s is None:
        assert outcome.result.metrics["finished"] == 1
        assert not any("said nothing" in event["text"] for event in outcome.events)
    else:
        assert f"it said nothing for {patience_s} s" in outcome.failed["j0"]


def test_a_worker_that_has_begun_is_ended_after_quiet_s(tmp_path: Path) -> None:
    """The longer patience is for the time before its first step only."""
    made, workers = make_session(tmp_path, "v100:1", "srtf")
    workers.at(5.0, lambda: workers.deaf.add(0))
    with virtual_time(workers):
        outcome = made.run(jobs_of(600))
    (ended,) = [event for event in outcome.events if event["kind"] == "worker lost"]
    assert ended["time"] == pytest.approx(35.0, abs=1.0)
    assert outcome.result.metrics["finished"] == 1


def test_submitted_and_cancelled_jobs(tmp_path: Path) -> None:
    """A job is submitted while the run goes on, another is cancelled, a wrong one is refused with the reason."""
    made, workers = make_session(tmp_path, "v100:1 v100:1", "srtf")
    numbers = {}

    def ask() -> None:
        store = RunStore(tmp_path)
        numbers["good"] = store.ask("submit", {"task": "digits", "steps": 100, "id": "late"})
        numbers["twice"] = store.ask("submit", {"task": "digits", "steps": 100, "id": "j0"})
        numbers["wrong"] = store.ask("submit", {"task": "digits", "steps": -1})
        numbers["seed"] = store.ask("submit", {"task": "digits", "steps": 5, "seed": "many"})
        numbers["weight"] = store.ask("submit", {"task": "digits", "steps": 5, "weight": "heavy"})
        numbers["gone"] = store.ask("cancel", {"id": "j1"})
        numbers["unknown"] = store.ask("cancel", {"id": "nobody"})
        store.close()

    workers.at(6.0, ask)
    with virtual_time(workers):
        outcome = made.run(jobs_of(600, 900, 300))
    store = RunStore(tmp_path)
    answers = {name: store.answer_of(number) for name, number in numbers.items()}
    assert answers["good"] == answers["gone"] == "taken"
    assert "there is a job 'j0' already" in answers["twice"]
    assert "steps of the job is -1" in answers["wrong"]
    assert "seed of the job is 'many'" in answers["seed"]
    assert "weight of the job is 'heavy'" in answers["weight"]
    assert "'nobody' is unknown" in answers["unknown"]
    assert outcome.result.left_out == {"j1": "cancelled"}
    assert outcome.result.metrics["finished"] == 3
    with pytest.raises(ValueError, match="has ended"):
        submit(tmp_path, {"task": "digits", "steps": 5})


def test_the_run_goes_on_while_a_new_jobs_code_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked for ten seconds, a submitted job begins then, but has waited since it was submitted; what runs goes on."""
    made, workers = make_session(tmp_path, "v100:1 v100:1", "srtf", rates="formula")
    numbers = {}

    class Slow(Answered):
        """Knows ten seconds after it was asked."""

        def __init__(self, questions: Sequence[Question]) -> None:
            super().__init__(questions)
            self.due = workers.now + 10.0

        @property
        def done(self) -> bool:
            return workers.now >= self.due

    def ask() -> None:
        store = RunStore(tmp_path)
        numbers["slow"] = store.ask("submit", {"task": "diabetes", "steps": 50, "id": "slow"})
        numbers["same"] = store.ask("submit", {"task": "diabetes", "steps": 50, "id": "slow"})
        numbers["gone"] = store.ask("submit", {"task": "language", "steps": 50, "id": "gone"})
        numbers["cancel"] = store.ask("cancel", {"id": "gone"})
        store.close()

    workers.at(2.0, ask)
    with virtual_time(workers):
        monkeypatch.setattr(job_source, "Inquiry", Slow)
        outcome = made.run(jobs_of(120))  # six seconds: nothing is left while the code is asked
    jobs, store = outcome.result.jobs, RunStore(tmp_path)
    answers = {name: store.answer_of(number) for name, number in numbers.items()}
    assert answers["slow"] == answers["cancel"] == "taken"
    assert "there is a job 'slow' already" in answers["same"]
    assert "cancelled before it was taken in" in answers["gone"]
    assert jobs.id == ("j0", "slow")
    assert jobs.finish[0] == pytest.approx(6.0, abs=0.5)
    assert jobs.arrival[1] == pytest.approx(2.0)
    assert jobs.start[1] == pytest.approx(14.0, abs=0.5)  # heard of at the end of a round, at 4 s
    assert any("its code is asked what it needs" in event["text"] for event in outcome.events)
    assert jobs.finished.all()


def test_jobs_come_at_their_time(tmp_path: Path) -> None:
    """A job that arrives when nothing is left is waited for."""
    outcome, _ = run_session(tmp_path, "v100:1", "srtf", jobs_of(100, 100, arrival=(1.0, 30.0)))
    jobs = outcome.result.jobs
    assert jobs.arrival.tolist() == [1.0, 30.0]
    assert (jobs.queueing < 0.5).all()
    assert jobs.finish[1] == pytest.approx(35.0, abs=0.5)


def test_submitted_jobs_keep_their_order(tmp_path: Path) -> None:
    """One was submitted before the last job came, and is taken in behind it: its arrival is not before that one's."""
    made, workers = make_session(tmp_path, "v100:1", "srtf")
    numbers = []

    def ask() -> None:
        store = RunStore(tmp_path)
        numbers.append(store.ask("submit", {"task": "digits", "steps": 40}))
        store.close()

    workers.at(4.5, ask)
    with virtual_time(workers):
        outcome = made.run(jobs_of(240, 100, arrival=(0.0, 6.0)))
    assert outcome.result.jobs.id == ("j0", "j1", f"job-{numbers[0]}")
    assert outcome.result.jobs.arrival.tolist() == pytest.approx([0.0, 6.0, 6.0])
    assert outcome.result.jobs.finished.all()


def test_use_never_exceeds_all_there_is(tmp_path: Path) -> None:
    """One fails long after the other ended: its use counts, and so does its time; 30 s of 40 were used."""
    made, workers = make_session(tmp_path, "v100:1 v100:1", "srtf", settings=RunSettings(save_every=1000, tries=1))
    workers.kill(1, 20.0)
    with virtual_time(workers):
        outcome = made.run(jobs_of(200, 3000))
    metrics = outcome.result.metrics
    assert metrics["ttd_s"] == pytest.approx(10.0, abs=0.5)
    assert outcome.result.left_out["j1"].startswith("failed: 1 times")
    assert metrics["cru"] == metrics["gru"] == pytest.approx(30 / 40, abs=0.03)


def test_the_same_failure_is_told_once(tmp_path: Path) -> None:
    """Whoever trains it says the same each time: it is told once, before the verdict; the events have all."""
    made, workers = make_session(tmp_path, "v100:1", "srtf")
    begin, told = workers._begin, []

    def failing(gang: object) -> None:
        begin(gang)
        gang.alive = False
        sentence = "job 'j0' (task digits): no."
        workers.at(workers.now + 0.1, lambda: workers._out.append((0, Failed(gang.train.gang, 0, "job", sentence))))

    def watch(run: object) -> None:
        told[:] = run.notes

    workers._begin, made.watch = failing, watch
    with virtual_time(workers):
        outcome = made.run(jobs_of(100))
    assert [text for text in told if "no." in text] == ["job 'j0': a gang failed: job 'j0' (task digits): no."]
    assert sum("a gang failed" in event["text"] for event in outcome.events) == 3
    assert outcome.failed == {
        "j0": "failed: 3 times without a new checkpoint; the last time: job 'j0' (task digits): no."
    }


class Crash(Exception):
    """The coordinator dies."""


def _crash(folder: Path, pairs: list, when: float, **more: object) -> None:
    """Begin a run whose coordinator is killed."""

    def crash() -> None:
        raise Crash

    made, workers = make_session(folder, "v100:1 k80:1", "srtf", **more)
    workers.at(when, crash)
    with virtual_time(workers), pytest.MonkeyPatch.context() as patch:
        patch.setattr("hadoppler.real_system.cluster.live_run.LiveRun.halt", lambda run: None)
        with pytest.raises(Crash):
            made.run(pairs)


@pytest.mark.parametrize("end", ["cancel", "crash"])
def test_nobody_is_asked_any_more_by_a_run_that_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str) -> None:
    """Code that hangs while it is asked is left alone when its job is cancelled, and when the run fails."""
    made, workers = make_session(tmp_path, "v100:1", "srtf", rates="formula")
    stopped = []

    class Silent(Answered):
        """Never knows."""

        done = False

        def stop(self) -> None:
            stopped.append(workers.now)

    def ask(kind: str, content: dict) -> None:
        store = RunStore(tmp_path)
        store.ask(kind, content)
        store.close()

    def crash() -> None:
        raise Crash

    workers.at(2.0, lambda: ask("submit", {"task": "diabetes", "steps": 50, "id": "silent"}))
    workers.at(5.0, crash if end == "crash" else lambda: ask("cancel", {"id": "silent"}))
    with virtual_time(workers):
        monkeypatch.setattr(job_source, "Inquiry", Silent)
        if end == "crash":
            with pytest.raises(Crash):
                made.run(jobs_of(200))
        else:
            assert made.run(jobs_of(200)).result.metrics["finished"] == 1
    assert len(stopped) == 1


@pytest.mark.parametrize("rates", ["table", "formula"])
def test_rounds_before_a_crash_are_in_the_pictures(tmp_path: Path, rates: str) -> None:
    """Dead at 13.5 s, and resumed: the log begins at 0, and nobody has more than all the workers at any time."""
    _crash(tmp_path, jobs_of(100, 700, 300), 13.5, rates=rates)
    outcome, _ = run_session(tmp_path, "v100:1 k80:1", "srtf", [], resume=True, rates=rates)
    result = outcome.result
    assert result.metrics["finished"] == 3
    log = result.rounds
    assert log.time[0] == 0.0
    assert log.time == sorted(log.time)
    assert (log.active[0], log.gangs[0], log.restarts[0]) == (3, 2, 2)
    stays = find_stays(log)
    before = (stays.start < 12.0) & (stays.end > stays.start)
    assert set(stays.job[before].tolist()) == {0, 1, 2}
    drawn = timeline(result, 2000)
    assert drawn.busy.max() <= 1 + 1e-9
    assert (drawn.busy.sum(axis=0) * np.diff(drawn.edges)).sum() == pytest.approx(result.node_held_s.sum(), rel=0.05)
    assert sum(log.restarts) == result.metrics["restarts"]


def test_steps_lost_with_the_run_are_counted(tmp_path: Path) -> None:
    """20 steps/s, nothing saved, killed at 3.5 s: what was told by 3 s is lost, and counted as such."""
    settings = RunSettings(save_every=1000)
    _crash(tmp_path, jobs_of(200), 3.5, settings=settings)
    outcome, _ = run_session(tmp_path, "v100:1 k80:1", "srtf", [], resume=True, settings=settings)
    assert outcome.result.jobs.lost_steps[0] == pytest.approx(60, abs=22)
    assert _states(tmp_path) == {0: 200}


def test_a_job_cancelled_before_it_came_does_not_come_after_a_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cancelled at 3 s, due at 30 s; the run dies at 6 s and goes on: the job is never begun."""
    pairs = jobs_of(400, 100, arrival=(0.0, 30.0))
    made, workers = make_session(tmp_path, "v100:1", "srtf")

    def ask() -> None:
        store = RunStore(tmp_path)
        store.ask("cancel", {"id": "j1"})
        store.close()

    def crash() -> None:
        raise Crash

    workers.at(3.0, ask)
    workers.at(6.0, crash)
    monkeypatch.setattr("hadoppler.real_system.cluster.live_run.LiveRun.halt", lambda run: None)
    with virtual_time(workers), pytest.raises(Crash):
        made.run(pairs)
    outcome, _ = run_session(tmp_path, "v100:1", "srtf", [], resume=True)
    assert outcome.result.jobs.id == ("j0",)
    assert outcome.result.metrics["finished"] == 1


def test_a_coordinator_that_dies_goes_on_where_it_was(tmp_path: Path) -> None:
    """Killed at 20 random moments and resumed: every job is done once, with exactly its steps."""
    rng = np.random.default_rng(1)
    for scheduler in ("gavel", "hadare"):
        folder = tmp_path / scheduler
        folder.mkdir()
        pairs, resume = jobs_of(500, 800, 300, arrival=(0.0, 0.0, 12.0)), False
        for _ in range(20):
            made, workers = make_session(folder, "lab_like", scheduler, rates="formula")

            def crash() -> None:
                raise Crash

            workers.at(float(rng.uniform(0.0, 6.0)), crash)
            with virtual_time(workers), pytest.MonkeyPatch.context() as patch:
                patch.setattr("hadoppler.real_system.cluster.live_run.LiveRun.halt", lambda run: None)
                try:
                    outcome = made.resume() if resume else made.run(pairs)
                    break
                except Crash:
                    resume = True
        else:
            outcome, _ = run_session(folder, "lab_like", scheduler, pairs, resume=True, rates="formula")
        assert outcome.result.metrics["finished"] == 3, scheduler
        assert _states(folder) == {0: 500, 1: 800, 2: 300}


def test_a_full_disk_ends_a_run_with_one_sentence_and_it_goes_on_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No room for the third checkpoint: the run ends, what was saved is there, and resume finishes."""
    count, real = [0], os.fsync

    def full(number: int) -> None:
        count[0] += 1
        if count[0] > 12:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(number)

    with monkeypatch.context() as patch:
        patch.setattr("hadoppler.real_system.cluster.checkpoints.os.fsync", full)
        with pytest.raises(CheckpointError, match=r"job 'j\d' after \d+ steps cannot be written \(No space left"):
            run_session(tmp_path, "v100:1 v100:1", "srtf", jobs_of(1000, 800))
    assert 0 < sum(_states(tmp_path).values()) < 1800
    outcome, _ = run_session(tmp_path, "v100:1 v100:1", "srtf", [], resume=True)
    assert outcome.result.metrics["finished"] == 2
    assert _states(tmp_path) == {0: 1000, 1: 800}
