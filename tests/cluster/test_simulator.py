"""The round simulator by hand: rounds, restarts, refills, mixed gangs, failures, refusals, drift."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from cluster.oracle import audit, rate_by_hand, table_of
from cluster.scripted import Scripted, greedy_mix

from hadoppler.baselines.cluster.registry import find_scheduler
from hadoppler.envs.cluster import (
    Allocation,
    Cluster,
    ClusterSchedulingEnv,
    ClusterView,
    Job,
    NodeEvent,
    Simulation,
    Workload,
    draw_failures,
    gang_rate,
    make_workload,
    simulate,
)
from hadoppler.envs.errors import AllocationError, ClusterError


def jobs_of(*entries: tuple[float, int, float]) -> Workload:
    """(arrival, workers, steps) each, at 1 step/s on ``fast`` and 0.5 on ``slow``."""
    jobs = tuple(Job(f"j{i}", a, w, s, "m0") for i, (a, w, s) in enumerate(entries))
    return Workload(jobs, table_of([[1.0, 1.0, 0.5]]))


def test_rounds_restart_and_exact_ends() -> None:
    workload = jobs_of((0, 1, 500), (0, 1, 100), (250, 1, 50))
    result = simulate(workload, Cluster.parse("fast:1x2"), find_scheduler("yarn_cs"), round_s=360, restart_s=10)
    assert result.jobs.finish.tolist() == [510.0, 110.0, 420.0]
    assert result.rounds.time == [0.0, 360.0]
    metrics = result.metrics
    assert (metrics["ttd_s"], metrics["restarts"]) == (510.0, 3)
    assert metrics["gru"] == pytest.approx((510 + 110 + 60) / 1020)
    assert metrics["gru_work"] == pytest.approx((500 + 100 + 50) / 1020)
    assert metrics["cru"] == metrics["gru"]
    assert result.jobs.queueing.tolist() == [0.0, 0.0, 110.0]
    audit(result, restart_s=10)


def test_early_refill_gives_freed_gpus_at_once() -> None:
    cluster = Cluster.parse("fast:1x2")
    yarn = find_scheduler("yarn_cs")
    yarn.reset(cluster, 360, np.random.default_rng(0))
    scheduler = Scripted(yarn.schedule)
    waiting = jobs_of((0, 1, 500), (0, 1, 100), (0, 1, 50))
    result = simulate(waiting, cluster, scheduler, round_s=360, restart_s=10, early_refill=True)
    assert result.jobs.finish.tolist() == [510.0, 110.0, 170.0]
    middle = next(view for view in scheduler.views if view.mid_round)
    assert (middle.time, middle.job.tolist(), middle.free.tolist()) == (110.0, [2], [[0], [1]])
    audit(result, restart_s=10)
    later = jobs_of((0, 1, 500), (0, 1, 100), (50, 1, 50))
    seen_at_round_ends = simulate(later, cluster, find_scheduler("yarn_cs"), restart_s=10, early_refill=True)
    assert seen_at_round_ends.jobs.finish[2] == 420.0


def test_idle_cluster_starts_a_round_at_the_next_arrival() -> None:
    workload = jobs_of((7, 1, 100), (5000.5, 1, 100), (150, 1, 10))
    result = simulate(workload, Cluster.parse("fast:1"), find_scheduler("yarn_cs"), restart_s=0)
    assert result.jobs.finish.tolist() == [107.0, 160.0, 5100.5]


def test_round_ends_when_nothing_runs_any_more() -> None:
    workload = jobs_of((0, 1, 100), (50, 1, 10))
    result = simulate(workload, Cluster.parse("fast:1"), find_scheduler("yarn_cs"), restart_s=0)
    assert result.jobs.finish.tolist() == [100.0, 110.0]


def test_a_move_costs_one_restart_and_keeps_the_work() -> None:
    count = [0]

    def decide(view: ClusterView) -> Allocation:
        gpus = np.zeros_like(view.free)
        gpus[0 if count[0] != 1 else 1, 0] = 1
        count[0] += 1
        return Allocation.from_rows([(0, 0, gpus)])

    result = simulate(jobs_of((0, 1, 1000)), Cluster.parse("fast:1x2"), Scripted(decide), round_s=360, restart_s=10)
    assert result.jobs.finish.tolist() == [1030.0]
    assert result.jobs.restarts.tolist() == [3]


def test_preempted_job_waits_and_restarts() -> None:
    count = [0]

    def decide(view: ClusterView) -> Allocation:
        count[0] += 1
        gpus = np.ones_like(view.free)
        return Allocation.empty() if count[0] == 2 else Allocation.from_rows([(0, 0, gpus)])

    result = simulate(jobs_of((0, 1, 500)), Cluster.parse("fast:1"), Scripted(decide), round_s=360, restart_s=10)
    assert result.jobs.finish.tolist() == [720 + 10 + 150.0]
    assert result.jobs.waiting.tolist() == [360.0]
    audit(result, restart_s=10)


def test_restart_longer_than_a_round() -> None:
    result = simulate(jobs_of((0, 1, 5)), Cluster.parse("fast:1"), find_scheduler("srtf"), round_s=3, restart_s=10)
    assert result.jobs.finish.tolist() == [15.0]


@pytest.mark.parametrize(("rule", "rate"), [("proportional", 0.8 * (3 * 1 + 0.5) / 4), ("min", 0.8 * 0.5)])
def test_gang_on_two_types(rule: str, rate: float) -> None:
    cluster = Cluster.parse("fast:3 slow:3")
    result = simulate(
        jobs_of((0, 4, 100)),
        cluster,
        Scripted(greedy_mix),
        restart_s=0,
        mixed_rate=rule,  # type: ignore[arg-type]
    )
    assert result.jobs.start.tolist() == [0.0]
    assert result.jobs.finish.tolist() == [pytest.approx(100 / rate)]
    audit(result, restart_s=0, mixed_rate=rule)


def test_mixed_gang_in_one_node_has_the_rates_of_one_node() -> None:
    result = simulate(jobs_of((0, 4, 70)), Cluster.parse("fast:2+slow:2"), Scripted(greedy_mix), restart_s=0)
    assert result.jobs.finish.tolist() == [pytest.approx(70 / 0.75)]


@pytest.mark.parametrize("slowest", [False, True])
def test_a_gang_has_the_rate_that_one_finds_by_hand(slowest: bool) -> None:
    """For every placement of up to four GPUs on two nodes of two types, with types that do not fit, too."""
    for gpus in np.ndindex(3, 3, 3, 3):
        dense = np.array(gpus).reshape(2, 2)
        if not 1 <= dense.sum() <= 4:
            continue
        node, gpu_type = np.nonzero(dense)
        for rates, spread in (([8.0, 4.0], [6.0, 2.0]), ([8.0, 4.0], [0.0, 2.0]), ([8.0, 0.0], [6.0, 0.0])):
            found = gang_rate(np.array(rates), np.array(spread), node, gpu_type, dense[node, gpu_type], slowest)
            expected = rate_by_hand(dense, rates, spread, "min" if slowest else "proportional")
            assert found == pytest.approx(expected, rel=1e-15)


def test_jobs_that_need_mixing_are_left_out_under_schedulers_that_never_mix() -> None:
    cluster = Cluster.parse("fast:3 slow:3")
    result = simulate(jobs_of((0, 4, 100), (0, 1, 10)), cluster, find_scheduler("yarn_cs"), restart_s=0)
    assert result.left_out == {"j0": "cannot fit: asks 4, its largest fitting type has 3"}
    assert result.metrics["left_out"] == 1
    assert result.metrics["mean_jct_s"] in (10.0, 20.0)


def test_scheduler_that_never_starts_a_job_does_not_hang() -> None:
    begin = time.perf_counter()
    result = simulate(jobs_of((0, 1, 100)), Cluster.parse("fast:1"), Scripted(lambda view: Allocation.empty()))
    assert time.perf_counter() - begin < 5
    assert "no GPU" in result.left_out["j0"]
    assert result.metrics["finished"] == 0


@pytest.mark.parametrize("rounds", [30_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
def test_a_million_short_rounds_do_not_drift(rounds: int) -> None:
    """A job keeps its GPUs through all rounds of a third of a second: one rounding, not a million.

    Slow because a million decisions take about a minute.
    """
    whole = Allocation.from_rows([(0, 0, [[1]])])
    scheduler = Scripted(lambda view: whole, remember=False)
    workload = jobs_of((0, 1, rounds / 3))
    result = simulate(workload, Cluster.parse("fast:1"), scheduler, round_s=1 / 3, restart_s=0.1, log=False)
    assert result.jobs.finish[0] == 0.1 + rounds / 3
    assert len(result.rounds) == rounds + 1
    assert result.rounds.time[-1] == rounds * (1 / 3)


def test_round_shorter_than_a_step() -> None:
    workload = Workload((Job("a", 0, 1, 3, "m0"),), table_of([[0.01, 0.01, 0.01]]))
    result = simulate(workload, Cluster.parse("fast:1"), find_scheduler("srtf"), round_s=1, restart_s=0)
    assert result.jobs.finish.tolist() == [300.0]


def test_unsorted_and_equal_arrivals() -> None:
    workload = jobs_of((100, 1, 10), (0, 1, 10), (0, 1, 20), (100, 1, 20))
    assert [job.id for job in workload.jobs] == ["j1", "j2", "j0", "j3"]
    result = simulate(workload, Cluster.parse("fast:1"), find_scheduler("yarn_cs"), restart_s=0)
    assert result.jobs.finish.tolist() == [10.0, 30.0, 110.0, 130.0]


def refuse(decide: object, match: str) -> None:
    with pytest.raises(AllocationError, match=match):
        simulate(jobs_of((0, 2, 100), (900, 1, 5)), Cluster.parse("fast:2 slow:2"), Scripted(decide))  # type: ignore[arg-type]


def test_every_broken_rule_is_named() -> None:
    refuse(lambda view: Allocation.from_rows([(0, 0, [[3, 0], [0, 0]])]), "more GPUs are given than are free")
    refuse(lambda view: Allocation.from_rows([(0, 0, [[1, 0], [0, 0]])]), "exactly 2 GPUs")
    refuse(lambda view: Allocation.from_rows([(1, 0, [[1, 0], [0, 0]])]), "has not arrived")
    refuse(lambda view: Allocation.from_rows([(0, 0, [[-2, 0], [0, 0]])]), "whole numbers")
    one = np.zeros(1, dtype=np.int64)
    twice = Allocation(one, one, np.array([0, 2]), np.zeros(2, int), np.zeros(2, int), np.ones(2, int))
    refuse(lambda view: twice, "must ascend")
    workload = Workload((Job("a", 0, 1, 1, "m0"),), table_of([[1.0, 0.0, 1.0]]))
    chosen = Allocation.from_rows([(0, 0, [[0, 1]])])
    with pytest.raises(AllocationError, match="does not run on one of these types"):
        simulate(workload, Cluster.parse("fast:1+middle:1"), Scripted(lambda view: chosen))


def test_a_refused_decision_changes_nothing() -> None:
    workload, cluster = jobs_of((0, 2, 500), (0, 1, 800)), Cluster.parse("fast:2 slow:2")
    good = simulate(workload, cluster, Scripted(greedy_mix))
    run = Simulation(workload, cluster)
    while (view := run.next_view()) is not None:
        bad = [
            Allocation.from_rows([(1, 0, [[0, 0], [0, 1]]), (0, 0, [[1, 0], [0, 0]])]),
            Allocation.from_rows([(1, 0, [[2, 0], [0, 0]])]),
            Allocation.from_rows([(1, 0, [[1, 0], [0, 0]]), (1, 1, [[0, 0], [0, 2]])]),
            replace(Allocation.from_rows([(1, 0, [[1, 0], [0, 0]])]), refused=[1]),
            Allocation.from_rows([(1, 0, [[1, 0], [0, 0]]), (1, 1, [[0, 0], [0, 1]])], share=[1e6, 1.0]),
        ]
        for allocation in bad:
            with pytest.raises(AllocationError):
                run.apply(allocation)
        run.apply(greedy_mix(view))
    assert list(run.result().jobs.rows()) == list(good.jobs.rows())


def test_bad_rules_are_refused() -> None:
    workload, cluster = jobs_of((0, 1, 1)), Cluster.parse("fast:1")
    scheduler = find_scheduler("srtf")
    with pytest.raises(ClusterError, match="round_s is 0"):
        simulate(workload, cluster, scheduler, round_s=0)
    with pytest.raises(ClusterError, match="restart_s is -1"):
        simulate(workload, cluster, scheduler, restart_s=-1)
    with pytest.raises(ClusterError, match="mixed_rate"):
        simulate(workload, cluster, scheduler, mixed_rate="max")  # type: ignore[arg-type]
    with pytest.raises(ClusterError, match="no scheduler"):
        simulate(workload, cluster, object())  # type: ignore[arg-type]
    with pytest.raises(ClusterError, match="needs a policy"):
        simulate(workload, cluster, scheduler, mechanism="gavel")
    with pytest.raises(ClusterError, match="names the node 'x'"):
        simulate(workload, cluster, scheduler, failures=[NodeEvent(1.0, "x")])


def test_failed_node_loses_the_work_of_this_round_only() -> None:
    events = [NodeEvent(450.0, "n0", "fail"), NodeEvent(800.0, "n0", "restore")]
    workload = jobs_of((0, 1, 1000))
    result = simulate(workload, Cluster.parse("fast:1"), find_scheduler("srtf"), restart_s=0, failures=events)
    # 360 steps are saved at 360; 90 are lost at 450; empty rounds follow until the node is back.
    assert result.jobs.lost_steps.tolist() == [90.0]
    starts = [now for now, gangs in zip(result.rounds.time, result.rounds.gangs, strict=True) if gangs]
    assert result.jobs.finish[0] == starts[2] + 640
    assert starts[2] == 810.0  # rounds of 360 s from 450: the next one after 800


def test_early_refill_moves_a_lost_gang_at_once() -> None:
    workload = jobs_of((0, 1, 1000))
    cluster = Cluster.parse("fast:1x2")
    events = [NodeEvent(450.0, "n0", "fail")]
    for early, finish in ((True, 450 + 640.0), (False, 450 + 640.0)):
        result = simulate(workload, cluster, find_scheduler("srtf"), restart_s=0, failures=events, early_refill=early)
        assert result.jobs.finish.tolist() == [finish]
    second = jobs_of((0, 1, 1000), (0, 1, 1000))
    three = Cluster.parse("fast:1x3")
    late = simulate(second, three, find_scheduler("srtf"), restart_s=0, failures=events)
    assert late.jobs.finish.tolist() == [720 + 640.0, 1000.0]


@pytest.mark.parametrize("name", ["mean_between_s", "repair_s", "until_s"])
@pytest.mark.parametrize("value", [-1.0, np.nan, np.inf, None, "x", True])
def test_failures_that_would_have_no_end_are_refused(name: str, value: object) -> None:
    law: dict[str, Any] = {"mean_between_s": 1e5, "repair_s": 0.0, "until_s": 1e5}
    cluster, rng = Cluster.parse("fast:1"), np.random.default_rng(0)
    assert draw_failures(cluster, **law, rng=rng)
    with pytest.raises(ClusterError, match=f"{name} of failures is"):
        draw_failures(cluster, **{**law, name: value}, rng=rng)
    with pytest.raises(ClusterError, match="mean_between_s of failures is 0; expected seconds above 0"):
        draw_failures(cluster, **{**law, "mean_between_s": 0}, rng=rng)


def test_drained_node_keeps_its_gang_until_the_round_ends() -> None:
    events = [NodeEvent(100.0, "n0", "drain")]
    workload, cluster = jobs_of((0, 1, 1000)), Cluster.parse("fast:1x2")
    result = simulate(workload, cluster, find_scheduler("srtf"), restart_s=10, failures=events)
    assert result.jobs.finish.tolist() == [360 + 10 + 650.0]
    assert result.jobs.lost_steps.tolist() == [0.0]


def test_random_failures_lose_little_and_all_jobs_finish() -> None:
    workload, cluster = make_workload("headline", jobs=40, seed=2), Cluster.built_in("headline")
    rng = np.random.default_rng(5)
    events = draw_failures(cluster, until_s=1e6, mean_between_s=1e5, repair_s=3600, rng=rng)
    rough = simulate(workload, cluster, find_scheduler("srtf"), failures=events)
    assert rough.metrics["finished"] == 40
    rates = workload.rates(cluster)[0].max(axis=1)
    assert (rough.jobs.lost_steps <= len(events) * 360 * rates).all()
    assert rough.jobs.lost_steps.sum() > 0
    assert rough.metrics["restarts"] > 40


def test_refused_jobs_are_reported_and_left_out() -> None:
    def decide(view: ClusterView) -> Allocation:
        chosen = greedy_mix(view)
        return replace(chosen, refused=[int(job) for job in view.job if job not in chosen.job])

    result = simulate(jobs_of((0, 1, 100), (0, 1, 100)), Cluster.parse("fast:1"), Scripted(decide), restart_s=0)
    assert result.left_out == {"j1": "refused by the scheduler"}
    assert result.metrics["mean_jct_s"] == 100.0
    late = Scripted(lambda view: replace(greedy_mix(view), refused=[0] if view.time > 0 else []))
    with pytest.raises(AllocationError, match="refuse waiting jobs only"):
        simulate(jobs_of((0, 1, 900)), Cluster.parse("fast:1"), late)


def test_two_runs_in_one_process_do_not_disturb_each_other() -> None:
    workload, cluster = make_workload("gavel", jobs=30, seed=1, per_hour=6), Cluster.built_in("headline")
    scheduler = find_scheduler("tiresias")
    first = simulate(workload, cluster, scheduler, seed=3)
    simulate(make_workload("headline", jobs=20), cluster, scheduler, seed=1)
    again = simulate(workload, cluster, scheduler, seed=3)
    assert list(first.jobs.rows()) == list(again.jobs.rows())
    assert list(first.rounds.rows(workload, cluster)) == list(again.rounds.rows(workload, cluster))


def test_logs_have_one_row_per_job_and_per_gang() -> None:
    workload, cluster = jobs_of((0, 1, 400), (0, 1, 10)), Cluster.parse("fast:2")

    def decide(view: ClusterView) -> Allocation:
        chosen = greedy_mix(view)
        reasons = {"price": np.arange(len(chosen), dtype=float)} if view.explain else {}
        return Allocation(chosen.job, chosen.copy, chosen.ptr, chosen.node, chosen.gpu_type, chosen.count, why=reasons)

    result = simulate(workload, cluster, Scripted(decide), restart_s=0, explain=True)
    rows = list(result.rounds.rows(workload, cluster))
    assert [(row["job"], row["gpus"], row["price"], row["kept"]) for row in rows] == [
        ("j0", "n0:fastx1", 0.0, False),
        ("j1", "n0:fastx1", 1.0, False),
        ("j0", "n0:fastx1", 0.0, True),
    ]
    assert [row["jct"] for row in result.jobs.rows()] == [400.0, 10.0]


def test_isolated_time_is_an_equal_share() -> None:
    workload = jobs_of((0, 1, 100), (0, 1, 100), (0, 1, 100), (0, 1, 100))
    result = simulate(workload, Cluster.parse("fast:1 slow:1"), find_scheduler("srtf"), restart_s=0)
    # Four jobs share one GPU of 1 step/s and one of 0.5: 1.5 / 4 steps/s each.
    assert result.jobs.isolated_s.tolist() == [pytest.approx(100 / 0.375)] * 4
    assert result.jobs.best_s.tolist() == [100.0] * 4


def test_turns_that_never_get_beyond_a_restart_end() -> None:
    workload, turn = jobs_of((0, 1, 1000), (0, 1, 500)), iter(range(10**6))
    taking_turns = Scripted(lambda view: Allocation.from_rows([(next(turn) % 2, 0, [[1]])]), remember=False)
    result = simulate(workload, Cluster.parse("fast:1"), taking_turns, round_s=10, restart_s=25)
    assert not result.jobs.finished.any()
    assert set(result.left_out.values()) == {
        "unfinished: the scheduler let no job get beyond its restart in 1003 rounds without anything else to run"
    }


def test_a_restart_longer_than_many_rounds_is_waited_for() -> None:
    workload = jobs_of((0, 1, 3), (0, 1, 5))
    result = simulate(workload, Cluster.parse("fast:1"), find_scheduler("yarn_cs"), round_s=1, restart_s=3000)
    assert result.jobs.finish.tolist() == [3003.0, 6008.0]
    kept = simulate(
        workload, Cluster.parse("fast:1"), find_scheduler("gavel", {"objective": "fifo"}), round_s=1, restart_s=9
    )
    assert kept.jobs.finished.all()


ONE_GPU: dict[str, Any] = {"job": [0], "copy": [0], "ptr": [0, 1], "node": [0], "gpu_type": [0], "count": [1]}


@pytest.mark.parametrize("stray", [-1, 2, 7, 50, 10**8, -(10**12)])
@pytest.mark.parametrize("name", ["job", "node", "gpu_type", "refused"])
def test_rows_nodes_and_types_that_do_not_exist_are_named(name: str, stray: int) -> None:
    """Whoever hands them in: the simulation by itself, or an environment's step or check."""
    workload, cluster = jobs_of((0, 1, 100), (0, 1, 100)), Cluster.parse("fast:1 slow:1")
    wrong = Allocation(**{**ONE_GPU, name: [stray]})
    what = (
        "no job in row" if name in ("job", "refused") else f"job 'j0' is given GPUs of {name.replace('gpu_t', 'GPU t')}"
    )
    run, env = Simulation(workload, cluster), ClusterSchedulingEnv(workload, cluster, window=2)
    run.next_view()
    env.reset(seed=0)
    for call in (run.apply, env.step, env.check):
        with pytest.raises(AllocationError, match=f"{what} {stray}"):
            call(wrong)
    run.apply(Allocation(**ONE_GPU))
    assert run.time == 110.0, "nothing had changed"


@pytest.mark.parametrize("name", ["ptr", "copy", "gpu_type", "count", "share", "why"])
@pytest.mark.parametrize("values", [[], [0, 0, 0]])
def test_allocations_whose_arrays_do_not_fit_together_are_none(name: str, values: list[int]) -> None:
    given = {"reason": values} if name == "why" else values
    with pytest.raises(AllocationError, match=f"{'reason' if name == 'why' else name} has length {len(values)}; exp"):
        Allocation(**{**ONE_GPU, name: given})


@pytest.mark.parametrize("ptr", [[1, 1], [0, 2], [0, 0], [0, -1]])
def test_pointers_ascend_from_0_to_the_entries(ptr: list[int]) -> None:
    with pytest.raises(AllocationError, match="expected numbers that ascend from 0 to its 1 entries"):
        Allocation(**{**ONE_GPU, "ptr": ptr})


@pytest.mark.parametrize("values", [[0.0], ["x"], [[0]], [None], [np.nan], 0])
def test_allocations_hold_whole_numbers(values: object) -> None:
    for name in ONE_GPU:
        with pytest.raises(AllocationError, match=f"an allocation's {name} has shape"):
            Allocation(**{**ONE_GPU, name: values})
    assert len(Allocation([], [], [0], [], [], [])) == 0  # type: ignore[arg-type]


def test_jobs_that_run_only_in_one_node_and_fit_none_are_left_out() -> None:
    """Where spread rates are 0, the largest gang is a node's; on several types of one node only for who mixes."""
    table = table_of([[1.0, 1.0, 0.5]], spread=0.0)
    cluster = Cluster.parse("fast:2x2 fast:1+slow:2")
    for workers, mixing, plain in ((2, True, True), (3, True, False), (4, False, False)):
        workload = Workload((Job("a", 0.0, workers, 10.0, "m0"),), table)
        for mixes, fits in ((True, mixing), (False, plain)):
            assert len(Simulation(workload, cluster, mixes=mixes).state.rows) == fits
