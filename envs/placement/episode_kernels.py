"""The compiled core of placement episodes: B partial placements of one problem, one operation a step.

A step books its operation after everything that is on the device and after the arrival of its inputs, as
list schedulers do; transfers never wait. Its cost depends on the operation's edges alone, not on the size of
the graph.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from .features import memory_need, write_device_features
from .graph import Floats, Integers


class EpisodeArrays(NamedTuple):
    """State of B episodes of N operations on D devices, P graph inputs, T tensors."""

    assignment: Integers
    """[B, N] device, -1 while not placed"""
    start: Floats
    """[B, N] booked times, 0 while not placed"""
    end: Floats
    waiting: Integers
    """[B, N] entering edges whose producer is not placed yet"""
    steps: NDArray[np.int64]
    """[B] operations placed"""
    order: Integers
    """[B, N] the operations in the order in which they were placed"""
    ready: Integers
    """[B, N] the operations in the order in which they became candidates"""
    ready_ptr: Integers
    """[B, N + 2] step k made ``ready[b, ready_ptr[b, k]:ready_ptr[b, k + 1]]`` candidates; k = 0: the entries"""
    candidate: Integers
    """[B, N] the candidates in any order, in the first ``candidates[b]`` places"""
    candidates: NDArray[np.int64]
    """[B]"""
    slot: Integers
    """[B, N] place in ``candidate``, -1 for operations that are none"""
    free: Floats
    """[B, D] end of the last operation"""
    begin: Floats
    """[B, D] scratch: earliest start of the operation in hand"""
    computed: Floats
    """[B, D] time of all operations"""
    used: Floats
    """[B, D] bytes booked, nothing ever freed"""
    input_there: NDArray[np.bool_]
    """[B, P, D] graph inputs that a device holds"""
    copy_there: NDArray[np.bool_]
    """[B, T, D] tensors that a device has received"""
    read_from: Floats
    """[B, N, D] bytes that an operation reads from its producers on a device"""
    group_there: Integers
    """[B, G, D] shards of a sharded operation on a device"""
    sent: Floats
    """[B, D] time of all transfers from a device, if none waits"""
    received: Floats
    """[B, D] time of all transfers to a device, if none waits"""
    planned: Floats
    """[B] end of the last operation of all"""


def new_episodes(episodes: int, n: int, d: int, inputs: int, tensors: int, groups: int) -> EpisodeArrays:
    """Arrays for B episodes; ``reset_episodes`` starts them. Without memory tracking P may be 0."""
    b = episodes
    return EpisodeArrays(
        assignment=np.empty((b, n), np.int32),
        start=np.empty((b, n)),
        end=np.empty((b, n)),
        waiting=np.empty((b, n), np.int32),
        steps=np.empty(b, np.int64),
        order=np.empty((b, n), np.int32),
        ready=np.empty((b, n), np.int32),
        ready_ptr=np.empty((b, n + 2), np.int32),
        candidate=np.empty((b, n), np.int32),
        candidates=np.empty(b, np.int64),
        slot=np.empty((b, n), np.int32),
        free=np.empty((b, d)),
        begin=np.empty((b, d)),
        computed=np.empty((b, d)),
        used=np.empty((b, d)),
        input_there=np.empty((b, inputs, d), np.bool_),
        copy_there=np.empty((b, tensors, d), np.bool_),
        read_from=np.empty((b, n, d)),
        group_there=np.empty((b, groups, d), np.int32),
        sent=np.empty((b, d)),
        received=np.empty((b, d)),
        planned=np.empty(b),
    )


@njit(cache=True, nogil=True)
def reset_episodes(problem, state, which):  # type: ignore[no-untyped-def]
    """Start the episodes marked in ``which`` [B] anew."""
    n = problem.compute_s.shape[0]
    for b in range(which.shape[0]):
        if not which[b]:
            continue
        state.assignment[b, :] = -1
        state.start[b, :] = 0.0
        state.end[b, :] = 0.0
        state.order[b, :] = -1
        state.slot[b, :] = -1
        state.ready_ptr[b, :] = 0
        state.free[b, :] = 0.0
        state.computed[b, :] = 0.0
        state.used[b, :] = 0.0
        state.input_there[b, :, :] = False
        state.copy_there[b, :, :] = False
        state.read_from[b, :, :] = 0.0
        state.group_there[b, :, :] = 0
        state.sent[b, :] = 0.0
        state.received[b, :] = 0.0
        state.steps[b], state.planned[b], state.candidates[b] = 0, 0.0, 0
        for v in range(n):
            state.waiting[b, v] = problem.in_degree[v]
            if state.waiting[b, v] == 0:
                _add_candidate(state, b, v, state.candidates[b])
        state.ready_ptr[b, 1] = state.candidates[b]


@njit(cache=True, nogil=True)
def advance(problem, scales, state, operations, devices, active, replace, illegal):  # type: ignore[no-untyped-def]
    """Place operation ``operations[b]`` on ``devices[b]`` in every episode that is active and not finished.

    ``illegal`` [B] tells which of them were no legal actions; these are replaced by ``legal_action`` if
    ``replace``, else left out.
    """
    for b in range(active.shape[0]):
        illegal[b] = False
        if not active[b] or state.candidates[b] == 0:
            continue
        v, device = operations[b], devices[b]
        if not is_legal(scales, state, b, v, device):
            illegal[b] = True
            if not replace:
                continue
            v, device = legal_action(scales, state, b, v, device)
        place(problem, scales, state, b, v, device)


@njit(cache=True, nogil=True, inline="always")
def is_legal(scales, state, b, v, device):  # type: ignore[no-untyped-def]
    """Whether v is a candidate of episode b and may use the device."""
    n, d = scales.allowed.shape
    if v < 0 or v >= n or device < 0 or device >= d:
        return False
    return state.slot[b, v] >= 0 and scales.allowed[v, device]


@njit(cache=True, nogil=True)
def legal_action(scales, state, b, v, device):  # type: ignore[no-untyped-def]
    """The next candidate from v upward, and its next allowed device from ``device`` upward, both cyclic."""
    n, d = scales.allowed.shape
    v %= n
    while state.slot[b, v] < 0:
        v = (v + 1) % n
    device %= d
    while not scales.allowed[v, device]:
        device = (device + 1) % d
    return v, device


@njit(cache=True, nogil=True, inline="always")
def place(problem, scales, state, b, v, device):  # type: ignore[no-untyped-def]
    """Place candidate v of episode b on a device that it may use."""
    begin = state.free[b, device]
    for entry in range(problem.in_ptr[v], problem.in_ptr[v + 1]):
        edge = problem.in_edge[entry]
        u = problem.edge_source[edge]
        here = state.assignment[b, u]
        delay = problem.latency[here, device] + problem.edge_bytes[edge] * problem.seconds_per_byte[here, device]
        begin = max(begin, state.end[b, u] + delay)
    if scales.track_memory:
        assignment, input_there, copy_there = state.assignment[b], state.input_there[b], state.copy_there[b]
        state.used[b, device] += memory_need(problem, assignment, input_there, copy_there, v, device)
        for entry in range(problem.input_ptr[v], problem.input_ptr[v + 1]):
            state.input_there[b, problem.input_index[entry], device] = True
    _send_inputs(problem, state, b, v, device)
    if scales.group[v] >= 0:
        state.group_there[b, scales.group[v], device] += 1
    end = begin + problem.compute_s[v, device]
    state.assignment[b, v], state.start[b, v], state.end[b, v] = device, begin, end
    state.free[b, device] = end
    state.computed[b, device] += problem.compute_s[v, device]
    state.planned[b] = max(state.planned[b], end)
    state.order[b, state.steps[b]] = v
    state.steps[b] += 1
    _remove_candidate(state, b, v)
    count = state.ready_ptr[b, state.steps[b]]
    for edge in range(problem.out_ptr[v], problem.out_ptr[v + 1]):
        w = problem.edge_target[edge]
        state.read_from[b, w, device] += problem.edge_bytes[edge]
        state.waiting[b, w] -= 1
        if state.waiting[b, w] == 0:
            _add_candidate(state, b, w, count)
            count += 1
    state.ready_ptr[b, state.steps[b] + 1] = count


@njit(cache=True, nogil=True, inline="always")
def _send_inputs(problem, state, b, v, device):  # type: ignore[no-untyped-def]
    """Book what v reads from other devices and the device has not received yet."""
    for entry in range(problem.in_ptr[v], problem.in_ptr[v + 1]):
        edge = problem.in_edge[entry]
        here, tensor = state.assignment[b, problem.edge_source[edge]], problem.edge_tensor[edge]
        if here != device and not state.copy_there[b, tensor, device]:
            state.copy_there[b, tensor, device] = True
            seconds = problem.edge_bytes[edge] * problem.seconds_per_byte[here, device]
            state.sent[b, here] += seconds
            state.received[b, device] += seconds


@njit(cache=True, nogil=True, inline="always")
def _add_candidate(state, b, v, rank):  # type: ignore[no-untyped-def]
    """v becomes a candidate, the one number ``rank`` of its episode."""
    state.ready[b, rank] = v
    state.slot[b, v] = state.candidates[b]
    state.candidate[b, state.candidates[b]] = v
    state.candidates[b] += 1


@njit(cache=True, nogil=True, inline="always")
def _remove_candidate(state, b, v):  # type: ignore[no-untyped-def]
    state.candidates[b] -= 1
    last = state.candidate[b, state.candidates[b]]
    place = state.slot[b, v]
    state.candidate[b, place] = last
    state.slot[b, last] = place
    state.slot[b, v] = -1


@njit(cache=True, nogil=True)
def chosen_features(problem, scales, state, operations, out):  # type: ignore[no-untyped-def]
    """Device features of candidate ``operations[b]`` into ``out`` [B, D, F]; zeros where it is -1.

    Returns the first episode where it is no candidate, or -1.
    """
    for b in range(operations.shape[0]):
        v = operations[b]
        if v == -1:
            out[b, :, :] = 0.0
        elif v < 0 or v >= state.slot.shape[1] or state.slot[b, v] < 0:
            return b
        else:
            write_device_features(problem, scales, state, b, v, out[b])
    return -1


@njit(cache=True, nogil=True)
def candidate_features(problem, scales, state, out):  # type: ignore[no-untyped-def]
    """Device features of every candidate into ``out`` [B, N or more, D or more, F], which holds zeros."""
    for b in range(out.shape[0]):
        for i in range(state.candidates[b]):
            v = state.candidate[b, i]
            write_device_features(problem, scales, state, b, v, out[b, v])


@njit(cache=True, nogil=True)
def candidate_lists(state, pointer, operations):  # type: ignore[no-untyped-def]
    """The candidates of all episodes in CSR form; ``pointer`` [B + 1] is filled already."""
    for b in range(pointer.shape[0] - 1):
        for i in range(state.candidates[b]):
            operations[pointer[b] + i] = state.candidate[b, i]


@njit(cache=True, nogil=True)
def new_candidates(state, pointer, operations):  # type: ignore[no-untyped-def]
    """What the last step of each episode made candidates, in CSR form; returns their number."""
    total = 0
    for b in range(pointer.shape[0] - 1):
        pointer[b] = total
        for i in range(state.ready_ptr[b, state.steps[b]], state.ready_ptr[b, state.steps[b] + 1]):
            operations[total] = state.ready[b, i]
            total += 1
    pointer[pointer.shape[0] - 1] = total
    return total


@njit(cache=True, nogil=True)
def legal_masks(scales, state, out):  # type: ignore[no-untyped-def]
    """Mark the legal actions in ``out`` int8 [B, N or more, D or more], which holds zeros.

    A finished episode has none; there action (0, 0), which then does nothing, is marked.
    """
    d = scales.allowed.shape[1]
    for b in range(out.shape[0]):
        if state.candidates[b] == 0:
            out[b, 0, 0] = 1
        for i in range(state.candidates[b]):
            v = state.candidate[b, i]
            for device in range(d):
                out[b, v, device] = scales.allowed[v, device]


@njit(cache=True, nogil=True)
def observe_lean(count, listed, free, bound, limit, candidates, load):  # type: ignore[no-untyped-def]
    """Flags of the candidates [B, N or more] and end of each device's work / ``bound`` [B, D or more], into zeros.

    ``count``, ``listed`` and ``free`` are ``candidates``, ``candidate`` and ``free`` of the state: passing
    all of it would take longer than the work. A finished episode flags operation 0.
    """
    for b in range(candidates.shape[0]):
        if count[b] == 0:
            candidates[b, 0] = 1
        for i in range(count[b]):
            candidates[b, listed[b, i]] = 1
        for device in range(free.shape[1]):
            load[b, device] = min(free[b, device] / bound, limit)
