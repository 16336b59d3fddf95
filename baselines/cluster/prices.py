"""Hadar's dual prices as pure functions: what a GPU costs when so many of its kind are given.

The papers state a dynamic price per resource from job utility and load; the exponential form is that
of the online-auction family: k = low (high / low)^(given / capacity), low when a node's GPUs of a type
are all free and high when all are given. For whole GPUs on small nodes the step from one price to the
next is large; the integral of the price over the GPUs taken mends that.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

Floats = NDArray[np.float64]

NONE, PRE, INTEGRAL = 0, 1, 2
PRICES: dict[str, int] = {"none": NONE, "pre": PRE, "integral": INTEGRAL}
"""Price modes: nothing costs anything | every GPU at the price before it is taken | the integral."""

FLOOR = 4.0
"""``low`` is the worst utility per GPU divided by this (our choice)."""


@njit(cache=True, nogil=True)
def unit_price(given: float, capacity: float, low: float, high: float) -> float:
    """Price of one GPU when ``given`` of ``capacity`` are in use: low if none is, high if all are.

    Zero bounds (no active job runs on the type) make it free.
    """
    if low <= 0.0:
        return 0.0
    return low * (high / low) ** (given / capacity)


@njit(cache=True, nogil=True)
def total_price(mode: int, given: float, taken: float, capacity: float, low: float, high: float) -> float:
    """Price of ``taken`` GPUs of one type on one node that has ``given`` of ``capacity`` in use."""
    if mode == NONE or low <= 0.0:
        return 0.0
    before = unit_price(given, capacity, low, high)
    if mode == PRE or high <= low:
        return taken * before
    after = unit_price(given + taken, capacity, low, high)
    return capacity / np.log(high / low) * (after - before)


def price_bounds(per_gpu: Floats) -> tuple[Floats, Floats]:
    """(low, high) [R]: worst / 4 and best utility per GPU over the active jobs, 0 for an unused type.

    Args:
        per_gpu: [N, R] utility per GPU of each job on each type; NaN where it does not run.
    """
    usable = np.isfinite(per_gpu)
    high = np.where(usable, per_gpu, 0.0).max(axis=0, initial=0.0)
    worst = np.where(usable, per_gpu, np.inf).min(axis=0, initial=np.inf)
    return np.where(np.isfinite(worst), worst, 0.0) / FLOOR, high
