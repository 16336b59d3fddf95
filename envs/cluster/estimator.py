"""Rates that are believed, and mended by what is measured while jobs run.

The Hadar papers state that a first estimate is corrected online; how is our choice:

- Rates belong to a row of the throughput table: a model with its batch size and a number of workers.
  All jobs of a row share them, so that one job's measurement serves those that run beside it or later.
- The first measurement of a row on a type takes the prior's place. Every further one is averaged with
  what was believed: ``rate <- (rate + measured) / 2``. (With half of a prior that is wrong by 3x kept,
  rates would still be off by 17 % after three measurements.)
- Types on which a row was not measured yet have their prior times the row's mean ratio of measured to
  prior rates (geometric, so that errors by one factor either way cancel), as far as errors of one row
  agree. How far they do is measured too: with the correlation c of the logarithms of these ratios
  between types of a row, over all rows, and m types measured, the mean's exponent is m c / (1 + (m - 1) c),
  the best linear prediction. c is 1 until some row was measured on two types. Where errors turn out to be
  independent c goes to 0: priors stay, a type that disappoints falls behind types not tried, and these are tried.
- Of a type measured only in one node, or only spread, the other rate follows in proportion.
- A gang on several types gives one number. Under ``proportional`` the rates of types measured before
  are taken as known, and the rest is divided among the others in proportion to what was believed of
  them; where nothing would be left for them, or all are known, all are scaled alike. Under ``min`` the
  number belongs to the type believed slowest, and no other type of the gang is slower than that.
- A type that a job does not fit (rate 0) is known as such from the start.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..errors import ThroughputError
from .cluster import Cluster
from .gang_speed import gang_rates
from .scheduler import Allocation, Flags, Floats, Integers, MixedRate
from .throughput import ThroughputTable
from .workload import Workload


class RateEstimator:
    """Believed rates of J jobs on R types, shared by the jobs of a row, vectorised over rows.

    Args:
        rates, spread: [J, R] priors in steps/s, in one node and spread over nodes; 0: does not fit.
        workers: [J] GPUs of a gang.
        mixed_rate: rate of a gang on several types (``gang_rate``).
        prior_weight: part of the prior that a first measurement leaves; 0.5 treats it as a measurement.
        row: [J] number of a job's row; jobs with the same number have the same priors and workers, and
            share what is measured. None: every job is a row of its own.

    Attributes:
        rates, spread: [J, R] what is believed now; ``spread`` is never above ``rates``.
        measured: [2, J, R] whether it was measured: in one node, spread.
        agreement: correlation of errors between types of a row, from 0 to 1.
    """

    def __init__(
        self,
        rates: Floats,
        spread: Floats,
        workers: Integers,
        mixed_rate: MixedRate = "proportional",
        prior_weight: float = 0.0,
        row: Integers | None = None,
    ) -> None:
        _, first, self._row = np.unique(
            np.arange(len(rates)) if row is None else row, return_index=True, return_inverse=True
        )
        self._prior = np.array([rates, np.minimum(spread, rates)], dtype=np.float64)[:, first]
        self._single, self._workers = workers[first, None] == 1, workers
        self.mixed_rate, self.prior_weight, self.agreement = mixed_rate, prior_weight, 1.0
        self._believe(self._prior, np.zeros(self._prior.shape, dtype=np.bool_))

    def _believe(self, believed: Floats, known: Flags) -> None:
        """Set [2, K, R] beliefs of the rows, and show them by job."""
        self._believed, self._known = believed, known
        self.rates, self.spread = believed[:, self._row]
        self.measured = known[:, self._row]

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
        numbers: dict[tuple[str, int], int] = {}
        row = [numbers.setdefault((job.kind, job.workers), len(numbers)) for job in workload.jobs]
        return cls(*fitting, workload.workers, mixed_rate, prior_weight, np.array(row, dtype=np.int64))

    def take_over(self, other: RateEstimator) -> None:
        """Believe of the first jobs what another estimator, which knew only these, believes."""
        known, count = self._known.copy(), len(other._row)
        believed = self._believed.copy()
        believed[:, self._row[:count]] = other._believed[:, other._row]
        known[:, self._row[:count]] = other._known[:, other._row]
        self._believe(self._complete(believed, known) if known.any() else believed, known)

    def guessed(self, rows: Integers) -> Flags:
        """[N] whether nothing was measured yet of the rates of these jobs."""
        return np.asarray(~self.measured[:, rows].any(axis=(0, 2)))

    def gang_rates(self, gangs: Allocation) -> Floats:
        """[A] steps/s that are believed of each gang."""
        where = gangs.ptr, gangs.node, gangs.gpu_type, gangs.count
        rates, spread = self._believed
        return gang_rates(rates, spread, self._row[gangs.job], *where, self.mixed_rate == "min")

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
        key = entries.apart[told], self._row[entries.job[told]], gangs.gpu_type[told]
        if self._known[key].all() and (self._believed[key] == values[told]).all():
            return
        total, times = np.zeros((2, *self._prior.shape))
        np.add.at(total, key, values[told])
        np.add.at(times, key, 1.0)
        seen, weight = times > 0, np.where(self._known, 0.5, self.prior_weight)
        new = weight * self._believed + (1 - weight) * total / np.maximum(times, 1.0)
        known = self._known | seen
        self._believe(self._complete(np.where(seen, new, self._believed), known), known)

    def _attribute(self, gangs: Allocation, entries: _Entries, measured: Floats) -> Floats:
        """[E] what a gang's rate says about each of its types; NaN: nothing."""
        begin = gangs.ptr[:-1]
        own = self._believed[entries.apart, self._row[entries.job], gangs.gpu_type]
        value = measured[entries.gang]
        if not entries.mixed.any():
            return value
        if self.mixed_rate == "min":
            slowest = own <= np.minimum.reduceat(own, begin)[entries.gang]
            share = np.where(slowest | (own < value), value, np.nan)
            return np.where(entries.mixed, share, value)
        known = self._known[entries.apart, self._row[entries.job], gangs.gpu_type]
        part = own * gangs.count
        total, sure = np.add.reduceat(part, begin), np.add.reduceat(np.where(known, part, 0.0), begin)
        rest, unsure = measured * self._workers[gangs.job] - sure, total - sure
        divide = (np.add.reduceat((~known).astype(np.int64), begin) > 0) & (rest > 0)
        factor = np.where(divide, rest / np.where(divide, unsure, 1.0), measured * self._workers[gangs.job] / total)
        share = np.where(divide[entries.gang] & known, np.nan, own * factor[entries.gang])
        return np.where(entries.mixed, share, value)

    def _complete(self, believed: Floats, known: Flags) -> Floats:
        """[2, K, R] beliefs with the rates that were not measured scaled, and spread no faster than in one node."""
        logs = np.log(np.where(known, believed / np.where(known, self._prior, 1.0), 1.0))
        error, tried = logs.sum(axis=0) / np.maximum(known.sum(axis=0), 1), known.any(axis=0)
        number, total = tried.sum(axis=1), error.sum(axis=1)
        self.agreement = _agreement(number, total, (error**2).sum(axis=1))
        expected = total * self.agreement / np.maximum(1 + (number - 1) * self.agreement, 1e-12)
        factor = np.exp(np.where(tried, error, expected[:, None]))
        together, apart = np.where(known, believed, self._prior * factor)
        together = np.where(known[1] & ~known[0], np.maximum(together, apart), together)
        return np.array([together, np.where(self._single, together, np.minimum(apart, together))])


def _agreement(number: Integers, total: Floats, squares: Floats) -> float:
    """Correlation of the errors of a row's types over all pairs of types, never below 0.

    One pair whose errors agree, of size 1, is counted with them as what is thought before any was seen.

    Args:
        number, total, squares: [K] measured types of a row, the sum of their errors, and of their squares.
    """
    products, sizes = (total**2 - squares).sum() / 2, ((number - 1) * squares).sum() / 2
    return max(0.0, float((1 + products) / (1 + sizes)))


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
