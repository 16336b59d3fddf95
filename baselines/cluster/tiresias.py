"""Tiresias: two queues by attained service (Gu et al., NSDI 2019)."""

from __future__ import annotations

import numpy as np

from ...envs.cluster import Allocation, Cluster, ClusterView
from .allocate import choose_types, place_on_types
from .yarn_cs import random_preference


class Tiresias:
    """Jobs that held fewer GPU-seconds than a threshold come first; within a queue by arrival.

    A job falls once and stays in the second queue. It is preemptive and blind to speed: a job keeps
    the type that it runs on, else takes a random one among those with enough free GPUs.

    Args:
        threshold_gpu_s: GPU-seconds between the queues; 3.25 GPU-hours by default.
    """

    name = "tiresias"
    mixes = False
    forks = False

    def __init__(self, threshold_gpu_s: float = 3.25 * 3600) -> None:
        self.threshold_gpu_s = threshold_gpu_s

    def reset(self, cluster: Cluster, round_s: float, rng: np.random.Generator) -> None:
        """Forget everything; a new run begins."""
        self._rng = rng

    def schedule(self, view: ClusterView) -> Allocation:
        """The first queue, then the second, each by arrival; who does not fit is overtaken."""
        order = np.argsort(view.attained_s >= self.threshold_gpu_s, kind="stable")
        preference = random_preference(self._rng, *view.rates.shape)
        left = view.free.sum(axis=0)
        chosen = choose_types(order, view.workers, preference, view.runnable, view.held_type, left, True)
        return place_on_types(view, chosen)
