"""Whole runs with real workers: gangs that move, copies that are averaged, processes that are killed."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs torch")
pytest.importorskip("sklearn", reason="needs scikit-learn")

import torch
from saved_states import saved_states

from hadoppler import make_scheduler
from hadoppler.envs.cluster import Cluster, Job, SimulationRules
from hadoppler.envs.cluster.cluster import Node
from hadoppler.real_system.cluster.crew import Crew
from hadoppler.real_system.cluster.decisions import read_decisions, replay
from hadoppler.real_system.cluster.emulation import OwnPace, node_speeds
from hadoppler.real_system.cluster.job_rates import JobRates
from hadoppler.real_system.cluster.learner import Learner
from hadoppler.real_system.cluster.local import LocalBackend
from hadoppler.real_system.cluster.session import RunOutcome, Session
from hadoppler.real_system.cluster.slots import slots_of
from hadoppler.real_system.cluster.training_job import JobSpec

NODES = Cluster(
    (*(Node(f"n{number}", {"fast": 1}) for number in range(3)), Node("n3", {"slow": 1})),
    "3 fast, 1 slow",
    {"fast": 1.0, "slow": 0.25},
)
RULES = SimulationRules(round_s=1.0, restart_s=0.05, early_refill=True, consolidation_s=0.1)


@pytest.fixture(scope="module")
def crew() -> Iterator[Crew]:
    """Four workers, on three fast nodes and a slow one."""
    backend = LocalBackend(slots_of(NODES))
    backend.start()
    try:
        yield Crew(backend, NODES, OwnPace(node_speeds(NODES)))
    finally:
        backend.close()


def _session(folder: Path, crew: Crew, scheduler: str, base_s: float, **more: object) -> Session:
    folder.mkdir(exist_ok=True)
    rates = JobRates(NODES, base_s=base_s, rates=more.pop("rates", "table"))
    return Session(folder, NODES, make_scheduler(scheduler), crew, rates, more.pop("rules", RULES), **more)


def _pair(name: str, task: str, steps: int, workers: int = 1, arrival: float = 0.0) -> tuple[Job, JobSpec]:
    return Job(name, arrival, workers, float(steps), task, 32), JobSpec(name, task, steps, workers)


def test_a_gang_moves_in_the_middle_and_learns_as_alone(tmp_path: Path, crew: Crew) -> None:
    """Four workers, 3 fast and 1 slow, give way to another job and go on: weights are those of one process."""
    pairs = [_pair("gang", "diabetes", 400, workers=4), _pair("urgent", "diabetes", 40, arrival=1.5)]
    outcome = _session(tmp_path, crew, "hadar", 0.02).run(pairs)
    assert outcome.result.metrics["finished"] == 2
    assert outcome.result.jobs.restarts[0] >= 2
    done, state = saved_states(tmp_path)[0]
    assert done == 400
    alone = Learner(pairs[0][1])
    for step in range(0, 400, 4):
        alone.step(step, 4, slice(0, 4 * 32))
    for name, value in alone.state()["model"].items():
        torch.testing.assert_close(state["model"][name], value, rtol=1e-3, atol=1e-4)


def test_a_gang_is_as_fast_as_its_workers_together(tmp_path: Path, crew: Crew) -> None:
    """The proportional rule: 3 of speed 1 and 1 of speed 1/4 do 3.25 / base steps a second, within 15 %."""
    begin = time.monotonic()
    outcome = _session(tmp_path, crew, "hadar", 0.05).run([_pair("gang", "diabetes", 260, workers=4)])
    took = float(outcome.result.jobs.finish[0])
    assert took <= time.monotonic() - begin
    assert 260 / took == pytest.approx(3.25 / 0.05, rel=0.15)


def test_copies_train_on_unequal_nodes_and_become_one(tmp_path: Path, crew: Crew) -> None:
    """HadarE: every node works, the total is exact, the average is finite and has learned."""
    outcome = _session(tmp_path, crew, "hadare", 0.01, rates="formula").run([_pair("job", "digits", 900)])
    metrics = outcome.result.metrics
    done, state = saved_states(tmp_path)[0]
    assert done == 900
    assert all(torch.isfinite(value.float()).all() for value in state["model"].values())
    assert outcome.quality["job"]["accuracy"] > 0.5
    assert metrics["cru"] > 0.9
    assert len(outcome.consolidations_s) >= 3
    again = make_scheduler("hadare")
    again.reset(NODES, RULES.round_s, np.random.default_rng(0))
    assert replay(again, read_decisions(tmp_path, NODES)) >= 3


def _kill_later(crew: Crew, rng: np.random.Generator, least: float, most: float) -> threading.Thread:
    """SIGKILL for a worker that trains, in a while."""

    def kill() -> None:
        time.sleep(float(rng.uniform(least, most)))
        busy = [slot for gang in list(crew.gangs.values()) for slot in gang.slots]
        if busy:
            os.kill(crew.backend.pids[busy[0]], signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    return thread


def _exact(outcome: RunOutcome, folder: Path) -> None:
    assert outcome.result.metrics["finished"] == 1
    assert outcome.result.metrics["lost_steps"] <= 100
    assert saved_states(folder)[0][0] == 1000


def test_kills_at_random_moments_cost_at_most_a_checkpoint(tmp_path: Path, crew: Crew) -> None:
    """H23: workers are killed at random: 1000 steps every time, at most 100 made twice."""
    rng = np.random.default_rng(0)
    for number in range(6):
        killer = _kill_later(crew, rng, 0.1, 1.6)
        folder = tmp_path / str(number)
        outcome = _session(folder, crew, "srtf", 0.0015).run([_pair("job", "diabetes", 1000)])
        killer.join()
        _exact(outcome, folder)


def test_jobs_that_always_die_or_fail_do_not_stop_the_others(tmp_path: Path, crew: Crew) -> None:
    """Each is given up after three tries, with its reason; a third job is finished."""
    pairs = [_pair("good", "diabetes", 300)]
    for name in ("Deadly", "Broken"):
        pairs.append(_pair(name, f"hopeless_jobs:{name}", 100))
    outcome = _session(tmp_path, crew, "srtf", 0.01).run(pairs)
    assert outcome.result.metrics["finished"] == 1
    assert "SIGKILL" in outcome.result.left_out["Deadly"]
    assert "no such thing" in outcome.result.left_out["Broken"]
