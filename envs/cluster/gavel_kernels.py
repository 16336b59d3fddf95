"""Gavel's rounds, compiled: priorities from fractions, who runs in a round, and the loop of its simulator."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

DONE, SOLVE, SHUFFLE, STUCK = 0, 1, 2, 3
MAX_FAILURES = 5


class Shares(NamedTuple):
    """Per job and type [J, R]: Gavel's books of who had which part of the time since the last reset."""

    fraction: Floats
    listed: NDArray[np.bool_]
    job_time: Floats
    type_time: Floats
    deficit: Floats


class Run(NamedTuple):
    """State of one run in Gavel's simulator over J jobs; scalars are arrays of one element."""

    arrival: Floats
    workers: Integers
    rates: Floats
    steps: Integers
    done: Integers
    failures: Integers
    start: Floats
    finish: Floats
    running_s: Floats
    active: Integers
    sizes: Integers
    clock: Floats
    running: Integers
    running_type: Integers
    running_steps: Integers
    running_end: Floats
    order: Integers
    busy: Floats


COUNT, NEXT, RUNNING, ROUNDS, NEED, PHASE, FILLED = 0, 1, 2, 3, 4, 5, 6
NOW, LAST_RESET, ROUND_END, BEGIN = 0, 1, 2, 3
"""Positions in ``Run.sizes`` and ``Run.clock``."""


@njit(cache=True, nogil=True)
def priority_of(shares: Shares, rates: Floats, job: int, gpu_type: int) -> float:
    """Wanted part of the time over received part; 0 without an allocation, 1e9 x wanted if none was received."""
    wanted = shares.fraction[job, gpu_type]
    if not shares.listed[job] or wanted == 0.0 or rates[job, gpu_type] == 0.0:
        return 0.0
    received = 0.0
    if shares.type_time[gpu_type] > 0.0:
        received = shares.job_time[job, gpu_type] / shares.type_time[gpu_type]
    return wanted / received if received != 0.0 else wanted * 1e9


@njit(cache=True, nogil=True)
def sort_jobs(order: Integers, count: int, key: Floats, shares: Shares, gpu_type: int) -> None:
    """Sort ``order[:count]`` by (priority, deficit, fraction) descending, then row; fast if nearly sorted."""
    for i in range(1, count):
        job = order[i]
        k = i - 1
        while k >= 0 and _comes_before(job, order[k], key, shares, gpu_type):
            order[k + 1] = order[k]
            k -= 1
        order[k + 1] = job


@njit(cache=True, nogil=True, inline="always")
def _comes_before(a: int, b: int, key: Floats, shares: Shares, r: int) -> bool:
    if key[a] != key[b]:
        return key[a] > key[b]
    if shares.deficit[a, r] != shares.deficit[b, r]:
        return shares.deficit[a, r] > shares.deficit[b, r]
    if shares.fraction[a, r] != shares.fraction[b, r]:
        return shares.fraction[a, r] > shares.fraction[b, r]
    return a < b


@njit(cache=True, nogil=True)
def new_period(shares: Shares, active: Integers, count: int, elapsed: float, round_s: float) -> None:
    """Gavel's reset: what a job should have had and did not get goes into its deficit; times restart."""
    shares.type_time[:] = 0.0
    for i in range(count):
        job = active[i]
        for r in range(shares.type_time.shape[0]):
            owed = shares.fraction[job, r] * elapsed
            shares.deficit[job, r] += owed - (shares.job_time[job, r] - round_s / 2)
            shares.job_time[job, r] = round_s / 2
            shares.type_time[r] += round_s / 2


@njit(cache=True, nogil=True)
def choose_jobs(
    shares: Shares,
    rates: Floats,
    workers: Integers,
    active: Integers,
    count: int,
    order: Integers,
    types: Integers,
    left: Integers,
    work_conserving: bool,
    key: Floats,
    chosen: Integers,
) -> None:
    """Who gets which type in a round, into ``chosen`` [J] (-1: nobody).

    Types in the given order; on each the jobs by priority, skipping those that do not fit.

    Args:
        order: [R, J] the jobs of each type as they stood in the round before; sorted in place.
        left: [R] GPUs of each type; lowered.
        work_conserving: whether jobs of priority 0 are taken too.
    """
    for i in range(count):
        chosen[active[i]] = -1
    for position in range(types.shape[0]):
        r = types[position]
        for i in range(count):
            key[active[i]] = priority_of(shares, rates, active[i], r)
        sort_jobs(order[r], count, key, shares, r)
        for i in range(count):
            if left[r] == 0:
                break
            job = order[r, i]
            if chosen[job] >= 0 or rates[job, r] == 0.0 or workers[job] > left[r]:
                continue
            if key[job] == 0.0 and not work_conserving:
                continue
            chosen[job] = r
            left[r] -= workers[job]


@njit(cache=True, nogil=True)
def book_round(run: Run, shares: Shares) -> None:
    """Book the finished micro-tasks in order of descending end; a job's completion time is exact."""
    count = run.sizes[RUNNING]
    by_end = np.argsort(-run.running_end[:count], kind="mergesort")
    for position in range(count):
        slot = by_end[position]
        job, r, steps, end = run.running[slot], run.running_type[slot], run.running_steps[slot], run.running_end[slot]
        run.busy[1] += (end - run.clock[BEGIN]) * run.workers[job]
        if steps // run.workers[job] == 0:
            run.failures[job] += 1
            run.sizes[NEED] = 1
            if run.failures[job] >= MAX_FAILURES:
                _remove(run, job)
            continue
        run.failures[job] = 0
        run.done[job] += steps
        seconds = end - run.clock[ROUND_END]
        shares.job_time[job, r] += seconds
        shares.type_time[r] += seconds
        run.running_s[job] += end - run.clock[BEGIN]
        run.busy[0] += seconds * run.workers[job]
        if run.done[job] >= run.steps[job]:
            run.finish[job] = end
            _remove(run, job)
    run.sizes[RUNNING] = 0


@njit(cache=True, nogil=True)
def _remove(run: Run, job: int) -> None:
    run.sizes[NEED] = 1
    _drop(run.active, run.sizes[COUNT], job)
    for r in range(run.order.shape[0]):
        _drop(run.order[r], run.sizes[COUNT], job)
    run.sizes[COUNT] -= 1


@njit(cache=True, nogil=True)
def _drop(values: Integers, count: int, value: int) -> None:
    k = 0
    for i in range(count):
        values[k] = values[i]
        k += values[i] != value


@njit(cache=True, nogil=True)
def next_round(run: Run, shares: Shares, min_reset: float, round_s: float) -> int:
    """Go to the next round's start: book, take arrivals, begin a period if one is due.

    Returns DONE, SOLVE (the policy must answer before the round can be filled) or SHUFFLE (fill it).
    """
    sizes, clock = run.sizes, run.clock
    if sizes[RUNNING] == 0 and sizes[NEXT] >= run.arrival.shape[0]:
        if sizes[COUNT] == 0:
            return DONE
        clock[LAST_RESET] = 0.0
    if sizes[RUNNING] > 0:
        clock[NOW] = run.running_end[: sizes[RUNNING]].max()
        book_round(run, shares)
        clock[ROUND_END] = clock[NOW]
    elif sizes[NEXT] < run.arrival.shape[0]:
        clock[NOW] = max(clock[NOW], run.arrival[sizes[NEXT]])
    while sizes[NEXT] < run.arrival.shape[0] and run.arrival[sizes[NEXT]] <= clock[NOW]:
        job = sizes[NEXT]
        run.active[sizes[COUNT]] = job
        for r in range(run.order.shape[0]):
            run.order[r, sizes[COUNT]] = job
            shares.job_time[job, r] = round_s / 2
            shares.type_time[r] += round_s / 2
        sizes[COUNT] += 1
        sizes[NEXT] += 1
        sizes[NEED] = 1
    if sizes[COUNT] == 0 and sizes[NEXT] >= run.arrival.shape[0]:
        return DONE
    due = clock[NOW] - clock[LAST_RESET] >= min_reset or clock[LAST_RESET] == 0.0
    if sizes[NEED] == 1 and due:
        new_period(shares, run.active, sizes[COUNT], clock[NOW] - clock[LAST_RESET], round_s)
        clock[LAST_RESET] = clock[NOW]
        sizes[NEED] = 0
        return SOLVE
    return SHUFFLE


@njit(cache=True, nogil=True)
def fill_round(
    run: Run,
    shares: Shares,
    gpus: Integers,
    types: Integers,
    work_conserving: bool,
    round_s: float,
    key: Floats,
    chosen: Integers,
) -> None:
    """Choose the round's jobs and start them."""
    left = gpus.copy()
    count = run.sizes[COUNT]
    choose_jobs(shares, run.rates, run.workers, run.active, count, run.order, types, left, work_conserving, key, chosen)
    now = run.clock[NOW]
    run.clock[BEGIN] = now
    slot = 0
    for i in range(count):
        job = run.active[i]
        r = chosen[job]
        if r < 0 or not shares.listed[job]:
            continue
        rate = run.rates[job, r]
        steps = min(int(rate * round_s), run.steps[job] - run.done[job])
        run.running[slot], run.running_type[slot], run.running_steps[slot] = job, r, steps
        run.running_end[slot] = now + steps / rate
        if np.isnan(run.start[job]):
            run.start[job] = now
        slot += 1
    run.sizes[RUNNING] = slot
    run.sizes[FILLED] += 1
    run.sizes[ROUNDS] += slot > 0


@njit(cache=True, nogil=True)
def run_rounds(
    run: Run,
    shares: Shares,
    gpus: Integers,
    shuffled: Integers,
    work_conserving: bool,
    min_reset: float,
    round_s: float,
    key: Floats,
    chosen: Integers,
    max_idle: int,
) -> int:
    """Rounds until the policy must answer (SOLVE), all is done, or nothing moves any more (STUCK).

    ``shuffled``: [K, R] orders in which the types are served; row 0 of a single row, else one per
    round; returns SHUFFLE when more rows are needed.
    """
    idle = 0
    while True:
        if run.sizes[PHASE] == 0:
            outcome = next_round(run, shares, min_reset, round_s)
            if outcome == DONE:
                return DONE
            run.sizes[PHASE] = 1
            if outcome == SOLVE:
                return SOLVE
        row = 0
        if shuffled.shape[0] > 1:
            row = run.sizes[FILLED] % shuffled.shape[0]
            if row == 0 and run.sizes[PHASE] == 1 and run.sizes[FILLED] > 0:
                run.sizes[PHASE] = 2
                return SHUFFLE
        fill_round(run, shares, gpus, shuffled[row], work_conserving, round_s, key, chosen)
        run.sizes[PHASE] = 0
        idle = idle + 1 if run.sizes[RUNNING] == 0 and run.sizes[NEXT] >= run.arrival.shape[0] else 0
        if idle > max_idle:
            return STUCK
