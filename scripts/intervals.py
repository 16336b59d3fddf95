"""A figure over several seeds: its centre and how sure it is."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

LEVEL = 0.95
RESAMPLES = 5000
ENOUGH = 5
"""Seeds from which on the interquartile mean and its bootstrap are used; of fewer, no quarter can be left out."""


@dataclass(frozen=True)
class Estimate:
    """What several seeds say of one figure.

    Attributes:
        centre: the interquartile mean of five seeds or more, the mean of fewer.
        low, high: 95 % confidence interval of it; both are the centre for one seed, of which nothing can be said.
        seeds: how many values there were.
    """

    centre: float
    low: float
    high: float
    seeds: int

    def __str__(self) -> str:
        """The centre, and the interval where there is one."""
        if self.seeds < 2:
            return f"{self.centre:.4g}"
        return f"{self.centre:.4g} [{self.low:.4g}, {self.high:.4g}]"

    def __truediv__(self, divisor: float) -> Estimate:
        """The same in another unit."""
        return Estimate(self.centre / divisor, self.low / divisor, self.high / divisor, self.seeds)


def estimate(values: Sequence[float], least: float = -math.inf) -> Estimate:
    """Centre and interval of a figure: a percentile bootstrap from five seeds on, Student's t for fewer.

    Interquartile mean and bootstrap follow Agarwal et al., "Deep reinforcement learning at the edge of the statistical
    precipice" (NeurIPS 2021); with fewer seeds than five our choice is Student's t. The same values give the same
    interval always, in whatever order they come. The interval is cut at ``least``, what the figure cannot go below.

    Raises:
        ValueError: there is no value, or one is not finite.
    """
    known = np.sort(np.asarray(values, dtype=np.float64))
    if not len(known) or not np.isfinite(known).all():
        raise ValueError(f"the values are {list(values)}; expected one finite number or more.")
    centre = float(interquartile_mean(known) if len(known) >= ENOUGH else known.mean())
    if len(known) == 1 or known[0] == known[-1]:
        return Estimate(centre, centre, centre, len(known))
    from scipy import stats  # half a second, which only figures over seeds are worth

    if len(known) < ENOUGH:
        half = stats.t.ppf((1 + LEVEL) / 2, len(known) - 1) * known.std(ddof=1) / math.sqrt(len(known))
        return Estimate(centre, float(max(centre - half, least)), float(centre + half), len(known))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", stats.DegenerateDataWarning)
        found = stats.bootstrap(
            (known,), interquartile_mean, n_resamples=RESAMPLES, confidence_level=LEVEL, method="percentile",
            rng=np.random.default_rng(0),
        )  # fmt: skip
    return Estimate(centre, float(found.confidence_interval.low), float(found.confidence_interval.high), len(known))


def interquartile_mean(values: np.ndarray, axis: int = -1) -> np.ndarray:
    """Mean of the middle half: a quarter of the values is left out at each end, rounded down."""
    from scipy.stats import trim_mean

    return np.asarray(trim_mean(values, 0.25, axis=axis))
