"""The simulator's fast path: makespans under FIFO without contention; compiled.

Every device takes its operations by ready time, so they can be handled in the order of their ready
times with one heap entry each and no events. ``event_loop`` serves everything else; the tests hold
the two equal.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

SAME_INSTANT = -1.0
"""``fifo_makespan`` could not decide: something became ready in the very instant of its producer."""


class ProblemArrays(NamedTuple):
    """What the kernels need of a ``PlacementProblem``; shapes as there."""

    compute_s: NDArray[np.float64]
    seconds_per_byte: NDArray[np.float64]
    latency: NDArray[np.float64]
    out_ptr: NDArray[np.int32]
    edge_source: NDArray[np.int32]
    edge_target: NDArray[np.int32]
    edge_bytes: NDArray[np.float64]
    in_degree: NDArray[np.int32]
    in_ptr: NDArray[np.int32]
    in_edge: NDArray[np.int32]
    tensor_ptr: NDArray[np.int32]
    edge_tensor: NDArray[np.int32]
    out_bytes: NDArray[np.float64]
    returned: NDArray[np.bool_]
    input_ptr: NDArray[np.int32]
    input_index: NDArray[np.int32]
    input_bytes: NDArray[np.float64]
    memory_bytes: NDArray[np.float64]


class FifoWorkspace(NamedTuple):
    """Scratch of ``fifo_makespan``."""

    waiting: NDArray[np.int32]
    ready: NDArray[np.float64]
    heap: NDArray[np.int32]
    free: NDArray[np.float64]


@njit(cache=True, nogil=True)
def fifo_workspace(n: int, d: int) -> FifoWorkspace:
    """Scratch for N operations and D devices."""
    return FifoWorkspace(np.empty(n, np.int32), np.empty(n), np.empty(n, np.int32), np.empty(d))


@njit(cache=True, nogil=True, fastmath=False)
def fifo_makespan(problem: ProblemArrays, assignment: NDArray[np.int32], work: FifoWorkspace) -> float:
    """Makespan under FIFO without contention, or ``SAME_INSTANT``."""
    compute_s, rate, latency = problem.compute_s, problem.seconds_per_byte, problem.latency
    out_ptr, edge_target, edge_bytes = problem.out_ptr, problem.edge_target, problem.edge_bytes
    waiting, ready, heap, free = work.waiting, work.ready, work.heap, work.free
    n, size = assignment.shape[0], 0
    for v in range(n):
        waiting[v] = problem.in_degree[v]
        ready[v] = 0.0
        if waiting[v] == 0:
            heap[size] = v
            size += 1
    free[:] = 0.0
    while size > 0:
        v = heap[0]
        now = ready[v]
        device = assignment[v]
        end = max(now, free[device]) + compute_s[v, device]
        free[device] = end
        hole = True  # the root's place is taken by the first successor that becomes ready
        for edge in range(out_ptr[v], out_ptr[v + 1]):
            w = edge_target[edge]
            there = assignment[w]
            # on one device both terms are 0: adding them is faster than a branch
            arrival = end + (latency[device, there] + edge_bytes[edge] * rate[device, there])
            ready[w] = max(ready[w], arrival)
            waiting[w] -= 1
            if waiting[w] == 0:
                if ready[w] <= now:
                    return SAME_INSTANT
                if hole:
                    hole = False
                    sift_down(heap, 0, size, w, ready)
                else:
                    sift_up(heap, 0, size, w, ready)
                    size += 1
        if hole:
            size -= 1
            if size > 0:
                sift_down(heap, 0, size, heap[size], ready)
    return free.max()


@njit(cache=True, nogil=True, inline="always")
def sift_down(heap, base, size, item, key):  # type: ignore[no-untyped-def]
    """Put ``item`` at the vacant root of the heap at ``heap[base:]`` with ``size`` places."""
    position, child, value = 0, 1, key[item]
    while child < size:
        candidate = heap[base + child]
        best = key[candidate]
        if child + 1 < size:
            rival = heap[base + child + 1]
            other = key[rival]
            # bitwise operators: no branch for a processor to predict
            if (other < best) | ((other == best) & (rival < candidate)):
                child, candidate, best = child + 1, rival, other
        if (best < value) | ((best == value) & (candidate < item)):
            heap[base + position] = candidate
            position = child
            child = 2 * position + 1
        else:
            break
    heap[base + position] = item


@njit(cache=True, nogil=True, inline="always")
def sift_up(heap, base, size, item, key):  # type: ignore[no-untyped-def]
    """Append ``item`` to the heap of ``size`` entries at ``heap[base:]``."""
    position = size
    value = key[item]
    while position > 0:
        parent = (position - 1) >> 1
        candidate = heap[base + parent]
        if (value < key[candidate]) | ((value == key[candidate]) & (item < candidate)):
            heap[base + position] = candidate
            position = parent
        else:
            break
    heap[base + position] = item


@njit(cache=True, nogil=True)
def fifo_makespans(problem: ProblemArrays, assignments: NDArray[np.int32], result: NDArray[np.float64]) -> None:
    """``fifo_makespan`` of each row [B, N] into ``result`` [B]."""
    work = fifo_workspace(assignments.shape[1], problem.latency.shape[0])
    for row in range(assignments.shape[0]):
        result[row] = fifo_makespan(problem, assignments[row], work)
