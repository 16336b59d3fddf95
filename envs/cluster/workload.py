"""Jobs to be scheduled, with the rows of their trace that could not be used."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ..errors import TraceError
from .cluster import Cluster
from .job import Job
from .throughput import Floats, ThroughputTable


@dataclass(frozen=True, slots=True)
class Rejected:
    """A row of a trace that became no job: its line (from 1), why, and the row itself."""

    line: int
    reason: str
    row: str = ""


@dataclass(frozen=True, eq=False)
class Workload:
    """J jobs with their throughputs, by arrival (ties by the given order).

    Attributes:
        jobs: [J]; the position in it is the job's row everywhere else.
        throughputs: the table that knows all of them.
        rejected: rows of the trace that are not simulated, each with its reason.
        rows_read: rows of the trace, used and rejected; the number of jobs where there is no trace.
        name: for tables.
        notes: rules that were applied to fill gaps of the trace, for the report.
    """

    jobs: tuple[Job, ...]
    throughputs: ThroughputTable = field(default_factory=ThroughputTable.default)
    rejected: tuple[Rejected, ...] = ()
    rows_read: int = -1
    name: str = "workload"
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        by_arrival = sorted(self.jobs, key=lambda job: job.arrival)
        object.__setattr__(self, "jobs", tuple(by_arrival))
        if self.rows_read < 0:
            object.__setattr__(self, "rows_read", len(by_arrival) + len(self.rejected))
        seen: set[str] = set()
        for job in by_arrival:
            if job.id in seen:
                raise TraceError(f"workload {self.name}: two jobs have the id {job.id!r}; give each its own.")
            seen.add(job.id)

    def __len__(self) -> int:
        return len(self.jobs)

    @property
    def rows_used(self) -> int:
        """Rows of the trace that went into jobs."""
        return self.rows_read - len(self.rejected)

    @cached_property
    def arrival(self) -> Floats:
        """[J] seconds, ascending."""
        return _column([job.arrival for job in self.jobs])

    @cached_property
    def workers(self) -> NDArray[np.int64]:
        """[J] GPUs of each gang."""
        return np.array([job.workers for job in self.jobs], dtype=np.int64)

    @cached_property
    def steps(self) -> Floats:
        """[J] steps over all workers."""
        return _column([job.steps for job in self.jobs])

    @cached_property
    def weight(self) -> Floats:
        """[J] priority weights."""
        return _column([job.weight for job in self.jobs])

    @cached_property
    def slo(self) -> Floats:
        """[J] wanted completion times as multiples of the duration; NaN for none."""
        return _column([np.nan if job.slo is None else job.slo for job in self.jobs])

    def rates(self, cluster: Cluster) -> tuple[Floats, Floats]:
        """[J, R] steps/s on each type of the cluster: with all workers in one node, and spread.

        Raises:
            ThroughputError: a GPU type or a job's model is unknown to the table.
        """
        return self.throughputs.rates_of(self.jobs, cluster)

    def select(self, rows: Sequence[int] | NDArray[np.integer]) -> Workload:
        """The workload of some rows only; the report on the trace stays with the full one."""
        return replace(self, jobs=tuple(self.jobs[int(row)] for row in rows), rejected=(), rows_read=-1)

    def summary(self) -> str:
        """One paragraph: rows used and rejected, with the first reasons."""
        text = f"{self.name}: {self.rows_read} rows, {self.rows_used} used for {len(self)} jobs"
        if not self.rejected:
            return text + ", none rejected."
        shown = "; ".join(f"line {row.line}: {row.reason}" for row in self.rejected[:5])
        more = "; ..." if len(self.rejected) > 5 else ""
        return f"{text}, {len(self.rejected)} rejected ({shown}{more})."


def _column(values: Sequence[float]) -> Floats:
    return np.array(values, dtype=np.float64)
