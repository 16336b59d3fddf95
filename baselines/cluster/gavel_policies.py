"""Gavel's policies as linear programs of our own (Narayanan et al., OSDI 2020).

``aware`` policies know every job's rate on every type. The others are blind to speed: Gavel's plain
ones, with the same rate on all types that a job fits.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ...envs.cluster import Cluster, ClusterView
from .share_lp import ShareLP

Floats = NDArray[np.float64]


class Policy:
    """What all of Gavel's policies share.

    Args:
        aware: whether they know the rates per type.
    """

    objective = ""
    name = ""
    work_conserving = True
    fair = True

    def __init__(self, aware: bool = True) -> None:
        self.aware = aware
        self.shuffles_types = not aware
        self.name = f"gavel_{self.objective}" + ("" if aware else "_blind")

    def reset(self, cluster: Cluster, round_s: float, rng: np.random.Generator) -> None:
        """A new run begins."""
        self._gpus = cluster.gpus_of_type.astype(np.float64)
        self._program = ShareLP(self._columns(self._gpus), self.fair)
        self._rng = rng

    def _columns(self, gpus: Floats) -> Floats:
        """GPUs per column of the program: the types, or all of them as one for blind policies."""
        return gpus if self.aware else gpus.sum(keepdims=True)

    def believed_rates(self, view: ClusterView) -> Floats:
        """[N, C] rates as the policy sees them: per type, or for blind ones that of the first fitting type."""
        if self.aware:
            return view.rates
        return view.rates[np.arange(len(view)), (view.rates > 0).argmax(axis=1)][:, None]

    def fractions(self, view: ClusterView) -> Floats:
        """[N, R] part of the time of each job on each type."""
        return self.divide(view) if len(view) else np.zeros(view.rates.shape)

    def divide(self, view: ClusterView) -> Floats:
        """The fractions of at least one job."""
        raise NotImplementedError

    def _solve(self, view: ClusterView, gain: Floats, need: Floats, cost: Floats | None = None) -> tuple[Floats, float]:
        self._program.set_gpus(self._columns(view.free.sum(axis=0).astype(np.float64)))
        return self._program.solve(view.job, view.workers, gain, need, cost)

    def _per_type(self, view: ClusterView, share: Floats) -> Floats:
        """[N, R] from the program's columns: blind policies spread over the fitting types by GPUs."""
        if self.aware:
            return share
        weight = np.where(view.rates > 0, self._gpus, 0.0)
        return share * weight / weight.sum(axis=1, keepdims=True)


class MaxMinFairness(Policy):
    """max min_i (W_i / (w_i Tprop_i)) sum_j T_ij x_ij, T = 1 for blind policies.

    A job of weight 0 is owed nothing: it counts only where no job has a weight, and else gets what is left over.
    """

    objective = "max_min"

    def divide(self, view: ClusterView) -> Floats:
        """Shares by the policy's program."""
        rates = view.rates if self.aware else np.ones((len(view), 1))
        gpus = self._columns(self._gpus)
        proportional = (rates * gpus).sum(axis=1) / gpus.sum()
        weighty = view.weight > 0
        scale = view.workers / (np.where(weighty, view.weight, 1.0) * proportional)
        need = np.where(weighty, 1.0, 0.0) if weighty.any() else np.ones(len(view))
        share, _ = self._solve(view, rates * scale[:, None], need)
        return self._per_type(view, share_alike(view, share))


class Makespan(Policy):
    """min H: sum_j T_ij x_ij >= r_i / H, as max 1/H (Gavel bisects H to 5 %)."""

    objective = "makespan"

    def divide(self, view: ClusterView) -> Floats:
        """Shares by the policy's program."""
        rates = self.believed_rates(view)
        best = rates.max(axis=1)
        seconds = view.remaining / best
        share, _ = self._solve(view, rates / best[:, None], seconds / seconds.max())
        return self._per_type(view, share)


class FinishTimeFairness(Policy):
    """min max_i (age_i + r_i / sum_j T_ij x_ij) / (tau_i + r_i / Tiso_i), as in Themis.

    Tiso_i: rate with an equal share of all types; tau_i: time that the steps done so far would have
    taken so. For a given ratio the needed rates are known and a program tells by which factor z they
    can be exceeded; Newton's method on z = 1, with z's slope from the program's duals, finds the ratio.
    """

    objective = "finish_time_fairness"
    tolerance = 1e-7

    def reset(self, cluster: Cluster, round_s: float, rng: np.random.Generator) -> None:
        """A new run begins."""
        super().reset(cluster, round_s, rng)
        self._elapsed: dict[int, tuple[float, float, float]] = {}
        self._ratio = 0.0

    def divide(self, view: ClusterView) -> Floats:
        """Shares at the smallest ratio."""
        rates = self.believed_rates(view)
        best = rates.max(axis=1)
        share = isolated_shares(view, self._columns(self._gpus))
        alone = (rates * share).sum(axis=1)
        budget = self._isolated_time(view, alone) + view.remaining / alone
        age = view.time - view.arrival
        least = float((age / budget).max())
        ratio = float(((age + view.remaining / alone) / budget).max())
        if least < self._ratio < ratio:
            ratio = self._ratio
        for _ in range(30):
            spare = ratio * budget - age
            need = view.remaining / spare / best
            share, factor = self._solve(view, rates / best[:, None], need)
            if abs(factor - 1.0) <= self.tolerance:
                break
            slope = factor * (self._program.fair_duals(view.job) * need * budget / spare).sum()
            better = ratio - (factor - 1.0) / slope if slope > 0 else ratio
            ratio = better if better > least else (ratio + least) / 2
        self._ratio = ratio
        return self._per_type(view, share)

    def _isolated_time(self, view: ClusterView, alone: Floats) -> Floats:
        """[N] tau: grows by the steps since the last solve over the isolated rate of the last solve."""
        spent = np.zeros(len(view))
        for position, job in enumerate(view.job.tolist()):
            left = float(view.remaining[position])
            total, before, rate = self._elapsed.get(job, (0.0, left, 1.0))
            spent[position] = total + (before - left) / rate
            self._elapsed[job] = (float(spent[position]), left, float(alone[position]))
        return spent


class MaxSumThroughput(Policy):
    """max sum_ij T_ij x_ij, in raw steps per second as in Gavel."""

    objective = "max_sum_throughput"
    fair = False

    def divide(self, view: ClusterView) -> Floats:
        """Shares by the policy's program."""
        rates = self.believed_rates(view)
        # the program must look the same in any unit of time: its largest cost lies between 4 and 8
        worth = 8.0 * rates / 2.0 ** np.ceil(np.log2(max(float(rates.max(initial=0.0)), 1e-300)))
        share, _ = self._solve(view, rates, np.zeros(len(view)), worth)
        return self._per_type(view, share_alike(view, share))


class Isolated(Policy):
    """Every job has an equal share of every type."""

    objective = "isolated"

    def __init__(self, aware: bool = False) -> None:
        super().__init__(aware)
        self.shuffles_types = True

    def divide(self, view: ClusterView) -> Floats:
        """Equal shares."""
        return isolated_shares(view, self._gpus)


class Fifo(Policy):
    """First in, first out; a job has its type alone. It stops at the first job that does not fit.

    Aware: from scratch at each reset, on the fastest type with enough GPUs (Gavel's ``fifo_perf``; as
    there, a job is passed over if only types that it does not run on have enough).
    Blind: a random type, kept until the job's end (what Gavel's ``fifo`` was meant to be).
    """

    objective = "fifo"
    work_conserving = False

    def reset(self, cluster: Cluster, round_s: float, rng: np.random.Generator) -> None:
        """A new run begins."""
        super().reset(cluster, round_s, rng)
        self._type_of: dict[int, int] = {}

    def divide(self, view: ClusterView) -> Floats:
        """Whole GPUs, first come first served."""
        answer = np.zeros(view.rates.shape)
        left = view.free.sum(axis=0)
        kept = {} if self.aware else {job: self._type_of[job] for job in view.job.tolist() if job in self._type_of}
        for job, gpu_type in list(kept.items()):
            position = int(np.searchsorted(view.job, job))
            if left[gpu_type] >= view.workers[position]:
                left[gpu_type] -= view.workers[position]
            else:
                del kept[job]
        for position, job in enumerate(view.job.tolist()):
            if job not in kept:
                fitting = np.flatnonzero((view.rates[position] > 0) & (left >= view.workers[position]))
                if not len(fitting):
                    if self.aware and (left >= view.workers[position]).any():
                        continue
                    break
                pick = int(self._rng.integers(len(fitting))) if not self.aware else 0
                fastest = fitting[np.argsort(-view.rates[position, fitting], kind="stable")]
                kept[job] = int((fastest if self.aware else fitting)[pick])
                left[kept[job]] -= view.workers[position]
            answer[position, kept[job]] = 1.0
        self._type_of = kept
        return answer


def isolated_shares(view: ClusterView, gpus: Floats) -> Floats:
    """[N, R] y_ij / max(1, sum_j y_ij) with y_ij = N_j / (N W_i)."""
    share = gpus[None, :] / (len(view) * view.workers)[:, None]
    return share / np.maximum(1.0, share.sum(axis=1, keepdims=True))


def share_alike(view: ClusterView, share: Floats) -> Floats:
    """Jobs that are alike (rates, workers, weight) get the mean of their shares: as good, and fair.

    Gavel's interior-point solver does the same, where a vertex would serve one after the other.
    """
    alike = np.column_stack((view.rates, view.workers, view.weight))
    _, group, size = np.unique(alike, axis=0, return_inverse=True, return_counts=True)
    total = np.zeros((len(size), share.shape[1]))
    np.add.at(total, group, share)
    return (total / size[:, None])[group]


POLICIES: dict[str, Callable[[bool], Policy]] = {
    "max_min": MaxMinFairness,
    "makespan": Makespan,
    "finish_time_fairness": FinishTimeFairness,
    "fifo": Fifo,
    "max_sum_throughput": MaxSumThroughput,
    "isolated": Isolated,
}
"""Objective -> policy."""
