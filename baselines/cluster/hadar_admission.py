"""Hadar ``mode=admission``: each job, once and for all, gets its schedule over the time to come, or is rejected.

The papers decide over space and time with a bounded competitive ratio; this is the form for which the
online-auction argument gives one: prices rise with what is promised, nothing is taken back, and the
bounds of the prices are known from the start. Slots, window and tie rules are our choice, and so is a price
per type and slot, not per node: on nodes of one GPU it would be at its upper end with the first gang.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from ...envs.cluster import Allocation, Cluster, ClusterView, Workload, ttd_bounds
from ...envs.errors import SchedulerError
from .admission_plan import REST, cheapest_life, offers_of
from .find_alloc import Floats, Integers
from .hadar_round import HadarRound, rate_knots
from .prices import FLOOR
from .utility import Utility

SLOTS = 200
"""Slots in the window at most; a slot is a whole number of rounds."""
GRAIN = 32
"""Units of work in a slot on the fastest type,"""
UNITS = 4096
"""and in a whole job at most."""


class HadarAdmission(HadarRound):
    """Admits a job on arrival, with a gang in each slot of its life, iff its utility exceeds their price.

    A job that could not keep to its schedule (nodes fail, speeds differ from what was thought) gets another
    one for the rest, at any price. Every slot counts as if its gang had to restart.

    Args:
        utility, mixing: as in ``HadarRound``.
        price: ``pre``, or ``integral``, which promises a far better ratio where a type has many GPUs, but on a
            type with a single GPU rejects every job that takes more than some ln(high / low) slots.
        on_reject: ``report`` - a rejected job never runs and is left out of the means; ``requeue`` - it
            is offered again in each slot, and only reported if even an empty cluster is too dear.
        window: how far the future reaches, in bounds on TTD from the first arrival.

    Attributes:
        low, high: [R] bounds of the price of a GPU in a slot.
        slots: how many there are, each of ``slot_s`` seconds, from ``start`` on.
        free: [K, H, R] GPUs that are not promised yet.
        payoff, price: row -> what its life was worth above its price, and this price; 0 for rejected jobs.
    """

    name = "hadar_admission"

    def __init__(
        self,
        utility: str | Utility = "jct",
        price: Literal["pre", "integral"] = "pre",
        mixing: bool = True,
        on_reject: Literal["report", "requeue"] = "report",
        window: float = 2.0,
    ) -> None:
        super().__init__(utility, price, mixing)
        if on_reject not in ("report", "requeue") or price not in ("pre", "integral") or not 1 <= window < np.inf:
            raise SchedulerError(
                f"on_reject is {on_reject!r}, price {price!r} and window {window}; expected on_reject report or "
                "requeue, price integral or pre, window from 1 up."
            )
        self.on_reject, self.window = on_reject, window
        self._workload: Workload | None = None

    def foresee(self, workload: Workload) -> None:
        """Learn the jobs that will come: the prices' bounds and the window depend on them."""
        self._workload = workload

    def reset(self, cluster: Cluster, round_s: float, rng: np.random.Generator) -> None:
        """Forget all promises; a new run begins.

        Raises:
            SchedulerError: nobody has told which jobs will come.
        """
        if self._workload is None:
            raise SchedulerError("hadar with mode=admission must know the workload; call foresee(workload) first.")
        self._capacity, self._gpus = cluster.capacity.astype(np.int32), cluster.gpus_of_type
        everybody = _all_at_once(self._workload, cluster, round_s)
        reach = np.where(everybody.rates > 0, cluster.gpus_of_type, 0)
        runs = (reach.sum(axis=1) if self.mixes else reach.max(axis=1)) >= everybody.workers
        able = tuple(job for job, fits in zip(self._workload.jobs, runs, strict=True) if fits)
        kind = "mixing" if self.mixes else "single_type"
        bound = ttd_bounds(Workload(able, self._workload.throughputs), cluster, kinds=[kind])[kind] if able else round_s
        self.start = min((job.arrival for job in able), default=0.0)
        self.slot_s = round_s * max(1.0, np.ceil(self.window * bound / round_s / SLOTS))
        self.slots = int(np.ceil(self.window * bound / self.slot_s * (1 - 1e-12))) + 1
        self.free = np.repeat(self._capacity[None], self.slots, axis=0)
        self.low, self.high = self._price_bounds(everybody, runs)
        self._plan = np.zeros((0, 5), dtype=np.int64)
        self._last: dict[int, int] = {}
        self._offered: dict[int, int] = {}
        self.payoff: dict[int, float] = {}
        self.price: dict[int, float] = {}

    def schedule(self, view: ClusterView) -> Allocation:
        """Decide on new jobs, and give the others what their schedules say; reasons are ``price`` and ``payoff``.

        Raises:
            SchedulerError: a slot is too short for a restart.
        """
        if len(view) == 0 or view.mid_round:
            return Allocation.empty()
        if self.slot_s <= view.restart_s:
            raise SchedulerError(
                f"hadar with mode=admission plans slots of {self.slot_s:g} s, in which a restart "
                f"of {view.restart_s:g} s leaves no time to work; use longer rounds."
            )
        now = self._slot(view.time)
        self._extend(now + 2)
        refused = [row for row in self._undecided(view, now) if not self._offer(view, row, now)]
        if self.on_reject == "requeue":
            empty = not len(self._plan) or self._plan[-1, 0] < now
            refused = refused if empty and len(refused) == len(view) else []
        return self._promised(view, now, refused)

    def _undecided(self, view: ClusterView, now: int) -> list[int]:
        """Positions of the jobs at the end of their schedule, or without one and not yet offered in this slot."""
        return [
            row
            for row, job in enumerate(view.job.tolist())
            if self._last.get(job, -1) < now and (job in self._last or self._offered.get(job) != now)
        ]

    def _offer(self, view: ClusterView, i: int, now: int) -> bool:
        """Find the job's best life; commit to it if it pays, or if the job was admitted before."""
        job, promised = int(view.job[i]), int(view.job[i]) in self._last
        self._offered[job] = now
        while True:
            ends = self.start + self.slot_s * np.arange(1, self.slots + 1)
            worth = self.utility(view, view.remaining[:, None] / np.maximum(ends - view.time, 1e-9)[None, :])[i]
            plan, payoff, price, gangs = self._life(view, i, now, ends, np.asarray(worth, dtype=np.float64))
            if not promised or payoff > -np.inf:
                break
            self._extend(2 * self.slots)
        if not promised:
            self.payoff[job], self.price[job] = max(payoff, 0.0), price if payoff > 0 else 0.0
            if payoff <= 0:
                return False
        self._commit(job, plan, gangs)
        return True

    def _life(
        self, view: ClusterView, i: int, now: int, ends: Floats, worth: Floats
    ) -> tuple[Integers, float, float, list[Integers]]:
        """Slots, payoff, price and gangs of job i's best life."""
        knots = rate_knots(view)
        queue, market = self.queue(view, knots, knots, view.rates.copy()), self.market(view, self.high, self.high)
        offers = offers_of(queue, market, self.free, self._gpus, self.low, self.high, now, i)
        seconds = np.full(self.slots, self.slot_s) - view.restart_s
        seconds[now] = ends[now] - view.time - view.restart_s
        unit, need = _units(float(view.remaining[i]), float(view.best_rate[i]) * (self.slot_s - view.restart_s))
        choice, payoff, price = cheapest_life(offers, now, np.maximum(seconds, 0.0), unit, need, worth)
        slots = np.flatnonzero(choice != REST)
        gangs = [offers.entries[t, choice[t], : offers.size[t, choice[t]]] for t in slots.tolist()]
        return slots, float(payoff), float(price), gangs

    def _commit(self, job: int, slots: Integers, gangs: list[Integers]) -> None:
        rows = []
        for slot, gang in zip(slots.tolist(), gangs, strict=True):
            self.free[slot, gang[:, 0], gang[:, 1]] -= gang[:, 2].astype(np.int32)
            rows.append(np.column_stack((np.full(len(gang), slot), np.full(len(gang), job), gang)))
        self._plan = np.concatenate((self._plan, *rows))
        self._plan = self._plan[np.lexsort(self._plan.T[3::-1])]
        self._last[job] = int(slots[-1])

    def _promised(self, view: ClusterView, now: int, refused: list[int]) -> Allocation:
        """The gangs of this slot whose jobs are here and whose nodes can be used."""
        first, last = np.searchsorted(self._plan[:, 0], [now, now + 1])
        _, job, node, gpu_type, count = self._plan[first:last].T
        whole = ~np.isin(job, job[count > view.free[node, gpu_type]]) & np.isin(job, view.job)
        job, node, gpu_type, count = job[whole], node[whole], gpu_type[whole], count[whole]
        owner, start = np.unique(job, return_index=True)
        ptr = np.append(start, len(job)).astype(np.int64)
        why = {}
        if view.explain:
            told = {"price": self.price, "payoff": self.payoff}
            why = {name: np.array([values[row] for row in owner.tolist()]) for name, values in told.items()}
        rows = view.job[refused].tolist()
        copy = np.zeros(len(owner), dtype=np.int64)
        return Allocation(owner, copy, ptr, node.copy(), gpu_type.copy(), count.copy(), why=why, refused=rows)

    def _slot(self, time: float) -> int:
        return int((time - self.start) / self.slot_s * (1 + 1e-12) + 1e-9)

    def _extend(self, slots: int) -> None:
        """Let the future reach further."""
        if slots > self.slots:
            whole = np.repeat(self.free[-1:] * 0, slots - self.slots, axis=0)
            self.free = np.concatenate((self.free, whole + self._capacity))
            self.slots = slots

    def _price_bounds(self, view: ClusterView, runs: np.ndarray) -> tuple[Floats, Floats]:
        """(low, high) [R] per GPU and slot.

        High: the largest utility a GPU that a job can have. Low: the least utility a GPU and slot, over 4;
        at most so much that all GPUs of all slots together cost half of the best job's utility, which
        the proof of the ratio needs.
        """
        usable = (view.gang_rates > 0) & runs[:, None]
        if not usable.any():
            return np.zeros(usable.shape[1]), np.zeros(usable.shape[1])
        fastest = np.maximum(view.remaining / view.best_rate, self.slot_s)
        most = np.asarray(self.utility(view, (view.remaining / fastest)[:, None]))[:, 0]
        least = np.asarray(self.utility(view, view.remaining[:, None] / (self.slots * self.slot_s)))[:, 0]
        slots = np.ceil(view.remaining[:, None] / np.where(usable, view.gang_rates, 1.0) / self.slot_s)
        share = 1.0 if self.mixes else view.workers
        high = np.where(usable, (most / share)[:, None], 0.0).max(axis=0)
        low = np.where(usable, least[:, None] / (view.workers[:, None] * slots), np.inf).min(axis=0)
        low = np.where(np.isfinite(low), low, 0.0) / FLOOR
        total = float((low * view.cluster.gpus_of_type).sum()) * self.slots
        return low * min(1.0, float(most[runs].max()) / 2 / total), high


def _units(steps: float, per_slot: float) -> tuple[float, int]:
    """(steps a unit, units in the job), rounded up."""
    units = min(GRAIN * max(1.0, np.ceil(steps / per_slot)), UNITS)
    unit = max(per_slot / GRAIN, steps / units)
    return unit, int(np.ceil(steps / unit * (1 - 1e-12)))


def _all_at_once(workload: Workload, cluster: Cluster, round_s: float) -> ClusterView:
    """All jobs of a workload as if they had arrived at 0 and nothing had been done."""
    rates, spread = workload.rates(cluster)
    count, nothing = len(workload), np.zeros(len(workload))
    return ClusterView(
        time=0.0,
        round_s=round_s,
        restart_s=0.0,
        mixed_rate="proportional",
        cluster=cluster,
        free=cluster.capacity,
        mid_round=False,
        job=np.arange(count),
        arrival=nothing,
        workers=workload.workers,
        steps=workload.steps,
        remaining=workload.steps,
        attained_s=nothing,
        running_s=nothing,
        weight=workload.weight,
        slo=workload.slo,
        rates=rates,
        spread_rates=spread,
        held=Allocation.empty(),
        held_gang=np.full(count, -1, dtype=np.int64),
    )
