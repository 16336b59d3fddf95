"""Gavel: its mechanism exactly, from recorded allocations; its policies with our own linear programs closely."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cluster.oracle import table_of
from cluster.scripted import Scripted
from cluster.test_traces import outcome, spoilt_values

from hadoppler.baselines.cluster.gavel import GAVEL_POLICIES
from hadoppler.baselines.cluster.gavel_policies import POLICIES
from hadoppler.baselines.cluster.registry import find_scheduler
from hadoppler.baselines.cluster.replay import ReplayPolicy
from hadoppler.baselines.cluster.share_lp import ShareLP
from hadoppler.envs.cluster import (
    Allocation,
    Cluster,
    ClusterResult,
    ClusterView,
    Job,
    Simulation,
    Workload,
    make_workload,
    read_workload,
    simulate,
)
from hadoppler.envs.errors import AllocationError, UnknownNameError

OBJECTIVES = {
    "max_min_fairness": "max_min",
    "min_total_duration": "makespan",
    "finish_time_fairness": "finish_time_fairness",
    "max_sum_throughput": "max_sum_throughput",
    "fifo": "fifo",
}


def recorded(reference: Path, suffix: str = "") -> list[tuple[str, str, dict[str, Any]]]:
    """(trace, policy, results) of the recorded runs whose policy shares no GPU between jobs."""
    runs = []
    for path in sorted((reference / "gavel" / "runs").glob(f"*{suffix}.json")):
        trace, policy, *_ = path.stem.split("__")
        if "packed" not in policy and policy != "gandiva":
            runs.append((trace, policy, json.loads(path.read_text())))
    return runs


def world(reference: Path, trace: str, run: dict[str, Any]) -> tuple[Workload, Cluster]:
    cluster = Cluster.parse(" ".join(f"{kind}:{count}" for kind, count in run["cluster_spec"].items()))
    return read_workload(reference / "gavel" / "traces" / f"{trace}.trace"), cluster


def jct_error(result: ClusterResult, run: dict[str, Any]) -> float:
    """Largest difference of a completion time in seconds; infinity if other jobs were dropped."""
    times = run["job_completion_times_s"]
    theirs = np.array([times.get(job.id) for job in result.workload.jobs], dtype=np.float64)
    if not np.array_equal(np.isnan(theirs), ~result.jobs.finished):
        return float("inf")
    return float(np.nanmax(np.abs(theirs - result.jobs.jct)))


def test_mechanism_is_exact_on_every_recorded_run(reference: Path) -> None:
    runs = recorded(reference)
    assert len(runs) > 130
    for trace, policy, run in runs:
        workload, cluster = world(reference, trace, run)
        path = reference / "gavel" / "allocations" / f"{trace}__{policy}.json.gz"
        result = simulate(
            workload, cluster, find_scheduler("replay", {"path": path}), mechanism="gavel", seed=run["seed"]
        )
        metrics = result.metrics
        assert jct_error(result, run) < 1e-6, (trace, policy)
        assert metrics["makespan_s"] == pytest.approx(run["makespan_s"], rel=0, abs=1e-6)
        assert metrics["rounds"] == run["num_rounds"]
        assert metrics["utilisation"] == pytest.approx(run["utilisation"], rel=0, abs=1e-9)
        idle = run["utilisation_without_idle_gaps"]
        assert metrics["utilisation_without_idle_gaps"] == pytest.approx(idle, rel=0, abs=1e-9)


def ratios(reference: Path, aware: bool) -> dict[str, list[tuple[float, float, int]]]:
    """Objective -> (makespan, mean completion time, jobs) per trace, ours over Gavel's."""
    found: dict[str, list[tuple[float, float, int]]] = {}
    for trace, policy, run in recorded(reference, "gps4"):
        base = policy.removesuffix("_perf")
        if base not in OBJECTIVES or policy.endswith("_perf") != aware:
            continue
        workload, cluster = world(reference, trace, run)
        scheduler = find_scheduler("gavel", {"objective": OBJECTIVES[base], "aware": aware})
        metrics = simulate(workload, cluster, scheduler, mechanism="gavel").metrics
        pair = metrics["makespan_s"] / run["makespan_s"], metrics["mean_jct_s"] / run["avg_jct_s"]
        found.setdefault(OBJECTIVES[base], []).append((*pair, len(workload)))
    return found


def test_policies_are_gavels_within_the_freedom_of_their_optima(reference: Path) -> None:
    for objective, rows in ratios(reference, aware=True).items():
        long = np.array([row[:2] for row in rows if row[2] >= 120])
        assert len(long) >= 4
        mean = np.exp(np.log(long).mean(axis=0))
        assert np.abs(mean - 1).max() < 0.02, (objective, mean)
        assert np.abs(long - 1).max() < (0.08 if objective == "max_sum_throughput" else 0.05), (objective, long)
        if objective == "fifo":
            assert np.abs(np.array([row[:2] for row in rows]) - 1).max() < 1e-12


def test_makespan_policy_meets_its_bound_without_restarts_and_spreading() -> None:
    workload, cluster = make_workload("headline", jobs=160, seed=0), Cluster.built_in("headline")
    table = workload.throughputs
    workload = replace(workload, throughputs=replace(table, spread=table.rates.copy()))
    scheduler = find_scheduler("gavel", {"objective": "makespan"})
    result = simulate(workload, cluster, scheduler, restart_s=0)
    letter = simulate(workload, cluster, scheduler, mechanism="gavel")
    assert result.metrics["ttd_s"] <= 1.02 * result.bounds["single_type"]
    assert letter.metrics["makespan_s"] == pytest.approx(result.metrics["ttd_s"], rel=0.02)


def test_max_min_shares_by_hand() -> None:
    """Of two GPUs the second job needs the slow one whole for what the first has with 2/3 of the fast one."""
    workload = Workload(
        (Job("a", 0, 1, 900, "m0"), Job("b", 0, 1, 900, "m1")), table_of([[3.0, 0, 1.0], [2.0, 0, 2.0]])
    )
    scheduler = find_scheduler("gavel")
    views = []

    def decide(view: ClusterView) -> Allocation:
        views.append(view)
        return scheduler.schedule(view)

    cluster = Cluster.parse("fast:1 slow:1")
    scheduler.reset(cluster, 360, np.random.default_rng(0))
    simulate(workload, cluster, Scripted(decide))
    policy = POLICIES["max_min"](True)
    policy.reset(cluster, 360, np.random.default_rng(0))
    shares = policy.fractions(views[0])
    assert shares[1] == pytest.approx([0.0, 1.0])
    assert 2 / 3 - 1e-9 <= shares[0, 0] <= 1
    blind = POLICIES["max_min"](False)
    blind.reset(cluster, 360, np.random.default_rng(0))
    assert blind.fractions(views[0]) == pytest.approx(np.full((2, 2), 0.5))


def test_re_solved_programs_agree_with_fresh_ones() -> None:
    rng = np.random.default_rng(3)
    gpus, program = np.array([4.0, 4.0, 2.0]), ShareLP(np.array([4.0, 4.0, 2.0]), True)
    rates = rng.uniform(0.5, 5.0, (60, 3))
    rates[rng.random((60, 3)) < 0.2] = 0.0
    rates[rates.sum(axis=1) == 0] = 1.0
    workers = rng.choice([1, 2], 60)
    here = np.arange(10)
    for step in range(40):
        need = rng.uniform(0.5, 2.0, len(here))
        shares, factor = program.solve(here, workers[here], rates[here], need)
        fresh = ShareLP(gpus, True).solve(here, workers[here], rates[here], need)[1]
        assert factor == pytest.approx(fresh, rel=1e-6)
        assert ((rates[here] * shares).sum(axis=1) >= factor * need * (1 - 1e-6)).all()
        assert (shares.sum(axis=1) <= 1 + 1e-6).all()
        assert ((workers[here, None] * shares).sum(axis=0) <= gpus + 1e-6).all()
        duals = program.fair_duals(here)
        assert (duals * need).sum() == pytest.approx(1.0)
        gone = rng.random(len(here)) < 0.15
        here = np.unique(np.concatenate((here[~gone], rng.integers(0, 60, 3)))) if step % 7 else rng.permutation(60)[:8]
        here.sort()


@pytest.mark.parametrize("aware", [True, False])
@pytest.mark.parametrize("objective", sorted(POLICIES))
def test_every_objective_finishes_everything(objective: str, aware: bool) -> None:
    workload, cluster = make_workload("gavel", jobs=50, seed=3, per_hour=12), Cluster.built_in("headline")
    scheduler = find_scheduler("gavel", {"objective": objective, "aware": aware})
    result = simulate(workload, cluster, scheduler)
    letter = simulate(workload, cluster, scheduler, mechanism="gavel")
    assert result.metrics["finished"] == 50
    assert letter.metrics["finished"] + len(letter.left_out) == 50
    assert np.nanmedian(letter.jobs.jct / result.jobs.jct) == pytest.approx(1.0, abs=0.5)


def test_new_jobs_do_not_wait_for_the_next_reset() -> None:
    jobs = (Job("a", 0, 1, 5000, "m0"), Job("b", 400, 1, 100, "m0"), Job("c", 800, 1, 100, "m0"))
    workload, cluster = Workload(jobs, table_of([[1.0, 1.0, 1.0]])), Cluster.parse("fast:4")
    ours = simulate(workload, cluster, find_scheduler("gavel"), restart_s=0)
    letter = simulate(workload, cluster, find_scheduler("gavel"), mechanism="gavel")
    assert ours.jobs.start.tolist() == [0.0, 720.0, 1080.0]
    assert letter.jobs.start[:2].tolist() == [0.0, 720.0]
    assert letter.jobs.start[2] >= 720 + 1920


def test_bad_recordings_are_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(AllocationError, match="cannot be read"):
        ReplayPolicy.read(tmp_path / "trace__fifo.json.gz")
    path = tmp_path / "x.json"
    path.write_text('{"allocations": []}')
    with pytest.raises(AllocationError, match="give policy="):
        ReplayPolicy.read(path)
    workload = Workload((Job("a", 0, 1, 50, "m0"),), table_of([[1.0, 1.0, 1.0]]))
    scheduler = find_scheduler("replay", {"path": path, "policy": "fifo"})
    with pytest.raises(AllocationError, match="the recording has 0 allocations"):
        simulate(workload, Cluster.parse("fast:1"), scheduler, mechanism="gavel")


@pytest.mark.parametrize("policy", ["nonsense", "", "Fifo", "fifo_perf_SLOs"])
def test_policies_that_gavel_does_not_have_are_refused(tmp_path: Path, policy: str) -> None:
    path = tmp_path / "trace__fifo.json"
    path.write_text('{"allocations": []}')
    with pytest.raises(UnknownNameError, match=f"no policy of Gavel is called '{policy}'"):
        ReplayPolicy([], policy)
    if policy:
        with pytest.raises(UnknownNameError, match="choose one of fifo, fifo_perf"):
            find_scheduler("replay", {"path": path, "policy": policy})


def test_policies_that_know_the_rates_do_not_shuffle_the_types() -> None:
    kinds = {policy: ReplayPolicy([], policy) for policy in GAVEL_POLICIES}
    assert {name for name, kind in kinds.items() if not kind.work_conserving} == {"fifo", "fifo_perf", "fifo_packed"}
    plain = {"fifo", "finish_time_fairness", "isolated", "isolated_plus", "min_total_duration"}
    plain |= {"max_min_fairness", "max_min_fairness_water_filling"}
    assert {name for name, kind in kinds.items() if kind.shuffles_types} == plain


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "", "text", None, [], {}, [1], 1e30, True])
def test_whatever_stands_in_a_recording_is_read_or_named(tmp_path: Path, value: object) -> None:
    path = tmp_path / "trace__fifo.json"
    whole = {"allocations": [{"t": 0, "x": {"0": {"fast": 1.0}}}]}
    workload = Workload((Job("a", 0, 1, 50, "m0"),), table_of([[1.0, 1.0, 1.0]]))
    for spoilt in spoilt_values(whole, value):
        path.write_text(json.dumps(spoilt))
        policy = outcome(lambda: ReplayPolicy.read(path), AllocationError)
        if isinstance(policy, AllocationError):
            assert str(path) in str(policy)
            continue
        outcome(lambda: simulate(workload, Cluster.parse("fast:1"), policy, mechanism="gavel"), AllocationError)  # noqa: B023


def test_a_job_without_weight_is_owed_nothing_by_max_min() -> None:
    """The others share as if it were not there, and it gets a share where nobody has a weight."""
    cluster, table = Cluster.parse("fast:2 slow:2"), table_of([[2.0, 1.5, 1.0]])

    def shares(weights: list[float]) -> Any:
        jobs = tuple(Job(f"j{i}", 0.0, 1, 500.0, "m0", weight=weight) for i, weight in enumerate(weights))
        view = Simulation(Workload(jobs, table), cluster).next_view()
        policy = POLICIES["max_min"](True)
        policy.reset(cluster, 360.0, np.random.default_rng(0))
        assert view is not None
        return policy.fractions(view)

    three = [1.0, 2.0, 3.0, 1.0, 2.0]
    rates = np.array([2.0, 1.0])
    assert ((shares([*three, 0.0])[:5] @ rates) / three).min() == pytest.approx(((shares(three) @ rates) / three).min())
    assert shares([0.0] * 6) == pytest.approx(shares([1.0] * 6))
