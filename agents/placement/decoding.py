"""From a policy to a placement: its best guess, the best of many samples, and local search from those."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ...baselines.placement.annealing import improve
from ...envs.placement import Placement, PlacementProblem
from .policy import Exploration, PlacementPolicy
from .rewards import RewardSource

SAMPLE_TEMPERATURES = ((1.0, 1.0), (1.0, 0.5), (0.0, 0.5), (1.0, 0.25))
"""(of the operation, of the device): a quarter of the samples each (our choice)."""
REFINE_STARTS = 4
"""Local search starts from so many of the best samples."""
REFINE_HEAT = 5e-4
"""Temperature at its start, a sixth of annealing's: it begins near an optimum."""


def decode(
    policy: PlacementPolicy,
    prepared: Any,
    problem: PlacementProblem,
    reward: RewardSource,
    rng: np.random.Generator,
    samples: int = 64,
) -> list[Placement]:
    """The greedy placement and ``samples`` sampled ones, best first; ``makespan`` is as the reward source told it."""
    parts = [policy.roll_out(prepared, 1, rng, Exploration.greedy())]
    quarters = np.array_split(np.arange(samples), len(SAMPLE_TEMPERATURES))
    for (select, place), quarter in zip(SAMPLE_TEMPERATURES, quarters, strict=True):
        if len(quarter):
            parts.append(policy.roll_out(prepared, len(quarter), rng, Exploration(select, place)))
    assignments = np.concatenate([part.assignment for part in parts])
    orders = np.concatenate([part.order for part in parts])
    times = reward.times(problem, assignments, orders, rng)
    return [
        Placement(
            assignments[b],
            orders[b],
            execution=reward.execution,
            makespan=float(times[b]),
            calls=len(times),
            notes={"decoded": "greedy" if b == 0 else "sampled", "greedy": float(times[0])},
        )
        for b in np.argsort(times, kind="stable")
    ]


def refine(
    problem: PlacementProblem,
    placements: list[Placement],
    reward: RewardSource,
    rng: np.random.Generator,
    calls: int = 0,
    seconds: float | None = None,
) -> Placement:
    """Local search from the best few of decoded placements; never worse than the best one.

    Args:
        calls: simulator calls.
        seconds: a budget in seconds instead; the result is then not repeatable.
    """
    best = placements[0]
    starts = placements[:REFINE_STARTS]
    found = improve(problem, starts, rng=rng, execution=reward.execution, calls=calls, seconds=seconds, hot=REFINE_HEAT)
    spent = sum(item.calls for item in found)
    reward.calls += spent
    after = min(found, key=lambda item: item.makespan)
    chosen = after if after.makespan < best.makespan else best
    notes = dict(best.notes) | {"refined": chosen is after}
    return replace(chosen, calls=best.calls + spent, repeatable=seconds is None, notes=notes)
