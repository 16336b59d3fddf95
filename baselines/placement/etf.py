"""ETF: earliest task first (Hwang, Chow, Anger, Lee, 1989)."""

from __future__ import annotations

import numpy as np

from ...envs.placement import Placement, PlacementProblem
from .list_scheduling import ETF, schedule_by_pair


def etf(problem: PlacementProblem, *, rng: np.random.Generator, execution: str) -> Placement:
    """Book the ready operation that can start first, ties by the higher static level."""
    return schedule_by_pair(problem, ETF)
