"""From a policy to a placement: its best guess, the best of many samples, and local search from those."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ...baselines.placement.annealing import improve
from ...envs.errors import PlacementError
from ...envs.placement import Placement, PlacementProblem
from ...envs.placement.graph import Integers
from .policy import Exploration, PlacementPolicy, Trajectories
from .rewards import RewardSource, run_times
from .tasks import FEATURE_SEED

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
    assignments, orders = answers(policy, prepared, rng, samples)
    times = run_times(reward, problem, assignments, orders, rng)
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


def answers(
    policy: PlacementPolicy, prepared: Any, rng: np.random.Generator, samples: int
) -> tuple[Integers, Integers]:
    """Assignments and orders [1 + samples, N] of the greedy episode and of sampled ones."""
    played = [policy.roll_out(prepared, 1, rng, Exploration.greedy()), *_sample(policy, prepared, samples, rng)]
    return np.concatenate([part.assignment for part in played]), np.concatenate([part.order for part in played])


def decode_on_fewer(
    policy: PlacementPolicy,
    problem: PlacementProblem,
    reward: RewardSource,
    rng: np.random.Generator,
    samples: int = 64,
) -> list[Placement]:
    """As ``decode``, with half of the samples on the best 1, 2, 4, ... devices alone; for graphs not trained on.

    How many devices are worth their links is one decision about the whole graph; a policy that decides operation by
    operation makes it badly (our finding). ``notes["devices"]`` tells the number that was chosen from.
    """
    best = fastest_devices(problem)
    counts = [2**power for power in range(8) if 2**power < problem.d]
    shares = [samples - samples // 2 * bool(counts), *_shares(samples // 2, len(counts))]
    found: list[Placement] = []
    for count, share in zip([problem.d, *counts], shares, strict=True):
        devices = np.sort(best[:count])
        try:
            part = problem if count == problem.d else problem.on_devices(devices)
        except PlacementError:  # pinned elsewhere, or too large for these
            continue
        prepared = policy.prepare(part, np.random.default_rng(FEATURE_SEED))
        for placement in decode(policy, prepared, part, reward, rng, share):
            notes = dict(placement.notes) | {"devices": count}
            found.append(replace(placement, assignment=devices[placement.assignment].astype(np.int32), notes=notes))
    calls, greedy = len(found), found[0].notes["greedy"]
    found.sort(key=lambda placement: placement.makespan)
    return [replace(item, calls=calls, notes=dict(item.notes) | {"greedy": greedy}) for item in found]


def fastest_devices(problem: PlacementProblem) -> Integers:
    """[D] devices, the fastest for the whole graph first; of equal ones that with the best links to those before."""
    seconds = (problem.compute_s.sum(axis=0) / max(float(problem.compute_s.sum()), 1e-300)).round(9)
    left, order = list(range(problem.d)), list[int]()
    while left:
        links = problem.seconds_per_byte[:, order].sum(axis=1) if order else np.zeros(problem.d)
        order.append(
            min(left, key=lambda device: (round(seconds[device] / max(seconds.max(), 1e-300), 9), links[device]))
        )
        left.remove(order[-1])
    return np.array(order, dtype=np.int32)


def _sample(policy: PlacementPolicy, prepared: Any, samples: int, rng: np.random.Generator) -> list[Trajectories]:
    parts = zip(SAMPLE_TEMPERATURES, _shares(samples, len(SAMPLE_TEMPERATURES)), strict=True)
    return [policy.roll_out(prepared, share, rng, Exploration(*warmth)) for warmth, share in parts if share]


def _shares(total: int, parts: int) -> list[int]:
    """``total`` in ``parts`` parts that differ by one at most."""
    return [total // parts + (number < total % parts) for number in range(parts)]


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
