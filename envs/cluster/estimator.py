"""Rates that are believed, and mended by what is measured while jobs run.

The Hadar papers state that a first estimate is corrected online; how is our choice:

- The first measurement of a job on a type takes the prior's place. Every further one is averaged with
  what was believed: ``rate <- (rate + measured) / 2``. (With half of a prior that is wrong by 3x kept,
  rates would still be off by 17 % after three measurements.)
- Types on which the job was not measured yet have their prior times the job's mean ratio of measured
  to prior rates, a geometric mean, so that errors by one factor either way cancel.
- A gang on several types gives one number. Under ``proportional`` the rates of types measured before
  are taken as known, and the rest is divided among the others in proportion to what was believed of
  them; where nothing would be left for them, or all are known, all are scaled alike. Under ``min`` the
  number belongs to the type believed slowest, and no other type of the gang is slower than that.
- A type that a job does not fit (rate 0) is known as such from the start.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import ThroughputError
from .cluster import Cluster
from .scheduler import Allocation, Floats, Integers, MixedRate
from .throughput import ThroughputTable
from .workload import Workload

Flags = NDArray[np.bool_]


class RateEstimator:
    """Believed rates of J jobs on R types, vectorised over jobs.

    Args:
        rates, spread: [J, R] priors in steps/s, in one node and spread over nodes; 0: does not fit.
        workers: [J] GPUs of a gang.
        mixed_rate: rate of a gang on several types (``gang_rate``).
        prior_weight: part of the prior that a first measurement leaves; 0.5 treats it as a measurement.

    Attributes:
        rates, spread: [J, R] what is believed now; ``spread`` is never above ``rates``.
        measured: [2, J, R] whether it was measured: in one node, spread.
    """

    def __init__(
        self,
        rates: Floats,
        spread: Floats,
        workers: Integers,
        mixed_rate: MixedRate = "proportional",
        prior_weight: float = 0.0,
    ) -> None:
        self._prior = np.array([rates, np.minimum(spread, rates)], dtype=np.float64)
        self._believed = self._prior.copy()
        self.rates, self.spread = self._believed
        self.measured = np.zeros(self._prior.shape, dtype=np.bool_)
        self._workers, self.mixed_rate, self.prior_weight = workers, mixed_rate, prior_weight

    @classmethod
    def from_table(
        cls,
        estimates: ThroughputTable,
        workload: Workload,
        cluster: Cluster,
        mixed_rate: MixedRate = "proportional",
        prior_weight: float = 0.0,
    ) -> RateEstimator:
        """Priors of a workload's jobs from a table of estimates; the true table says which types fit.

        Raises:
            ThroughputError: the estimates lack a job's model, a GPU type, or a rate above 0 where one is needed.
        """
        true, true_spread = workload.rates(cluster)
        rates, spread = estimates.rates_of(workload.jobs, cluster)
        for missing in np.argwhere(((rates <= 0) & (true > 0)) | ((spread <= 0) & (true_spread > 0)))[:1].tolist():
            job, gpu_type = workload.jobs[missing[0]], cluster.types[missing[1]]
            raise ThroughputError(
                f"the estimates ({estimates.source or 'unnamed'}) have no rate above 0 of {job.kind!r} with "
                f"{job.workers} workers on {gpu_type}, where it does run; give one."
            )
        fitting = np.where(true > 0, rates, 0.0), np.where(true_spread > 0, spread, 0.0)
        return cls(*fitting, workload.workers, mixed_rate, prior_weight)

    def gang_rates(self, gangs: Allocation) -> Floats:
        """[A] steps/s that are believed of each gang."""
        return self._of_gangs(gangs, _entries(gangs)) if len(gangs) else np.zeros(0)

    def observe(self, gangs: Allocation, measured: Floats) -> None:
        """Take in what gangs did.

        Args:
            gangs: A gangs and their GPUs.
            measured: [A] steps done / seconds of work; NaN for gangs that told nothing.
        """
        if not len(gangs) or np.isnan(measured).all():
            return
        entries = _entries(gangs)
        values = self._attribute(gangs, entries, measured)
        told = ~np.isnan(values)
        rows, position = np.unique(entries.job[told], return_inverse=True)
        total, times = np.zeros((2, 2, len(rows), self.rates.shape[1]))
        key = entries.apart[told], position, gangs.gpu_type[told]
        np.add.at(total, key, values[told])
        np.add.at(times, key, 1.0)
        seen, believed, before = times > 0, self._believed[:, rows], self.measured[:, rows]
        weight = np.where(before, 0.5, self.prior_weight)
        new = np.where(seen, weight * believed + (1 - weight) * total / np.maximum(times, 1.0), believed)
        self.measured[:, rows] = before | seen
        self._believed[:, rows] = self._complete(rows, new, before | seen)

    def _attribute(self, gangs: Allocation, entries: _Entries, measured: Floats) -> Floats:
        """[E] what a gang's rate says about each of its types; NaN: nothing."""
        begin = gangs.ptr[:-1]
        own = self._believed[entries.apart, entries.job, gangs.gpu_type]
        value = measured[entries.gang]
        if not entries.mixed.any():
            return value
        if self.mixed_rate == "min":
            slowest = own <= np.minimum.reduceat(own, begin)[entries.gang]
            share = np.where(slowest | (own < value), value, np.nan)
            return np.where(entries.mixed, share, value)
        known = self.measured[entries.apart, entries.job, gangs.gpu_type]
        part = own * gangs.count
        total, sure = np.add.reduceat(part, begin), np.add.reduceat(np.where(known, part, 0.0), begin)
        rest, unsure = measured * self._workers[gangs.job] - sure, total - sure
        divide = (np.add.reduceat((~known).astype(np.int64), begin) > 0) & (rest > 0)
        factor = np.where(divide, rest / np.where(divide, unsure, 1.0), measured * self._workers[gangs.job] / total)
        share = np.where(divide[entries.gang] & known, np.nan, own * factor[entries.gang])
        return np.where(entries.mixed, share, value)

    def _complete(self, rows: Integers, believed: Floats, measured: Flags) -> Floats:
        """[2, n, R] beliefs with the types that were not measured scaled, and spread no faster than in one node."""
        prior = self._prior[:, rows]
        logs = np.log(np.where(measured, believed / np.where(measured, prior, 1.0), 1.0))
        ratio = np.exp(logs.sum(axis=(0, 2)) / np.maximum(measured.sum(axis=(0, 2)), 1))
        together, apart = np.where(measured, believed, prior * ratio[:, None])
        together = np.where(measured[1] & ~measured[0], np.maximum(together, apart), together)
        apart = np.where(self._workers[rows, None] == 1, together, np.minimum(apart, together))
        return np.array([together, apart])

    def _of_gangs(self, gangs: Allocation, entries: _Entries) -> Floats:
        own, begin = self._believed[entries.apart, entries.job, gangs.gpu_type], gangs.ptr[:-1]
        least = np.minimum.reduceat(own, begin)
        if self.mixed_rate == "min" or not entries.mixed.any():
            return least
        summed = np.add.reduceat(own * gangs.count, begin) / self._workers[gangs.job]
        return np.where(entries.mixed[begin], summed, least)


class _Entries(NamedTuple):
    """[E] for every entry of an allocation: its gang, the gang's job, whether it is spread, and on several types."""

    gang: Integers
    job: Integers
    apart: Integers
    mixed: Flags


def _entries(gangs: Allocation) -> _Entries:
    begin = gangs.ptr[:-1]
    gang = np.repeat(np.arange(len(gangs)), np.diff(gangs.ptr))
    first = begin[gang]
    apart = np.logical_or.reduceat(gangs.node != gangs.node[first], begin)[gang]
    mixed = np.logical_or.reduceat(gangs.gpu_type != gangs.gpu_type[first], begin)[gang]
    return _Entries(gang, gangs.job[gang], apart.astype(np.int64), mixed)
