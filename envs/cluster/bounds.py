"""Linear programs that no schedule can beat: lower bounds on the total time duration."""

from __future__ import annotations

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import coo_array

from .cluster import Cluster
from .scheduler import Floats, Integers
from .workload import Workload


def ttd_bounds(
    workload: Workload, cluster: Cluster, *, mixed_rate: str = "proportional", spread: bool = False
) -> dict[str, float]:
    """Lower bounds on TTD in seconds, from last finish to first arrival; they ignore gangs and restarts.

    T is minimised subject to: every job does its steps; it runs at most T less its delay of arrival;
    every GPU type gives at most its GPUs x T. Keys:

    - ``single_type``: a job runs on one type at a time, which must have GPUs for its whole gang;
    - ``mixing``: a gang may stand on several types (``proportional``: its workers' rates add up;
      ``min``: per set of types at the rate of the slowest);
    - ``forking``: a job has one copy per node, each on a whole node with enough GPUs of one type.

    A job that fits nowhere makes its bound infinite.

    Args:
        mixed_rate: how fast a gang on several types is.
        spread: take the spread rate for gangs that no node of a type can hold, which is as true and
            tighter; the plain bound takes the rates in one node.
    """
    rates, apart = workload.rates(cluster)
    of_one_type = rates
    if spread:
        gang = workload.workers[:, None]
        of_one_type = np.where(gang > cluster.capacity.max(axis=0)[None, :], apart, rates)
        rates = np.where(gang > cluster.capacity.sum(axis=1).max(), apart, rates)
    fits = workload.workers[:, None] <= cluster.gpus_of_type[None, :]
    single = np.where(fits, of_one_type, 0.0)
    delay = workload.arrival - workload.arrival.min()
    of_type = cluster.gpus_of_type.astype(np.float64)
    workers = workload.workers.astype(np.float64)
    bounds = {"single_type": _solve(single, workers, of_type, workload.steps, delay)}
    if mixed_rate == "min" and not fits.all():
        bounds["mixing"] = _solve_min(rates, single, workers, of_type, workload.steps, delay)
    else:
        bounds["mixing"] = _solve(rates, workers, of_type, workload.steps, delay)
    bounds["forking"] = _solve_forks(workload, cluster, rates, delay)
    return bounds


def _solve(rates: Floats, workers: Floats, gpus: Floats, steps: Floats, delay: Floats) -> float:
    """min T: sum_r X_jr tau_jr >= S_j, sum_r tau_jr <= T - delay_j, sum_j W_j tau_jr <= c_r T."""
    job, gpu_type = np.nonzero(rates > 0)
    return _minimise(
        job=job,
        rate=rates[job, gpu_type],
        group=job,
        use=gpu_type,
        weight=workers[job],
        gpus=gpus,
        steps=steps,
        delay=delay,
    )


def _minimise(
    job: Integers,
    rate: Floats,
    group: Integers,
    use: Integers,
    weight: Floats,
    gpus: Floats,
    steps: Floats,
    delay: Floats,
) -> float:
    """The linear program of ``_solve`` over columns (job, time budget it counts in, GPUs it uses)."""
    jobs, columns, types = len(steps), len(job), len(gpus)
    if len(np.unique(job)) < jobs:
        return float("inf")
    budgets = int(group.max()) + 1
    fastest = np.zeros(jobs)
    np.maximum.at(fastest, job, rate)
    unit = float((steps / fastest).max())
    rate, delay = rate * unit / steps[job], delay / unit
    which = np.arange(columns)
    end = np.full(budgets, columns)
    rows = np.concatenate(
        (job, jobs + group, jobs + np.arange(budgets), jobs + budgets + use, jobs + budgets + np.arange(types))
    )
    cols = np.concatenate((which, which, end, which, np.full(types, columns)))
    values = np.concatenate((-rate, np.ones(columns), -np.ones(budgets), weight, -gpus))
    matrix = coo_array((values, (rows, cols)), shape=(jobs + budgets + types, columns + 1)).tocsr()
    owner = np.zeros(budgets, dtype=np.int64)
    owner[group] = job
    limit = np.concatenate((-np.ones(jobs), -delay[owner], np.zeros(types)))
    cost = np.zeros(columns + 1)
    cost[-1] = 1.0
    outcome = linprog(cost, A_ub=matrix, b_ub=limit, method="highs")
    return float(outcome.fun) * unit if outcome.status == 0 else float("inf")


def _solve_min(rates: Floats, single: Floats, workers: Floats, gpus: Floats, steps: Floats, delay: Floats) -> float:
    """As ``_solve``, and per set of types a gang at the rate of the slowest, its workers anywhere among them.

    Only the sets of all types that are at least as fast as one of them, with GPUs enough, matter.
    """
    columns: list[tuple[int, float, int]] = []
    for job in range(len(steps)):
        for gpu_type in np.flatnonzero(single[job] > 0).tolist():
            columns.append((job, float(single[job, gpu_type]), gpu_type))
        for slowest in np.flatnonzero(rates[job] > 0).tolist():
            members = np.flatnonzero(rates[job] >= rates[job, slowest])
            if gpus[members].sum() >= workers[job]:
                columns += [(job, float(rates[job, slowest]), gpu_type) for gpu_type in members.tolist()]
    owner, rate, use = (np.array(values) for values in zip(*columns, strict=True))
    # A column's unit is the work of all workers for a second, wherever they are: W GPU-seconds.
    return _minimise(
        job=owner, rate=rate, group=owner, use=use, weight=workers[owner], gpus=gpus, steps=steps, delay=delay
    )


def _solve_forks(workload: Workload, cluster: Cluster, rates: Floats, delay: Floats) -> float:
    """min T: sum_h x_jh tau_jh >= S_j, tau_jh <= T - delay_j, sum_j tau_jh <= T for every node h."""
    fits = workload.workers[:, None, None] <= cluster.capacity[None, :, :]
    best = np.where(fits, rates[:, None, :], 0.0).max(axis=2)
    job, node = np.nonzero(best > 0)
    if len(np.unique(job)) < len(workload):
        return float("inf")
    return _minimise(
        job=job,
        rate=best[job, node],
        group=np.arange(len(job)),
        use=node,
        weight=np.ones(len(job)),
        gpus=np.ones(len(cluster.nodes)),
        steps=workload.steps,
        delay=delay,
    )
