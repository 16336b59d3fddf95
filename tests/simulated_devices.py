"""Devices that are another simulation than the one that policies are trained in: a real system without waiting."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from hadoppler.envs.placement import PlacementProblem, simulate
from hadoppler.real_system.placement.calibration import calibrated
from hadoppler.real_system.placement.executor import Execution


class SimulatedDevices:
    """A source of real times (``agents.placement.online.RealSource``) whose truth a problem describes."""

    execution: Any = "fifo"

    def __init__(self, problem: PlacementProblem, truth: PlacementProblem, noise: float = 0.05, seed: int = 0) -> None:
        self.problem, self.truth, self.noise = problem, truth, noise
        self.rng, self.calls = np.random.default_rng(seed), 0
        self.done: list[Execution] = []
        self.log: list[tuple[np.ndarray, float]] = []

    def run(self, problem: PlacementProblem, assignment: Any, order: Any, limit: float = np.inf) -> float:
        self.calls += 1
        schedule = simulate(self.truth, assignment, noise=self.noise, seed=int(self.rng.integers(2**31)), memory="off")
        seconds = min(schedule.makespan, limit)
        self.log.append((np.array(assignment), seconds))
        if schedule.makespan <= limit:
            self.done = [*self.done, Execution(schedule, schedule.start)][-30:]
        return float(seconds)

    def times(self, problem: PlacementProblem, assignments: Any, orders: Any, rng: Any) -> np.ndarray:
        return np.array([self.run(problem, a, o) for a, o in zip(assignments, orders, strict=True)])

    def believed(self, problem: PlacementProblem) -> PlacementProblem | None:
        return calibrated(self.problem, self.done) if len(self.done) > 3 else None

    def forget(self) -> None:
        self.done = self.done[-3:]

    def slow_down(self, device: int, factor: float) -> None:
        """From now on a device takes longer."""
        devices = list(self.truth.topology.devices)
        devices[device] = devices[device].at_speed(1.0 / factor)
        self.truth = replace(self.truth, topology=replace(self.truth.topology, devices=tuple(devices)))
