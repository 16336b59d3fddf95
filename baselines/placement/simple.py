"""Placements without thought: one device, turn by turn, at random."""

from __future__ import annotations

import numpy as np

from ...envs.errors import PlacementError
from ...envs.placement import Placement, PlacementProblem, makespans
from ...envs.placement.graph import Floats, Integers
from ...envs.placement.problem import MemoryMode
from ...envs.placement.simulator import Order


def single_device(problem: PlacementProblem, *, rng: np.random.Generator, execution: Order) -> Placement:
    """Everything on one device: the best one that every operation may use and that has the memory.

    An operation whose pins forbid the chosen device goes to the first one that it may use.
    """
    rows = np.stack([nearest_allowed(problem, np.full(problem.n, device)) for device in range(problem.d)])
    best = int(_times(problem, rows, execution).argmin())
    return Placement(rows[best], problem.graph.topological_order, calls=problem.d, notes={"device": best})


def round_robin(problem: PlacementProblem, *, rng: np.random.Generator, execution: Order) -> Placement:
    """Operation i of the topological order on device i mod D."""
    order = problem.graph.topological_order
    wanted = np.empty(problem.n, dtype=np.int32)
    wanted[order] = np.arange(problem.n) % problem.d
    return Placement(nearest_allowed(problem, wanted), order)


def random_placement(
    problem: PlacementProblem, *, rng: np.random.Generator, execution: Order, runs: int = 1
) -> Placement:
    """Each operation on a device drawn evenly from those that it may use.

    Args:
        runs: drawings; the best in the simulator is returned, ``notes`` holds the mean.
    """
    if runs < 1:
        raise PlacementError(f"random: runs is {runs}; expected 1 or more.")
    weights = np.where(problem.allowed, rng.random((runs, problem.n, problem.d)), -1.0)
    rows = weights.argmax(axis=2).astype(np.int32)
    order = problem.graph.topological_order
    if runs == 1:
        return Placement(rows[0], order)
    times = _times(problem, rows, execution)
    return Placement(rows[int(times.argmin())], order, calls=runs, notes={"mean": float(times.mean())})


def _times(problem: PlacementProblem, rows: Integers, execution: Order) -> Floats:
    """[B] makespans of assignments [B, N] in the topological order; overflow is penalised, not raised."""
    priority = problem.graph.topological_order if execution == "priority" else None
    memory: MemoryMode = "penalty" if problem.memory == "error" else problem.memory
    return makespans(problem, rows, order=execution, priority=priority, memory=memory)


def nearest_allowed(problem: PlacementProblem, wanted: Integers) -> Integers:
    """[N] the wanted devices where pins allow them, else the next allowed one (cyclically)."""
    turns = (np.asarray(wanted)[:, None] + np.arange(problem.d)) % problem.d
    first = np.take_along_axis(problem.allowed, turns, axis=1).argmax(axis=1)
    return turns[np.arange(problem.n), first].astype(np.int32)
