"""Which nodes: from so many GPUs of one type for each gang to GPUs on nodes."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

Integers = NDArray[np.int64]


@njit(cache=True, nogil=True)
def take_gpus(free: Integers, gpu_type: int, workers: int, counts: Integers) -> None:
    """Take a gang's GPUs of one type: in one node with least to spare, else from the fullest nodes.

    Args:
        free: [H, R] is lowered; it must hold enough.
        counts: [H] receives the GPUs per node.
    """
    left = workers
    while left > 0:
        tightest, fullest = -1, -1
        for h in range(free.shape[0]):
            here = free[h, gpu_type]
            if here >= left and (tightest < 0 or here < free[tightest, gpu_type]):
                tightest = h
            if here > 0 and (fullest < 0 or here > free[fullest, gpu_type]):
                fullest = h
        h = tightest if tightest >= 0 else fullest
        if h < 0:
            return
        taken = min(left, free[h, gpu_type])
        counts[h] += taken
        free[h, gpu_type] -= taken
        left -= taken


@njit(cache=True, nogil=True)
def pack(
    free: Integers,
    gpu_type: Integers,
    size: Integers,
    owner: Integers,
    forked: NDArray[np.bool_],
    used: NDArray[np.bool_],
) -> Integers:
    """[P, H] GPUs of P pieces on the nodes, largest piece first (ties by order).

    Pieces are gangs, or the parts of a gang on several types. A copy of a forked job takes one node that
    none of its other copies uses, the one with least to spare; a copy without such a node gets nothing,
    unless its job would get nothing at all: then it is spread.

    Args:
        free: [H, R] is lowered; per type it must hold enough for all.
        gpu_type, size, owner: [P] type, GPUs, and number of the job.
        forked: [P] whether the job has several gangs.
        used: [N, H] nodes that a forked job's kept copies stand on; is completed.
    """
    pieces, nodes = size.shape[0], free.shape[0]
    counts = np.zeros((pieces, nodes), np.int64)
    order = np.argsort(-size, kind="mergesort")
    for p in order:
        if not forked[p]:
            take_gpus(free, gpu_type[p], size[p], counts[p])
            continue
        tightest = -1
        for h in range(nodes):
            here = free[h, gpu_type[p]]
            fits = here >= size[p] and not used[owner[p], h]
            if fits and (tightest < 0 or here < free[tightest, gpu_type[p]]):
                tightest = h
        if tightest >= 0:
            counts[p, tightest] = size[p]
            free[tightest, gpu_type[p]] -= size[p]
            used[owner[p], tightest] = True
    for p in order:
        if forked[p] and not used[owner[p]].any() and free[:, gpu_type[p]].sum() >= size[p]:
            take_gpus(free, gpu_type[p], size[p], counts[p])
            used[owner[p]] = counts[p] > 0
    return counts
