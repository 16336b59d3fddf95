"""Min-min (Ibarra, Kim, 1977, as a list scheduler for graphs)."""

from __future__ import annotations

import numpy as np

from ...envs.placement import Placement, PlacementProblem
from .list_scheduling import MIN_MIN, schedule_by_pair


def min_min(problem: PlacementProblem, *, rng: np.random.Generator, execution: str) -> Placement:
    """Book the ready operation that can end first."""
    return schedule_by_pair(problem, MIN_MIN)
