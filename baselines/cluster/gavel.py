"""Gavel as a scheduler: a policy says who shall have which part of the time, rounds make it come true."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numba import njit
from numpy.typing import NDArray

from ...envs.cluster import Allocation, Cluster, ClusterView, FractionalPolicy
from ...envs.cluster.gavel_kernels import Shares, choose_jobs, new_period
from ...envs.cluster.gavel_mechanism import MIN_RESET_S
from ...envs.errors import SchedulerError, UnknownNameError, unknown_name
from .allocate import place_on_types, placed_types
from .gavel_policies import POLICIES

Integers = NDArray[np.int64]
_IN_THREE_WAYS = (
    "fifo",
    "finish_time_fairness",
    "max_min_fairness",
    "max_min_fairness_water_filling",
    "min_total_duration",
)
_BY_COST = "max_sum_throughput_normalized_by_cost"
GAVEL_POLICIES = (
    *(name + way for name in _IN_THREE_WAYS for way in ("", "_perf", "_packed")),
    *("allox", "gandiva", "isolated", "isolated_plus", "max_sum_throughput_perf"),
    *(_BY_COST + way for way in ("_perf", "_perf_SLOs", "_packed_SLOs")),
)
"""Names of policies in Gavel's own code."""


def rules_of(policy: str) -> tuple[bool, bool]:
    """Of one of Gavel's own policy names: is it work-conserving, does it shuffle the types.

    Raises:
        UnknownNameError: Gavel has no such policy.
    """
    if policy not in GAVEL_POLICIES:
        raise unknown_name("policy of Gavel", policy, GAVEL_POLICIES)
    aware = "_perf" in policy or "_packed" in policy or policy in ("allox", "gandiva")
    return not policy.startswith("fifo"), not aware


class GavelScheduler:
    """Realises a policy's fractions by Gavel's priorities: wanted over received part of the time.

    In our own simulator and rules. Unlike Gavel's: jobs that arrived since the last reset use GPUs
    that are left over, changed placements cost a restart, a job keeps its GPUs while its type stays
    the same, and the policy is told the spread rate of gangs that no node can hold (Gavel's own
    numbers for them would be unreachable). ``simulate(..., mechanism="gavel")`` runs ``policy`` by
    Gavel's rules to the letter.

    Args:
        policy: gives the fractions.
        reset_s: seconds at least between two solutions of the policy, for work-conserving policies;
            the others are asked whenever a job came or went.
        spread_aware: whether the policy is told these spread rates.
    """

    mixes = False
    forks = False

    def __init__(self, policy: FractionalPolicy, reset_s: float = MIN_RESET_S, spread_aware: bool = True) -> None:
        self.policy, self.name = policy, policy.name
        self.reset_s, self.spread_aware = reset_s, spread_aware

    def reset(self, cluster: Cluster, round_s: float, rng: np.random.Generator) -> None:
        """Forget everything; a new run begins."""
        self.policy.reset(cluster, round_s, rng)
        types = len(cluster.types)
        self._rng, self._round_s, self._types = rng, round_s, types
        self._shares = Shares(
            np.zeros((0, types)), np.zeros(0, np.bool_), np.zeros((0, types)), np.zeros(types), np.zeros((0, types))
        )
        self._rates, self._workers = np.zeros((0, types)), np.zeros(0, dtype=np.int64)
        self._known, self._ran = np.zeros(0, dtype=np.bool_), np.zeros(0)
        self._type_of, self._order = np.zeros(0, dtype=np.int64), np.zeros((types, 0), dtype=np.int64)
        self._left, self._gpus = np.zeros(0), cluster.gpus_of_type
        self._listed, self._last_reset, self._time, self._need = 0, -np.inf, 0.0, True

    def schedule(self, view: ClusterView) -> Allocation:
        """Ask the policy if a period is over, then fill the round by priority.

        Raises:
            SchedulerError: jobs that take turns would never get beyond their restarts.
        """
        if self.policy.work_conserving and view.restart_s >= view.round_s:
            raise SchedulerError(
                f"gavel lets jobs take turns each round; a restart of {view.restart_s:g} s must be shorter than a "
                f"round of {view.round_s:g} s."
            )
        if len(view) and view.job[-1] >= len(self._known):
            self._grow(int(view.job[-1]) + 1)
        if not view.mid_round:
            self._take_note(view)
            due = view.time - self._last_reset >= self.reset_s or not self.policy.work_conserving
            if self._need and due:
                self._solve(view)
        chosen = self._choose(view)
        allocation = place_on_types(view, chosen)
        chosen = placed_types(view, chosen, allocation)
        if view.mid_round:
            self._type_of[view.job[chosen >= 0]] = chosen[chosen >= 0]
        else:
            self._type_of[:] = -1
            self._type_of[view.job] = chosen
        return allocation

    def _take_note(self, view: ClusterView) -> None:
        """Book who had which type since the last round, and which jobs and GPUs came and went."""
        job = view.job
        fresh = job[~self._known[job]]
        here = np.zeros(len(self._known), dtype=np.bool_)
        here[job] = True
        gone = np.flatnonzero(self._known & ~here)
        gpus = view.free.sum(axis=0)
        self._need = self._need or len(fresh) > 0 or len(gone) > 0 or not np.array_equal(gpus, self._gpus)
        self._gpus = gpus
        ran = np.zeros(len(self._known))
        ran[job] = view.running_s - self._ran[job]
        ran[gone] = np.minimum(view.time - self._time, self._left[gone])
        (held,) = np.nonzero((self._type_of >= 0) & (ran > 0))
        np.add.at(self._shares.job_time, (held, self._type_of[held]), ran[held])
        np.add.at(self._shares.type_time, self._type_of[held], ran[held])
        self._workers[fresh] = view.workers[~self._known[job]]
        self._need = self._need or not np.array_equal(self._rates[job], view.rates)
        self._rates[job] = view.rates
        self._shares.job_time[fresh] = self._round_s / 2
        self._shares.type_time[:] += self._round_s / 2 * len(fresh)
        self._shares.listed[fresh] = False
        self._shares.listed[gone] = False
        self._known[:] = here
        self._ran[job], self._time = view.running_s, view.time
        self._listed = update_order(self._order, self._listed, here, fresh)

    def _solve(self, view: ClusterView) -> None:
        elapsed = view.time - self._last_reset if np.isfinite(self._last_reset) else 0.0
        new_period(self._shares, view.job, len(view), elapsed, self._round_s)
        self._last_reset, self._need = view.time, False
        fractions = self.policy.fractions(replace(view, rates=view.gang_rates) if self.spread_aware else view)
        self._shares.fraction[view.job] = np.nan_to_num(fractions, nan=0.0)
        self._shares.listed[view.job] = ~np.isnan(fractions).any(axis=1)

    def _choose(self, view: ClusterView) -> Integers:
        """[N] type of each job of the view in this round, -1 for none."""
        types = np.arange(self._types, dtype=np.int64)
        if self.policy.shuffles_types:
            types = self._rng.permutation(types)
        key, chosen = np.zeros(len(self._known)), np.full(len(self._known), -1, dtype=np.int64)
        order = np.tile(view.job, (self._types, 1)) if view.mid_round else self._order
        rates = self._rates.copy()
        rates[view.job] = np.where(view.runnable, rates[view.job], 0.0)
        choose_jobs(
            self._shares,
            rates,
            self._workers,
            view.job,
            len(view),
            order,
            types,
            view.free.sum(axis=0),
            self.policy.work_conserving,
            key,
            chosen,
        )
        types_of = chosen[view.job]
        rate = rates[view.job, np.maximum(types_of, 0)]
        self._left[view.job] = np.where(types_of >= 0, view.restart_s + view.remaining / np.maximum(rate, 1e-300), 0.0)
        return types_of

    def _grow(self, size: int) -> None:
        """Make room for rows up to ``size``."""
        size = max(size, 2 * len(self._known))
        more = size - len(self._known)
        shares = self._shares

        def longer(values: np.ndarray, fill: float = 0) -> np.ndarray:
            return np.concatenate((values, np.full((more, *values.shape[1:]), fill, dtype=values.dtype)))

        self._shares = Shares(
            longer(shares.fraction),
            longer(shares.listed),
            longer(shares.job_time),
            shares.type_time,
            longer(shares.deficit),
        )
        self._rates, self._workers, self._known = longer(self._rates), longer(self._workers), longer(self._known)
        self._ran, self._left, self._type_of = longer(self._ran), longer(self._left), longer(self._type_of, -1)
        self._order = np.concatenate((self._order, np.zeros((self._types, more), dtype=np.int64)), axis=1)


@njit(cache=True, nogil=True)
def update_order(order: Integers, count: int, here: NDArray[np.bool_], fresh: Integers) -> int:
    """Drop the jobs that are gone from every type's order and append the new ones; their number."""
    kept = 0
    for r in range(order.shape[0]):
        kept = 0
        for i in range(count):
            if here[order[r, i]]:
                order[r, kept] = order[r, i]
                kept += 1
        for job in fresh:
            order[r, kept] = job
            kept += 1
    return kept


def gavel(
    objective: str = "max_min", aware: bool = True, reset_s: float = MIN_RESET_S, spread_aware: bool = True
) -> GavelScheduler:
    """Gavel with one of its objectives: max_min, makespan, finish_time_fairness, fifo, max_sum_throughput, isolated.

    Args:
        objective: what the policy optimises.
        aware: whether it knows the rates per type (Gavel's ``_perf`` policies) or not (its plain ones).
        reset_s, spread_aware: ``GavelScheduler``.

    Raises:
        UnknownNameError: there is no such objective.
    """
    if objective not in POLICIES:
        raise UnknownNameError(f"gavel has no objective {objective!r}; choose one of {', '.join(POLICIES)}.")
    return GavelScheduler(POLICIES[objective](aware), reset_s, spread_aware)
