"""The best placements of a problem that training has met, whoever found them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ...envs.placement import Placement
from ...envs.placement.graph import Floats, Integers

WORTH_IT = 1e-3
"""A new best placement becomes the target if it is better by this share: it may look quite different."""


@dataclass(eq=False)
class Elites:
    """Up to ``room`` placements, best first, all different.

    Attributes:
        assignments, orders: int32 [K, N].
        times: [K] as the reward source told them.
        target: which of them, by time, is imitated: the best one, but for tiny improvements.
    """

    n: int
    room: int
    assignments: Integers = field(init=False)
    orders: Integers = field(init=False)
    times: Floats = field(init=False)
    target: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self.assignments = np.empty((0, self.n), np.int32)
        self.orders = np.empty((0, self.n), np.int32)
        self.times = np.empty(0)

    def __len__(self) -> int:
        return len(self.times)

    @property
    def best(self) -> float:
        """Time of the best one; infinite without any."""
        return float(self.times[0]) if len(self) else np.inf

    def add(self, assignments: ArrayLike, orders: ArrayLike, times: ArrayLike) -> bool:
        """Keep what is among the best of old and new; returns whether the best one has changed.

        Of placements whose times are equal within a billionth, which are mostly one placement with its devices
        renamed, the first is kept.
        """
        before, target = self.best, float(self.times[self.target]) if len(self) else np.inf
        rows = np.concatenate((self.assignments, np.atleast_2d(np.asarray(assignments, np.int32))))
        orders = np.concatenate((self.orders, np.atleast_2d(np.asarray(orders, np.int32))))
        times = np.concatenate((self.times, np.atleast_1d(np.asarray(times, np.float64))))
        by_time = np.argsort(times, kind="stable")
        ordered = times[by_time]
        distinct = np.ones(len(ordered), np.bool_)
        distinct[1:] = ordered[1:] > ordered[:-1] * (1.0 + 1e-9)
        unique = by_time[distinct]
        kept = unique[: self.room]
        if times[kept[0]] < target * (1.0 - WORTH_IT):
            self.target = 0
        else:  # the row of the old target, which stays even if many are slightly better
            row = unique[max(int(np.searchsorted(times[unique], target * (1.0 + 1e-9), "right")) - 1, 0)]
            kept = kept if row in kept else np.append(kept[:-1], row)
            self.target = int(np.flatnonzero(kept == row)[0])
        self.assignments, self.orders, self.times = rows[kept], orders[kept], times[kept]
        return self.best < before * (1.0 - 1e-9)

    def placement(self, rank: int = 0) -> Placement:
        """One of them; rank 0 is the best."""
        return Placement(self.assignments[rank].copy(), self.orders[rank].copy(), makespan=float(self.times[rank]))

    def state(self) -> dict[str, Any]:
        """Plain arrays, for a checkpoint."""
        return {"assignments": self.assignments, "orders": self.orders, "times": self.times, "target": self.target}

    def load(self, state: dict[str, Any]) -> None:
        """What ``state`` gave."""
        self.assignments = np.asarray(state["assignments"], np.int32)
        self.orders = np.asarray(state["orders"], np.int32)
        self.times = np.asarray(state["times"], np.float64)
        self.target = int(state["target"])
