"""YARN's capacity scheduler as papers compare with it: first in, first out, nobody overtakes, nobody is preempted."""

from __future__ import annotations

import numpy as np

from ...envs.cluster import Allocation, Cluster, ClusterView
from ...envs.cluster.held import what_is_held
from ...envs.cluster.scheduler import Flags
from .allocate import choose_types, place_on_types


class YarnCS:
    """A job waits until all before it have started, then keeps its GPUs until its end.

    It is blind to speed: among the types that the job runs on and that have enough free GPUs one is
    drawn at random.
    """

    name = "yarn_cs"
    mixes = False
    forks = False

    def reset(self, cluster: Cluster, round_s: float, rng: np.random.Generator) -> None:
        """Forget everything; a new run begins."""
        self._rng = rng

    def schedule(self, view: ClusterView) -> Allocation:
        """Those that run go on; then the queue starts, up to the first job that does not fit.

        A job whose GPUs are taken away (a drained node) is the first of the queue again.
        """
        held, stays = view.held_type, _stays(view)
        left = view.free.sum(axis=0)
        running, waiting = np.flatnonzero(stays), np.flatnonzero(~stays)
        reachable = waiting[: max(0, int(left.sum() - view.workers[running].sum()))]
        order = np.concatenate((running, reachable))
        preference = np.zeros(view.rates.shape, dtype=np.int64)
        preference[order] = random_preference(self._rng, len(order), len(left))
        chosen = choose_types(order, view.workers, preference, view.runnable, held, left, False)
        while True:
            allocation = place_on_types(view, chosen)
            if len(allocation) == np.count_nonzero(chosen >= 0):
                return allocation
            last = np.flatnonzero(chosen[order] >= 0)[-1]
            chosen[order[last]] = -1  # one found no node: nobody overtakes it, so the last in the queue waits, too


def _stays(view: ClusterView) -> Flags:
    """[N] whether a job runs, and all its GPUs may still be given."""
    held = view.held
    gone = held.count > view.free[held.node, held.gpu_type]
    return what_is_held(view).available if gone.any() else view.held_gang >= 0


def random_preference(rng: np.random.Generator, jobs: int, types: int) -> np.ndarray:
    """[jobs, types] the types in random order, drawn for every job."""
    return np.argsort(rng.random((jobs, types)), axis=1, kind="stable")
