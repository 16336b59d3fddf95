"""Forked jobs inside the simulator's rounds: split at the start, booked in whole steps at the end."""

from __future__ import annotations

import numpy as np

from ..errors import AllocationError
from . import kernels
from .forks import split_steps
from .scheduler import Allocation, Floats, Integers


def mark_forks(gangs: kernels.Gangs) -> None:
    """Flag the gangs of jobs that have several; they must stand next to each other.

    Raises:
        AllocationError: a job's gangs are apart.
    """
    if len(gangs.job) < 2:
        return
    starts = np.flatnonzero(np.concatenate(([True], gangs.job[1:] != gangs.job[:-1])))
    sizes = np.diff(np.concatenate((starts, [len(gangs.job)])))
    if len(starts) != len(np.unique(gangs.job)):
        raise AllocationError("the gangs of one job must stand next to each other in an allocation; sort them by job.")
    gangs.forked[:] = np.repeat(sizes > 1, sizes)


def check_shares(gangs: kernels.Gangs, allocation: Allocation, left: Floats) -> None:
    """Refuse shares that together exceed the steps of a job that are left now.

    Raises:
        AllocationError: they do, or one is negative.
    """
    if allocation.share is None:
        return
    for job in dict.fromkeys(gangs.job[gangs.forked].tolist()):
        share = allocation.share[gangs.job == job]
        if not np.isnan(share).any() and (share.sum() > left[job] * (1 + 1e-12) or (share < 0).any()):
            raise AllocationError(
                f"job row {job}: its copies' shares {share.tolist()} must be 0 or more and at most the "
                f"{left[job]:g} steps left together."
            )


def book_forks(jobs: kernels.Jobs, gangs: kernels.Gangs, now: float) -> None:
    """At a round's end: book the whole steps of copies that still hold their GPUs."""
    for gang in np.flatnonzero(gangs.forked & gangs.alive).tolist():
        job = gangs.job[gang]
        jobs.remaining[job] = max(0.0, jobs.remaining[job] - steps_done(gangs, gang, float(gangs.budget[gang]), now))
        gangs.budget[gang] = 0.0


def fork_running(jobs: kernels.Jobs, old: kernels.Gangs, new: kernels.Gangs, now: float) -> None:
    """Book what a job did in one gang, if it gets several now; its placement stays known."""
    if not new.forked.any():
        return
    forks = np.isin(old.job, new.job[new.forked]) & old.alive & ~old.forked
    for gang in np.flatnonzero(forks).tolist():
        kernels.settle(jobs, old, gang, now)
        old.alive[gang] = old.forked[gang] = True
        old.budget[gang] = 0.0


def steps_done(gangs: kernels.Gangs, gang: int, budget: float, now: float) -> float:
    """Whole steps that a copy with a budget of steps has done by now."""
    if gangs.end[gang] <= now:
        return budget
    reach = max(0.0, now - gangs.work_start[gang]) * gangs.rate[gang]
    return float(min(budget, np.floor(reach * (1 + 1e-12))))


def lose_copies(jobs: kernels.Jobs, gangs: kernels.Gangs, lost: Integers) -> None:
    """After gangs ``lost`` their node: a job whose other copies do not hold all its steps goes on after the round."""
    for job in dict.fromkeys(gangs.job[lost[gangs.forked[lost]]].tolist()):
        others = (gangs.job == job) & gangs.alive
        if not holds_all_steps(gangs.budget[others], jobs.remaining[job]):
            gangs.final[others] = False
            gangs.release[others] = np.inf


def holds_all_steps(shares: Floats, remaining: float) -> bool:
    """Whether the copies' steps are all that the job has left; the last digits of broken steps do not count."""
    return bool(shares.sum() >= remaining * (1 - 1e-12))


def begin_forks(
    jobs: kernels.Jobs,
    gangs: kernels.Gangs,
    allocation: Allocation,
    believed: Floats,
    round_end: float,
    consolidation_s: float,
) -> None:
    """Give each copy its steps of this round; a job whose last steps are given ends with its slowest copy.

    Steps are split by the rates [A] that are ``believed``; how many are done is up to the true ones.
    """
    for job in dict.fromkeys(gangs.job[gangs.forked].tolist()):
        copies = np.flatnonzero(gangs.job == job)
        seconds = np.maximum(0.0, round_end - consolidation_s - gangs.work_start[copies])
        share = None if allocation.share is None else allocation.share[copies]
        if share is None or np.isnan(share).any():
            share = np.array(split_steps(float(jobs.remaining[job]), believed[copies].tolist(), seconds.tolist()))
        share = np.minimum(share, float(jobs.remaining[job]))
        reach = gangs.rate[copies] * seconds * (1 + 1e-12)
        gangs.budget[copies] = share
        working = share > 0
        gangs.end[copies] = gangs.work_start[copies] + share / gangs.rate[copies]
        if holds_all_steps(share, jobs.remaining[job]) and (share <= reach).all():
            gangs.final[copies] = True
            # A job with nothing left, as one gang of it would, ends as soon as a copy stands.
            last = np.max(gangs.end[copies], where=working, initial=gangs.work_start[copies].min())
            gangs.release[copies] = last + consolidation_s
        else:
            whole = np.floor(reach)
            gangs.budget[copies] = np.minimum(share, whole if whole.any() else reach)
            gangs.end[copies] = gangs.work_start[copies] + gangs.budget[copies] / gangs.rate[copies]
