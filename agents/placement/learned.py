"""``place("doppler", problem)``: a trained policy as a placement method."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ...baselines.placement.portfolio import portfolio
from ...envs.errors import PlacementError
from ...envs.placement import Placement, PlacementProblem
from ...envs.placement.simulator import Order
from .checkpoint import SHIPPED, load_policy
from .decoding import decode, decode_on_fewer, refine as search
from .policy import PlacementPolicy
from .rewards import SimulatedTime
from .tasks import FEATURE_SEED


def doppler(
    problem: PlacementProblem,
    *,
    rng: np.random.Generator,
    execution: Order,
    checkpoint: str | None = None,
    samples: int = 64,
    refine: int = 0,
    refine_seconds: float | None = None,
    fall_back: bool | None = None,
) -> Placement:
    """Place with a trained policy: the best of its greedy and its sampled placements, in the simulator.

    Args:
        checkpoint: ``policy.pt`` of a training; by default the shipped one, trained on generated graphs.
        samples: sampled placements.
        refine: simulator calls of local search from the best of them.
        refine_seconds: a budget in seconds for it instead; the result is then not repeatable.
        fall_back: take the portfolio's answer where that is better; ``notes["fall_back"]`` then says so. By default
            the shipped policy does, and a policy from a ``checkpoint`` of one's own does not.

    Raises:
        PlacementError: a budget is negative.
        CheckpointError: the checkpoint cannot be read.
    """
    if samples < 0 or refine < 0 or (refine_seconds is not None and refine_seconds <= 0):
        raise PlacementError(
            f"doppler: samples={samples}, refine={refine}, refine_seconds={refine_seconds}; expected no negative one."
        )
    reward = SimulatedTime("priority" if execution == "priority" else "fifo")
    policy = _loaded(str(SHIPPED if checkpoint is None else checkpoint))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # products this small are slower on several
    try:
        if checkpoint is None:
            found = decode_on_fewer(policy, problem, reward, rng, samples)
        else:
            prepared = policy.prepare(problem, np.random.default_rng(FEATURE_SEED))
            found = decode(policy, prepared, problem, reward, rng, samples)
    finally:
        torch.set_num_threads(threads)
    best = found[0]
    if refine or refine_seconds is not None:
        best = search(problem, found, reward, rng, refine, refine_seconds)
    if fall_back or (fall_back is None and checkpoint is None):
        best = _better(problem, best, portfolio(problem, rng=rng, execution=execution))
    return replace(best, execution=execution)


def _better(problem: PlacementProblem, ours: Placement, theirs: Placement) -> Placement:
    """The one of the lesser makespan."""
    relaxed = problem.with_options(memory="penalty") if problem.memory == "error" else problem
    makespan = replace(theirs, execution=ours.execution).simulate(relaxed).makespan
    calls = ours.calls + theirs.calls
    if makespan < ours.makespan:
        return replace(theirs, makespan=makespan, calls=calls, notes={"fall_back": theirs.notes["winner"]})
    return replace(ours, calls=calls)


@lru_cache(maxsize=4)
def _read(path: str, changed: float) -> PlacementPolicy:
    return load_policy(path)[0]


def _loaded(path: str) -> PlacementPolicy:
    """A policy from a file, kept until the file changes."""
    where: Any = Path(path)
    return _read(path, where.stat().st_mtime if where.exists() else 0.0)
