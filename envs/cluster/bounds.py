"""Linear programs that no schedule can beat: lower bounds on the total time duration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import coo_array

from .cluster import Cluster
from .scheduler import Floats, Integers
from .workload import Workload

BOUNDS = ("single_type", "mixing", "forking")
POOL_ABOVE = 3000
"""From so many jobs on, those that are alike are pooled: the bound is weaker, still true, and fast."""


class _Pools(NamedTuple):
    """Jobs, or pools of jobs that are alike: rates [P, R], workers, steps, how many, summed delays."""

    rates: Floats
    workers: Floats
    steps: Floats
    size: Floats
    delay: Floats


def ttd_bounds(
    workload: Workload,
    cluster: Cluster,
    *,
    mixed_rate: str = "proportional",
    spread: bool = False,
    kinds: Sequence[str] = BOUNDS,
) -> dict[str, float]:
    """Lower bounds on TTD in seconds, from last finish to first arrival; they ignore gangs and restarts.

    T is minimised subject to: every job does its steps; it runs at most T less its delay of arrival;
    every GPU type gives at most its GPUs x T. Keys:

    - ``single_type``: a job runs on one type at a time, which must have GPUs for its whole gang;
    - ``mixing``: a gang may stand on several types (``proportional``: its workers' rates add up;
      ``min``: per set of types at the rate of the slowest);
    - ``forking``: a job has at most one copy per node, each on GPUs of one type; a job that no node
      can hold has one gang on one type.

    A job that fits nowhere makes its bound infinite.

    Args:
        mixed_rate: how fast a gang on several types is.
        spread: take the spread rate for gangs that no node of a type can hold, which is as true and
            tighter; the plain bound takes the rates in one node.
        kinds: which of them to solve.
    """
    rates, apart = workload.rates(cluster)
    gpus, gang = cluster.gpus_of_type.astype(np.float64), workload.workers[:, None]
    of_one_type = rates
    if spread:
        of_one_type = np.where(gang > cluster.capacity.max(axis=0)[None, :], apart, rates)
        rates = np.where(gang > cluster.capacity.sum(axis=1).max(), apart, rates)
    single = np.where(gang <= gpus[None, :], of_one_type, 0.0)
    bounds = {}
    if "single_type" in kinds:
        pools = _pool(workload, single)
        bounds["single_type"] = max(_solve(pools, gpus), _longest(workload, single.max(axis=1)))
    if "mixing" in kinds:
        fastest = np.maximum(single, rates).max(axis=1)
        if mixed_rate == "min" and not np.array_equal(single > 0, rates > 0):
            mixed = _solve_min(_pool(workload, np.concatenate((rates, single), axis=1)), gpus)
        else:
            mixed = _solve(_pool(workload, np.maximum(single, rates)), gpus)
        bounds["mixing"] = max(mixed, _longest(workload, fastest))
    if "forking" in kinds:
        bounds["forking"] = _forking(workload, cluster, rates, single)
    return bounds


def _delay(workload: Workload) -> Floats:
    return workload.arrival - workload.arrival.min()


def _longest(workload: Workload, rate: Floats) -> float:
    """The job that ends last if each has the cluster for itself."""
    with np.errstate(divide="ignore"):
        return float((_delay(workload) + workload.steps / rate).max())


def _pool(workload: Workload, rates: Floats) -> _Pools:
    workers = workload.workers.astype(np.float64)
    if len(workload) <= POOL_ABOVE:
        return _Pools(rates, workers, workload.steps, np.ones(len(workload)), _delay(workload))
    alike, pool = np.unique(np.column_stack((rates, workers)), axis=0, return_inverse=True)
    weights = workload.steps, np.ones(len(workload)), _delay(workload)
    steps, size, delay = (np.bincount(pool, values).astype(np.float64) for values in weights)
    return _Pools(alike[:, :-1].copy(), alike[:, -1].copy(), steps, size, delay)


def _solve(pools: _Pools, gpus: Floats) -> float:
    """min T: sum_r X_jr tau_jr >= S_j, sum_r tau_jr <= T - delay_j, sum_j W_j tau_jr <= c_r T."""
    job, gpu_type = np.nonzero(pools.rates > 0)
    return _minimise(pools, job, pools.rates[job, gpu_type], job, gpu_type, pools.workers[job], gpus, np.ones(len(job)))


def _solve_min(pools: _Pools, gpus: Floats) -> float:
    """As ``_solve``, and per set of types a gang at the rate of the slowest, its workers anywhere among them.

    Only the sets of all types that are at least as fast as one of them, with GPUs enough, matter. The
    pools' rates are those of mixed gangs, then those of gangs on one type.
    """
    mixed, single = np.split(pools.rates, 2, axis=1)
    columns: list[tuple[int, float, int]] = []
    for job in range(len(pools.steps)):
        for gpu_type in np.flatnonzero(single[job] > 0).tolist():
            columns.append((job, float(single[job, gpu_type]), gpu_type))
        for slowest in np.flatnonzero(mixed[job] > 0).tolist():
            members = np.flatnonzero(mixed[job] >= mixed[job, slowest])
            if gpus[members].sum() >= pools.workers[job]:
                columns += [(job, float(mixed[job, slowest]), gpu_type) for gpu_type in members.tolist()]
    if not columns:
        return float("inf")
    owner, rate, use = (np.array(values) for values in zip(*columns, strict=True))
    # A column's unit is the work of all workers for a second, wherever they are: W GPU-seconds.
    return _minimise(pools, owner, rate, owner, use, pools.workers[owner], gpus, np.ones(len(owner)))


def _forking(workload: Workload, cluster: Cluster, rates: Floats, single: Floats) -> float:
    """min T: sum X_jhr tau_jhr >= S_j, sum_r tau_jhr <= T - delay_j, sum_jh W_j tau_jhr <= c_r T, equal nodes as one.

    A job that no node can hold has the columns of ``single`` instead.
    """
    nodes, count = np.unique(cluster.capacity, axis=0, return_counts=True)
    groups, types = nodes.shape
    fits = workload.workers[:, None, None] <= nodes[None, :, :]
    on_node = np.where(fits, rates[:, None, :], 0.0)
    homeless = on_node.max(axis=(1, 2)) <= 0
    spread = np.where(homeless[:, None], single, 0.0)
    pools = _pool(workload, np.concatenate((on_node.reshape(len(workload), -1), spread), axis=1))
    job, place = np.nonzero(pools.rates > 0)
    group, gpu_type = np.divmod(place, types)
    times = np.append(count, 1).astype(np.float64)[group]
    _, budget = np.unique(job * (groups + 1) + group, return_inverse=True)
    rate, workers = pools.rates[job, place], pools.workers[job]
    gpus = cluster.gpus_of_type.astype(np.float64)
    bound = _minimise(pools, job, rate, budget, gpu_type, workers, gpus, times)
    return max(bound, _longest(workload, on_node.max(axis=2) @ count + spread.max(axis=1)))


def _minimise(
    pools: _Pools,
    job: Integers,
    rate: Floats,
    group: Integers,
    use: Integers,
    weight: Floats,
    gpus: Floats,
    times: Floats,
) -> float:
    """The program of ``_solve`` over columns: whose steps they do, at which rate, in which time budget
    (``times`` as much as one job's), and how many GPUs of which type they take."""
    jobs, columns, types = len(pools.steps), len(job), len(gpus)
    if len(np.unique(job)) < jobs:
        return float("inf")
    budgets = int(group.max()) + 1
    owner, factor = np.zeros(budgets, dtype=np.int64), np.ones(budgets)
    owner[group], factor[group] = job, times
    fastest = np.zeros(jobs)
    np.maximum.at(fastest, job, rate)
    unit = float((pools.steps / fastest / pools.size).max())
    rate, which = rate * unit / pools.steps[job], np.arange(columns)
    rows = (job, jobs + group, jobs + np.arange(budgets), jobs + budgets + use, jobs + budgets + np.arange(types))
    cols = (which, which, np.full(budgets, columns), which, np.full(types, columns))
    values = (-rate, np.ones(columns), -pools.size[owner] * factor, weight, -gpus)
    shape = (jobs + budgets + types, columns + 1)
    matrix = coo_array((np.concatenate(values), (np.concatenate(rows), np.concatenate(cols))), shape=shape).tocsr()
    limit = np.concatenate((-np.ones(jobs), -pools.delay[owner] * factor / unit, np.zeros(types)))
    cost = np.zeros(columns + 1)
    cost[-1] = 1.0
    outcome = linprog(cost, A_ub=matrix, b_ub=limit, method="highs")
    return float(outcome.fun) * unit if outcome.status == 0 else float("inf")
