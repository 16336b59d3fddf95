"""A problem with what real runs have shown of its devices and links, but no more than a policy can use."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ...envs.placement import PlacementProblem
from ...envs.placement.graph import Floats

STEP = 1.25
"""Factors are powers of this (our choice): devices and links that differ by less than about a tenth stay equal."""


def coarse(problem: PlacementProblem, believed: PlacementProblem) -> PlacementProblem:
    """``problem`` with each device's times and each link's rate off by a rounded factor, from measured costs.

    Measured times of equal operations differ a little, and a policy that was trained where they were equal takes such
    differences for meaning; a device that is half as fast, or a link a third, it should see (our choice). Times keep
    the problem's unit.
    """
    device = np.array([_typical(believed.compute_s[:, d], problem.compute_s[:, d]) for d in range(problem.d)])
    level = float(np.median(device))
    apart = ~np.eye(problem.d, dtype=bool)
    link = np.ones((problem.d, problem.d))
    known = apart & (problem.seconds_per_byte > 0)
    link[known] = believed.seconds_per_byte[known] / problem.seconds_per_byte[known]
    seen = problem.with_seconds(problem.compute_s * _rounded(device / level))
    bandwidth = problem.topology.bandwidth / _rounded(np.where(known, link / level, 1.0))
    return replace(seen, topology=replace(seen.topology, bandwidth=bandwidth), contention=believed.contention)


def _typical(measured: Floats, nominal: Floats) -> float:
    """Ratio of measured to nominal times, over all operations that take time."""
    total = float(nominal.sum())
    return float(measured.sum()) / total if total > 0 else 1.0


def _rounded(factors: Floats) -> Floats:
    """The nearest powers of ``STEP``."""
    powers: Floats = STEP ** np.round(np.log(factors) / np.log(STEP))
    return powers
