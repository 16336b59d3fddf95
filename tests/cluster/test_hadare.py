"""HadarE: who gets which copies, and that forking changes neither the steps nor the rules."""

from __future__ import annotations

import numpy as np
import pytest
from cluster.oracle import worlds
from hypothesis import given, settings, strategies as st

from hadoppler.baselines.cluster.registry import find_scheduler
from hadoppler.envs.cluster import (
    Cluster,
    ClusterResult,
    Job,
    NodeEvent,
    ThroughputTable,
    Workload,
    make_workload,
    simulate,
    ttd_bounds,
)
from hadoppler.envs.errors import SchedulerError

MIXES = (1, 3, 4, 5, 8, 10, 12)
OPTIONS = [{}, {"utility": "jct"}, {"copies": 2}, {"utility": "makespan"}]


def look_again(result: ClusterResult) -> None:
    """Copies stand apart on whole gangs, in capacity; each job's steps are counted exactly once."""
    workload, cluster, log = result.workload, result.cluster, result.rounds
    running = np.zeros(0, dtype=np.int64)
    for number, (_, allocation) in enumerate(log.placements):
        dense = allocation.gpus(cluster)
        assert (dense.sum(axis=(1, 2)) == workload.workers[allocation.job]).all()
        if not log.mid_round[number]:
            assert (dense.sum(axis=0) <= cluster.capacity).all()
        for job in np.unique(allocation.job).tolist():
            copies = dense[allocation.job == job].sum(axis=2) > 0
            assert (copies.sum(axis=0) <= 1).all()
            assert allocation.copy[allocation.job == job].tolist() == list(range(len(copies)))
        running = allocation.job
    assert len(running)
    finished = result.jobs.finished
    assert (result.jobs.finish[finished] >= workload.arrival[finished]).all()


@pytest.mark.parametrize("options", OPTIONS)
@given(worlds(), st.booleans())
@settings(max_examples=25)
def test_every_run_stands_a_second_look(options: dict, world: tuple[Workload, Cluster], refill: bool) -> None:
    workload, cluster = world
    result = simulate(workload, cluster, find_scheduler("hadare", options), round_s=60, early_refill=refill)
    if result.jobs.finished.any():
        look_again(result)
        metrics = result.metrics
        assert metrics["ttd_s"] >= ttd_bounds(workload, cluster)["forking"] * (1 - 1e-9) or metrics["left_out"]
        assert 0 <= metrics["cru_work"] <= metrics["cru"] <= 1 + 1e-9
    assert all("fit" in reason for reason in result.left_out.values())


@given(worlds(), st.sampled_from([-4, 3]))
@settings(max_examples=15)
def test_times_scale_with_the_unit_and_names_change_nothing(world: tuple[Workload, Cluster], power: int) -> None:
    workload, cluster = world
    unit, table = 2.0**power, workload.throughputs
    jobs = tuple(
        Job(f"other{row}", job.arrival * unit, job.workers, job.steps, job.model)
        for row, job in enumerate(workload.jobs)
    )
    scaled = Workload(jobs, ThroughputTable(table.types, table.rows, table.rates / unit, table.spread / unit))
    first = simulate(workload, cluster, find_scheduler("hadare", {"consolidation_s": 8.0}), round_s=64, restart_s=4)
    second = simulate(
        scaled,
        cluster,
        find_scheduler("hadare", {"consolidation_s": 8.0 * unit}),
        round_s=64 * unit,
        restart_s=4 * unit,
        consolidation_s=15.0 * unit,
    )
    assert (first.jobs.finish * unit).tolist() == pytest.approx(second.jobs.finish.tolist(), rel=0, abs=0, nan_ok=True)


def test_the_shortest_job_takes_every_node_that_it_can_use() -> None:
    table = ThroughputTable.build([("m", 1, f"g{i}", rate, rate) for i, rate in enumerate((4.0, 2.0, 1.0))])
    cluster = Cluster.parse("g0:1 g1:1 g2:1")
    workload = Workload((Job("long", 0.0, 1, 7000.0, "m"), Job("short", 0.0, 1, 1400.0, "m")), table)
    scheduler = find_scheduler("hadare", {"consolidation_s": 10.0})
    result = simulate(workload, cluster, scheduler, round_s=100, restart_s=10, consolidation_s=10)
    rows = [(row["job"], row["gpus"]) for row in result.rounds.rows(workload, cluster)]
    assert rows[:3] == [("short", "n0:g0x1"), ("short", "n1:g1x1"), ("short", "n2:g2x1")]
    assert rows[6:9] == [("long", "n1:g1x1"), ("long", "n2:g2x1"), ("short", "n0:g0x1")]
    # 80 s at 7 steps/s = 560, then 90 s = 630; the fastest node does the other 210, which leaves two for the long job
    assert result.jobs.finish[1] == pytest.approx(200 + 52.5)


def test_a_copy_that_only_delays_is_not_made() -> None:
    table = ThroughputTable.build([("m", 1, f"g{i}", rate, rate) for i, rate in enumerate((4.0, 1.0))])
    workload = Workload((Job("a", 0.0, 1, 200.0, "m"),), table)
    result = simulate(workload, Cluster.parse("g0:1 g1:1"), find_scheduler("hadare"), round_s=360, restart_s=10)
    assert result.jobs.finish[0] == pytest.approx(10 + 50)  # two copies: 10 + 40 + 15 s of consolidation


def test_nodes_are_not_left_idle_because_of_a_guess() -> None:
    """Believed to take a second on one node, a job is forked all the same until its rates were measured."""
    cluster, jobs = Cluster.parse("v100:1x4"), (Job("a", 0, 1, 1200, "m"), Job("b", 0, 1, 1200, "m"))
    table = ThroughputTable.build([("m", 1, "v100", 10.0, 10.0)])
    guess = ThroughputTable.build([("m", 1, "v100", 5000.0, 5000.0)])
    options = {"round_s": 20, "restart_s": 0, "consolidation_s": 1}
    result = simulate(Workload(jobs, table), cluster, find_scheduler("hadare", {}), estimates=guess, **options)
    first = result.rounds.placements[0][1]
    assert sorted(first.job.tolist()) == [0, 0, 0, 1]  # one node each, then what is left to the first
    assert result.jobs.finish.max() < 70  # 60 s of work for four nodes


def test_a_gang_that_no_node_can_hold_runs_unforked() -> None:
    table = ThroughputTable.build([("w", 3, "v100", 3.0, 2.0), ("m", 1, "v100", 1.0, 1.0)])
    workload = Workload((Job("wide", 0.0, 3, 6000.0, "w"), Job("small", 0.0, 1, 6000.0, "m")), table)
    result = simulate(workload, Cluster.parse("v100:2x2"), find_scheduler("hadare"))
    assert result.jobs.finished.all()
    assert all(row["copy"] == 0 for row in result.rounds.rows(workload, result.cluster) if row["job"] == "wide")


@pytest.mark.parametrize("name", ["aws_like", "lab_like", "equal5"])
@pytest.mark.parametrize("jobs", MIXES)
def test_all_nodes_are_in_use_in_every_mix(name: str, jobs: int) -> None:
    workload, cluster = make_workload("physical", jobs=jobs, seed=1), Cluster.built_in(name)
    forked = simulate(workload, cluster, find_scheduler("hadare"))
    single = simulate(workload, cluster, find_scheduler("gavel", {"objective": "max_min"}))
    assert forked.metrics["cru"] >= 0.95
    assert forked.metrics["mean_jct_s"] < single.metrics["mean_jct_s"]
    speeds = np.array(list(cluster.relative_speed.values())) @ cluster.capacity.sum(axis=0)
    assert single.metrics["ttd_s"] / forked.metrics["ttd_s"] <= speeds * (1 + 1e-9)


def test_one_job_gains_close_to_five_times_on_five_equal_nodes() -> None:
    workload, cluster = make_workload("physical", jobs=1, seed=0), Cluster.built_in("equal5")
    forked = simulate(workload, cluster, find_scheduler("hadare")).metrics["ttd_s"]
    assert forked <= 0.25 * simulate(workload, cluster, find_scheduler("srtf")).metrics["ttd_s"]


def test_everything_finishes_in_spite_of_failures() -> None:
    workload, cluster = make_workload("physical", jobs=4, seed=2), Cluster.built_in("lab_like")
    events = [NodeEvent(500.0, "n0", "fail"), NodeEvent(2000.0, "n0", "restore"), NodeEvent(3000.0, "n3", "drain")]
    result = simulate(workload, cluster, find_scheduler("hadare"), failures=events, early_refill=True)
    assert result.jobs.finished.all()
    look_again(result)


def test_bad_options_are_refused() -> None:
    with pytest.raises(SchedulerError, match="copies is 0; expected a number from 1 up"):
        find_scheduler("hadare", {"copies": 0})
