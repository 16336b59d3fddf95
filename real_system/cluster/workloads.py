"""Workloads of real training jobs: drawn, or from a CSV of one's own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from ...envs.arguments import as_list, is_whole, read_range
from ...envs.cluster import Job, ThroughputTable, Workload, read_workload
from ...envs.cluster.csv_rows import numbered_dicts, whole
from ...envs.cluster.job import join_kind, split_kind
from ...envs.cluster.workload import Rejected
from ...envs.errors import HadopplerError, TraceError
from .training_job import JobSpec, TrainingJobError, make_training_job

OWN_TASKS = ("digits", "language", "translation", "recommendation", "diabetes")
"""Tasks whose data are always there."""


def task_workload(
    *,
    jobs: int = 3,
    tasks: Sequence[str] = OWN_TASKS,
    steps: Sequence[int] = (400, 1200),
    workers: Sequence[int] = (1,),
    per_minute: float | None = None,
    seed: int = 0,
) -> Workload:
    """Draw jobs: a task in turn, from a random one on; steps uniform in a range, workers uniform over the given ones.

    Args:
        jobs: how many.
        tasks: names of tasks, or ``package.module:Class``.
        steps: fewest and most.
        workers: sizes of gangs.
        per_minute: mean arrivals a minute of a Poisson process that starts with a job at 0; None: all at 0.
        seed: of all draws.

    Raises:
        TraceError: a number is out of range.
    """
    tasks, workers = as_list(tasks), as_list(workers)
    low, high = read_range("steps", steps, TraceError, least=1, whole=True)
    if jobs < 1 or not tasks or not workers or not all(is_whole(size) and size >= 1 for size in workers):
        raise TraceError(
            f"jobs is {jobs}, tasks {tasks}, workers {workers}; expected a number of jobs from 1 up, a task, and gangs "
            "of 1 worker or more."
        )
    if per_minute is not None and not per_minute > 0:
        raise TraceError(f"per_minute is {per_minute}; expected a number above 0, or null for arrivals at 0.")
    rng = np.random.default_rng(seed)
    arrival = np.zeros(jobs)
    if per_minute is not None:
        arrival[1:] = np.cumsum(rng.exponential(60.0 / per_minute, jobs - 1))
    first = int(rng.integers(len(tasks)))
    drawn = [
        Job(
            f"{number}-{tasks[(first + number) % len(tasks)].rpartition(':')[2]}",
            float(arrival[number]),
            int(rng.choice(workers)),
            float(rng.integers(low, high + 1)),
            tasks[(first + number) % len(tasks)],
        )
        for number in range(jobs)
    ]
    return Workload(tuple(drawn), _any_table(job.kind for job in drawn), name=f"tasks-{jobs}-s{seed}")


def file_workload(path: str | Path, *, seed: int = 0) -> Workload:
    """Jobs of a CSV with the columns ``arrival`` [s], ``workers``, ``model`` (a task) and ``steps``.

    ``id``, ``batch_size`` and ``weight`` may stand there, too. Rows that cannot be used are in ``rejected``, also those
    whose task cannot be made, whose numbers are not whole, or whose id another row has.

    Raises:
        TraceError: the file cannot be read, lacks a column, or has no usable row.
    """
    path = Path(path)
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise TraceError(f"{path}: cannot be read ({error}); give a CSV of jobs.") from error
    lines = [line if not line.lstrip().startswith("#") else "" for line in lines]
    rows = dict(numbered_dicts(lines, path, ("arrival", "workers", "model", "steps")))
    checks = RowChecks()
    faults = {line: fault for line, row in rows.items() if (fault := checks.fault(line, row))}
    kinds = [join_kind(*_kind_of(row)) for line, row in rows.items() if line not in faults]
    found = read_workload(path, _any_table(kinds), format="csv", seed=seed) if kinds else Workload(())
    jobs = tuple(job for job in found.jobs if job.line not in faults)
    if not jobs:
        first = next(iter([*(f"line {line}: {fault}" for line, fault in faults.items()), "it has none"]))
        raise TraceError(f"{path}: none of its {len(rows)} rows is a usable job; {first.rstrip('.')}.")
    rejected = {row.line: row for row in found.rejected}
    rejected |= {line: Rejected(line, fault.rstrip("."), str(rows[line])[:200]) for line, fault in faults.items()}
    return replace(found, jobs=jobs, rejected=tuple(rejected[line] for line in sorted(rejected)))


@dataclass
class RowChecks:
    """What real jobs must tell beyond those that are only simulated."""

    _ids: dict[str, int] = field(default_factory=dict)
    _tasks: dict[str, str] = field(default_factory=dict)

    def fault(self, line: int, row: Mapping[str, str]) -> str:
        """Why a row cannot be used; an empty text if it can, as far as is checked here."""
        first = self._ids.setdefault(row["id"], line) if row.get("id") else line
        task, _ = _kind_of(row)
        if not task:
            return "it has no model; name a task, such as digits, or a class of your own as package.module:Class"
        if fault := self._task_fault(task):
            return fault
        for name, empty in (("steps", ""), ("batch_size", ", or nothing for the task's own")):
            text = row.get(name, "")
            if (text or not empty) and (whole(text) or 0) < 1:
                return f"its {name} is {text!r}; expected a whole number from 1 up{empty}"
        if first != line:
            return f"its id {row['id']!r} stands in line {first}, too; give each job its own"
        return ""

    def _task_fault(self, task: str) -> str:
        """Why a task cannot be made; an empty text if it can."""
        if task not in self._tasks:
            self._tasks[task] = ""
            try:
                make_training_job(task)
            except HadopplerError as error:
                self._tasks[task] = str(error)
        return self._tasks[task]


def _kind_of(row: Mapping[str, str]) -> tuple[str, int | None]:
    """Task and batch size of a row."""
    task, batch = split_kind(row["model"])
    return task, whole(row.get("batch_size")) or batch


def _any_table(kinds: Iterable[str]) -> ThroughputTable:
    """A table that knows the kinds; rates are those of the run's nodes later."""
    return ThroughputTable.build([(kind, 1, "any", 1.0, float("nan")) for kind in dict.fromkeys(kinds)], "tasks")


def pair_jobs(workload: Workload, seed: int = 0) -> list[tuple[Job, JobSpec]]:
    """Each job with what workers must know of it; batch sizes are the tasks' own where none is given.

    Raises:
        TrainingJobError: a job's task cannot be made, or its steps are not whole.
    """
    pairs, sizes = [], dict[str, int]()
    for number, job in enumerate(workload.jobs):
        try:
            size = sizes.setdefault(job.model, make_training_job(job.model).batch_size)
        except HadopplerError as error:
            where = f"line {job.line}: " if job.line else ""
            raise TrainingJobError(f"{where}job {job.id!r}: {error}") from error
        batch, steps = job.batch_size or size, max(1, round(job.steps))
        spec = JobSpec(job.id, job.model, steps, job.workers, batch, seed * 100_003 + number)
        pairs.append((replace(job, batch_size=batch, steps=float(steps)), spec))
    return pairs
