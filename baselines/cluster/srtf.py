"""SRTF: shortest remaining time first, preemptive."""

from __future__ import annotations

import numpy as np

from ...envs.cluster import Allocation, Cluster, ClusterView
from .allocate import choose_types, place_on_types


class SRTF:
    """Jobs by remaining seconds on their fastest type (ties by row), each on the fastest type that is left."""

    name = "srtf"
    mixes = False
    forks = False

    def reset(self, cluster: Cluster, round_s: float, rng: np.random.Generator) -> None:
        """Nothing is remembered."""

    def schedule(self, view: ClusterView) -> Allocation:
        """The shortest first; who does not fit is overtaken."""
        rates = view.gang_rates
        order = np.argsort(view.remaining / rates.max(axis=1), kind="stable")
        fastest_first = np.argsort(-rates, axis=1, kind="stable")
        nobody = np.full(len(view), -1, dtype=np.int64)
        left = view.free.sum(axis=0)
        chosen = choose_types(order, view.workers, fastest_first, view.runnable, nobody, left, True)
        return place_on_types(view, chosen)
