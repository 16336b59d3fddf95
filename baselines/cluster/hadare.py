"""HadarE: every job is forked into copies that train at once on separate, unequal nodes.

Stated by the paper (arXiv 2503.10918): a job has a copy per node, at most one copy of a job stands on a
node, a Job Tracker adds up the copies' steps at the end of each round, and weights are averaged before the
next. Which copy runs where is our choice: the copies of largest utility per GPU, as in Hadar, until no
GPU is free or no job has steps left that its copies cannot do in this round. The steps are split, counted
and consolidated by ``envs.cluster.forks``.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from ...envs.cluster import Allocation, Cluster, ClusterView
from ...envs.cluster.packing import take_gpus
from ...envs.errors import SchedulerError
from .utility import Utility, find_utility

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


class HadarE:
    """Forks jobs over nodes, re-decided each round; a job that no node can hold gets one gang over several.

    Copies of different jobs share a node that has GPUs enough. Prices are left out: with forking no GPU
    stays idle for want of a job, so they could only leave GPUs unused.

    Args:
        utility: as in ``HadarRound``; by default the shortest remaining time goes first, on all nodes.
        consolidation_s: seconds at a round's end that copies need for averaging; None: as the view says.
        copies: copies of a job at most; None: one per node.
    """

    name = "hadare"
    mixes = False
    forks = True

    def __init__(
        self, utility: str | Utility = "remaining", consolidation_s: float | None = None, copies: int | None = None
    ) -> None:
        if copies is not None and copies < 1:
            raise SchedulerError(f"copies is {copies}; expected a number from 1 up, or none for one per node.")
        self.utility, self.consolidation_s, self.copies = find_utility(utility), consolidation_s, copies

    def reset(self, cluster: Cluster, round_s: float, rng: np.random.Generator) -> None:
        """Nothing is remembered."""

    def schedule(self, view: ClusterView) -> Allocation:
        """Copies by utility per GPU; the reason is ``payoff``."""
        if len(view) == 0:
            return Allocation.empty()
        rate, gpu_type = _places(view)
        start = np.where(_held(view), 0.0, view.restart_s)
        consolidation_s = view.consolidation_s if self.consolidation_s is None else self.consolidation_s
        seconds = np.maximum(view.round_s - consolidation_s - start, 1e-9)
        worth = np.asarray(self.utility(view, np.where(rate > 0, rate, 1.0))) * seconds
        gain = np.where(rate > 0, worth / view.workers[:, None], -np.inf)
        order = np.argsort(-gain, axis=None, kind="stable")[: int((rate > 0).sum())]
        most = len(view.cluster.nodes) if self.copies is None else self.copies
        guessed = np.zeros(len(view), dtype=np.bool_) if view.guessed is None else view.guessed
        jobs = view.workers, view.remaining, rate, start, gpu_type, guessed
        chosen, counts = _fork(view.free.copy(), *jobs, order, most, view.round_s, consolidation_s)
        return self._allocation(view, chosen, counts, gpu_type, gain)

    def _allocation(
        self, view: ClusterView, chosen: Integers, counts: Integers, gpu_type: Integers, gain: Floats
    ) -> Allocation:
        """Gangs from (job, place) pairs and their GPUs per node, sorted by job, then place."""
        position, place = np.divmod(chosen, gain.shape[1])
        by_job = np.lexsort((place, position))
        position, place, counts = position[by_job], place[by_job], counts[by_job]
        first = np.searchsorted(position, position)
        gang, node = np.nonzero(counts)
        ptr = np.concatenate(([0], np.cumsum(np.bincount(gang, minlength=len(position))))).astype(np.int64)
        why = {"payoff": gain[position, place] * view.workers[position]} if view.explain else {}
        return Allocation(
            view.job[position],
            np.arange(len(position)) - first,
            ptr,
            node.astype(np.int64),
            gpu_type[position, place][gang],
            counts[gang, node],
            why=why,
        )


def _places(view: ClusterView) -> tuple[Floats, Integers]:
    """[N, H + R] steps/s of each job on each node, on its best type there, then spread over each type; and the types.

    Spreading is for jobs that no node can hold.
    """
    capacity = view.cluster.capacity
    fits = capacity[None, :, :] >= view.workers[:, None, None]
    on_node = np.where(fits, view.rates[:, None, :], 0.0)
    best = on_node.argmax(axis=2)
    rate = np.take_along_axis(on_node, best[:, :, None], axis=2)[:, :, 0]
    homeless = np.logical_not((rate > 0).any(axis=1))
    spread = np.where(homeless[:, None], view.spread_rates, 0.0)
    types = np.broadcast_to(np.arange(capacity.shape[1]), spread.shape)
    return np.concatenate((rate, spread), axis=1), np.concatenate((best, types), axis=1)


def _held(view: ClusterView) -> NDArray[np.bool_]:
    """[N, H + R] whether the job has a gang on the node, or one that is spread."""
    held, (nodes, types) = view.held, view.cluster.capacity.shape
    there = np.zeros((len(view), nodes + types), dtype=np.bool_)
    owner = np.searchsorted(view.job, held.job)
    known = np.asarray(np.append(view.job, -1)[owner] == held.job)
    size = np.diff(held.ptr)
    entry = np.repeat(known, size)
    there[np.repeat(owner, size)[entry], held.node[entry]] = True
    wide = known & (size > 1)
    there[owner[wide], nodes + held.gpu_type[held.ptr[:-1][wide]]] = True
    return there


@njit(cache=True, nogil=True)
def _fork(
    free: Integers,
    workers: Integers,
    remaining: Floats,
    rate: Floats,
    start: Floats,
    gpu_type: Integers,
    guessed: NDArray[np.bool_],
    order: Integers,
    most: int,
    round_s: float,
    consolidation_s: float,
) -> tuple[Integers, Integers]:
    """Give GPUs to (job, place) pairs in the given order, in two passes.

    The first leaves out jobs whose copies can do the rest in this round. The second gives such jobs
    the GPUs that are left, where they end earlier by it in spite of restart and consolidation; and in any
    case to those whose rates are guesses: too many copies cost them a consolidation, too few a round.

    Args:
        rate, start: [N, H + R] steps/s, and seconds until a copy works.
        guessed: [N] whether nothing of a job's rates was measured.
        order: flat numbers of the pairs, best first.
        most: copies of a job at most.

    Returns:
        ([A] flat numbers of the pairs taken, [A, H] their GPUs on each node).
    """
    nodes, places = free.shape[0], rate.shape[1]
    room, jobs = free.sum(), workers.shape[0]
    taken, counts = np.zeros(room, np.int64), np.zeros((room, nodes), np.int64)
    speed, begin, copies = np.zeros(jobs), np.zeros(jobs), np.zeros(jobs, np.int64)
    used = np.zeros(order.shape[0], np.bool_)
    gangs, left = 0, room
    for crowded in (True, False):
        for step in range(order.shape[0]):
            if left == 0:
                break
            j, place = order[step] // places, order[step] % places
            r = gpu_type[j, place]
            here = free[place, r] if place < nodes else free[:, r].sum()
            if here < workers[j] or copies[j] == most or used[step] or (place >= nodes and copies[j] > 0):
                continue
            end = begin[j] + remaining[j] / max(speed[j], 1e-300) + (consolidation_s if copies[j] > 1 else 0.0)
            if end <= round_s and (crowded or not guessed[j]):
                later = max(begin[j], start[j, place])
                if crowded or later + remaining[j] / (speed[j] + rate[j, place]) + consolidation_s >= end:
                    continue
            if place < nodes:
                counts[gangs, place] = workers[j]
                free[place, r] -= workers[j]
            else:
                take_gpus(free, r, workers[j], counts[gangs])
            used[step], taken[gangs] = True, order[step]
            speed[j] += rate[j, place]
            begin[j] = max(begin[j], start[j, place])
            copies[j] += 1
            left -= workers[j]
            gangs += 1
    return taken[:gangs], counts[:gangs]
