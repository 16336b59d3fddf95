"""What a decision must be before anything is done with it, whoever took it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numba import njit

from ..errors import AllocationError
from .cluster import Cluster
from .job import Job
from .scheduler import Allocation, Integers


def check_entries(allocation: Allocation, cluster: Cluster, jobs: Sequence[Job]) -> None:
    """Refuse rows that are no jobs, and GPUs on nodes or of types that the cluster does not have.

    Compiled code looks none of them up, so this comes first.

    Raises:
        AllocationError: there are such; the row, or the job with the node or type, is named.
    """
    for rows in (allocation.job, np.array(allocation.refused, dtype=np.int64)):
        stray = _first_outside(rows, len(jobs))
        if stray >= 0:
            raise AllocationError(
                f"there is no job in row {rows[stray]} of the workload; give rows of view.job, which lie from 0 to "
                f"{len(jobs) - 1}."
            )
    nodes, types = cluster.capacity.shape
    for noun, numbers, count in (("node", allocation.node, nodes), ("GPU type", allocation.gpu_type, types)):
        stray = _first_outside(numbers, count)
        if stray >= 0:
            gang = int(np.searchsorted(allocation.ptr, stray, side="right")) - 1
            raise AllocationError(
                f"job {jobs[allocation.job[gang]].id!r} is given GPUs of {noun} {numbers[stray]}, which is none; give "
                f"numbers from 0 to {count - 1}, in the order of the cluster's."
            )


def mixes_types(allocation: Allocation) -> bool:
    """Whether one of its gangs stands on several types."""
    gang = np.repeat(np.arange(len(allocation)), np.diff(allocation.ptr))
    kind = allocation.gpu_type
    return bool(((gang[1:] == gang[:-1]) & (kind[1:] != kind[:-1])).any())


def forks_jobs(allocation: Allocation) -> bool:
    """Whether it gives one of its jobs several gangs."""
    job = np.sort(allocation.job)
    return bool((job[1:] == job[:-1]).any())


@njit(cache=True, nogil=True)
def _first_outside(numbers: Integers, count: int) -> int:
    """Where the first number stands that does not lie from 0 to ``count`` - 1; -1 if all do."""
    for place in range(numbers.shape[0]):
        if numbers[place] < 0 or numbers[place] >= count:
            return place
    return -1
