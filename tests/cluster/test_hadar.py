"""Hadar: prices, FIND_ALLOC, dynamic programming, and what it does on small worlds."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from cluster.oracle import audit, worlds
from hypothesis import given, settings, strategies as st

from hadoppler.baselines.cluster.allocation_search import search
from hadoppler.baselines.cluster.find_alloc import find_alloc, give_or_return
from hadoppler.baselines.cluster.hadar_round import HadarRound
from hadoppler.baselines.cluster.prices import INTEGRAL, NONE, PRE, PRICES, price_bounds, total_price, unit_price
from hadoppler.baselines.cluster.registry import find_scheduler
from hadoppler.baselines.cluster.utility import UTILITIES, find_utility, weighted
from hadoppler.envs.cluster import (
    Cluster,
    ClusterResult,
    ClusterView,
    Job,
    Simulation,
    SimulationRules,
    ThroughputTable,
    Workload,
    make_workload,
    simulate,
)
from hadoppler.envs.errors import UnknownNameError

TYPES = ("v100", "p100", "k80")
OPTIONS = [
    {},
    {"price": "none"},
    {"price": "pre"},
    {"utility": "jct", "beam": 1, "exact_jobs": 0},
    {"utility": "makespan"},
    {"utility": "deadline"},
    {"utility": "finish_time_fairness", "backfill": False},
    {"mixing": False},
]
each_way = pytest.mark.parametrize("options", OPTIONS)


def workload_of(*jobs: tuple[int, float, tuple[float, ...]]) -> Workload:
    """Jobs (workers, steps, rates on v100, p100, k80), spread at 0.8."""
    entries = [
        (f"m{i}", workers, kind, rate, 0.8 * rate)
        for i, (workers, _, rates) in enumerate(jobs)
        for kind, rate in zip(TYPES, rates, strict=True)
    ]
    made = tuple(Job(f"j{i}", 0.0, workers, steps, f"m{i}") for i, (workers, steps, _) in enumerate(jobs))
    return Workload(made, ThroughputTable.build(entries))


def first_view(workload: Workload, cluster: Cluster, **rules: object) -> ClusterView:
    view = Simulation(workload, cluster, SimulationRules(**rules), explain=True).next_view()
    assert view is not None
    return view


def held(result: ClusterResult, job: str) -> list[str]:
    return [row["gpus"] for row in result.rounds.rows(result.workload, result.cluster) if row["job"] == job]


PAIR = workload_of((3, 8000.0, (10.0, 6.0, 3.0)), (2, 4000.0, (8.0, 5.0, 2.0)))
THREE_NODES = Cluster.parse("v100:2 p100:2 k80:2")


@pytest.mark.parametrize("price", list(PRICES))
def test_the_gang_of_three_runs_beside_the_gang_of_two(price: str) -> None:
    result = simulate(PAIR, THREE_NODES, find_scheduler("hadar", {"price": price}), mixed_rate="min")
    assert result.jobs.finish == pytest.approx([10 + 710 + 10 + (8000 - 710 * 2.4) / 4.8, 510.0])
    assert held(result, "j0")[:2] == ["n1:p100x2 n2:k80x1"] * 2
    assert set(held(result, "j1")) == {"n0:v100x2"}
    audit(result, restart_s=10, mixed_rate="min")


def test_without_mixing_it_never_runs() -> None:
    result = simulate(PAIR, THREE_NODES, find_scheduler("hadar", {"mixing": False}), mixed_rate="min")
    assert (list(result.left_out), result.jobs.finish[1]) == (["j0"], 510.0)


@pytest.mark.parametrize(("rule", "rate"), [("proportional", 0.8 * (3 * 10 + 4) / 4), ("min", 0.8 * 4)])
def test_four_workers_start_at_once_on_three_and_three(rule: str, rate: float) -> None:
    workload = workload_of((4, 1000.0, (10.0, 6.0, 4.0)))
    result = simulate(workload, Cluster.parse("v100:3 k80:3"), find_scheduler("hadar"), mixed_rate=rule)
    assert result.jobs.start[0] == 0
    assert result.jobs.finish[0] == pytest.approx(10 + 1000 / rate)
    assert set(held(result, "j0")) == {"n0:v100x3 n1:k80x1"}


def test_fast_gpus_mixed_with_one_slow_beat_slow_ones_on_one_node() -> None:
    workload = workload_of((4, 1e6, (10.0, 6.0, 2.0)))
    allocation = find_scheduler("hadar", {"price": "none"}).schedule(
        first_view(workload, Cluster.parse("v100:3 k80:4"))
    )
    assert allocation.describe(0, Cluster.parse("v100:3 k80:4")) == "n0:v100x3 n1:k80x1"


def test_a_node_of_two_types_holds_a_mixed_gang_at_the_rate_of_one_node() -> None:
    workload = workload_of((3, 900.0, (10.0, 6.0, 4.0)))
    result = simulate(workload, Cluster.parse("v100:2 v100:2+p100:1"), find_scheduler("hadar"), restart_s=0)
    assert held(result, "j0")[0] == "n1:v100x2 n1:p100x1"
    assert result.jobs.finish[0] == pytest.approx(900 / ((2 * 10 + 6) / 3))


def test_recommendation_goes_to_a_p100() -> None:
    workload = make_workload("headline", jobs=200, seed=0)
    rows = [i for i, job in enumerate(workload.jobs) if job.model == "Recommendation"][:1]
    one = workload.select(np.array(rows))
    for price in PRICES:
        result = simulate(one, Cluster.built_in("headline"), find_scheduler("hadar", {"price": price}))
        assert all("p100x1" in gpus for gpus in held(result, one.jobs[0].id))


def test_price_is_low_when_empty_and_high_when_full() -> None:
    for low, high, capacity in [(0.5, 50.0, 4), (1.0, 1.0, 1), (1e-9, 3.0, 8)]:
        assert unit_price(0, capacity, low, high) == low
        assert unit_price(capacity, capacity, low, high) == pytest.approx(high, rel=1e-12)
        path = [unit_price(given, capacity, low, high) for given in range(capacity + 1)]
        assert path == sorted(path)
    assert unit_price(1, 2, 0.0, 5.0) == 0.0


def test_totals_of_the_three_prices() -> None:
    assert total_price(NONE, 1, 2, 4, 1.0, 16.0) == 0
    assert total_price(PRE, 1, 2, 4, 1.0, 16.0) == pytest.approx(2 * 2.0)
    fine = np.linspace(1, 3, 200_001)
    assert total_price(INTEGRAL, 1, 2, 4, 1.0, 16.0) == pytest.approx(np.trapezoid(2.0**fine, fine), rel=1e-9)
    assert total_price(INTEGRAL, 0, 3, 4, 2.0, 2.0) == 6.0
    whole = total_price(INTEGRAL, 0, 3, 4, 0.1, 7.0)
    assert whole == pytest.approx(sum(total_price(INTEGRAL, g, 1, 4, 0.1, 7.0) for g in range(3)))


def test_bounds_come_from_the_best_and_the_worst_job_of_each_type() -> None:
    low, high = price_bounds(np.array([[4.0, np.nan, 8.0], [1.0, np.nan, np.nan]]))
    assert (low.tolist(), high.tolist()) == ([0.25, 0.0, 2.0], [4.0, 0.0, 8.0])


def test_utilities_by_hand() -> None:
    view = first_view(PAIR, THREE_NODES)
    rates = np.array([[4.0], [4.0]])
    hand = {
        "jct": [800 / 2000, 500 / 1000],
        "remaining": [1 / 2000, 1 / 1000],
        "makespan": [3 * 8000 / 3 * 0.4, 2 * 4000 / 2 * 0.5],
        "finish_time_fairness": [(8000 / (19 / 3)) / 2000, (4000 / (0.5 * 15 / 1.5)) / 1000],
    }
    assert set(hand) | {"deadline"} == set(UTILITIES)
    for name, values in hand.items():
        assert find_utility(name)(view, rates)[:, 0] == pytest.approx(values), name
    assert weighted("jct")(view, rates)[:, 0] == pytest.approx(hand["jct"])
    urgent = replace(view, weight=np.array([1.0, 3.0]))
    assert find_utility("weighted_jct")(urgent, rates)[:, 0] == pytest.approx([hand["jct"][0], 3 * hand["jct"][1]])
    assert find_utility("jct")(urgent, rates)[:, 0] == pytest.approx(hand["jct"])
    with pytest.raises(UnknownNameError, match="did you mean makespan"):
        find_utility("makespam")


def test_deadlines_by_hand() -> None:
    jobs = tuple(replace(job, slo=slo) for job, slo in zip(PAIR.jobs, (2.0, None), strict=True))
    view = first_view(replace(PAIR, jobs=jobs), THREE_NODES)
    found = find_utility("deadline")(view, np.array([[5.0, 10.0], [8.0, 4.0]]))
    # j0 may take 2 x 800 s: it takes 1,600 and 800 s; j1 has no deadline
    assert found[0] == pytest.approx([0.5, 1 / (1 + np.exp(-2.0))])
    assert found[1] == pytest.approx([0.5, 0.25])
    result = simulate(replace(PAIR, jobs=jobs), THREE_NODES, find_scheduler("hadar", {"utility": "deadline"}))
    assert result.jobs.finish[0] <= 2 * 800
    assert result.metrics["slo_met"] == 1.0
    late = (replace(jobs[0], slo=1.0), jobs[1])  # not even alone, for want of the restart
    result = simulate(replace(PAIR, jobs=late), THREE_NODES, find_scheduler("hadar", {"utility": "deadline"}))
    assert result.metrics["slo_met"] == 0.0


def test_any_callable_is_a_utility() -> None:
    def second_first(view: ClusterView, rates: np.ndarray) -> np.ndarray:
        return (1.0 + view.job[:, None]) * rates / view.best_rate[:, None]

    workload = workload_of((1, 100.0, (1.0, 0.0, 0.0)), (1, 100.0, (1.0, 0.0, 0.0)))
    result = simulate(workload, Cluster.parse("v100:1"), HadarRound(utility=second_first), restart_s=0)
    assert result.jobs.finish.tolist() == [200.0, 100.0]


def brute_force(scheduler: HadarRound, view: ClusterView) -> float:
    """Largest sum of payoffs over all ways to skip jobs, each other one getting FIND_ALLOC's choice."""
    queue, market, order = scheduler.prepare(view)
    room, best = int(view.workers.max()), 0.0
    for picks in product((False, True), repeat=len(order)):
        free, value = view.free.astype(np.int32), 0.0
        totals = free.sum(axis=0).astype(np.int64)
        entries, trial = np.zeros((room, 3), np.int64), np.zeros((room, 3), np.int64)
        for i in order[np.array(picks)]:
            size, payoff, _ = find_alloc(queue, market, free, totals, np.zeros(len(totals)), i, -np.inf, entries, trial)
            value += payoff if size else 0.0
            give_or_return(free, totals, entries, size, -1)
            assert (free >= 0).all()
        best = max(best, value)
    return best


@given(worlds(), st.sampled_from(list(PRICES)), st.sampled_from(list(UTILITIES)), st.integers(1, 3))
@settings(max_examples=60)
def test_the_memo_is_optimal_and_the_beam_never_better(
    world: tuple[Workload, Cluster], price: str, utility: str, beam: int
) -> None:
    workload, cluster = world
    view = Simulation(workload, cluster, SimulationRules()).next_view()
    if view is None:
        return
    scheduler = HadarRound(price=price, utility=utility)
    queue, market, order = scheduler.prepare(view)
    free = view.free.astype(np.int32)
    _, exact = search(queue, market, free, order, 2 ** len(order))
    _, few = search(queue, market, free, order, beam)
    assert exact == pytest.approx(brute_force(scheduler, view), rel=1e-12)
    assert few <= exact * (1 + 1e-12)


def test_skipping_a_greedy_job_pays() -> None:
    workload = workload_of((3, 100.0, (1.0, 0.0, 0.0)), *[(2, 100.0, (1.0, 0.0, 0.0))] * 2)
    scheduler = HadarRound(price="none", utility=lambda view, _: np.array([[3.3], [2.0], [2.0]]))
    view = first_view(workload, Cluster.parse("v100:4"))
    queue, market, order = scheduler.prepare(view)
    free = view.free.astype(np.int32)
    assert search(queue, market, free, order, 8)[1] == 4.0
    assert search(queue, market, free, order, 1)[1] == 3.3
    assert order.tolist() == [0, 1, 2]


@each_way
@given(worlds(), st.sampled_from([25.0, 360.0]), st.booleans(), st.sampled_from(["proportional", "min"]))
@settings(max_examples=15)
def test_every_run_stands_a_second_look(
    options: dict, world: tuple[Workload, Cluster], round_s: float, refill: bool, rule: str
) -> None:
    workload, cluster = world
    first, again = (
        simulate(workload, cluster, HadarRound(**options), round_s=round_s, early_refill=refill, mixed_rate=rule)
        for _ in range(2)
    )
    audit(first, restart_s=10, mixed_rate=rule)
    assert all("fit" in reason for reason in first.left_out.values())
    assert str(list(first.jobs.rows())) == str(list(again.jobs.rows()))


@each_way
@given(worlds())
@settings(max_examples=10)
def test_times_scale_with_the_unit(options: dict, world: tuple[Workload, Cluster]) -> None:
    workload, cluster = world
    table, unit = workload.throughputs, 8.0
    jobs = tuple(Job(j.id, j.arrival * unit, j.workers, j.steps, j.model) for j in workload.jobs)
    scaled = Workload(jobs, ThroughputTable(table.types, table.rows, table.rates / unit, table.spread / unit))
    first = simulate(workload, cluster, HadarRound(**options), round_s=50, restart_s=10)
    second = simulate(scaled, cluster, HadarRound(**options), round_s=50 * unit, restart_s=10 * unit)
    assert (first.jobs.finish * unit).tolist() == pytest.approx(second.jobs.finish.tolist(), abs=0, rel=0, nan_ok=True)


def test_the_same_bytes_on_a_mixed_workload_and_reasons() -> None:
    workload, cluster = make_workload("headline", jobs=40, seed=3), Cluster.built_in("headline")
    first, again = (simulate(workload, cluster, find_scheduler("hadar"), explain=True) for _ in range(2))
    audit(first, restart_s=10)
    rows = list(first.rounds.rows(workload, cluster))
    assert str(rows) == str(list(again.rounds.rows(workload, cluster)))
    assert all(row["price"] > 0 and np.isfinite(row["payoff"]) for row in rows)
    assert all(first.jobs.finished)


def test_backfill_is_a_switch() -> None:
    workload, cluster = workload_of(*[(1, 1000.0, (1.0, 0.0, 0.0))] * 4), Cluster.parse("v100:4")
    view = first_view(workload, cluster)
    dear = HadarRound(price="pre", exact_jobs=0, beam=1, utility=lambda v, x: 1.0 + 9.0 * (v.job[:, None] == 0) * x / x)
    assert len(dear.schedule(view)) == 4
    dear.backfill = False
    alone = dear.schedule(view)
    assert 0 < len(alone) < 4
    assert (alone.why["payoff"] > 0).all()


def test_bad_options_are_refused() -> None:
    with pytest.raises(UnknownNameError, match="mode"):
        find_scheduler("hadar", {"mode": "rounds"})
    with pytest.raises(UnknownNameError, match="price"):
        find_scheduler("hadar", {"price": "post"})
    with pytest.raises(ValueError, match="beam"):
        HadarRound(beam=0)
