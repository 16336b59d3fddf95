"""Runs by the table's clock, in virtual time: what the simulator says is done exactly, also after deaths."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs torch")

from saved_states import saved_states
from scripted_session import RULES, jobs_of, make_session, run_session, virtual_time

from hadoppler import make_scheduler
from hadoppler.envs.cluster import Cluster, Workload, simulate
from hadoppler.real_system.cluster.decisions import read_decisions
from hadoppler.real_system.cluster.job_rates import JobRates
from hadoppler.real_system.cluster.nominal_run import NominalRun

STEPS = (400, 700, 300, 900)


def _weights(folder: Path) -> list[tuple[int, float]]:
    """Steps, and the scripted weight, of every job's last state."""
    return [(done, float(state["model"]["steps"])) for done, state in saved_states(folder) if state is not None]


@pytest.mark.parametrize("name", ["srtf", "gavel", "hadar", "hadare"])
@pytest.mark.parametrize("refill", [False, True])
def test_times_and_placements_are_the_simulator_s(tmp_path: Path, name: str, refill: bool) -> None:
    """Every figure equals the simulation's, and every job has its steps."""
    rules = type(RULES)(4.0, 0.05, refill, "proportional", 0.1)
    pairs = jobs_of(*STEPS)
    outcome, _ = run_session(tmp_path, "lab_like", name, pairs, clock="nominal", rules=rules)
    rates = JobRates(Cluster.parse("lab_like"), base_s=0.05, rates="table")
    rates.prepare(spec for _, spec in pairs)
    workload = Workload(tuple(job for job, _ in pairs), rates.table())
    expected = simulate(
        workload,
        Cluster.parse("lab_like"),
        make_scheduler(name),
        round_s=4.0,
        restart_s=0.05,
        consolidation_s=0.1,
        early_refill=refill,
    )
    np.testing.assert_array_equal(outcome.result.jobs.finish, expected.jobs.finish)
    assert outcome.result.metrics["restarts"] == expected.metrics["restarts"]
    assert [done for done, _ in _weights(tmp_path)] == list(STEPS)


def test_two_runs_are_the_same_whatever_the_workers_do(tmp_path: Path) -> None:
    """Slow, dying and resumed workers change neither decisions nor weights."""
    calm = tmp_path / "calm"
    calm.mkdir()
    run_session(calm, "lab_like", "hadare", jobs_of(*STEPS), clock="nominal")
    rough = tmp_path / "rough"
    rough.mkdir()
    made, workers = make_session(rough, "lab_like", "hadare", clock="nominal")
    workers.slow[2] = 5.0
    rng = np.random.default_rng(3)
    for slot in range(5):
        workers.kill(slot, float(rng.uniform(0, 60)))
    with virtual_time(workers):
        outcome = made.run(jobs_of(*STEPS))
    assert outcome.result.metrics["finished"] == 4
    assert _weights(rough) == _weights(calm)
    cluster = Cluster.parse("lab_like")
    first, second = (list(read_decisions(folder, cluster)) for folder in (calm, rough))
    assert [item.view.time for item in first] == [item.view.time for item in second]
    assert all(np.array_equal(a.allocation.node, b.allocation.node) for a, b in zip(first, second, strict=True))


class Crash(Exception):
    """The coordinator dies."""


def test_an_interrupted_run_goes_on_to_the_same_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed between two parts and begun again, it makes no step twice and ends with the same weights."""
    for name in ("calm", "rough"):
        (tmp_path / name).mkdir()
    run_session(tmp_path / "calm", "lab_like", "hadare", jobs_of(*STEPS), clock="nominal")
    close, count = NominalRun._close, [0]

    def dying(run: NominalRun, *arguments: object) -> None:
        count[0] += 1
        if count[0] in (3, 11, 30):
            raise Crash
        close(run, *arguments)

    monkeypatch.setattr(NominalRun, "_close", dying)
    resume = False
    for _ in range(4):
        try:
            run_session(tmp_path / "rough", "lab_like", "hadare", jobs_of(*STEPS), clock="nominal", resume=resume)
            break
        except Crash:
            resume = True
    assert _weights(tmp_path / "rough") == _weights(tmp_path / "calm")
