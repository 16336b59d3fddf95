"""Situations in which other simulators crashed, hung or miscounted, as cases with known answers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from cluster.scripted import Scripted

from hadoppler.baselines.cluster.gavel_policies import POLICIES
from hadoppler.baselines.cluster.registry import find_scheduler
from hadoppler.envs.cluster import Allocation, Cluster, ClusterResult, ClusterView, Workload, read_workload, simulate

CASES = Path(__file__).parent / "cases"
ALL = [
    ("yarn_cs", {}),
    ("tiresias", {}),
    ("srtf", {}),
    ("hadar", {}),
    ("hadar", {"mode": "horizon"}),
    ("hadar", {"mode": "admission"}),
    ("hadare", {}),
    ("sia", {}),
    ("random", {}),
    *[("gavel", {"objective": objective, "aware": aware}) for objective in POLICIES for aware in (True, False)],
]


def read(name: str, throughputs: str = "unit_throughputs.json") -> Workload:
    """A case's trace with its throughputs."""
    return read_workload(CASES / name, throughputs=CASES / throughputs)


def test_h02_a_job_that_never_fits_is_reported_and_holds_nobody_up() -> None:
    result = simulate(
        read("H02_too_big.trace"), Cluster.parse("v100:4"), find_scheduler("yarn_cs"), round_s=10, restart_s=0
    )
    assert len(result.rounds) <= 12, "it must end, and not wait for a job that can never run"
    assert result.jobs.jct[[0, 2]].tolist() == [100.0, 100.0]
    assert result.left_out == {"1": "cannot fit: asks 8, cluster has 4"}
    assert (result.metrics["ttd_s"], result.metrics["mean_jct_s"], result.metrics["left_out"]) == (120.0, 100.0, 1)


@pytest.mark.parametrize(("name", "options"), ALL)
def test_h02_under_every_scheduler(name: str, options: dict) -> None:
    workload, rules = read("H02_too_big.trace"), {"round_s": 10.0, "restart_s": 0.0, "consolidation_s": 0.0}
    result = simulate(workload, Cluster.parse("v100:4"), find_scheduler(name, options), **rules)
    assert list(result.left_out) == ["1"]
    assert result.jobs.jct[[0, 2]] == pytest.approx([100.0, 100.0], abs=20.0)


def test_h05_no_gpu_in_a_job_or_a_node() -> None:
    workload = read_workload(CASES / "H05_helios_zero_gpu.csv")
    cluster = Cluster.from_yaml(CASES / "H05_cluster.json")
    result = simulate(workload, cluster, find_scheduler("yarn_cs"), round_s=100, restart_s=0)
    assert [(row.line, row.reason) for row in workload.rejected] == [(2, "it asks no GPU")]
    assert result.jobs.start.tolist() == [0.0, 100.0]
    assert result.jobs.jct == pytest.approx([100.0, 200.0])
    assert result.metrics["mean_jct_s"] == pytest.approx(150.0)
    assert result.node_held_s[1] == 0
    assert result.metrics["cru"] == pytest.approx(1.0)


def test_h06_completion_is_booked_when_it_happens() -> None:
    result = simulate(read("H06_round_end.trace"), Cluster.parse("v100:2"), find_scheduler("srtf"), restart_s=0)
    assert result.jobs.jct.tolist() == [100.0, 500.0]
    assert (result.metrics["ttd_s"], result.metrics["gru"]) == (500.0, pytest.approx(0.6))


def test_use_of_a_job_that_is_cut_off_never_exceeds_all_there_is() -> None:
    """The first job ends at 100 s, the second is cut off at 300 s: (100 + 300) GPU-seconds of 2 x 300, TTD is 100."""
    rules = {"round_s": 50.0, "restart_s": 0.0, "max_rounds": 6}
    result = simulate(read("H06_round_end.trace"), Cluster.parse("v100:1 v100:1"), find_scheduler("srtf"), **rules)
    assert (result.metrics["ttd_s"], result.metrics["finished"]) == (100.0, 1)
    assert result.metrics["gru"] == result.metrics["cru"] == pytest.approx(2 / 3)


def test_h06_an_idle_gap_is_idle() -> None:
    result = simulate(read("H06_idle_gap.trace"), Cluster.parse("v100:1"), find_scheduler("srtf"), restart_s=0)
    assert result.jobs.jct.tolist() == [100.0, 100.0]
    assert (result.metrics["ttd_s"], result.metrics["gru"]) == (10_100.0, pytest.approx(200 / 10_100))
    letter = simulate(read("H06_idle_gap.trace"), Cluster.parse("v100:1"), find_scheduler("gavel"), mechanism="gavel")
    assert letter.metrics["utilisation"] == pytest.approx(1.0)
    assert letter.metrics["utilisation_without_idle_gaps"] == pytest.approx(200 / 10_100)


def test_h07_the_restart_is_paid_once() -> None:
    result = simulate(read("H07_overhead.trace"), Cluster.parse("v100:1"), find_scheduler("gavel"), restart_s=10)
    assert (result.jobs.finish[0], result.jobs.restarts[0]) == (1010.0, 1)


def test_h07_a_forced_move_costs_one_more() -> None:
    def decide(view: ClusterView) -> Allocation:
        gpus = np.zeros_like(view.free)
        gpus[int(view.time >= 720), 0] = 1
        return Allocation.from_rows([(0, 0, gpus)])

    result = simulate(read("H07_overhead.trace"), Cluster.parse("v100:1x2"), Scripted(decide), restart_s=10)
    assert result.jobs.finish[0] == 1020.0


def las() -> ClusterResult:
    """Two long jobs share one GPU under least attained service."""
    scheduler = find_scheduler("tiresias", {"threshold_gpu_s": 300.0})
    return simulate(read("H08_preempt_reset.trace"), Cluster.parse("v100:1"), scheduler, round_s=100, restart_s=0)


def test_h08_preemption_leaks_nothing_and_runs_repeat() -> None:
    first = las()
    assert first.metrics["ttd_s"] == 4000.0
    assert first.jobs.gpu_s.tolist() == [2000.0, 2000.0]
    workload, cluster = first.workload, first.cluster
    simulate(workload, cluster, find_scheduler("random"), round_s=50)
    again = las()
    assert list(first.rounds.rows(workload, cluster)) == list(again.rounds.rows(workload, cluster))
    code = "from cluster.test_cases import las; print([list(las().jobs.rows()), las().rounds.time])"
    fresh = subprocess.run(
        [sys.executable, "-c", code], cwd=CASES.parents[1], capture_output=True, text=True, check=True
    )
    assert fresh.stdout.strip() == str([list(first.jobs.rows()), first.rounds.time])


@pytest.mark.parametrize(("name", "options"), ALL)
def test_h09_nobody_lands_where_it_cannot_run(name: str, options: dict) -> None:
    workload = read("H09_hetero.trace", "H09_hetero_throughputs.json")
    cluster = Cluster.parse("a100:1 t4:1")
    rules = {"round_s": 10.0, "restart_s": 0.0, "consolidation_s": 0.0}
    result = simulate(workload, cluster, find_scheduler(name, options), **rules)
    held = {row["gpus"] for row in result.rounds.rows(workload, cluster) if row["job"] == "0"}
    assert held == {"n0:a100x1"}
    assert (result.jobs.finish <= 110.0).all()
    assert result.bounds["single_type"] == pytest.approx(55.0)


def test_h09_the_best_is_reached_with_free_moves() -> None:
    workload = read("H09_hetero.trace", "H09_hetero_throughputs.json")
    result = simulate(workload, Cluster.parse("a100:1 t4:1"), find_scheduler("srtf"), round_s=10, restart_s=0)
    assert result.metrics["ttd_s"] == pytest.approx(55.0)


def test_h10_nobody_overtakes_the_large_job_under_yarn_cs() -> None:
    result = simulate(
        read("H10_starvation.trace"), Cluster.parse("v100:4"), find_scheduler("yarn_cs"), round_s=25, restart_s=0
    )
    assert (result.jobs.start[1], result.jobs.jct[1], result.metrics["ttd_s"]) == (100.0, 199.0, 1200.0)


def test_h10_overtaking_starves_it_and_the_report_shows_it() -> None:
    result = simulate(
        read("H10_starvation.trace"), Cluster.parse("v100:4"), find_scheduler("srtf"), round_s=25, restart_s=0
    )
    assert result.jobs.jct[1] == 1199.0
    assert result.metrics["max_queueing_s"] == 1099.0
    shared = simulate(
        read("H10_starvation.trace"), Cluster.parse("v100:4"), find_scheduler("gavel"), round_s=25, restart_s=0
    )
    assert shared.jobs.jct[1] < 700
