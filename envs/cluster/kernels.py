"""The round simulator's compiled core: start gangs, let time pass, count what was used.

A gang that keeps its placement keeps its anchor: the moment from which it works, and the steps that
it had left then. Its end is computed from the anchor, so the number of rounds in between changes
nothing, and time does not drift. All tolerances are relative to a round's length.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from .gang_speed import gang_rate

OK, INACTIVE, OVER_CAPACITY, WRONG_SIZE, NO_RATE, UNSORTED = 0, 1, 2, 3, 4, 5


class Jobs(NamedTuple):
    """J jobs: what is constant, and what the simulation counts."""

    workers: NDArray[np.int64]
    rates: NDArray[np.float64]
    spread: NDArray[np.float64]
    active: NDArray[np.bool_]
    remaining: NDArray[np.float64]
    start: NDArray[np.float64]
    finish: NDArray[np.float64]
    held_s: NDArray[np.float64]
    overhead_s: NDArray[np.float64]
    running_s: NDArray[np.float64]
    restarts: NDArray[np.int64]
    lost: NDArray[np.float64]
    gang: NDArray[np.int64]


class Gangs(NamedTuple):
    """A gangs that were started by one decision. ``remaining`` of a job counts from before its gangs.

    ``release``: when the GPUs are free again; ``final``: the job is finished then. ``forked`` gangs
    are booked by whole steps at the round's end.
    """

    job: NDArray[np.int64]
    copy: NDArray[np.int64]
    ptr: NDArray[np.int64]
    node: NDArray[np.int64]
    gpu_type: NDArray[np.int64]
    gpus: NDArray[np.int64]
    rate: NDArray[np.float64]
    work_start: NDArray[np.float64]
    budget: NDArray[np.float64]
    end: NDArray[np.float64]
    release: NDArray[np.float64]
    final: NDArray[np.bool_]
    forked: NDArray[np.bool_]
    alive: NDArray[np.bool_]
    kept: NDArray[np.bool_]


class Use(NamedTuple):
    """What was used so far: [H] seconds in which a node held a gang, and in which one worked; until when it held."""

    held: NDArray[np.float64]
    worked: NDArray[np.float64]
    until: NDArray[np.float64]


@njit(cache=True, nogil=True)
def check_gangs(jobs: Jobs, gangs: Gangs, free: NDArray[np.int64], slowest: bool) -> tuple[int, int]:
    """Take the gangs' GPUs from ``free`` and set their rates; (fault, gang) of the first fault, or (OK, -1).

    Jobs, nodes and types must exist (``check_entries``).
    """
    for a in range(gangs.job.shape[0]):
        job, total = gangs.job[a], 0
        if not jobs.active[job]:
            return INACTIVE, a
        for e in range(gangs.ptr[a], gangs.ptr[a + 1]):
            h, r = gangs.node[e], gangs.gpu_type[e]
            if e > gangs.ptr[a] and (h, r) <= (gangs.node[e - 1], gangs.gpu_type[e - 1]):
                return UNSORTED, a
            free[h, r] -= gangs.gpus[e]
            total += gangs.gpus[e]
            if free[h, r] < 0 or gangs.gpus[e] < 1:
                return OVER_CAPACITY, a
        if total != jobs.workers[job]:
            return WRONG_SIZE, a
        own = slice(gangs.ptr[a], gangs.ptr[a + 1])
        gangs.rate[a] = gang_rate(
            jobs.rates[job], jobs.spread[job], gangs.node[own], gangs.gpu_type[own], gangs.gpus[own], slowest
        )
        if gangs.rate[a] <= 0.0:
            return NO_RATE, a
    return OK, -1


@njit(cache=True, nogil=True)
def same_entries(a: Gangs, i: int, b: Gangs, k: int) -> bool:
    """Whether two gangs stand on the same GPUs."""
    size = a.ptr[i + 1] - a.ptr[i]
    if b.ptr[k + 1] - b.ptr[k] != size:
        return False
    for step in range(size):
        e, f = a.ptr[i] + step, b.ptr[k] + step
        if a.node[e] != b.node[f] or a.gpu_type[e] != b.gpu_type[f] or a.gpus[e] != b.gpus[f]:
            return False
    return True


@njit(cache=True, nogil=True)
def same_place(jobs: Jobs, old: Gangs, new: Gangs, a: int) -> int:
    """Number of the old gang, still alive, of the same job on the same GPUs; -1 for none."""
    k = jobs.gang[new.job[a]]
    while k >= 0 and k < old.job.shape[0] and old.job[k] == new.job[a]:
        if old.alive[k] and same_entries(new, a, old, k):
            return k
        k += 1
    return -1


@njit(cache=True, nogil=True)
def settle(jobs: Jobs, gangs: Gangs, gang: int, now: float) -> None:
    """Book an ordinary gang's steps up to now and end it; its job keeps the rest."""
    done = max(0.0, now - gangs.work_start[gang]) * gangs.rate[gang]
    job = gangs.job[gang]
    jobs.remaining[job] = max(0.0, gangs.budget[gang] - done)
    gangs.alive[gang] = False


@njit(cache=True, nogil=True)
def start_gangs(
    jobs: Jobs, old: Gangs, new: Gangs, free: NDArray[np.int64], now: float, restart_s: float, slowest: bool
) -> tuple[int, int]:
    """Start the new gangs at ``now``: those that stand where they stood go on, the others restart.

    Old gangs that are still alive and not among the new ones are preempted; ``free`` is lowered by
    what the new ones take. Returns (fault, gang) with nothing changed, or (OK, -1).
    """
    fault, gang = check_gangs(jobs, new, free, slowest)
    if fault != OK:
        return fault, gang
    for a in range(new.job.shape[0]):
        job = new.job[a]
        match = same_place(jobs, old, new, a)
        new.kept[a] = match >= 0
        if match >= 0:
            old.alive[match] = False
            new.work_start[a] = old.work_start[match]
            if not new.forked[a] and not old.forked[match]:
                new.budget[a] = old.budget[match]
    preempt(jobs, old, now)
    for a in range(new.job.shape[0]):
        job = new.job[a]
        if jobs.gang[job] < 0:
            jobs.gang[job] = a
        anchored = new.kept[a] and not np.isnan(new.budget[a])
        if not new.kept[a]:
            new.work_start[a] = now + restart_s
            jobs.restarts[job] += 1
            if np.isnan(jobs.start[job]):
                jobs.start[job] = now
        elif not anchored:
            new.work_start[a] = max(now, new.work_start[a])
        if not new.forked[a]:
            if not anchored:
                new.budget[a] = jobs.remaining[job]
            new.final[a] = True
        new.alive[a] = True
        new.end[a] = new.work_start[a] + new.budget[a] / new.rate[a]
        new.release[a] = new.end[a] if not new.forked[a] else np.inf
    return OK, -1


@njit(cache=True, nogil=True)
def preempt(jobs: Jobs, old: Gangs, now: float) -> None:
    """End the gangs that are still alive, and forget which gang each of their jobs had."""
    for k in range(old.job.shape[0]):
        if old.alive[k] and not old.forked[k]:
            settle(jobs, old, k, now)
        old.alive[k] = False
        jobs.gang[old.job[k]] = -1


@njit(cache=True, nogil=True)
def next_release(gangs: Gangs) -> float:
    """When the next job ends; infinity if none does."""
    first = np.inf
    for a in range(gangs.job.shape[0]):
        if gangs.alive[a] and gangs.final[a]:
            first = min(first, gangs.release[a])
    return first


@njit(cache=True, nogil=True)
def advance(jobs: Jobs, gangs: Gangs, use: Use, begin: float, stop: float, tolerance: float) -> int:
    """Let the gangs work from ``begin`` to ``stop``; finish jobs that end by then; gangs still alive.

    An end within ``tolerance`` of ``stop`` counts as at ``stop``.
    """
    count = gangs.job.shape[0]
    nodes = use.held.shape[0]
    held_until, worked_until = np.full(nodes, begin), np.full(nodes, begin)
    order = np.argsort(gangs.work_start, kind="mergesort")
    alive = 0
    for position in range(count):
        a = order[position]
        if not gangs.alive[a]:
            continue
        job = gangs.job[a]
        if abs(gangs.release[a] - stop) <= tolerance:
            gangs.release[a] = stop
        if abs(gangs.end[a] - stop) <= tolerance:
            gangs.end[a] = stop
        until, from_, ended = min(gangs.release[a], stop), max(gangs.work_start[a], begin), gangs.release[a] <= stop
        work_until = max(from_, min(gangs.end[a], stop))
        held, worked = max(0.0, until - begin), work_until - from_
        jobs.held_s[job] += held * jobs.workers[job]
        jobs.overhead_s[job] += max(0.0, held - worked) * jobs.workers[job]
        if jobs.gang[job] == a:
            jobs.running_s[job] += held
        for e in range(gangs.ptr[a], gangs.ptr[a + 1]):
            h = gangs.node[e]
            use.held[h] += max(0.0, until - held_until[h])
            held_until[h] = max(held_until[h], until)
            use.until[h] = max(use.until[h], until)
            use.worked[h] += max(0.0, work_until - max(from_, worked_until[h]))
            worked_until[h] = max(worked_until[h], work_until)
        if ended and gangs.final[a]:
            gangs.alive[a] = False
            jobs.remaining[job] = 0.0
            jobs.finish[job] = gangs.release[a]
            jobs.active[job] = False
        else:
            alive += 1
    return alive


@njit(cache=True, nogil=True)
def remaining_now(jobs: Jobs, gangs: Gangs, now: float, rows: NDArray[np.int64], out: NDArray[np.float64]) -> None:
    """Steps left of the jobs ``rows`` at ``now``, into ``out`` [J]; forks are booked at the round's end only."""
    for row in rows:
        out[row] = jobs.remaining[row]
    for a in range(gangs.job.shape[0]):
        if gangs.alive[a] and not gangs.forked[a]:
            done = max(0.0, now - gangs.work_start[a]) * gangs.rate[a]
            out[gangs.job[a]] = max(0.0, gangs.budget[a] - done)


@njit(cache=True, nogil=True)
def lose_node(jobs: Jobs, gangs: Gangs, node: int, checkpoint: float, now: float) -> int:
    """End the gangs that touch a node; their jobs fall back to the last checkpoint. Gangs lost."""
    lost = 0
    for a in range(gangs.job.shape[0]):
        touched = False
        for e in range(gangs.ptr[a], gangs.ptr[a + 1]):
            touched = touched or gangs.node[e] == node
        if not (gangs.alive[a] and touched):
            continue
        lost += 1
        job = gangs.job[a]
        reached = min(max(0.0, now - gangs.work_start[a]) * gangs.rate[a], gangs.budget[a])
        saved = min(max(0.0, checkpoint - gangs.work_start[a]) * gangs.rate[a], gangs.budget[a])
        if gangs.forked[a]:
            saved = 0.0
            gangs.budget[a] = 0.0
            gangs.end[a] = now
        else:
            jobs.remaining[job] = gangs.budget[a] - saved
        jobs.lost[job] += reached - saved
        gangs.alive[a] = False
        if jobs.gang[job] == a:
            jobs.gang[job] = -1
            for other in range(gangs.job.shape[0] - 1, -1, -1):
                if gangs.alive[other] and gangs.job[other] == job:
                    jobs.gang[job] = other
    return lost
