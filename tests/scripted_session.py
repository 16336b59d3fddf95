"""Sessions over scripted workers: the whole of a real run in virtual time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any
from unittest.mock import patch

from scripted_workers import ScriptedWorkers

from hadoppler import make_scheduler
from hadoppler.envs.cluster import Cluster, Job, SimulationRules
from hadoppler.real_system.cluster import job_rates, job_source, session, store, wall_clock
from hadoppler.real_system.cluster.apart import Question
from hadoppler.real_system.cluster.crew import QUIET_S, Crew
from hadoppler.real_system.cluster.job_rates import JobRates
from hadoppler.real_system.cluster.session import RunOutcome, Session
from hadoppler.real_system.cluster.training_job import JobSpec

RULES = SimulationRules(round_s=4.0, restart_s=0.05, consolidation_s=0.1)


def jobs_of(*steps: int, workers: int = 1, arrival: Sequence[float] = ()) -> list[tuple[Job, JobSpec]]:
    """One job for each number of steps."""
    pairs = []
    for number, count in enumerate(steps):
        when = arrival[number] if number < len(arrival) else 0.0
        job = Job(f"j{number}", when, workers, float(count), "digits", 32)
        pairs.append((job, JobSpec(job.id, "digits", count, workers)))
    return pairs


def make_session(
    folder: Path, cluster: str | Cluster, scheduler: str, workers: ScriptedWorkers | None = None, **more: Any
) -> tuple[Session, ScriptedWorkers]:
    """A session in a folder, and its workers, which are ready."""
    where = Cluster.parse(cluster) if isinstance(cluster, str) else cluster
    found = workers or ScriptedWorkers(where)
    found.start()
    rates = JobRates(where, base_s=more.pop("base_s", 0.05), rates=more.pop("rates", "table"))
    rules = more.pop("rules", RULES)
    options = more.pop("options", {})
    made = make_scheduler(scheduler, **options)
    crew = Crew(found, where, rates.pace, lambda: found.now, more.pop("quiet_s", QUIET_S))
    return Session(folder, where, made, crew, rates, rules, **more), found


def run_session(
    folder: Path, cluster: str, scheduler: str, pairs: Sequence[tuple[Job, JobSpec]], **more: Any
) -> tuple[RunOutcome, ScriptedWorkers]:
    """Run jobs in virtual time."""
    resume = more.pop("resume", False)
    made, workers = make_session(folder, cluster, scheduler, **more)
    with virtual_time(workers):
        return (made.resume() if resume else made.run(pairs)), workers


@contextmanager
def virtual_time(workers: ScriptedWorkers) -> Iterator[None]:
    """Let clocks of sessions show the workers' time, and ask no job's code."""

    class Clock(wall_clock.WallClock):
        def __init__(self, begun: float = 0.0) -> None:
            super().__init__(begun, lambda: workers.now)

    with (
        patch.multiple(session, WallClock=Clock, evaluate_jobs=lambda *_: ({}, {})),
        patch.object(store, "system_seconds", lambda: workers.now),
        patch.object(job_source, "system_seconds", lambda: workers.now),
        patch.object(job_rates, "ask_apart", guessed),
        patch.object(job_source, "Inquiry", Answered),
    ):
        yield


def guessed(questions: Sequence[Question], **_: Any) -> list[dict[str, Any]]:
    """What would be guessed of every job."""
    return [asdict(job_rates.GUESSED) for _ in questions]


class Answered:
    """An inquiry that knows at once."""

    done = True

    def __init__(self, questions: Sequence[Question]) -> None:
        self.questions, self.answers = questions, guessed(questions)

    def stop(self) -> None:
        pass
