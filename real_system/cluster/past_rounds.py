"""The log of rounds of a run that was interrupted, from its decisions: pictures then show the whole run."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ...envs.cluster import Allocation, RoundLog
from ...envs.cluster.kernels import Gangs
from ...envs.cluster.scheduler import Floats
from ...envs.cluster.state import new_gangs
from .decisions import Decision

Place = tuple[int, tuple[int, ...], tuple[int, ...], tuple[int, ...]]
"""Row of a job; nodes, GPU types and GPUs of its gang."""


def restore_rounds(log: RoundLog, decisions: Iterable[Decision], finish: Floats) -> None:
    """Note in an empty log what was decided before.

    Args:
        log: of the run that goes on.
        decisions: in their order, with the times of the run's clock.
        finish: [J] when jobs ended, NaN for those that did not; their gangs left the workers then. Of rates only
            measured ones are known; the others are NaN.
    """
    running: dict[Place, float] = {}
    for decision in decisions:
        view, gangs = decision.view, _gangs_of(decision, finish)
        running = {place: release for place, release in running.items() if release > view.time}
        places = [_place_of(decision.allocation, a) for a in range(len(decision.allocation))]
        gangs.kept[:] = [place in running for place in places]
        active = len(view.job)
        if view.mid_round:  # the view shows only who waits
            active += len({place[0] for place in running})
        running = (running if view.mid_round else {}) | dict(zip(places, gangs.release.tolist(), strict=True))
        restarts = len(places) - int(gangs.kept.sum())
        log.add(view.time, view.mid_round, active, len(running), restarts, decision.allocation, gangs)


def _gangs_of(decision: Decision, finish: Floats) -> Gangs:
    """The gangs of a decision, with the moments at which their workers were free again."""
    gangs = new_gangs(decision.allocation)
    ends = finish[gangs.job]
    gangs.release[:] = np.where(ends >= decision.view.time, ends, np.inf)  # NaN: not in this round
    gangs.rate[:] = np.nan
    if decision.gangs is not None and decision.measured is not None:
        keys = zip(decision.gangs.job.tolist(), decision.gangs.copy.tolist(), strict=True)
        measured = dict(zip(keys, decision.measured.tolist(), strict=True))
        mine = zip(gangs.job.tolist(), gangs.copy.tolist(), strict=True)
        gangs.rate[:] = [measured.get(key, np.nan) for key in mine]
    return gangs


def _place_of(allocation: Allocation, a: int) -> Place:
    entries = slice(allocation.ptr[a], allocation.ptr[a + 1])
    node, kind, count = (tuple(getattr(allocation, name)[entries].tolist()) for name in ("node", "gpu_type", "count"))
    return int(allocation.job[a]), node, kind, count
