"""Lower bounds on the total time: by hand, and never above what any schedule reaches."""

from __future__ import annotations

import numpy as np
import pytest
from cluster.oracle import table_of, worlds
from cluster.scripted import Scripted, greedy_mix
from hypothesis import given, settings

from hadoppler.baselines.cluster.registry import find_scheduler
from hadoppler.envs.cluster import Cluster, Job, Workload, bounds, make_workload, simulate, ttd_bounds


def test_one_job_takes_its_fastest_type() -> None:
    workload = Workload((Job("a", 0, 2, 100, "m0"),), table_of([[4.0, 2.0, 1.0]]))
    assert ttd_bounds(workload, Cluster.parse("fast:2 slow:2"))["single_type"] == pytest.approx(25.0)


def test_load_is_shared_over_types() -> None:
    jobs = tuple(Job(f"j{i}", 0, 1, 300, "m0") for i in range(3))
    workload = Workload(jobs, table_of([[2.0, 1.0, 1.0]]))
    assert ttd_bounds(workload, Cluster.parse("fast:1 slow:1"))["single_type"] == pytest.approx(900 / 3)


def test_mixing_bound_lets_gangs_stand_on_two_types() -> None:
    workload = Workload((Job("a", 0, 4, 100, "m0"),), table_of([[4.0, 2.0, 1.0]]))
    cluster = Cluster.parse("fast:3 slow:3")
    assert ttd_bounds(workload, cluster)["single_type"] == np.inf
    # 3 fast workers and 1 slow one: (3 x 4 + 1 x 1) / 4 steps/s.
    assert ttd_bounds(workload, cluster)["mixing"] == pytest.approx(100 / 3.25)
    assert ttd_bounds(workload, cluster, mixed_rate="min")["mixing"] == pytest.approx(100.0)


def test_copies_of_different_jobs_share_a_node() -> None:
    jobs = tuple(Job(f"j{i}", 0, 1, 100, "m0") for i in range(2))
    workload = Workload(jobs, table_of([[1.0, 1.0, 0.5]]))
    assert ttd_bounds(workload, Cluster.parse("fast:2"))["forking"] == pytest.approx(100)
    assert ttd_bounds(workload, Cluster.parse("fast:2x2"))["forking"] == pytest.approx(50)
    assert ttd_bounds(workload, Cluster.parse("fast:1 slow:1"))["forking"] == pytest.approx(200 / 1.5)


def test_a_gang_that_no_node_holds_is_not_forked() -> None:
    workload = Workload((Job("a", 0, 4, 100, "m0"),), table_of([[4.0, 2.0, 1.0]]))
    assert ttd_bounds(workload, Cluster.parse("fast:2x8"))["forking"] == pytest.approx(25.0)
    assert ttd_bounds(workload, Cluster.parse("fast:2"))["forking"] == np.inf


def test_late_arrivals_count() -> None:
    jobs = (Job("a", 0, 1, 10, "m0"), Job("b", 1000, 1, 100, "m0"))
    workload = Workload(jobs, table_of([[1.0, 1.0, 1.0]]))
    assert ttd_bounds(workload, Cluster.parse("fast:1"))["single_type"] == pytest.approx(1100.0)


def test_spread_rates_tighten_the_bound() -> None:
    workload, cluster = make_workload("headline", jobs=60, seed=1), Cluster.built_in("headline")
    plain, tight = ttd_bounds(workload, cluster), ttd_bounds(workload, cluster, spread=True)
    assert all(tight[key] >= plain[key] * (1 - 1e-9) for key in plain)


def test_pooled_bounds_are_weaker_and_close(monkeypatch: pytest.MonkeyPatch) -> None:
    workload, cluster = make_workload("headline", jobs=120, seed=2, per_hour=5), Cluster.built_in("headline")
    exact = {rule: ttd_bounds(workload, cluster, mixed_rate=rule) for rule in ("proportional", "min")}
    monkeypatch.setattr(bounds, "POOL_ABOVE", 10)
    for rule, values in exact.items():
        pooled = ttd_bounds(workload, cluster, mixed_rate=rule)
        for key, value in values.items():
            assert pooled[key] <= value * (1 + 1e-9)
            assert pooled[key] >= 0.9 * value


@given(worlds())
@settings(max_examples=60)
def test_no_schedule_beats_them(world: tuple[Workload, Cluster]) -> None:
    workload, cluster = world
    for scheduler, key in ((find_scheduler("srtf"), "single_type"), (Scripted(greedy_mix), "mixing")):
        for rule in ("proportional", "min"):
            result = simulate(workload, cluster, scheduler, round_s=50, restart_s=0, mixed_rate=rule)  # type: ignore[arg-type]
            if result.jobs.finished.any():
                done = workload.select(np.flatnonzero(result.jobs.finished))
                for spread in (False, True):
                    bound = ttd_bounds(done, cluster, mixed_rate=rule, spread=spread)[key]
                    assert result.metrics["ttd_s"] >= bound * (1 - 1e-6)
