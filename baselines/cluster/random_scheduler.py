"""Random order, random types: what any scheduler must beat."""

from __future__ import annotations

import numpy as np

from ...envs.cluster import Allocation, Cluster, ClusterView
from .allocate import choose_types, place_on_types
from .yarn_cs import random_preference


class RandomScheduler:
    """Every round the jobs are drawn in random order, each onto a random type with enough free GPUs."""

    name = "random"
    mixes = False
    forks = False

    def reset(self, cluster: Cluster, round_s: float, rng: np.random.Generator) -> None:
        """Forget everything; a new run begins."""
        self._rng = rng

    def schedule(self, view: ClusterView) -> Allocation:
        """Draw the order and the types, and fill the cluster."""
        order = self._rng.permutation(len(view))
        preference = random_preference(self._rng, *view.rates.shape)
        nobody = np.full(len(view), -1, dtype=np.int64)
        left = view.free.sum(axis=0)
        chosen = choose_types(order, view.workers, preference, view.runnable, nobody, left, True)
        return place_on_types(view, chosen)
