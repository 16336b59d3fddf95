"""Hadar's horizon mode: its program against a plain one, its due dates, prices and reasons."""

from __future__ import annotations

import numpy as np
import pytest
from cluster.oracle import audit
from numpy.typing import NDArray
from scipy.optimize import linprog

from hadoppler.baselines.cluster.hadar_horizon import HadarHorizon
from hadoppler.baselines.cluster.horizon_program import LATE, LATE_COST, HorizonProgram
from hadoppler.baselines.cluster.registry import find_scheduler
from hadoppler.envs.cluster import (
    Cluster,
    ClusterView,
    Job,
    NodeEvent,
    Simulation,
    SimulationRules,
    ThroughputTable,
    Workload,
    make_workload,
    simulate,
    ttd_bounds,
)
from hadoppler.envs.errors import SchedulerError, UnknownNameError

Floats = NDArray[np.float64]
GPUS = np.array([3.0, 2.0])


def plain_optimum(
    workers: Floats, rates: Floats, work: Floats, value: Floats, horizon: float, whole: float, now: Floats
) -> float:
    """The program of the docstring, written out densely."""
    n, types, late = *rates.shape, len(LATE)
    width = 2 * types + late
    cost, upper = np.zeros(n * width + 1), np.full(n * width + 1, np.inf)
    rows, limits = [], []
    for j in range(n):
        x = j * width + np.arange(types)
        y, over = x + types, j * width + 2 * types + np.arange(late)
        cost[x] = -value[j] * rates[j]
        cost[over] = np.array(LATE_COST) * workers[j]
        upper[over] = whole * np.array(LATE)
        upper[np.concatenate((x, y))[np.tile(rates[j] == 0, 2)]] = 0.0
        for columns, values, limit in (
            (np.concatenate((x, y)), -np.tile(rates[j], 2), -work[j]),
            (x, np.ones(types), 1.0),
            (np.concatenate((y, over)), np.concatenate((np.ones(types), -np.ones(late))), horizon),
        ):
            row = np.zeros(len(cost))
            row[columns] = values
            rows.append(row)
            limits.append(limit)
    cost[-1] = GPUS.sum() * LATE_COST[-1]
    for r in range(types):
        for first, limit, extra in ((r, now[r], 0.0), (types + r, horizon * GPUS[r], -GPUS[r])):
            row = np.zeros(len(cost))
            row[np.arange(n) * width + first] = workers
            row[-1] = extra
            rows.append(row)
            limits.append(limit)
    found = linprog(cost, A_ub=np.array(rows), b_ub=limits, bounds=np.stack((np.zeros(len(cost)), upper), axis=1))
    return float(-found.fun)


def test_re_solved_programs_agree_with_plain_ones() -> None:
    rng = np.random.default_rng(5)
    rates = rng.choice([0.0, 0.3, 0.6, 1.0], (40, 2))
    rates[np.arange(40), rng.integers(0, 2, 40)] = 1.0
    workers, program = rng.choice([1, 2], 40), HorizonProgram(GPUS)
    here = np.arange(6)
    for step in range(30):
        work, value = rng.uniform(0.1, 30.0, len(here)), rng.uniform(0.01, 5.0, len(here))
        horizon, whole = rng.uniform(1.0, 40.0), rng.uniform(1.0, 60.0)
        now = GPUS if step % 3 else np.array([1.0, 2.0])
        worth = program.solve(here, workers[here], rates[here], work, value, horizon, whole, now)
        plain = plain_optimum(workers[here].astype(float), rates[here], work, value, horizon, whole, now)
        assert program.objective == pytest.approx(plain, rel=1e-6, abs=1e-6)
        assert (worth.work >= 0).all()
        assert (worth.price >= 0).all()
        gone = rng.random(len(here)) < 0.2
        here = np.unique(np.concatenate((here[~gone], rng.integers(0, 40, 2))))
        if step == 20:
            rates[here] = rates[here] ** 2  # rates that change are put in anew


def test_prices_lie_between_the_last_job_that_gets_a_gpu_and_the_first_that_does_not() -> None:
    program = HorizonProgram(np.array([1.0]))
    job, workers, rates = np.arange(2), np.array([1, 1]), np.ones((2, 1))
    easy = program.solve(job, workers, rates, np.array([1.0, 3.0]), np.array([1.0, 0.5]), 100.0, 50.0, np.array([1.0]))
    assert 0.5 - 1e-9 <= easy.price[0] <= 1.0 + 1e-9
    assert easy.work == pytest.approx([0.0, 0.0])
    late = program.solve(job, workers, rates, np.array([1.0, 9.0]), np.array([1.0, 0.1]), 5.0, 50.0, np.array([1.0]))
    assert late.work[1] > late.work[0] >= 0.0


def one_view(workload: Workload, cluster: Cluster) -> ClusterView:
    view = Simulation(workload, cluster, SimulationRules(), explain=True).next_view()
    assert view is not None
    return view


def test_the_slack_is_what_the_due_date_leaves() -> None:
    table = ThroughputTable.build([("m", 1, "v100", 1.0, 1.0), ("m", 1, "k80", 0.5, 0.5)])
    workload = Workload((Job("a", 0.0, 1, 7200.0, "m"), Job("b", 0.0, 1, 3600.0, "m")), table)
    cluster = Cluster.parse("v100:1 k80:1")
    scheduler = HadarHorizon(slack=0.25)
    scheduler.reset(cluster, 360.0, np.random.default_rng(0))
    allocation = scheduler.schedule(one_view(workload, cluster))
    bound = ttd_bounds(workload, cluster)["single_type"]
    assert bound == pytest.approx(7200.0)  # a needs the v100 all the time, b the k80
    slack = dict(zip(allocation.job.tolist(), allocation.why["slack"].tolist(), strict=True))
    assert slack == pytest.approx({0: 1800.0, 1: 5400.0})


def test_short_jobs_go_first_but_long_ones_still_end_in_time() -> None:
    table = ThroughputTable.build([("m", 1, "v100", 1.0, 1.0)])
    jobs = [Job(f"short{i}", 0.0, 1, 3600.0, "m") for i in range(10)] + [Job("long", 0.0, 1, 36000.0, "m")]
    workload, cluster = Workload(tuple(jobs), table), Cluster.parse("v100:2")
    result = simulate(workload, cluster, find_scheduler("hadar", {"mode": "horizon"}))
    assert result.metrics["ttd_s"] <= 1.05 * 36000
    assert result.jobs.jct[:10].mean() < 6 * 3600
    srtf = simulate(workload, cluster, find_scheduler("srtf", {}))
    assert srtf.metrics["ttd_s"] > 1.4 * 36000
    audit(result, restart_s=10)


def test_it_beats_both_gavels_on_their_own_ground() -> None:
    cluster = Cluster.built_in("headline")
    workloads = [make_workload("headline", jobs=160, seed=seed) for seed in range(5)]

    def figures(name: str, **options: str) -> Floats:
        runs = [simulate(workload, cluster, find_scheduler(name, options), log=False).metrics for workload in workloads]
        return np.array([[run[key] for key in ("ttd_s", "mean_jct_s", "gru")] for run in runs]).mean(axis=0)

    ours = figures("hadar", mode="horizon")
    fair, fast = figures("gavel", objective="max_min"), figures("gavel", objective="makespan")
    assert ours[0] < 1.05 * fast[0]
    assert ours[0] < fair[0] / 1.2
    assert ours[1] < fair[1]
    assert ours[2] > fair[2]


def test_the_same_bytes_with_and_without_a_break() -> None:
    workload, cluster = make_workload("headline", jobs=40, seed=3, per_hour=4), Cluster.built_in("headline")
    scheduler = find_scheduler("hadar", {"mode": "horizon"})
    first = simulate(workload, cluster, scheduler, early_refill=True)
    again = simulate(workload, cluster, scheduler, early_refill=True)
    assert np.array_equal(first.jobs.finish, again.jobs.finish)
    audit(first, restart_s=10)


def test_a_type_without_usable_nodes_for_a_while() -> None:
    table = ThroughputTable.build([("m", 1, "v100", 2.0, 2.0), ("n", 1, "k80", 1.0, 1.0)])
    workload = Workload((Job("a", 0.0, 1, 4000.0, "m"), Job("b", 0.0, 1, 4000.0, "n")), table)
    cluster = Cluster.parse("v100:1 k80:1")
    events = [NodeEvent(100.0, "n0", "fail"), NodeEvent(3000.0, "n0", "restore")]
    result = simulate(workload, cluster, find_scheduler("hadar", {"mode": "horizon"}), failures=events)
    assert result.jobs.finished.all()


@pytest.mark.parametrize("slack", [float("nan"), -1.0, float("inf")])
def test_bad_options_are_refused(slack: float) -> None:
    with pytest.raises(SchedulerError, match=r"slack is .*; expected a number above -1, about 0"):
        find_scheduler("hadar", {"mode": "horizon", "slack": slack})
    with pytest.raises(UnknownNameError, match="mode=horizon has no option 'utility'; its options are slack"):
        find_scheduler("hadar", {"mode": "horizon", "utility": "jct"})
    with pytest.raises(UnknownNameError, match="hadar has no mode 'horizn'; choose one of round, horizon, admission"):
        find_scheduler("hadar", {"mode": "horizn"})
