"""List scheduling: the compiled core that HEFT, PEFT, CRITICAL PATH, ETF, DLS and min-min share.

A list scheduler takes one ready operation after the other and books it on a device, on the
assumption that transfers never wait. The methods differ in which operation and which device come
next. Memory is booked as if nothing were ever freed: a device without room is taken only if no
device has room.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from ...envs.placement import Placement, PlacementProblem, Plan
from ...envs.placement.features import memory_need, paths_to_exit
from ...envs.placement.fifo_kernel import ProblemArrays
from ...envs.placement.graph import Floats, Integers
from ...envs.placement.placement import order_by_start
from ...envs.placement.random_draws import uniform

EARLIEST_START, EARLIEST_FINISH = 0, 1
ETF, DLS, MIN_MIN = 0, 1, 2


class Books(NamedTuple):
    """What is booked so far; P graph inputs, T tensors."""

    data_ready: Floats
    """[N, D] when the inputs booked so far could be on each device."""
    free: Floats
    """[D] end of the last operation."""
    gap_start: Floats
    """[D, N + 1] idle intervals before ``free``, by time."""
    gap_end: Floats
    gaps: NDArray[np.int64]
    waiting: Integers
    ready: Integers
    """[N] ready operations in any order."""
    assignment: Integers
    start: Floats
    end: Floats
    used: Floats
    """[D] bytes booked."""
    input_there: NDArray[np.bool_]
    """[P, D]"""
    copy_there: NDArray[np.bool_]
    """[T, D]"""


def upward_ranks(problem: PlacementProblem) -> Floats:
    """[N] b-levels: longest path to an exit with mean costs, the operation itself included (HEFT's rank)."""
    return paths_to_exit(problem, problem.mean_transfer_s)[0]


def static_levels(problem: PlacementProblem) -> Floats:
    """[N] longest path to an exit without transfers (the static level of ETF and DLS)."""
    return paths_to_exit(problem, np.zeros(problem.graph.e))[0]


def schedule_by_rank(
    problem: PlacementProblem,
    rank: Floats,
    *,
    rule: int = EARLIEST_FINISH,
    look_ahead: Floats | None = None,
    insertion: bool = True,
    tie_seed: int = -1,
) -> Placement:
    """Book the ready operation of highest rank on the device of least score; see ``_by_rank``."""
    ahead = np.zeros((problem.n, problem.d)) if look_ahead is None else look_ahead
    books = _open_books(problem, insertion)
    limited = problem.memory != "off" and problem.may_overflow
    _by_rank(
        problem.arrays, np.ascontiguousarray(problem.allowed), rank, ahead, rule, insertion, tie_seed, limited, books
    )
    return close_books(problem, books)


def schedule_by_pair(problem: PlacementProblem, rule: int) -> Placement:
    """Book the best (ready operation, device) pair at every step; see ``_by_pair``."""
    books = _open_books(problem, insertion=False)
    limited = problem.memory != "off" and problem.may_overflow
    _by_pair(
        problem.arrays,
        np.ascontiguousarray(problem.allowed),
        static_levels(problem),
        problem.mean_s,
        rule,
        limited,
        books,
    )
    return close_books(problem, books)


def close_books(problem: PlacementProblem, books: Books, **more: Any) -> Placement:
    """The placement behind full books."""
    order = order_by_start(problem.graph, books.start)
    return Placement(books.assignment, order, planned=Plan(books.start, books.end), **more)


def _open_books(problem: PlacementProblem, insertion: bool) -> Books:
    n, d = problem.n, problem.d
    gaps = (d, n + 1) if insertion else (d, 1)
    return Books(
        data_ready=np.zeros((n, d)),
        free=np.zeros(d),
        gap_start=np.empty(gaps),
        gap_end=np.empty(gaps),
        gaps=np.zeros(d, np.int64),
        waiting=problem.graph.in_degree.astype(np.int32),
        ready=np.empty(n, np.int32),
        assignment=np.zeros(n, np.int32),
        start=np.zeros(n),
        end=np.zeros(n),
        used=np.zeros(d),
        input_there=np.zeros((len(problem.input_bytes), d), np.bool_),
        copy_there=np.zeros((len(problem.tensor_ptr) - 1, d), np.bool_),
    )


@njit(cache=True)
def _by_rank(problem: ProblemArrays, allowed, rank, ahead, rule, insertion, tie_seed, limited, books):  # type: ignore[no-untyped-def]
    """Until none is left: the ready operation of highest rank goes to the device of least score.

    Score: start under ``EARLIEST_START``; end + ``ahead`` [N, D] under ``EARLIEST_FINISH``.
    Ties by number, or at random if ``tie_seed`` is not negative.
    """
    count = _first_ready(books)
    while count > 0:
        slot = 0
        for i in range(1, count):
            v, best = books.ready[i], books.ready[slot]
            if rank[v] > rank[best] or (rank[v] == rank[best] and _before(v, best, tie_seed, 0)):
                slot = i
        v = books.ready[slot]
        count -= 1
        books.ready[slot] = books.ready[count]
        chosen, chosen_start, chosen_score = -1, 0.0, 0.0
        for device in _candidates(problem, allowed, limited, books, v):
            begin = _earliest_start(books, v, device, problem.compute_s[v, device], insertion)
            score = begin
            if rule == EARLIEST_FINISH:
                score += problem.compute_s[v, device] + ahead[v, device]
            if (
                chosen < 0
                or score < chosen_score
                or (score == chosen_score and _before(device, chosen, tie_seed, 1 + v))
            ):
                chosen, chosen_start, chosen_score = device, begin, score
        count = _book(problem, books, v, chosen, chosen_start, insertion, limited, count)


@njit(cache=True)
def _by_pair(problem: ProblemArrays, allowed, level, mean_s, rule, limited, books):  # type: ignore[no-untyped-def]
    """Until none is left: book the best pair of a ready operation and a device.

    ``ETF``: earliest start, ties by higher static level. ``DLS``: highest level - start + (mean
    duration - duration here). ``MIN_MIN``: earliest end. Further ties by number.
    """
    count = _first_ready(books)
    while count > 0:
        slot, chosen, chosen_start = -1, -1, 0.0
        best, second = 0.0, 0.0
        for i in range(count):
            v = books.ready[i]
            for device in _candidates(problem, allowed, limited, books, v):
                begin = max(books.data_ready[v, device], books.free[device])
                duration = problem.compute_s[v, device]
                score, tie = begin, -level[v]
                if rule == DLS:
                    score, tie = begin - level[v] - (mean_s[v] - duration), 0.0
                elif rule == MIN_MIN:
                    score, tie = begin + duration, 0.0
                better = slot < 0 or score < best or (score == best and tie < second)
                if not better and score == best and tie == second:
                    better = v < books.ready[slot]
                if better:
                    slot, chosen, chosen_start, best, second = i, device, begin, score, tie
        v = books.ready[slot]
        count -= 1
        books.ready[slot] = books.ready[count]
        count = _book(problem, books, v, chosen, chosen_start, False, limited, count)


@njit(cache=True)
def _first_ready(books):  # type: ignore[no-untyped-def]
    count = 0
    for v in range(books.waiting.shape[0]):
        if books.waiting[v] == 0:
            books.ready[count] = v
            count += 1
    return count


@njit(cache=True)
def _before(a, b, tie_seed, item):  # type: ignore[no-untyped-def]
    """Whether a comes before b among equals."""
    if tie_seed < 0:
        return a < b
    return uniform(tie_seed, item, a) < uniform(tie_seed, item, b)


@njit(cache=True)
def _candidates(problem, allowed, limited, books, v):  # type: ignore[no-untyped-def]
    """Allowed devices that have room for v; if none has, the one that overflows least."""
    d = allowed.shape[1]
    devices = np.empty(d, np.int64)
    count, least, least_over = 0, -1, 0.0
    for device in range(d):
        if not allowed[v, device]:
            continue
        if limited:
            need = memory_need(problem, books.assignment, books.input_there, books.copy_there, v, device)
            over = books.used[device] + need - problem.memory_bytes[device]
            if over > 0:
                if least < 0 or over < least_over:
                    least, least_over = device, over
                continue
        devices[count] = device
        count += 1
    if count == 0:
        devices[0] = least
        count = 1
    return devices[:count]


@njit(cache=True)
def _earliest_start(books, v, device, duration, insertion):  # type: ignore[no-untyped-def]
    """Start of v on a device: in the first gap that holds it, else after everything booked."""
    ready = books.data_ready[v, device]
    if insertion and ready < books.free[device]:
        low, high = 0, books.gaps[device]
        while low < high:  # the first gap that ends after v's inputs are there
            middle = (low + high) // 2
            if books.gap_end[device, middle] < ready:
                low = middle + 1
            else:
                high = middle
        for gap in range(low, books.gaps[device]):
            begin = max(ready, books.gap_start[device, gap])
            if begin + duration <= books.gap_end[device, gap]:
                return begin
    return max(ready, books.free[device])


@njit(cache=True)
def _book(problem, books, v, device, begin, insertion, limited, count):  # type: ignore[no-untyped-def]
    """Book v and return the new number of ready operations."""
    end = begin + problem.compute_s[v, device]
    books.assignment[v] = device
    books.start[v] = begin
    books.end[v] = end
    if insertion:
        _fill_gap(books, device, begin, end)
    books.free[device] = max(books.free[device], end)
    if limited:
        books.used[device] += memory_need(problem, books.assignment, books.input_there, books.copy_there, v, device)
        for entry in range(problem.input_ptr[v], problem.input_ptr[v + 1]):
            books.input_there[problem.input_index[entry], device] = True
        for entry in range(problem.in_ptr[v], problem.in_ptr[v + 1]):
            books.copy_there[problem.edge_tensor[problem.in_edge[entry]], device] = True
    for edge in range(problem.out_ptr[v], problem.out_ptr[v + 1]):
        w = problem.edge_target[edge]
        for there in range(books.free.shape[0]):
            arrival = end + (
                problem.latency[device, there] + problem.edge_bytes[edge] * problem.seconds_per_byte[device, there]
            )
            books.data_ready[w, there] = max(books.data_ready[w, there], arrival)
        books.waiting[w] -= 1
        if books.waiting[w] == 0:
            books.ready[count] = w
            count += 1
    return count


@njit(cache=True)
def _fill_gap(books, device, begin, end):  # type: ignore[no-untyped-def]
    """Take [begin, end) out of the device's idle intervals."""
    count = books.gaps[device]
    start_of, end_of = books.gap_start[device], books.gap_end[device]
    if begin >= books.free[device]:
        if begin > books.free[device]:
            start_of[count], end_of[count] = books.free[device], begin
            books.gaps[device] = count + 1
        return
    gap = 0
    while end_of[gap] < end or start_of[gap] > begin:
        gap += 1
    left, right = start_of[gap], end_of[gap]
    pieces = (1 if left < begin else 0) + (1 if end < right else 0)
    if pieces == 2:
        for i in range(count, gap, -1):
            start_of[i], end_of[i] = start_of[i - 1], end_of[i - 1]
        end_of[gap] = begin
        start_of[gap + 1], end_of[gap + 1] = end, right
    elif pieces == 1:
        if left < begin:
            end_of[gap] = begin
        else:
            start_of[gap] = end
    else:
        for i in range(gap, count - 1):
            start_of[i], end_of[i] = start_of[i + 1], end_of[i + 1]
    books.gaps[device] = count - 1 + pieces
