"""DLS: dynamic level scheduling (Sih, Lee, 1993)."""

from __future__ import annotations

import numpy as np

from ...envs.placement import Placement, PlacementProblem
from .list_scheduling import DLS, schedule_by_pair


def dls(problem: PlacementProblem, *, rng: np.random.Generator, execution: str) -> Placement:
    """Book the pair of highest dynamic level: static level - start + (mean duration - duration there)."""
    return schedule_by_pair(problem, DLS)
