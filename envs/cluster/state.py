"""The simulation's books: who arrived, what is left, what runs, what was used."""

from __future__ import annotations

import numpy as np

from . import kernels
from .cluster import Cluster
from .scheduler import Allocation, Floats, Integers
from .workload import Workload


class ClusterState:
    """Counts of one run over the J jobs of a workload; rows ascend by arrival.

    Attributes:
        jobs: the kernels' arrays.
        mixes: whether a gang may stand on several types.
        use: what each node was used for.
        rows: jobs that can fit, by arrival.
        active: [N] rows that arrived and are not done.
        left: [J] steps left at the last view.
        reasons: row -> why it is not simulated, or not to its end.
    """

    def __init__(self, workload: Workload, cluster: Cluster, mixes: bool) -> None:
        self.mixes = mixes
        rates, spread = workload.rates(cluster)
        count, nodes = len(workload), len(cluster.nodes)
        nan, zero = np.full((2, count), np.nan), np.zeros((4, count))
        self.jobs = kernels.Jobs(
            workers=workload.workers.copy(),
            rates=rates,
            spread=spread,
            active=np.zeros(count, dtype=np.bool_),
            remaining=workload.steps.copy(),
            start=nan[0],
            finish=nan[1],
            held_s=zero[0],
            overhead_s=zero[1],
            running_s=zero[2],
            restarts=np.zeros(count, dtype=np.int64),
            lost=zero[3],
            gang=np.full(count, -1, dtype=np.int64),
        )
        self.use = kernels.Use(np.zeros(nodes), np.zeros(nodes), np.zeros(nodes))
        self.left = workload.steps.copy()
        self.reasons: dict[int, str] = {}
        most = most_gpus(rates, spread, cluster, mixes)
        for row in np.flatnonzero(most < workload.workers).tolist():
            where = "cluster has" if mixes else "its largest fitting type has"
            total = cluster.gpus if workload.workers[row] > cluster.gpus else most[row]
            where = "cluster has" if workload.workers[row] > cluster.gpus else where
            self.reasons[row] = f"cannot fit: asks {workload.workers[row]}, {where} {total}"
        self.rows = np.flatnonzero(most >= workload.workers)
        self._arrival = workload.arrival[self.rows]
        self.active = np.zeros(0, dtype=np.int64)
        self._next = 0

    @property
    def next_arrival(self) -> float | None:
        """When the next job arrives; None if all have."""
        return float(self._arrival[self._next]) if self._next < len(self.rows) else None

    @property
    def last_finish(self) -> float:
        """Latest end of a job so far."""
        return float(np.nanmax(self.jobs.finish, initial=-np.inf))

    def arrive(self, now: float) -> None:
        """Take in the jobs that arrived by ``now``."""
        last = self._next + int(np.searchsorted(self._arrival[self._next :], now, side="right"))
        if last > self._next:
            fresh = self.rows[self._next : last]
            self.jobs.active[fresh] = True
            self.active = np.concatenate((self.active, fresh))
            self._next = last

    def admit(self, workload: Workload, cluster: Cluster) -> None:
        """Take in the jobs at the workload's end that are new; they arrive now."""
        fresh, count = ClusterState(workload, cluster, self.mixes), len(self.left)
        for name, values in self.jobs._asdict().items():
            if name not in ("workers", "rates", "spread"):
                getattr(fresh.jobs, name)[:count] = values
        rows = fresh.rows[fresh.rows >= count]
        self.reasons |= {row: why for row, why in fresh.reasons.items() if row >= count}
        self.jobs, self.left = fresh.jobs, np.concatenate((self.left, fresh.left[count:]))
        self.jobs.active[rows] = True
        self.active = np.concatenate((self.active, rows))
        self.rows = np.concatenate((self.rows, rows))
        self._arrival = np.concatenate((self._arrival, workload.arrival[rows]))
        self._next = len(self.rows)

    def drop_finished(self) -> None:
        """Forget the jobs that ended."""
        self.active = self.active[self.jobs.active[self.active]]

    def give_up(self, reason: str) -> None:
        """Report all jobs that are not done as unfinished."""
        for row in (*self.active.tolist(), *self.rows[self._next :].tolist()):
            self.reasons[int(row)] = f"unfinished: {reason}"
        self.jobs.active[:] = False
        self.active = np.zeros(0, dtype=np.int64)
        self._next = len(self.rows)

    @staticmethod
    def as_allocation(gangs: kernels.Gangs) -> Allocation:
        """The gangs as an allocation, for views."""
        return Allocation(gangs.job, gangs.copy, gangs.ptr, gangs.node, gangs.gpu_type, gangs.gpus)


def most_gpus(rates: Floats, spread: Floats, cluster: Cluster, mixes: bool) -> Integers:
    """[J] GPUs of the largest gang that each job could have on the whole cluster.

    Args:
        rates, spread: [J, R] steps/s in one node and spread; where the latter is 0, a gang stays in one node.
        mixes: whether it may stand on several types.
    """
    of_type, largest = cluster.gpus_of_type, cluster.capacity.max(axis=0)
    most = np.where(spread > 0, of_type, np.where(rates > 0, largest, 0)).max(axis=1, initial=0)
    if mixes:
        in_one_node = ((rates > 0) @ cluster.capacity.T).max(axis=1, initial=0)
        most = np.maximum(np.maximum(most, in_one_node), (spread > 0) @ of_type)
    return most


def new_gangs(allocation: Allocation) -> kernels.Gangs:
    """Gangs of an allocation before they are started."""
    count = len(allocation)
    return kernels.Gangs(
        job=_own(allocation.job),
        copy=_own(allocation.copy),
        ptr=_own(allocation.ptr),
        node=_own(allocation.node),
        gpu_type=_own(allocation.gpu_type),
        gpus=_own(allocation.count),
        rate=np.zeros(count),
        work_start=np.zeros(count),
        budget=np.full(count, np.nan),
        end=np.zeros(count),
        release=np.zeros(count),
        final=np.zeros(count, dtype=np.bool_),
        forked=np.zeros(count, dtype=np.bool_),
        alive=np.zeros(count, dtype=np.bool_),
        kept=np.zeros(count, dtype=np.bool_),
    )


def empty_gangs() -> kernels.Gangs:
    """Nothing runs."""
    return new_gangs(Allocation.empty())


def concatenate_gangs(jobs: kernels.Jobs, first: kernels.Gangs, second: kernels.Gangs) -> kernels.Gangs:
    """The gangs of ``first`` that are alive, then all of ``second``; the jobs' gang numbers follow."""
    keep = np.flatnonzero(first.alive)
    sizes = np.diff(first.ptr)[keep]
    entries = np.flatnonzero(np.repeat(first.alive, np.diff(first.ptr)))
    ptr = np.concatenate(([0], np.cumsum(sizes)))
    joined = {
        name: np.concatenate((getattr(first, name)[keep], getattr(second, name)))
        for name in kernels.Gangs._fields
        if name not in ("ptr", "node", "gpu_type", "gpus")
    }
    for name in ("node", "gpu_type", "gpus"):
        joined[name] = np.concatenate((getattr(first, name)[entries], getattr(second, name)))
    joined["ptr"] = np.concatenate((ptr, ptr[-1] + second.ptr[1:])).astype(np.int64)
    gangs = kernels.Gangs(**joined)
    jobs.gang[gangs.job[::-1]] = np.arange(len(gangs.job))[::-1]
    return gangs


def _own(values: Integers | Floats) -> Integers:
    """A writable, contiguous copy, so that the kernels see one array type."""
    return np.array(values, dtype=np.int64, order="C")
