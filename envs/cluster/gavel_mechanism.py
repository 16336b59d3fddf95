"""Gavel's simulator to the letter, for comparisons with it (Narayanan et al., OSDI 2020).

It has faults that our own simulator does not have: changed placements cost nothing, GPUs a server
and spread rates have no effect, arrivals wait for the next reset even on an idle cluster, idle gaps
count as busy time, a job with fewer steps left than GPUs is dropped after five tries.
"""

from __future__ import annotations

import random
import time

import numpy as np

from ..errors import AllocationError, ClusterError
from . import gavel_kernels as kernels
from .cluster import Cluster
from .result import ClusterResult, JobTable, RoundLog, make_job_table
from .scheduler import Allocation, ClusterView, Floats, FractionalPolicy
from .workload import Workload

MIN_RESET_S = 1920.0
"""Seconds between two solutions of the policy at least, in Gavel's simulator."""

_ORDERS_A_BLOCK = 4096


def simulate_gavel(
    workload: Workload, cluster: Cluster, policy: FractionalPolicy, *, round_s: float = 360.0, seed: int = 0
) -> ClusterResult:
    """Run a policy under Gavel's mechanism.

    The result's metrics have further ``makespan_s``, ``rounds``, ``utilisation`` (Gavel's, idle gaps
    counted as busy), ``utilisation_without_idle_gaps``, ``solves``.

    Args:
        policy: gives the fractions at each reset.
        seed: of the order of types, Gavel's ``Random(seed + 5)``, and of the policy's own draws.

    Raises:
        ClusterError: the policy is none.
        AllocationError: the policy's answer has the wrong shape or is not finite.
    """
    if not isinstance(policy, FractionalPolicy):
        raise ClusterError(
            f"mechanism=gavel needs a policy with fractions; {type(policy).__name__} has none: use gavel or replay."
        )
    run, shares, rows, reasons = _begin(workload, cluster)
    policy.reset(cluster, round_s, np.random.default_rng(seed))
    gpus = cluster.gpus_of_type.astype(np.int64)
    shuffler = random.Random(seed + 5)
    orders = _orders(shuffler, len(gpus), policy.shuffles_types)
    key, chosen = np.zeros(len(rows)), np.full(len(rows), -1, dtype=np.int64)
    seconds, solves, outcome = 0.0, 0, kernels.SHUFFLE
    while outcome not in (kernels.DONE, kernels.STUCK) and len(rows):
        outcome = kernels.run_rounds(
            run, shares, gpus, orders, policy.work_conserving, MIN_RESET_S, round_s, key, chosen, 1000
        )
        if outcome == kernels.SOLVE:
            begin = time.perf_counter()
            _solve(policy, workload, cluster, run, shares, rows, round_s)
            seconds += time.perf_counter() - begin
            solves += 1
        elif outcome == kernels.SHUFFLE:
            orders = _orders(shuffler, len(gpus), policy.shuffles_types)
    return _collect(workload, cluster, policy, run, rows, reasons, seconds, solves)


def _begin(workload: Workload, cluster: Cluster) -> tuple[kernels.Run, kernels.Shares, np.ndarray, dict[int, str]]:
    rates, _ = workload.rates(cluster)
    most = np.where(rates > 0, cluster.gpus_of_type[None, :], 0).max(axis=1, initial=0)
    rows = np.flatnonzero(most >= workload.workers)
    reasons = {
        row: f"cannot fit: asks {workload.workers[row]}, its largest fitting type has {most[row]}"
        for row in np.flatnonzero(most < workload.workers).tolist()
    }
    count, types = len(rows), len(cluster.types)
    ints = np.zeros((8, count), dtype=np.int64)
    run = kernels.Run(
        arrival=workload.arrival[rows],
        workers=workload.workers[rows],
        rates=rates[rows],
        steps=np.maximum(1, workload.steps[rows]).astype(np.int64),
        done=ints[0],
        failures=ints[1],
        start=np.full(count, np.nan),
        finish=np.full(count, np.nan),
        running_s=np.zeros(count),
        active=ints[2],
        sizes=np.zeros(7, dtype=np.int64),
        clock=np.zeros(4),
        running=ints[3],
        running_type=ints[4],
        running_steps=ints[5],
        running_end=np.zeros(count),
        order=np.zeros((types, count), dtype=np.int64),
        busy=np.zeros(2),
    )
    shares = kernels.Shares(
        fraction=np.zeros((count, types)),
        listed=np.zeros(count, dtype=np.bool_),
        job_time=np.zeros((count, types)),
        type_time=np.zeros(types),
        deficit=np.zeros((count, types)),
    )
    return run, shares, rows, reasons


def _orders(shuffler: random.Random, types: int, shuffles: bool) -> np.ndarray:
    """[K, R] orders of the types for the next K rounds; one row where they are never shuffled."""
    if not shuffles:
        return np.arange(types, dtype=np.int64)[None, :].copy()
    orders = []
    for _ in range(_ORDERS_A_BLOCK):
        order = list(range(types))
        shuffler.shuffle(order)
        orders.append(order)
    return np.array(orders, dtype=np.int64)


def _solve(
    policy: FractionalPolicy,
    workload: Workload,
    cluster: Cluster,
    run: kernels.Run,
    shares: kernels.Shares,
    rows: np.ndarray,
    round_s: float,
) -> None:
    """Ask the policy at a reset; jobs outside its answer have no allocation until the next one."""
    active = run.active[: run.sizes[kernels.COUNT]]
    view = _view(workload, cluster, run, rows, active, round_s)
    fractions = np.asarray(policy.fractions(view), dtype=np.float64)
    if fractions.shape != view.rates.shape:
        raise AllocationError(
            f"the policy {policy.name} answered with shape {fractions.shape}; expected {view.rates.shape}, "
            "jobs by types."
        )
    listed = np.asarray(np.isfinite(fractions).all(axis=1))
    shares.listed[:] = False
    shares.fraction[:] = 0.0
    shares.listed[active] = listed
    shares.fraction[active] = np.where(listed[:, None], fractions, 0.0)


def _view(
    workload: Workload, cluster: Cluster, run: kernels.Run, rows: np.ndarray, active: np.ndarray, round_s: float
) -> ClusterView:
    jobs = rows[active]
    count = len(jobs)
    return ClusterView(
        time=float(run.clock[kernels.NOW]),
        round_s=round_s,
        restart_s=0.0,
        mixed_rate="proportional",
        cluster=cluster,
        free=cluster.capacity.copy(),
        mid_round=False,
        job=jobs,
        arrival=run.arrival[active],
        workers=run.workers[active],
        steps=run.steps[active].astype(np.float64),
        remaining=(run.steps[active] - run.done[active]).astype(np.float64),
        attained_s=run.running_s[active] * run.workers[active],
        running_s=run.running_s[active],
        weight=workload.weight[jobs],
        slo=workload.slo[jobs],
        rates=run.rates[active],
        spread_rates=run.rates[active],
        held=Allocation.empty(),
        held_gang=np.full(count, -1, dtype=np.int64),
    )


def _collect(
    workload: Workload,
    cluster: Cluster,
    policy: FractionalPolicy,
    run: kernels.Run,
    rows: np.ndarray,
    reasons: dict[int, str],
    seconds: float,
    solves: int,
) -> ClusterResult:
    for slot in np.flatnonzero(np.isnan(run.finish)).tolist():
        dropped = run.failures[slot] >= kernels.MAX_FAILURES
        reasons[int(rows[slot])] = "dropped after 5 tries with fewer steps than GPUs" if dropped else "unfinished"
    count = len(workload)

    def full(values: Floats, empty: float) -> Floats:
        spread = np.full(count, empty)
        spread[rows] = values
        return spread

    finish, start = full(run.finish, np.nan), full(run.start, np.nan)
    running = full(run.running_s, 0.0)
    now = float(run.clock[kernels.NOW])
    jobs = JobTable(
        **make_job_table(workload, cluster, finish, start, reasons),
        running_s=running,
        gpu_s=running * workload.workers,
        overhead_gpu_s=np.zeros(count),
        restarts=np.zeros(count, dtype=np.int64),
        lost_steps=np.zeros(count),
    )
    total = cluster.gpus * now if now > 0 else np.inf
    extra = {
        "makespan_s": now,
        "rounds": int(run.sizes[kernels.ROUNDS]),
        "utilisation": float(run.busy[0] / total),
        "utilisation_without_idle_gaps": float(run.busy[1] / total),
        "solves": solves,
        "cru": np.nan,
        "cru_work": np.nan,
    }
    unknown = np.full(len(cluster.nodes), np.nan)
    return ClusterResult(policy.name, workload, cluster, jobs, RoundLog(), unknown, unknown, seconds, extra=extra)
