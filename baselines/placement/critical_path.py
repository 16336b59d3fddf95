"""CRITICAL PATH: the list scheduler that DOPPLER imitates first (spec: spread over random ties)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ...envs.errors import PlacementError
from ...envs.placement import Placement, PlacementProblem, makespans
from ...envs.placement.simulator import Order
from .list_scheduling import EARLIEST_START, schedule_by_rank, upward_ranks


def critical_path(
    problem: PlacementProblem, *, rng: np.random.Generator, execution: Order, runs: int = 50
) -> Placement:
    """Take the candidate of largest b-level; put it where it can start earliest; ties at random.

    Args:
        runs: repetitions with other ties. The best in the simulator is returned; ``notes`` holds
            ``mean``, ``best`` and ``worst``.
    """
    if runs < 1:
        raise PlacementError(f"critical_path: runs is {runs}; expected 1 or more.")
    ranks = upward_ranks(problem)
    seeds = rng.integers(0, 2**31, size=runs)
    answers = [
        schedule_by_rank(problem, ranks, rule=EARLIEST_START, insertion=False, tie_seed=int(seed)) for seed in seeds
    ]
    times = makespans(
        problem,
        np.stack([answer.assignment for answer in answers]),
        order=execution,
        priority=np.stack([answer.order for answer in answers]) if execution == "priority" else None,
        memory="penalty" if problem.memory == "error" else problem.memory,
    )
    notes = {"mean": float(times.mean()), "best": float(times.min()), "worst": float(times.max()), "runs": runs}
    return replace(answers[int(times.argmin())], calls=runs, notes=notes)
