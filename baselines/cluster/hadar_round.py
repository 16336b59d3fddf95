"""Hadar ``mode=round``: prices, FIND_ALLOC, and dynamic programming over jobs and free GPUs, each round.

Stated by the papers (IPDPS 2024; arXiv 2503.10918): jobs are allocated at task level (a gang may stand on
several GPU types at once), by a primal-dual method with a price per resource, a dual subroutine, and
dynamic programming for the best allocation. No code is public; everything finer is our choice.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from ...envs.cluster import Allocation, Cluster, ClusterView
from ...envs.errors import SchedulerError, UnknownNameError
from .allocation_search import Decision, realise, search
from .find_alloc import Floats, Integers, Market, Queue
from .prices import PRICES, price_bounds
from .utility import Utility, find_utility

KNOTS = 16
"""Rates per job at which its utility is evaluated; between them it is interpolated linearly."""


class HadarRound:
    """Primal-dual scheduling of gangs over unequal GPUs, re-decided each round.

    Jobs queue by utility per GPU on their best type, ties by row. Dynamic programming over (job, free
    GPUs) skips each one or gives it FIND_ALLOC's choice, for the largest sum of payoffs (utility -
    price). What is left is filled in queue order.

    Our choices: a price per node and type; a changed placement counts as slower by the restart time;
    among equal payoffs a job stays where it is.

    Args:
        utility: a name in ``utility.UTILITIES``, or a callable of that kind.
        price: ``none``, ``pre`` or ``integral`` (``prices``).
        mixing: whether a gang may stand on several types.
        backfill: whether GPUs that the prices left idle are given as well (work-conserving).
        beam: states kept per job, for queues longer than ``exact_jobs``.
        exact_jobs: up to so many jobs every state is kept, equal ones merged (a memo): the sum is optimal.
    """

    name = "hadar"
    forks = False

    def __init__(
        self,
        utility: str | Utility = "remaining",
        price: Literal["none", "pre", "integral"] = "integral",
        mixing: bool = True,
        backfill: bool = True,
        beam: int = 2,
        exact_jobs: int = 6,
    ) -> None:
        if price not in PRICES:
            raise UnknownNameError(f"Hadar has no price {price!r}; choose one of {', '.join(PRICES)}.")
        if beam < 1 or not 0 <= exact_jobs <= 16:
            raise SchedulerError(f"beam is {beam} and exact_jobs {exact_jobs}; expected from 1 up, and 0 to 16.")
        self.utility, self.price_rule = find_utility(utility), price
        self.mixes, self.backfill = mixing, backfill
        self.beam, self.exact_jobs = beam, exact_jobs

    def reset(self, cluster: Cluster, round_s: float, rng: np.random.Generator) -> None:
        """Nothing is remembered."""

    def schedule(self, view: ClusterView) -> Allocation:
        """Prices, queue, dynamic programming, backfill; reasons are ``price`` and ``payoff``."""
        if len(view) == 0:
            return Allocation.empty()
        queue, market, order = self.prepare(view)
        free = np.ascontiguousarray(view.free, dtype=np.int32)
        width = 2 ** len(view) if len(view) <= self.exact_jobs else self.beam
        taken, _ = search(queue, market, free, order, width)
        decision = realise(queue, market, free, order, taken, self.backfill)
        node, gpu_type, count = np.ascontiguousarray(decision.entries.T)
        copy = np.zeros(len(decision.position), dtype=np.int64)
        why = self.reasons(view, decision) if view.explain else {}
        return Allocation(view.job[decision.position], copy, decision.ptr, node, gpu_type, count, why=why)

    def reasons(self, view: ClusterView, decision: Decision) -> dict[str, Floats]:
        """[A] by name, for the gangs of a decision."""
        return {"price": decision.price, "payoff": decision.payoff}

    def prepare(self, view: ClusterView) -> tuple[Queue, Market, Integers]:
        """The kernels' arrays, and the positions of the jobs in the order of the queue."""
        rates = view.gang_rates
        usable = rates > 0
        worth = self._worth(view, np.where(usable, rates, view.best_rate[:, None]))
        per_gpu = np.where(usable, worth, np.nan) / view.workers[:, None]
        order = np.argsort(-np.where(usable, per_gpu, 0.0).max(axis=1), kind="stable")
        knots = rate_knots(view)
        most = self._worth(view, np.where(view.rates > 0, view.rates, knots[:, :1]))
        queue = self.queue(view, knots, self._worth(view, knots), most)
        return queue, self.market(view, *price_bounds(per_gpu)), order

    def queue(self, view: ClusterView, knots: Floats, worth: Floats, most: Floats) -> Queue:
        """The jobs as the kernels see them; ``knots``, ``worth`` and ``most`` as there."""
        held = view.held
        return Queue(
            workers=view.workers,
            remaining=view.remaining,
            rates=np.ascontiguousarray(view.rates),
            spread=np.ascontiguousarray(view.spread_rates),
            fast=np.argsort(-view.rates, axis=1, kind="stable"),
            knots=knots,
            worth=worth,
            most=most,
            held_gang=view.held_gang,
            held_ptr=held.ptr,
            held_node=held.node,
            held_type=held.gpu_type,
            held_count=held.count,
        )

    def _worth(self, view: ClusterView, rates: Floats) -> Floats:
        worth = np.ascontiguousarray(np.broadcast_to(self.utility(view, rates), rates.shape), dtype=np.float64)
        if not (np.isfinite(worth) & (worth >= 0)).all():
            raise SchedulerError("a utility must be a finite number from 0 up for every job and rate.")
        return worth

    def market(self, view: ClusterView, low: Floats, high: Floats) -> Market:
        """The cluster and its prices, between ``low`` and ``high`` [R], as the kernels see them."""
        capacity = view.cluster.capacity
        kind, nodes = np.nonzero(capacity.T)
        first = np.searchsorted(kind, np.arange(capacity.shape[1] + 1))
        (blends,) = np.nonzero((capacity > 0).sum(axis=1) > 1)
        slowest = view.mixed_rate == "min"
        rules = PRICES[self.price_rule], slowest, self.mixes, float(view.restart_s)
        return Market(capacity, first, nodes, blends, low, high, *rules)


def rate_knots(view: ClusterView) -> Floats:
    """[N, K] rates from the slowest (spread, restart counted) to the fastest of each job, geometric."""
    both = np.concatenate((view.rates, view.spread_rates), axis=1)
    least = np.where(both > 0, both, np.inf).min(axis=1)
    low = view.remaining * least / (view.remaining + view.restart_s * least)
    ratio = view.best_rate / low
    return low[:, None] * ratio[:, None] ** (np.arange(KNOTS) / (KNOTS - 1))
