"""Where the times of placements come from: a simulator here, a real executor later, through one interface."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, get_args

import numpy as np
from numpy.typing import NDArray

from ...envs.errors import TrainingError
from ...envs.placement import PlacementProblem, makespans
from ...envs.placement.graph import Floats, Integers
from ...envs.placement.simulator import Order


class RewardSource(Protocol):
    """Anything that tells how long placements take."""

    execution: Order
    """How devices choose among ready operations; under ``priority`` the order of a placement counts."""
    calls: int
    """Runs so far; everything that runs placements for training adds to it."""

    def times(
        self, problem: PlacementProblem, assignments: Integers, orders: Integers, rng: np.random.Generator
    ) -> Floats:
        """[B] seconds (or raw units) of placements [B, N], which ``orders`` [B, N] list in the order of choice."""


def run_times(
    source: RewardSource, problem: PlacementProblem, assignments: Integers, orders: Integers, rng: np.random.Generator
) -> Floats:
    """What a source tells, checked: it may be anybody's.

    Raises:
        TrainingError: it did not give one finite time from 0 up for each placement.
    """
    who = type(source).__name__
    try:
        times = np.asarray(source.times(problem, assignments, orders, rng), dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise TrainingError(f"{who}.times failed ({error}); expected one time for each placement.") from error
    if times.shape != (len(assignments),):
        raise TrainingError(
            f"{who}.times gave shape {times.shape} for {len(assignments)} placements; give one time each."
        )
    wrong = ~(np.isfinite(times) & (times >= 0))
    if wrong.any():
        raise TrainingError(f"{who}.times gave {times[wrong][0]} for a placement; expected a finite time from 0 up.")
    return times


@dataclass
class SimulatedTime:
    """The simulator's time of each placement, exact or as a mean over random orders and noise.

    Attributes:
        execution: ``fifo`` or ``priority``.
        runs: 0 for one exact run; else the mean over that many runs with ``noise``, and with random order
            under ``fifo``.
        noise: deviation of the lognormal factor on every time of such a run.
        calls: simulated runs so far.
    """

    execution: Order = "fifo"
    runs: int = 0
    noise: float = 0.05
    calls: int = 0

    def __post_init__(self) -> None:
        if self.execution not in get_args(Order) or self.execution == "random":
            raise TrainingError(
                f"execution is {self.execution!r}; expected fifo or priority (runs=N draws random orders)."
            )
        if self.runs < 0 or not 0 <= self.noise < 10:
            raise TrainingError(f"runs is {self.runs} and noise {self.noise}; expected numbers from 0 up.")

    def times(
        self, problem: PlacementProblem, assignments: Integers, orders: Integers, rng: np.random.Generator
    ) -> Floats:
        """As of ``RewardSource``; a device that overflows costs the simulator's penalty."""
        memory = "penalty" if problem.memory == "error" else problem.memory
        self.calls += len(assignments) * max(self.runs, 1)
        if self.runs == 0:
            priority = orders if self.execution == "priority" else None
            return makespans(problem, assignments, order=self.execution, priority=priority, memory=memory)
        rows = np.repeat(assignments, self.runs, axis=0)
        priority = np.repeat(orders, self.runs, axis=0) if self.execution == "priority" else None
        found = makespans(
            problem,
            rows,
            order="priority" if self.execution == "priority" else "random",
            priority=priority,
            noise=self.noise,
            seed=int(rng.integers(2**31)),
            memory=memory,
        )
        return mean_of_runs(found, self.runs)


def mean_of_runs(times: NDArray[np.float64], runs: int) -> Floats:
    """[B] means of [B * runs] times, ``runs`` neighbours each."""
    return times.reshape(-1, runs).mean(axis=1)
