"""Schedulers for tests: scripted, mixing greedily, forking."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hadoppler.envs.cluster import Allocation, Cluster, ClusterView

Decide = Callable[[ClusterView], Allocation]


class Scripted:
    """Does what a function says; remembers the views."""

    name = "scripted"

    def __init__(self, decide: Decide, *, mixes: bool = True, forks: bool = False, remember: bool = True) -> None:
        self.decide, self.mixes, self.forks, self.remember = decide, mixes, forks, remember
        self.views: list[ClusterView] = []

    def reset(self, cluster: Cluster, round_s: float, rng: np.random.Generator) -> None:
        self.views = []

    def schedule(self, view: ClusterView) -> Allocation:
        if self.remember:
            self.views.append(view)
        return self.decide(view)


def greedy_mix(view: ClusterView) -> Allocation:
    """Jobs by arrival, each on any free GPUs that it can use, node by node."""
    free, rows = view.free.copy(), []
    for position, job in enumerate(view.job.tolist()):
        usable = np.where(view.rates[position] > 0, free, 0)
        if usable.sum() < view.workers[position]:
            continue
        gpus, left = np.zeros_like(free), int(view.workers[position])
        for h, r in np.argwhere(usable > 0).tolist():
            take = min(left, int(usable[h, r]))
            gpus[h, r] += take
            left -= take
        free -= gpus
        rows.append((job, 0, gpus))
    return Allocation.from_rows(rows)


def fork_everywhere(view: ClusterView) -> Allocation:
    """Each node, in turn, takes a copy of one of the one-worker jobs, round robin."""
    free = view.free.copy()
    nodes = np.flatnonzero(free.sum(axis=1) > 0)
    rows = []
    for position, job in enumerate(view.job.tolist()):
        for copy, h in enumerate(nodes[position :: len(view)].tolist()):
            r = int(np.argmax(free[h] > 0))
            gpus = np.zeros_like(free)
            gpus[h, r] = 1
            rows.append((job, copy, gpus))
    return Allocation.from_rows(rows)
