"""Copies of one job: the split is exact, no step counts twice, the simulator agrees with hand counts."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cluster.oracle import TYPES
from cluster.scripted import Scripted, fork_everywhere
from hypothesis import given, settings, strategies as st

from hadoppler.envs.cluster import (
    Allocation,
    Cluster,
    ClusterView,
    ForkLedger,
    Job,
    NodeEvent,
    Simulation,
    ThroughputTable,
    Workload,
    make_workload,
    simulate,
    split_steps,
    ttd_bounds,
)
from hadoppler.envs.errors import AllocationError, ClusterError

CASE = json.loads((Path(__file__).parent / "cases" / "H24_forks.json").read_text())
RATES = [copy["steps_per_s"] for copy in CASE["copies"]]


def one_job(steps: float, rates: list[float]) -> tuple[Workload, Cluster]:
    """One job, and a node with one GPU for every rate."""
    types = TYPES[: len(rates)]
    table = ThroughputTable.build([("m", 1, kind, rate, float("nan")) for kind, rate in zip(types, rates, strict=True)])
    cluster = Cluster.parse(" ".join(f"{kind}:1" for kind in types))
    return Workload((Job("a", 0.0, 1, steps, "m"),), table), cluster


def forked(steps: float, rates: list[float], copies: Any = fork_everywhere, **options: object):
    """One job with a copy on every one-GPU node."""
    rules = {"round_s": 60.0, "restart_s": 0.0, "consolidation_s": 0.0, **options}
    return simulate(*one_job(steps, rates), Scripted(copies, forks=True), **rules)  # type: ignore[arg-type]


def test_h24_by_hand() -> None:
    first = split_steps(CASE["job"]["total_steps"], RATES, [CASE["round_s"]] * 2)
    assert first == [600.0, 300.0]
    last = split_steps(1000 - sum(first), RATES, [CASE["round_s"]] * 2)
    assert last == [67.0, 33.0]
    assert 60 + max(67 / 10, 33 / 5) == pytest.approx(66.7)


def test_h24_in_the_simulator() -> None:
    result = forked(1000, RATES)
    assert result.jobs.finish.tolist() == [pytest.approx(66.7)]
    assert result.metrics["finished"] == 1
    assert [row["copy"] for row in result.rounds.rows(result.workload, result.cluster)] == [0, 1, 0, 1]


def test_h24_ledger_counts_nothing_twice() -> None:
    ledger = ForkLedger(1000)
    ledger.begin({0: 600, 1: 300})
    assert ledger.report(0, 600, round=0)
    assert not ledger.report(0, 600, round=0)
    assert ledger.report(1, 300, round=0)
    assert ledger.close() == {0: pytest.approx(2 / 3), 1: pytest.approx(1 / 3)}
    assert ledger.done == 900
    ledger.begin({0: 67, 1: 33})
    assert not ledger.report(1, 33, round=0)
    assert ledger.report(0, 90, round=1)
    assert ledger.report(1, 33, round=1)
    ledger.close()
    assert (ledger.done, ledger.finished, ledger.remaining) == (1000, True, 0)
    assert not ledger.report(1, 33, round=1)
    assert len(ledger.ignored) == 3
    with pytest.raises(AllocationError, match="exceed the 0 steps left"):
        ledger.begin({0: 1})


def test_a_dead_copy_counts_nothing_and_is_left_out() -> None:
    ledger = ForkLedger(100)
    ledger.begin({0: 40, 1: 20})
    ledger.report(1, 15, round=0)
    assert ledger.close() == {1: 1.0}
    assert ledger.remaining == 85


copies = st.lists(st.tuples(st.floats(0.01, 500), st.floats(0, 400)), min_size=1, max_size=12)


@given(copies, st.integers(1, 10**7))
def test_steps_split_exactly(values: list[tuple[float, float]], remaining: int) -> None:
    rates, seconds = [rate for rate, _ in values], [time for _, time in values]
    shares = split_steps(float(remaining), rates, seconds)
    reach = sum(rate * time for rate, time in values)
    if reach < 1:
        assert sum(shares) == pytest.approx(reach)
        return
    assert sum(shares) == min(remaining, int(reach * (1 + 1e-12)))
    assert all(share == int(share) for share in shares)
    total = sum(shares)
    for share, (rate, time) in zip(shares, values, strict=True):
        assert abs(share - (total * rate * time / reach if reach else 0)) < 1 + 1e-6


@given(copies, st.integers(1, 10**5))
def test_a_job_never_exceeds_its_steps_and_ends_once(values: list[tuple[float, float]], steps: int) -> None:
    ledger = ForkLedger(steps)
    rates = [rate for rate, _ in values]
    for number in range(2000):
        if ledger.finished:
            break
        ledger.begin(dict(enumerate(split_steps(ledger.remaining, rates, [360.0] * len(rates)))))
        for copy, (_, late) in enumerate(values):
            ledger.report(copy, ledger._shares[copy] if late < 300 or copy == 0 else late, round=number)
        ledger.close()
        assert ledger.done <= steps


def test_restart_and_consolidation_are_paid_and_counted_as_in_use() -> None:
    result = forked(10_000, [10.0, 5.0], round_s=100.0, restart_s=10.0, consolidation_s=20.0)
    # The first round has 70 s of work, later ones 80 s: 1050, then 1200 each; 7 rounds leave 1,750 of 10,000.
    assert result.jobs.restarts.tolist() == [2]
    full = 1050 + 7 * 1200
    last = split_steps(10_000 - full, [10.0, 5.0], [80.0, 80.0])
    assert result.jobs.finish[0] == pytest.approx(800 + max(last[0] / 10, last[1] / 5) + 20)
    assert result.metrics["cru"] == pytest.approx(1.0)
    assert result.metrics["cru_work"] < 0.85


def test_one_job_on_equal_nodes_gains_almost_five_times() -> None:
    workload, cluster = make_workload("physical", jobs=1, seed=4), Cluster.built_in("equal5")
    fork = simulate(workload, cluster, Scripted(fork_everywhere, forks=True))
    single = workload.steps[0] / workload.rates(cluster)[0].max() + 10
    assert fork.metrics["ttd_s"] <= 0.25 * single
    bounds = ttd_bounds(workload, cluster)
    assert fork.metrics["ttd_s"] >= bounds["forking"] == pytest.approx(bounds["single_type"] / 5)


def test_a_lost_copy_costs_its_share_only() -> None:
    calm = forked(3000, [10.0, 5.0, 5.0])
    rough = forked(3000, [10.0, 5.0, 5.0], failures=[NodeEvent(30.0, "n2", "fail"), NodeEvent(50.0, "n2", "restore")])
    assert calm.jobs.finish[0] == pytest.approx(150.0)
    assert rough.metrics["finished"] == 1
    assert rough.jobs.lost_steps.tolist() == [150.0]
    assert rough.jobs.finish[0] == pytest.approx(120 + 900 / 20)


@pytest.mark.parametrize(("steps", "node"), [(1, "n1"), (1, "n2"), (2, "n2")])
def test_a_lost_copy_without_steps_costs_nothing(steps: int, node: str) -> None:
    """Fewer steps than copies: those that had none to do do not hold the job up, nor do they leave it with none."""
    rates = [0.1, 0.05, 0.05]
    calm = forked(steps, rates, consolidation_s=15.0)
    failures = [NodeEvent(time, node, action) for time, action in ((22.0, "fail"), (25.0, "restore"))]
    rough = forked(steps, rates, consolidation_s=15.0, failures=failures)
    assert calm.jobs.finish.tolist() == rough.jobs.finish.tolist()
    assert rough.jobs.lost_steps.tolist() == [0.0]


def test_a_lost_copy_that_had_all_steps_is_made_up_for() -> None:
    """Its one step is done after 10 s, but no weights are averaged before 25 s, when its node is gone."""
    failures = [NodeEvent(22.0, "n0", "fail"), NodeEvent(25.0, "n0", "restore")]
    rough = forked(1, [0.1, 0.05], consolidation_s=15.0, failures=failures)
    assert rough.jobs.lost_steps.tolist() == [1.0]
    assert rough.jobs.finish.tolist() == [pytest.approx(60 + 10 + 15)]


@pytest.mark.parametrize("shares", [[0.7, 0.2, 0.1], [0.6, 0.3, 0.1], [0.2, 0.7, 0.1]])
def test_broken_shares_are_whole_up_to_their_last_digits(shares: list[float]) -> None:
    """Tenths that add up to 1 - 1e-16 are one step: no second round for nothing."""
    assert np.sum(shares) < 1

    def split(view: ClusterView) -> Allocation:
        return replace(fork_everywhere(view), share=np.array(shares))

    assert forked(1, [1.0] * len(shares), split).jobs.finish.tolist() == [pytest.approx(max(shares))]


def test_a_job_with_nothing_left_ends_when_its_copies_stand() -> None:
    """Rounding can leave a job without a step before its end."""
    run = Simulation(*one_job(1, [1.0, 1.0]))
    view = run.next_view()
    assert view is not None
    run.state.jobs.remaining[0] = 0.0
    run.apply(fork_everywhere(view))
    assert run.next_view() is None
    assert run.state.jobs.finish.tolist() == [run.rules.restart_s + run.rules.consolidation_s]


def test_a_round_shorter_than_a_step_is_not_lost() -> None:
    assert forked(3, [0.01, 0.005]).jobs.finish.tolist() == [pytest.approx(200.0)]


def test_bad_shares_are_refused() -> None:
    with pytest.raises(ClusterError, match="consolidation_s is 60"):
        forked(3, [1.0], consolidation_s=60.0)
    with pytest.raises(AllocationError, match="rates and 1 times"):
        split_steps(10, [1.0, 2.0], [1.0])
    with pytest.raises(AllocationError, match="negative"):
        split_steps(10, [-1.0], [1.0])


@given(
    st.lists(st.sampled_from([0.3, 1.0, 2.5, 7.0]), min_size=1, max_size=3),
    st.lists(st.tuples(st.sampled_from([0.0, 0.0, 130.0]), st.integers(1, 3000)), min_size=1, max_size=5),
    st.booleans(),
    st.sampled_from([0.0, 5.0]),
)
@settings(max_examples=60)
def test_forked_worlds_finish_every_job_once_within_the_bound(
    rates: list[float], sizes: list[tuple[float, int]], refill: bool, cost: float
) -> None:
    types = TYPES[: len(rates)]
    table = ThroughputTable.build([("m", 1, kind, rate, float("nan")) for kind, rate in zip(types, rates, strict=True)])
    cluster = Cluster.parse(" ".join(f"{kind}:1" for kind in types))
    jobs = tuple(Job(f"j{i}", arrival, 1, float(steps), "m") for i, (arrival, steps) in enumerate(sizes))
    workload = Workload(jobs, table)
    result = simulate(
        workload,
        cluster,
        Scripted(fork_everywhere, forks=True),
        round_s=60,
        restart_s=cost,
        consolidation_s=cost,
        early_refill=refill,
    )
    assert result.metrics["finished"] == len(jobs)
    assert result.metrics["ttd_s"] >= result.bounds["forking"] * (1 - 1e-9)
    assert result.metrics["cru_work"] <= result.metrics["cru"] <= 1 + 1e-9
    worked = result.jobs.gpu_s - result.jobs.overhead_gpu_s
    assert (worked * max(rates) >= workload.steps * (1 - 1e-9)).all()
    assert (worked * min(rates) <= workload.steps * (1 + 1e-9)).all()
