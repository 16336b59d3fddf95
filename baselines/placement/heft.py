"""HEFT: heterogeneous earliest finish time, with insertion (Topcuoglu, Hariri, Wu, 2002)."""

from __future__ import annotations

import numpy as np

from ...envs.placement import Placement, PlacementProblem
from .list_scheduling import schedule_by_rank, upward_ranks


def heft(problem: PlacementProblem, *, rng: np.random.Generator, execution: str, insertion: bool = True) -> Placement:
    """Take the operation of highest upward rank; put it where it ends first.

    Args:
        insertion: also use idle gaps between operations that are booked already.
    """
    return schedule_by_rank(problem, upward_ranks(problem), insertion=insertion)
