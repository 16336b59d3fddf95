"""How well simulated times predict measured ones, and assignments on which that shows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import spearmanr

from ...envs.placement import PlacementProblem

CONCENTRATIONS = (0.5, 1.0, 5.0)
"""From most work on one device to nearly even shares (our choice)."""


class Agreement(NamedTuple):
    """How two rows of times agree.

    Attributes:
        rank_correlation: Spearman's; NaN where one of the rows is constant or there are fewer than 3.
        median_error: median of |first - second| / second.
    """

    rank_correlation: float
    median_error: float


def agreement(first: ArrayLike, second: ArrayLike) -> Agreement:
    """Compare [B] times with the [B] times that were measured."""
    a, b = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    ranked = len(a) > 2 and np.ptp(a) > 0 and np.ptp(b) > 0
    return Agreement(float(spearmanr(a, b).statistic) if ranked else float("nan"), float(np.median(np.abs(a - b) / b)))


def spread_assignments(
    problem: PlacementProblem,
    count: int,
    rng: np.random.Generator,
    concentrations: Sequence[float] = CONCENTRATIONS,
) -> NDArray[np.int32]:
    """[count, N] random assignments whose load on the devices differs on purpose.

    Each row draws the shares of the devices from a Dirichlet distribution, with the concentrations in turn, and then
    a device for each operation by those shares, among the devices that it may use.
    """
    rows = np.empty((count, problem.n), dtype=np.int32)
    for number in range(count):
        share = rng.dirichlet(np.full(problem.d, concentrations[number % len(concentrations)]))
        chance = np.cumsum(np.where(problem.allowed, share + 1e-9, 0.0), axis=1)
        draw = rng.random(problem.n) * chance[:, -1]
        rows[number] = (draw[:, None] >= chance).sum(axis=1)
    return rows
