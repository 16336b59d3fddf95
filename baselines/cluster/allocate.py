"""Who fits where: from the GPU type that each job gets to GPUs on nodes."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from ...envs.cluster import Allocation, ClusterView
from ...envs.cluster.packing import take_gpus

Integers = NDArray[np.int64]


def place_on_types(view: ClusterView, type_of: Integers) -> Allocation:
    """Put each job on its type; in the order of the view's jobs.

    A job that runs on that type already keeps its GPUs. The others follow, largest gang first (ties
    by order): on the node where they fit with least to spare, else spread over the fewest nodes. A job that
    would be spread and does not run so waits.

    Args:
        view: what is free, and who runs where.
        type_of: [N] type of each job, -1 for none; together they must fit into ``view.free``.
    """
    held = view.held
    (chosen,) = np.nonzero(type_of >= 0)
    types, gangs = type_of[chosen], view.held_gang[chosen]
    alone = view.spread_rates[chosen, types] <= 0
    counts = _place(
        view.free.copy(), view.workers[chosen], types, alone, gangs, held.ptr, held.node, held.gpu_type, held.count
    )
    placed = counts.any(axis=1)
    ptr, node, count = _collect(counts[placed])
    kinds, job = np.repeat(types[placed], np.diff(ptr)), view.job[chosen[placed]]
    return Allocation(job, np.zeros(len(job), dtype=np.int64), ptr, node, kinds, count)


def placed_types(view: ClusterView, type_of: Integers, allocation: Allocation) -> Integers:
    """[N] the types of those that ``place_on_types`` has placed, -1 for those that wait."""
    return np.where(np.isin(view.job, allocation.job), type_of, -1)


@njit(cache=True, nogil=True)
def _place(
    free: Integers,
    workers: Integers,
    type_of: Integers,
    alone: NDArray[np.bool_],
    held_gang: Integers,
    held_ptr: Integers,
    held_node: Integers,
    held_type: Integers,
    held_count: Integers,
) -> Integers:
    """[N, H] GPUs of the gangs on the nodes: those that stay first, then the others by size; 0 for those that wait.

    Args:
        alone: [N] whether the gang must stand on one node.
    """
    n, nodes = workers.shape[0], free.shape[0]
    counts = np.zeros((n, nodes), np.int64)
    kept = np.zeros(n, np.bool_)
    for i in range(n):
        if held_gang[i] < 0:
            continue
        fits = True
        for e in range(held_ptr[held_gang[i]], held_ptr[held_gang[i] + 1]):
            fits = fits and held_type[e] == type_of[i] and held_count[e] <= free[held_node[e], type_of[i]]
        if fits:
            kept[i] = True
            for e in range(held_ptr[held_gang[i]], held_ptr[held_gang[i] + 1]):
                counts[i, held_node[e]] = held_count[e]
                free[held_node[e], type_of[i]] -= held_count[e]
    for i in np.argsort(-workers, kind="mergesort"):
        if not kept[i] and not (alone[i] and free[:, type_of[i]].max() < workers[i]):
            take_gpus(free, type_of[i], workers[i], counts[i])
    return counts


@njit(cache=True, nogil=True)
def _collect(counts: NDArray[np.int64]) -> tuple[Integers, Integers, Integers]:
    """Pointers, nodes and counts of the positive entries, row by row."""
    n, nodes = counts.shape
    ptr = np.zeros(n + 1, np.int64)
    for i in range(n):
        ptr[i + 1] = ptr[i]
        for h in range(nodes):
            ptr[i + 1] += counts[i, h] > 0
    node, count = np.empty(ptr[n], np.int64), np.empty(ptr[n], np.int64)
    entry = 0
    for i in range(n):
        for h in range(nodes):
            if counts[i, h] > 0:
                node[entry], count[entry] = h, counts[i, h]
                entry += 1
    return ptr, node, count


@njit(cache=True, nogil=True)
def choose_types(
    order: Integers,
    workers: Integers,
    preference: Integers,
    usable: NDArray[np.bool_],
    held_type: Integers,
    left: Integers,
    overtake: bool,
) -> Integers:
    """[N] type of each job, -1 for none: in the given order, each takes its first choice that is left.

    Args:
        order: positions of the jobs, most urgent first.
        preference: [N, R] types of each job, best first.
        usable: [N, R] whether the job runs on the type.
        held_type: [N] a type that the job takes before its preferences, or -1.
        left: [R] GPUs of each type; lowered.
        overtake: whether the others go on when one does not fit.
    """
    n, types = preference.shape
    chosen = np.full(n, -1, np.int64)
    free = left.sum()
    for i in order:
        if free == 0:
            break
        first = held_type[i]
        if first >= 0 and usable[i, first] and left[first] >= workers[i]:
            chosen[i] = first
        else:
            for k in range(types):
                r = preference[i, k]
                if usable[i, r] and left[r] >= workers[i]:
                    chosen[i] = r
                    break
        if chosen[i] >= 0:
            left[chosen[i]] -= workers[i]
            free -= workers[i]
        elif not overtake:
            break
    return chosen
