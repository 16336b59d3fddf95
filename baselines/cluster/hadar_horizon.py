"""Hadar ``mode=horizon``: the duals of a linear program over the time that is left are the prices.

Our choice throughout: the papers decide "over space and time" and price GPUs by utility and load, but
do not state this program. Each time the set of jobs changes, the bound on the remaining TTD gives a due
date, and ``HorizonProgram`` says what each GPU type is worth now, and what it is worth to do a job's
work now rather than later. Prices and worths go through the same FIND_ALLOC and dynamic programming.
"""

from __future__ import annotations

import numpy as np

from ...envs.cluster import Cluster, ClusterView
from ...envs.errors import SchedulerError
from .allocation_search import Decision
from .find_alloc import Floats, Integers, Market, Queue
from .hadar_round import HadarRound, rate_knots
from .horizon_program import HorizonProgram
from .share_lp import ShareLP

PERIODS = 400
"""Periods in the whole time; the first is what the program calls now. At least a round each."""
REFRESH = 2
"""Periods after which the program is solved again although no job came or went."""
SHADE = 0.03
"""Prices are lowered by this part. A dual may lie anywhere between what the last job that gets a GPU and
the first that does not would pay; at the upper end nobody would take it."""


class HadarHorizon(HadarRound):
    """Shortest work first, at prices that keep every job's end in time.

    A job's value is its weight over its remaining time; to it the program adds the worth that the due
    date gives to its work, which is 0 for jobs that can wait. The due date is the first time at which the
    bound allows everything to end; arrivals move it back as far as they need. ``slack`` is what a busy
    period gets on top, and the first thing that short jobs use up.

    Args:
        slack: part of the bound by which the first due date of a busy period lies behind it.
        mixing, beam, exact_jobs: as in ``HadarRound``.
    """

    name = "hadar_horizon"

    def __init__(self, slack: float = 0.005, mixing: bool = True, beam: int = 1, exact_jobs: int = 0) -> None:
        super().__init__(price="pre", mixing=mixing, beam=beam, exact_jobs=exact_jobs)
        if not -1 < slack < np.inf:
            raise SchedulerError(f"slack is {slack}; expected a number above -1, about 0.")
        self.slack = slack

    def reset(self, cluster: Cluster, round_s: float, rng: np.random.Generator) -> None:
        """Forget everything; a new run begins."""
        gpus = cluster.gpus_of_type.astype(np.float64)
        self._round_s, self._bound, self._program = round_s, ShareLP(gpus, True), HorizonProgram(gpus)
        self._due, self._whole, self._solved, self._latest = -np.inf, 0.0, -np.inf, -1
        self._jobs, self._usable = np.zeros(0, dtype=np.int64), gpus
        self._urgency, self._price = np.zeros(0), np.zeros(len(gpus))

    def prepare(self, view: ClusterView) -> tuple[Queue, Market, Integers]:
        """Worth of the jobs and prices, a second; the queue by payoff per GPU, then by worth per GPU."""
        rates = _fitting_rates(view)
        best = rates.max(axis=1)
        seconds = view.remaining / best
        value = view.weight / np.maximum(seconds, self._round_s)
        if not view.mid_round:
            self._look_ahead(view, rates / best[:, None], seconds, value)
        worth = value + np.append(self._urgency, 0.0)[np.minimum(view.job, len(self._urgency))]
        payoff = worth[:, None] * rates / best[:, None] - view.workers[:, None] * self._price
        per_gpu = np.where(rates > 0, payoff, -np.inf).max(axis=1) / view.workers
        order = np.lexsort((-worth / view.workers, -per_gpu))
        knots = rate_knots(view)
        per_step = (worth / best)[:, None]
        queue = self.queue(view, knots, np.ascontiguousarray(per_step * knots), per_step * view.rates)
        return queue, self.market(view, self._price, self._price), order

    def reasons(self, view: ClusterView, decision: Decision) -> dict[str, Floats]:
        """Price, payoff, and slack: seconds until the job must run without a pause on its fastest type."""
        slack = self._due - view.time - view.remaining / _fitting_rates(view).max(axis=1)
        return super().reasons(view, decision) | {"slack": slack[decision.position]}

    def _look_ahead(self, view: ClusterView, speeds: Floats, seconds: Floats, value: Floats) -> None:
        """Move the due date if jobs arrived, and solve the program if anything changed or it is old."""
        usable = view.free.sum(axis=0).astype(np.float64)
        same = np.array_equal(view.job, self._jobs) and np.array_equal(usable, self._usable)
        period = max(self._round_s, self._whole / PERIODS)
        if same and view.time < self._solved + REFRESH * period:
            return
        self._solved, self._jobs, self._usable = view.time, view.job, usable
        if view.job[-1] > self._latest:
            self._latest = int(view.job[-1])
            longest = seconds.max()
            _, factor = self._bound.solve(view.job, view.workers, speeds, seconds / longest)
            self._whole = longest / factor
            slack = self.slack if view.time > self._due else 0.0
            self._due = max(self._due, view.time + (1.0 + slack) * self._whole)
            period = max(self._round_s, self._whole / PERIODS)
        left, whole = max((self._due - view.time) / period - 1.0, 1.0), self._whole / period
        worth = self._program.solve(
            view.job, view.workers, speeds, seconds / period, value * period, left, whole, usable
        )
        self._urgency = np.zeros(self._latest + 1)
        self._urgency[view.job], self._price = worth.work / period, worth.price / period * (1 - SHADE)


def _fitting_rates(view: ClusterView) -> Floats:
    """[N, R] steps/s of whole gangs on one type; for gangs that only fit one node of several types, of these."""
    rates = view.gang_rates
    return np.where((rates > 0).any(axis=1, keepdims=True), rates, view.rates)
