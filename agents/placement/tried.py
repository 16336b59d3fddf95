"""What real runs have shown: the times of every placement that was run, and which of them is the fastest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...envs.placement import PlacementProblem, makespans
from ...envs.placement.graph import Floats, Integers
from ...envs.placement.simulator import Order

PRIOR_RUNS = 2.0
"""What the corrected simulator says of a placement counts as so many runs of it (our choice)."""
USUAL_DEVIATION = 0.05
"""Relative deviation of a run's time until placements have been run again (our choice)."""
DRIFT = 0.15
"""The system has changed when runs take longer or shorter than expected by this share at the median (our choice)."""
WATCHED = 10
"""Runs by which that is judged, at least half of them of placements whose time was known."""


@dataclass(eq=False)
class Tried:
    """The runs of one phase of learning on a real system.

    Attributes:
        assignments, orders: [M] arrays [N], the placements that were run; the first is the incumbent, with which the
            phase began.
        times: [M] lists of seconds, one entry per run.
        expected: [M] seconds that each is expected to take.
        total, runs: seconds and number of all runs.
        best: number of the placement that is expected to be the fastest.
        ordered: whether placements with one assignment and two orders are two, as under ``priority``.
    """

    assignments: list[Integers] = field(default_factory=list)
    orders: list[Integers] = field(default_factory=list)
    times: list[list[float]] = field(default_factory=list)
    expected: Floats = field(default_factory=lambda: np.zeros(0))
    total: float = 0.0
    runs: int = 0
    best: int = 0
    ordered: bool = False
    latest: list[tuple[int, float, float]] = field(default_factory=list)
    """(number, seconds, ratio to what was expected, NaN for new placements) of the latest runs."""

    def __post_init__(self) -> None:
        rows = zip(self.assignments, self.orders, strict=True)
        self._number = {self._key(*row): number for number, row in enumerate(rows)}

    def _key(self, assignment: Integers, order: Integers) -> bytes:
        key = np.asarray(assignment, dtype=np.int32).tobytes()
        return key + np.asarray(order, dtype=np.int32).tobytes() if self.ordered else key

    def find(self, assignment: Integers, order: Integers) -> int | None:
        """Number of a placement that was run."""
        return self._number.get(self._key(assignment, order))

    def record(self, assignment: Integers, order: Integers, seconds: float) -> None:
        """A run has ended."""
        number = self.find(assignment, order)
        if number is None:
            number = self._number[self._key(assignment, order)] = len(self.times)
            self.assignments.append(np.array(assignment, dtype=np.int32))
            self.orders.append(np.array(order, dtype=np.int32))
            self.times.append([])
        known = number < len(self.expected)
        self.latest = [*self.latest, (number, seconds, seconds / self.expected[number] if known else np.nan)][-WATCHED:]
        self.times[number].append(seconds)
        self.total += seconds
        self.runs += 1

    @property
    def counts(self) -> Integers:
        """[M] runs of each placement that still count."""
        return np.array([len(times) for times in self.times], dtype=np.int64)

    @property
    def incumbent_s(self) -> float:
        """Mean seconds of the incumbent's runs."""
        return float(np.mean(self.times[0]))

    @property
    def deviation(self) -> float:
        """Relative deviation of the time of one run, pooled over placements that were run several times."""
        several = [np.array(times) / np.mean(times) for times in self.times if len(times) > 1]
        if not several:
            return USUAL_DEVIATION
        squares = sum(float(((times - 1.0) ** 2).sum()) for times in several)
        return float(np.sqrt(squares / sum(len(times) - 1 for times in several)))

    def estimate(self, believed: PlacementProblem | None, execution: Order) -> None:
        """Weigh measured times and the simulator's, if it was corrected; choose the best."""
        counts, means = self.counts, np.array([np.mean(times) for times in self.times])
        self.expected = means
        if believed is not None:
            simulated = simulated_seconds(believed, np.stack(self.assignments), np.stack(self.orders), execution)
            simulated *= np.median(means / simulated)
            self.expected = (PRIOR_RUNS * simulated + means * counts) / (PRIOR_RUNS + counts)
        self.best = int(np.argmin(self.expected))

    def ranked(self, count: int) -> Integers:
        """Numbers of the placements that are expected to be the fastest, best first."""
        return np.argsort(self.expected, kind="stable")[:count].astype(np.int32)

    def has_drifted(self) -> bool:
        """Whether placements whose time was known now take another time."""
        ratios = [ratio for _, _, ratio in self.latest if not np.isnan(ratio)]
        return len(ratios) >= WATCHED // 2 and abs(float(np.median(ratios)) - 1.0) > DRIFT

    def forget(self) -> None:
        """Only the latest runs still hold; of the incumbent the last one is kept in any case."""
        times: dict[int, list[float]] = {0: []}
        for number, seconds, _ in self.latest:
            times.setdefault(number, []).append(seconds)
        times[0] = times[0] or self.times[0][-1:]
        kept = list(times)
        self.assignments, self.orders = [self.assignments[i] for i in kept], [self.orders[i] for i in kept]
        self.times, self.latest, self.best = list(times.values()), [], 0
        self.expected = np.array([np.mean(values) for values in self.times])
        self.__post_init__()

    def state(self) -> dict[str, Any]:
        """Plain values, for a checkpoint."""
        return {
            "assignments": np.array(self.assignments),
            "orders": np.array(self.orders),
            "times": self.times,
            "expected": self.expected,
            "total": self.total,
            "runs": self.runs,
            "best": self.best,
            "ordered": self.ordered,
            "latest": self.latest,
        }

    @classmethod
    def load(cls, state: Mapping[str, Any]) -> Tried:
        """What ``state`` gave."""
        return cls(
            list(np.asarray(state["assignments"]).astype(np.int32)),
            list(np.asarray(state["orders"]).astype(np.int32)),
            [list(map(float, times)) for times in state["times"]],
            np.asarray(state["expected"], dtype=np.float64),
            float(state["total"]),
            int(state["runs"]),
            int(state["best"]),
            ordered=bool(state["ordered"]),
            latest=[(int(number), float(s), float(ratio)) for number, s, ratio in state.get("latest", [])],
        )


def simulated_seconds(problem: PlacementProblem, assignments: Integers, orders: Integers, execution: Order) -> Floats:
    """[B] seconds that the simulator expects of placements [B, N]."""
    priority = orders if execution == "priority" else None
    return makespans(problem, assignments, order=execution, priority=priority, memory="off")
