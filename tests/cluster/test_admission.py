"""Hadar's admission mode: lives are the best, prices keep their bounds, the ratio holds against the optimum."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from cluster.oracle import audit, worlds
from hypothesis import given, settings, strategies as st

from hadoppler.baselines.cluster.admission_plan import REST, Offers, cheapest_life
from hadoppler.baselines.cluster.hadar_admission import HadarAdmission
from hadoppler.baselines.cluster.prices import PRICES, total_price, unit_price
from hadoppler.baselines.cluster.registry import find_scheduler
from hadoppler.envs.cluster import (
    Cluster,
    ClusterResult,
    Job,
    NodeEvent,
    Simulation,
    SimulationRules,
    ThroughputTable,
    Workload,
    make_workload,
    simulate,
)
from hadoppler.envs.errors import SchedulerError

SLOT = 60.0


@given(st.integers(0, 10**6))
@settings(max_examples=60)
def test_a_life_is_the_best_of_all(seed: int) -> None:
    rng = np.random.default_rng(seed)
    slots, options, need = int(rng.integers(1, 5)), int(rng.integers(1, 4)), int(rng.integers(1, 12))
    rate, cost = rng.integers(0, 6, (slots, options)).astype(float), rng.integers(0, 9, (slots, options)).astype(float)
    offers = Offers((rate > 0).astype(np.int64), rate, cost, np.zeros((slots, options, 1, 3), np.int64))
    worth = -np.sort(-rng.integers(0, 40, slots).astype(float))
    plan, payoff, price = cheapest_life(offers, 0, np.ones(slots), 1.0, need, worth)
    best = -np.inf
    for life in product(range(REST, options), repeat=slots):
        chosen = [(t, o) for t, o in enumerate(life) if o != REST and rate[t, o] > 0]
        if sum(rate[t, o] for t, o in chosen) >= need:
            best = max(best, worth[chosen[-1][0]] - sum(cost[t, o] for t, o in chosen))
    assert payoff == best
    if best > -np.inf:
        taken = [(t, o) for t, o in enumerate(plan.tolist()) if o != REST]
        assert sum(rate[t, o] for t, o in taken) >= need
        assert price == sum(cost[t, o] for t, o in taken)
        assert payoff == pytest.approx(worth[taken[-1][0]] - price)


def small_world(rng: np.random.Generator) -> tuple[Workload, Cluster]:
    """Three to five jobs of one to three slots' work on two types, one node each."""
    entries, jobs = [], []
    for i in range(int(rng.integers(3, 6))):
        workers = int(rng.choice([1, 1, 2]))
        fast, slow = rng.choice([(2.0, 1.0), (1.0, 1.0), (1.0, 2.0), (2.0, 0.0)])
        entries += [(f"m{i}", workers, kind, rate, 0.8 * rate) for kind, rate in (("fast", fast), ("slow", slow))]
        steps = SLOT * max(fast, slow) * float(rng.choice([1.0, 2.0, 3.0]))
        jobs.append(Job(f"j{i}", SLOT * float(rng.integers(0, 3)), workers, steps, f"m{i}"))
    table = ThroughputTable.build(entries)
    return Workload(tuple(jobs), table), Cluster.parse(f"fast:{rng.integers(1, 4)} slow:{rng.integers(2, 4)}")


def run(workload: Workload, cluster: Cluster, **options: object) -> tuple[HadarAdmission, ClusterResult]:
    scheduler = HadarAdmission(**{"mixing": False, "utility": "remaining", **options})  # type: ignore[arg-type]
    result = simulate(workload, cluster, scheduler, round_s=SLOT, restart_s=0.0)
    return scheduler, result


def lives(
    workload: Workload, cluster: Cluster, job: int, start: float, slots: int
) -> list[tuple[float, tuple[int, ...]]]:
    """(utility, type of each slot or -1) of every life of a job that does no more than it must."""
    rates, workers = workload.rates(cluster)[0][job], workload.workers[job]
    first = int(np.ceil((workload.arrival[job] - start) / SLOT))
    types = [REST, *(r for r in range(len(rates)) if rates[r] > 0 and cluster.gpus_of_type[r] >= workers)]
    found: list[tuple[float, tuple[int, ...]]] = []

    def go_on(slot: int, left: float, life: tuple[int, ...]) -> None:
        if left <= 1e-9:
            found.append((1 / (slot * SLOT - first * SLOT), life + (REST,) * (slots - slot)))
        elif slot < slots and left <= (slots - slot) * SLOT * rates.max() + 1e-9:
            for r in types:
                go_on(slot + 1, left - (rates[r] * SLOT if r != REST else 0.0), (*life, r))

    go_on(first, float(workload.steps[job]), (REST,) * first)
    best: dict[tuple[int, ...], float] = {}
    for utility, life in found:
        best[life] = max(utility, best.get(life, 0.0))
    return sorted(((utility, life) for life, utility in best.items()), reverse=True)


def offline_optimum(workload: Workload, cluster: Cluster, start: float, slots: int) -> float:
    """Largest sum of utilities of irrevocable schedules that know everything, by depth-first search with a bound."""
    choices = [lives(workload, cluster, job, start, slots) for job in range(len(workload))]
    most = [max((utility for utility, _ in options), default=0.0) for options in choices]
    free = np.tile(cluster.gpus_of_type, (slots, 1))
    best = 0.0

    def search(job: int, total: float) -> None:
        nonlocal best
        best = max(best, total)
        if job == len(choices) or total + sum(most[job:]) <= best:
            return
        for utility, life in choices[job]:
            if total + utility + sum(most[job + 1 :]) <= best:
                break
            used = [(t, r) for t, r in enumerate(life) if r != REST]
            if all(free[t, r] >= workload.workers[job] for t, r in used):
                for t, r in used:
                    free[t, r] -= workload.workers[job]
                search(job + 1, total + utility)
                for t, r in used:
                    free[t, r] += workload.workers[job]
        search(job + 1, total)

    search(0, 0.0)
    return best


def promised_ratio(scheduler: HadarAdmission, workload: Workload, cluster: Cluster, price: str) -> float:
    """2 max ln rho with the integral price, 2 max c (rho^(D/c) - 1) / D with the plain one."""
    used = scheduler.high > 0
    rho, capacity = scheduler.high[used] / scheduler.low[used], cluster.gpus_of_type[used]
    if price == "integral":
        return float(2 * np.maximum(1.0, np.log(rho)).max())
    most = np.minimum(capacity, workload.workers.max())
    return float(2 * (capacity * (rho ** (most / capacity) - 1) / most).max())


@pytest.mark.parametrize("price", ["integral", "pre"])
def test_the_ratio_holds_against_the_offline_optimum(price: str) -> None:
    worst, promised = 1.0, 0.0
    for seed in range(25):
        workload, cluster = small_world(np.random.default_rng(seed))
        scheduler, result = run(workload, cluster, price=price)
        value = sum(scheduler.payoff.values()) + sum(scheduler.price.values())
        optimum = offline_optimum(workload, cluster, scheduler.start, min(scheduler.slots, 6))
        limit = promised_ratio(scheduler, workload, cluster, price)
        assert value > 0
        assert optimum / value <= limit, seed
        worst, promised = max(worst, optimum / value), max(promised, limit)
        audit(result, restart_s=0.0)
    print(f"{price}: at worst {worst:.2f} times less than the offline optimum; {promised:.2f} is promised")
    assert worst < 4


def price_of(scheduler: HadarAdmission, cluster: Cluster, slot: int, gpu_type: int, count: int) -> float:
    """Price of so many GPUs of a type in a slot; infinity if there are not so many."""
    free, all_of = int(scheduler.free[slot, :, gpu_type].sum()), int(cluster.gpus_of_type[gpu_type])
    if count > free:
        return np.inf
    rule, low, high = PRICES[scheduler.price_rule], scheduler.low[gpu_type], scheduler.high[gpu_type]
    return float(total_price(rule, all_of - free, count, all_of, low, high))


@pytest.mark.parametrize("price", ["integral", "pre"])
def test_duals_are_feasible(price: str) -> None:
    """At the last prices no life of any job is worth more than its payoff."""
    for seed in range(25):
        workload, cluster = small_world(np.random.default_rng(seed))
        scheduler, _ = run(workload, cluster, price=price)
        slots = min(scheduler.slots, 6)
        for job in range(len(workload)):
            for utility, life in lives(workload, cluster, job, scheduler.start, slots):
                cost = sum(
                    price_of(scheduler, cluster, t, r, int(workload.workers[job]))
                    for t, r in enumerate(life)
                    if r != REST
                )
                assert utility - cost <= scheduler.payoff.get(job, 0.0) + 1e-9


def test_prices_are_low_when_empty_and_high_when_full() -> None:
    workload, cluster = small_world(np.random.default_rng(4))
    scheduler = HadarAdmission(price="pre", mixing=False)
    scheduler.foresee(workload)
    scheduler.reset(cluster, SLOT, np.random.default_rng(0))
    assert [price_of(scheduler, cluster, 0, r, 1) for r in range(2)] == pytest.approx(scheduler.low)
    full = [unit_price(c, c, scheduler.low[r], scheduler.high[r]) for r, c in enumerate(cluster.gpus_of_type)]
    assert full == pytest.approx(scheduler.high)
    scheduler.free[0] = 0
    assert [price_of(scheduler, cluster, 0, r, 1) for r in range(2)] == [np.inf, np.inf]


def test_who_is_rejected_is_reported_and_left_out_of_the_means() -> None:
    workload, cluster = make_workload("headline", jobs=60, seed=1), Cluster.parse("v100:4 p100:4 k80:4")
    options = {"mode": "admission", "price": "integral"}
    result = simulate(workload, cluster, find_scheduler("hadar", options))
    refused = [job for job, reason in result.left_out.items() if reason == "refused by the scheduler"]
    assert refused
    assert result.metrics["finished"] + len(result.left_out) == len(workload)
    assert not np.isfinite([row["finish"] for row in result.jobs.rows() if row["id"] in refused]).any()
    audit(result, restart_s=10.0)
    again = simulate(workload, cluster, find_scheduler("hadar", {**options, "on_reject": "requeue"}))
    assert again.metrics["finished"] >= result.metrics["finished"]


def test_what_a_failure_prevents_is_done_later() -> None:
    table = ThroughputTable.build([("m", 1, "v100", 1.0, 1.0)])
    workload, cluster = Workload((Job("a", 0.0, 1, 3600.0, "m"),), table), Cluster.parse("v100:1x2")
    events = [NodeEvent(400.0, "n0", "fail"), NodeEvent(400.0, "n1", "fail"), NodeEvent(9000.0, "n0", "restore")]
    result = simulate(workload, cluster, HadarAdmission(price="pre"), failures=events)
    assert result.jobs.finished.all()


def test_reasons_are_price_and_payoff() -> None:
    workload, cluster = make_workload("headline", jobs=20, seed=0), Cluster.built_in("headline")
    scheduler = HadarAdmission()
    scheduler.foresee(workload)
    scheduler.reset(cluster, 360.0, np.random.default_rng(0))
    view = Simulation(workload, cluster, SimulationRules(), explain=True).next_view()
    assert view is not None
    allocation = scheduler.schedule(view)
    assert (allocation.why["payoff"] > 0).all()
    assert (allocation.why["price"] > 0).all()


@given(worlds(), st.sampled_from(["report", "requeue"]), st.booleans(), st.sampled_from(["jct", "remaining"]))
@settings(max_examples=40)
def test_every_run_stands_a_second_look(
    world: tuple[Workload, Cluster], on_reject: str, mixing: bool, utility: str
) -> None:
    workload, cluster = world
    options = {"mode": "admission", "on_reject": on_reject, "mixing": mixing, "utility": utility}
    result = simulate(workload, cluster, find_scheduler("hadar", options), round_s=25)
    audit(result, restart_s=10.0)
    assert all("fit" in reason or "refused" in reason for reason in result.left_out.values())
    again = simulate(workload, cluster, find_scheduler("hadar", options), round_s=25)
    assert np.array_equal(result.jobs.finish, again.jobs.finish, equal_nan=True)


@given(worlds(), st.sampled_from([-4, 3]))
@settings(max_examples=20)
def test_times_scale_with_the_unit_and_names_change_nothing(world: tuple[Workload, Cluster], power: int) -> None:
    workload, cluster = world
    unit, table = 2.0**power, workload.throughputs
    scaled = Workload(
        tuple(
            Job(f"other{row}", job.arrival * unit, job.workers, job.steps, job.model)
            for row, job in enumerate(workload.jobs)
        ),
        ThroughputTable(table.types, table.rows, table.rates / unit, table.spread / unit),
    )
    first = simulate(workload, cluster, find_scheduler("hadar", {"mode": "admission"}), round_s=50)
    second = simulate(
        scaled, cluster, find_scheduler("hadar", {"mode": "admission"}), round_s=50 * unit, restart_s=10 * unit
    )
    assert (first.jobs.finish * unit).tolist() == pytest.approx(second.jobs.finish.tolist(), rel=0, abs=0, nan_ok=True)


def test_bad_options_are_refused() -> None:
    with pytest.raises(SchedulerError, match="must know the workload; call foresee"):
        find_scheduler("hadar", {"mode": "admission"}).reset(Cluster.parse("v100:1"), 360.0, np.random.default_rng(0))
    with pytest.raises(SchedulerError, match=r"on_reject is 'drop'.*expected on_reject report or requeue"):
        find_scheduler("hadar", {"mode": "admission", "on_reject": "drop"})
    workload = Workload((Job("a", 0.0, 1, 1.0, "m"),), ThroughputTable.build([("m", 1, "v100", 1.0, 1.0)]))
    with pytest.raises(SchedulerError, match="slots of 5 s, in which a restart of 10 s leaves no time"):
        simulate(workload, Cluster.parse("v100:1"), find_scheduler("hadar", {"mode": "admission"}), round_s=5)
