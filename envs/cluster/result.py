"""What a simulation tells: per job, per round, and in all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from . import metrics
from .bounds import ttd_bounds
from .cluster import Cluster
from .kernels import Gangs
from .scheduler import Allocation, Floats, Integers
from .workload import Workload

if TYPE_CHECKING:
    from .rules import SimulationRules
    from .state import ClusterState


@dataclass(frozen=True, eq=False)
class JobTable:
    """One row per job of the workload, [J] each; NaN where a job did not get so far. Times in seconds.

    Attributes:
        id, kind: of the job.
        arrival, workers, steps: as asked.
        start, finish: first start and end.
        running_s: wall time in which it held its GPUs.
        gpu_s, overhead_gpu_s: GPU-seconds held, and those of them in restarts and consolidations.
        restarts: starts on new GPUs, the first included.
        lost_steps: done and lost with failed nodes.
        isolated_s: duration on an equal share of the cluster among the jobs present at its arrival.
        best_s: duration on its fastest type, alone.
        status: ``finished``, or why not.
    """

    id: tuple[str, ...]
    kind: tuple[str, ...]
    arrival: Floats
    workers: Integers
    steps: Floats
    start: Floats
    finish: Floats
    running_s: Floats
    gpu_s: Floats
    overhead_gpu_s: Floats
    restarts: Integers
    lost_steps: Floats
    isolated_s: Floats
    best_s: Floats
    status: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.id)

    @property
    def finished(self) -> np.ndarray:
        """[J] whether the job ended."""
        return ~np.isnan(self.finish)

    @property
    def jct(self) -> Floats:
        """[J] job completion time: finish - arrival."""
        return self.finish - self.arrival

    @property
    def queueing(self) -> Floats:
        """[J] first start - arrival."""
        return self.start - self.arrival

    @property
    def waiting(self) -> Floats:
        """[J] completion time without the time in which the job held its GPUs."""
        return self.jct - self.running_s

    @property
    def ftf(self) -> Floats:
        """[J] finish-time fairness: completion time / isolated time."""
        return self.jct / self.isolated_s

    def rows(self) -> Iterator[dict[str, Any]]:
        """One dictionary per job, for ``jobs.csv``."""
        columns: dict[str, Any] = {
            "id": self.id,
            "kind": self.kind,
            **{name: getattr(self, name).tolist() for name in _JOB_COLUMNS},
            "status": self.status,
        }
        for values in zip(*columns.values(), strict=True):
            yield dict(zip(columns, values, strict=True))


_JOB_COLUMNS = (
    "arrival",
    "workers",
    "steps",
    "start",
    "finish",
    "jct",
    "queueing",
    "waiting",
    "running_s",
    "gpu_s",
    "overhead_gpu_s",
    "restarts",
    "lost_steps",
    "isolated_s",
    "best_s",
    "ftf",
)


@dataclass(eq=False)
class RoundLog:
    """One entry per decision, in order of time; refills in mid-round have their own.

    Attributes:
        keep: whether the placements are kept, or the counts only.
        time: seconds.
        mid_round: whether it was a refill.
        active: jobs that had arrived and were not done.
        gangs: gangs that ran after it.
        restarts: gangs among them that started on new GPUs.
        placements: the gangs that were started or kept, and the scheduler's answer.
        end: when the simulation ended.
    """

    keep: bool = True
    time: list[float] = field(default_factory=list)
    mid_round: list[bool] = field(default_factory=list)
    active: list[int] = field(default_factory=list)
    gangs: list[int] = field(default_factory=list)
    restarts: list[int] = field(default_factory=list)
    placements: list[tuple[Gangs, Allocation]] = field(default_factory=list)
    end: float = 0.0

    def __len__(self) -> int:
        return len(self.time)

    def add(
        self,
        now: float,
        mid_round: bool,
        active: int,
        gangs: int,
        restarts: int,
        allocation: Allocation,
        started: Gangs,
    ) -> None:
        """Note a decision."""
        self.time.append(now)
        self.mid_round.append(mid_round)
        self.active.append(active)
        self.gangs.append(gangs)
        self.restarts.append(restarts)
        if self.keep:
            self.placements.append((started, allocation))

    def close(self, now: float) -> None:
        """Note the end."""
        self.end = now

    def rows(self, workload: Workload, cluster: Cluster) -> Iterator[dict[str, Any]]:
        """One dictionary per gang and decision, for ``rounds.csv``; reasons that were not given are NaN."""
        reasons = tuple(dict.fromkeys(name for _, allocation in self.placements for name in allocation.why))
        nothing: Floats = np.full(max((len(allocation) for _, allocation in self.placements), default=0), np.nan)
        for number, (gangs, allocation) in enumerate(self.placements):
            for gang in range(len(allocation)):
                yield {
                    "decision": number,
                    "time": self.time[number],
                    "mid_round": self.mid_round[number],
                    "job": workload.jobs[int(gangs.job[gang])].id,
                    "copy": int(gangs.copy[gang]),
                    "gpus": allocation.describe(gang, cluster),
                    "rate": float(gangs.rate[gang]),
                    "kept": bool(gangs.kept[gang]),
                    **{name: float(allocation.why.get(name, nothing)[gang]) for name in reasons},
                }


@dataclass(frozen=True, eq=False)
class ClusterResult:
    """Outcome of one simulation.

    Attributes:
        scheduler: its name.
        workload, cluster: what was simulated.
        jobs: table of all jobs, those that were left out included.
        rounds: log of the decisions.
        node_held_s, node_worked_s: [H] seconds in which a node held a gang, and in which one worked.
        last_use: when a node held a gang for the last time, of a job that was not finished, too.
        decision_s: wall seconds that the scheduler took in all.
        mixed_rate: the rule in force, for the bounds.
        extra: further metrics of a mechanism.
    """

    scheduler: str
    workload: Workload
    cluster: Cluster
    jobs: JobTable
    rounds: RoundLog
    node_held_s: Floats
    node_worked_s: Floats
    decision_s: float
    mixed_rate: str = "proportional"
    extra: dict[str, float] = field(default_factory=dict)
    last_use: float = 0.0

    @property
    def left_out(self) -> dict[str, str]:
        """Id -> reason of the jobs that are in no mean: they cannot fit, or were not finished."""
        return {name: why for name, why in zip(self.jobs.id, self.jobs.status, strict=True) if why != "finished"}

    @cached_property
    def bounds(self) -> dict[str, float]:
        """Lower bounds on TTD: ``single_type``, ``mixing`` and ``forking`` (``bounds.ttd_bounds``)."""
        done = self.workload.select(np.flatnonzero(self.jobs.finished))
        return ttd_bounds(done, self.cluster, mixed_rate=self.mixed_rate) if len(done) else {}

    @cached_property
    def ttd_bound_s(self) -> float:
        """The bound for one type per job, or for mixing where a finished job needs it; NaN if there is none."""
        done = self.workload.select(np.flatnonzero(self.jobs.finished))
        for kind in ("single_type", "mixing") if len(done) else ():
            bound = ttd_bounds(done, self.cluster, mixed_rate=self.mixed_rate, kinds=(kind,))[kind]
            if np.isfinite(bound):
                return bound
        return float("nan")

    @cached_property
    def metrics(self) -> dict[str, Any]:
        """Everything that tables print; the functions of ``metrics`` define it."""
        values = metrics.summarise(self)
        return {**values, "ttd_bound_s": self.ttd_bound_s, **self.extra}

    @classmethod
    def collect(
        cls,
        workload: Workload,
        cluster: Cluster,
        rules: SimulationRules,
        state: ClusterState,
        log: RoundLog,
        scheduler: str,
        decision_s: float,
    ) -> ClusterResult:
        """Tables of a simulation that ended."""
        jobs = state.jobs
        columns = make_job_table(workload, cluster, jobs.finish, jobs.start, state.reasons)
        counts: dict[str, Any] = {
            "running_s": jobs.running_s,
            "gpu_s": jobs.held_s,
            "overhead_gpu_s": jobs.overhead_s,
            "restarts": jobs.restarts,
            "lost_steps": jobs.lost,
        }
        table = JobTable(**columns, **{name: values.copy() for name, values in counts.items()})
        held, worked, until = state.use.held.copy(), state.use.worked.copy(), float(state.use.until.max(initial=0.0))
        return cls(scheduler, workload, cluster, table, log, held, worked, decision_s, rules.mixed_rate, last_use=until)


def make_job_table(
    workload: Workload, cluster: Cluster, finish: Floats, start: Floats, reasons: dict[int, str]
) -> dict[str, Any]:
    """The columns of a ``JobTable`` that follow from arrivals, starts and ends."""
    rates, _ = workload.rates(cluster)
    best = rates.max(axis=1)
    with np.errstate(divide="ignore"):
        best_s = np.where(best > 0, workload.steps / best, np.inf)
    simulated = np.array(
        [not reasons.get(row, "").startswith("cannot fit") for row in range(len(workload))], dtype=bool
    )
    return {
        "id": tuple(job.id for job in workload.jobs),
        "kind": tuple(job.kind for job in workload.jobs),
        "arrival": workload.arrival.copy(),
        "workers": workload.workers.copy(),
        "steps": workload.steps.copy(),
        "start": start.copy(),
        "finish": finish.copy(),
        "isolated_s": metrics.isolated_seconds(workload, cluster, rates, finish, simulated),
        "best_s": best_s,
        "status": tuple(reasons.get(row, "finished") for row in range(len(workload))),
    }
