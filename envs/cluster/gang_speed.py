"""How fast a gang is on the GPUs that it has: the one rule for simulator, schedulers and estimates; compiled."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray


@njit(cache=True, nogil=True)
def gang_rate(
    rates: NDArray[np.float64],
    spread_rates: NDArray[np.float64],
    node: NDArray[np.integer],
    gpu_type: NDArray[np.integer],
    count: NDArray[np.integer],
    slowest: bool,
) -> float:
    """Steps/s of one gang; 0 if one of its types does not fit the job.

    Args:
        rates, spread_rates: [R] steps/s of the job with all workers on a type, in one node and spread; the
            latter count from two nodes on.
        node, gpu_type, count: [E] the gang's GPUs, at least one entry; the counts add up to the job's workers.
        slowest: whether the slowest type decides (``mixed_rate`` is ``min``: equal shares of a batch), or the
            workers' own rates add up (``proportional``: batch shares by speed).
    """
    together, alike = True, True
    for e in range(1, node.shape[0]):
        together = together and node[e] == node[0]
        alike = alike and gpu_type[e] == gpu_type[0]
    total, workers, least = 0.0, 0, np.inf
    for e in range(node.shape[0]):
        own = rates[gpu_type[e]] if together else spread_rates[gpu_type[e]]
        if own <= 0.0:
            return 0.0
        total += count[e] * own
        workers += count[e]
        least = min(least, own)
    return least if slowest or alike else total / workers


@njit(cache=True, nogil=True)
def gang_rates(
    rates: NDArray[np.float64],
    spread_rates: NDArray[np.float64],
    row: NDArray[np.int64],
    ptr: NDArray[np.int64],
    node: NDArray[np.int64],
    gpu_type: NDArray[np.int64],
    count: NDArray[np.int64],
    slowest: bool,
) -> NDArray[np.float64]:
    """[A] ``gang_rate`` of gangs whose entries are ``ptr[a]:ptr[a + 1]``, as in ``Allocation``.

    Args:
        rates, spread_rates: [N, R].
        row: [A] each gang's row of these.
    """
    found = np.zeros(row.shape[0])
    for a in range(row.shape[0]):
        own = slice(ptr[a], ptr[a + 1])
        found[a] = gang_rate(rates[row[a]], spread_rates[row[a]], node[own], gpu_type[own], count[own], slowest)
    return found
