"""What must hold for every scheduler on any small world; each one's own rule; the registry."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from cluster.oracle import audit, table_of, worlds
from cluster.scripted import Scripted, greedy_mix
from hypothesis import given, settings, strategies as st

from hadoppler.baselines.cluster.registry import SCHEDULERS, find_scheduler
from hadoppler.baselines.cluster.sia import SiaProgram
from hadoppler.envs.cluster import (
    Allocation,
    Cluster,
    ClusterResult,
    ClusterView,
    Job,
    NodeEvent,
    Scheduler,
    ThroughputTable,
    Workload,
    make_workload,
    simulate,
)
from hadoppler.envs.errors import AllocationError, ClusterError, SchedulerError, UnknownNameError

ALL = [
    ("yarn_cs", {}),
    ("tiresias", {"threshold_gpu_s": 200.0}),
    ("srtf", {}),
    ("hadar", {}),
    ("hadar", {"mode": "horizon"}),
    ("sia", {}),
    ("learned", {}),
    ("random", {}),
    ("gavel", {"objective": "max_min"}),
    ("gavel", {"objective": "makespan"}),
    ("gavel", {"objective": "finish_time_fairness"}),
    ("gavel", {"objective": "max_sum_throughput"}),
    ("gavel", {"objective": "fifo"}),
    ("gavel", {"objective": "max_min", "aware": False}),
    ("gavel", {"objective": "fifo", "aware": False}),
    ("mix", {}),
]
names = pytest.mark.parametrize(("name", "options"), ALL)


def make(name: str, options: dict) -> Scheduler:
    return Scripted(greedy_mix) if name == "mix" else find_scheduler(name, options)


def told(result: ClusterResult) -> list:
    """Everything that a run tells, but for names."""
    rows = [[value for key, value in row.items() if key != "id"] for row in result.jobs.rows()]
    log = [
        [value for key, value in row.items() if key != "job"]
        for row in result.rounds.rows(result.workload, result.cluster)
    ]
    return [str(rows), str(log)]


@names
@given(worlds(), st.sampled_from([25.0, 360.0]), st.sampled_from([0.0, 10.0]), st.booleans())
@settings(max_examples=25)
def test_every_run_stands_a_second_look(
    name: str, options: dict, world: tuple[Workload, Cluster], round_s: float, restart_s: float, refill: bool
) -> None:
    workload, cluster = world
    result = simulate(workload, cluster, make(name, options), round_s=round_s, restart_s=restart_s, early_refill=refill)
    audit(result, restart_s=restart_s)
    assert (result.jobs.start[result.jobs.finished] >= result.jobs.arrival[result.jobs.finished]).all()
    assert all("fit" in reason for reason in result.left_out.values())
    held = result.jobs.gpu_s.sum() - result.jobs.overhead_gpu_s.sum()
    assert held <= result.jobs.gpu_s.sum()
    if result.jobs.finished.any():
        metrics = result.metrics
        assert 0 <= metrics["gru_work"] <= metrics["gru"] <= 1 + 1e-9
        assert 0 <= metrics["cru_work"] <= metrics["cru"] <= 1 + 1e-9


@pytest.mark.parametrize(
    ("name", "options"),
    [*(each for each in ALL if each[0] not in ("mix", "learned")), ("learned", {"mixing": False})],
)
@given(worlds(spread=0.0), st.booleans())
@settings(max_examples=15)
def test_jobs_that_run_only_in_one_node_wait_for_one(
    name: str, options: dict, world: tuple[Workload, Cluster], refill: bool
) -> None:
    """In a calm cluster, and in one whose first node is away for a while."""
    workload, cluster = world
    calm = simulate(workload, cluster, make(name, options), round_s=50, early_refill=refill)
    audit(calm, restart_s=10)
    events = [NodeEvent(60.0, cluster.nodes[0].name, "drain"), NodeEvent(400.0, cluster.nodes[0].name, "restore")]
    rough = simulate(workload, cluster, make(name, options), round_s=50, early_refill=refill, failures=events)
    for result in (calm, rough):
        assert all("fit" in reason for reason in result.left_out.values()), result.left_out
        assert result.metrics["finished"] + len(result.left_out) == len(workload)


@given(st.sampled_from([0.0, 0.8]).flatmap(worlds), st.lists(st.integers(0, 3), max_size=3), st.booleans())
@settings(max_examples=40)
def test_under_yarn_cs_nobody_is_preempted_and_nobody_overtakes(
    world: tuple[Workload, Cluster], away: list[int], refill: bool
) -> None:
    """Also where nodes are drained: only who stood on them moves, and is the first of the queue again."""
    (workload, cluster), yarn = world, find_scheduler("yarn_cs")
    yarn.reset(cluster, 50, np.random.default_rng(0))

    def decide(view: ClusterView) -> Allocation:
        allocation = yarn.schedule(view)
        before, now = view.held.gpus(cluster), allocation.gpus(cluster)
        stays = [gang >= 0 and bool((before[gang] <= view.free).all()) for gang in view.held_gang.tolist()]
        given = np.isin(view.job, allocation.job)
        for position in np.flatnonzero(stays):
            (gang,) = np.flatnonzero(allocation.job == view.job[position])
            assert (now[gang] == before[view.held_gang[position]]).all()
        assert (np.diff(given[~np.array(stays, bool)].astype(int)) <= 0).all()
        return allocation

    nodes = [cluster.nodes[number % len(cluster.nodes)].name for number in away]
    events = [NodeEvent(40.0 + 60 * i, node, "drain") for i, node in enumerate(nodes)]
    events += [NodeEvent(500.0 + 60 * i, node, "restore") for i, node in enumerate(nodes)]
    scheduler = Scripted(decide, mixes=False, remember=False)
    simulate(workload, cluster, scheduler, round_s=50, early_refill=refill, failures=events)


def test_under_yarn_cs_a_drained_job_takes_no_place_of_another() -> None:
    workload = Workload((Job("a", 0.0, 1, 300.0, "m0"), Job("b", 0.0, 1, 300.0, "m0")), table_of([[1.0, 1.0, 1.0]]))
    cluster, events = Cluster.parse("fast:1x2"), [NodeEvent(50.0, "n0", "drain")]
    result = simulate(workload, cluster, find_scheduler("yarn_cs"), round_s=100, restart_s=0, failures=events)
    assert result.jobs.finish.tolist() == [500.0, 300.0]
    assert result.jobs.restarts.tolist() == [2, 1]


@pytest.mark.parametrize("weights", [(0.0, 1.0, 5.0), (0.0, 0.0, 0.0), (0.0, 1e-300, 1.0)])
@pytest.mark.parametrize(
    ("name", "options"), [*ALL, ("hadar", {"utility": "weighted_jct"}), ("hadar", {"mode": "admission"})]
)
def test_a_job_without_weight_is_one_like_the_others(
    name: str, options: dict, weights: tuple[float, ...], recwarn: pytest.WarningsRecorder
) -> None:
    jobs = [Job(f"{weight}-{i}", 50.0 * i, 1, 200.0, "m0", weight=weight) for i, weight in enumerate(weights * 2)]
    workload = Workload(tuple(jobs), table_of([[3.0, 2.0, 1.0]]))
    result = simulate(workload, Cluster.parse("fast:1 slow:1"), make(name, options), round_s=50)
    assert result.metrics["finished"] == len(workload)
    assert not [str(warning.message) for warning in recwarn]


@names
@given(worlds())
@settings(max_examples=10)
def test_same_seed_same_bytes_and_names_change_nothing(
    name: str, options: dict, world: tuple[Workload, Cluster]
) -> None:
    workload, cluster = world
    first = simulate(workload, cluster, make(name, options), round_s=50, seed=7)
    again = simulate(workload, cluster, make(name, options), round_s=50, seed=7)
    assert told(first) == told(again)
    renamed = tuple(replace(job, id=f"z{hash(job.id) % 7}-{len(workload) - i}") for i, job in enumerate(workload.jobs))
    other = simulate(replace(workload, jobs=renamed), cluster, make(name, options), round_s=50, seed=7)
    assert told(first) == told(other)


@names
@given(worlds(), st.sampled_from([-4, 3]))
@settings(max_examples=10)
def test_times_scale_with_the_unit(name: str, options: dict, world: tuple[Workload, Cluster], power: int) -> None:
    workload, cluster = world
    unit = 2.0**power
    table = workload.throughputs
    scaled = replace(
        workload,
        jobs=tuple(replace(job, arrival=job.arrival * unit) for job in workload.jobs),
        throughputs=ThroughputTable(table.types, table.rows, table.rates / unit, table.spread / unit),
    )
    if "threshold_gpu_s" in options:
        first = simulate(workload, cluster, make(name, options), round_s=50, restart_s=10)
        options = {"threshold_gpu_s": options["threshold_gpu_s"] * unit}
    elif name == "gavel":
        first = simulate(workload, cluster, make(name, {**options, "reset_s": 100.0}), round_s=50, restart_s=10)
        options = {**options, "reset_s": 100.0 * unit}
    else:
        first = simulate(workload, cluster, make(name, options), round_s=50, restart_s=10)
    second = simulate(scaled, cluster, make(name, options), round_s=50 * unit, restart_s=10 * unit)
    assert (first.jobs.finish * unit).tolist() == pytest.approx(second.jobs.finish.tolist(), rel=0, abs=0, nan_ok=True)


@names
@given(worlds(), st.lists(st.tuples(st.floats(0, 2000), st.integers(0, 3), st.booleans()), max_size=4), st.booleans())
@settings(max_examples=15)
def test_everything_finishes_in_spite_of_failures(
    name: str, options: dict, world: tuple[Workload, Cluster], hits: list[tuple[float, int, bool]], refill: bool
) -> None:
    workload, cluster = world
    events = []
    for when, node, hard in hits:
        node_name = cluster.nodes[node % len(cluster.nodes)].name
        events += [NodeEvent(when, node_name, "fail" if hard else "drain"), NodeEvent(when + 500, node_name, "restore")]
    calm = simulate(workload, cluster, make(name, options), round_s=100)
    rough = simulate(workload, cluster, make(name, options), round_s=100, failures=events, early_refill=refill)
    assert rough.left_out == calm.left_out
    best = workload.rates(cluster)[0].max(axis=1)
    assert (rough.jobs.lost_steps <= len(hits) * 100 * best + 1e-9).all()
    if rough.jobs.finished.any():
        assert rough.metrics["gru"] <= 1 + 1e-9
        assert rough.metrics["cru"] <= 1 + 1e-9


def test_yarn_cs_is_first_in_first_out_and_keeps_what_it_has() -> None:
    workload, cluster = make_workload("gavel", jobs=60, seed=2, per_hour=20), Cluster.built_in("headline")
    result = simulate(workload, cluster, find_scheduler("yarn_cs"))
    assert (np.diff(result.jobs.start) >= 0).all()
    assert (result.jobs.restarts == 1).all()
    assert result.jobs.waiting == pytest.approx(result.jobs.queueing)


def test_srtf_prefers_the_shortest() -> None:
    table = ThroughputTable.build([("m", 1, "v100", 1.0, np.nan)])
    jobs = tuple(Job(f"j{i}", 0, 1, steps, "m") for i, steps in enumerate((300.0, 100.0, 200.0)))
    result = simulate(Workload(jobs, table), Cluster.parse("v100:1"), find_scheduler("srtf"), restart_s=0, round_s=10)
    assert result.jobs.finish.tolist() == [600.0, 100.0, 300.0]


def test_tiresias_serves_those_that_had_little_first() -> None:
    table = ThroughputTable.build([("m", 1, "v100", 1.0, np.nan)])
    jobs = (Job("long", 0, 1, 1000.0, "m"), Job("short", 150, 1, 50.0, "m"))
    scheduler = find_scheduler("tiresias", {"threshold_gpu_s": 100.0})
    result = simulate(Workload(jobs, table), Cluster.parse("v100:1"), scheduler, restart_s=0, round_s=100)
    assert result.jobs.finish.tolist() == [1050.0, 250.0]


def test_registry_names_the_valid_ones() -> None:
    assert all(isinstance(find_scheduler(name), Scheduler) for name in SCHEDULERS if name != "replay")
    with pytest.raises(UnknownNameError, match="did you mean srtf"):
        find_scheduler("strf")
    with pytest.raises(UnknownNameError, match="no option 'x'; it has no options"):
        find_scheduler("srtf", {"x": 1})
    with pytest.raises(UnknownNameError, match="max_min"):
        find_scheduler("gavel", {"objective": "fairness"})


@given(st.integers(0, 10**6))
@settings(max_examples=30)
def test_sia_solves_its_program(seed: int) -> None:
    rng = np.random.default_rng(seed)
    jobs, free = int(rng.integers(1, 6)), rng.integers(0, 4, 2)
    workers, profit = rng.integers(1, 3, jobs), rng.uniform(-0.5, 1.0, (jobs, 2))
    program = SiaProgram(2, 0.0)
    for _ in range(2):
        taken = program.solve(np.arange(jobs), workers, np.maximum(profit, 0.0), free)
        assert (taken.sum(axis=1) <= 1).all()
        assert ((taken * workers[:, None]).sum(axis=0) <= free).all()
        best = 0.0
        for choice in product((-1, 0, 1), repeat=jobs):
            used = [sum(w for w, r in zip(workers.tolist(), choice, strict=True) if r == kind) for kind in (0, 1)]
            if (np.array(used) <= free).all():
                best = max(best, sum(profit[j, r] for j, r in enumerate(choice) if r >= 0))
        assert float((taken * profit).sum()) == pytest.approx(best)
        profit, free = rng.uniform(-0.5, 1.0, (jobs, 2)), rng.integers(0, 4, 2)


def test_sia_leaves_a_job_that_moved_often_where_it_is() -> None:
    table = ThroughputTable.build(
        [
            (m, 1, kind, rate, rate)
            for m, kind, rate in (("a", "f", 1.2), ("a", "s", 1.0), ("b", "f", 1.3), ("b", "s", 1.0))
        ]
    )
    workload = Workload((Job("a", 0.0, 1, 9000.0, "a"), Job("b", 1000.0, 1, 900.0, "b")), table)
    cluster = Cluster.parse("f:1 s:1")
    result = simulate(workload, cluster, find_scheduler("sia"))
    assert result.jobs.restarts.tolist() == [3, 1]  # a yields the fast GPU to b, and takes it back
    stubborn = simulate(workload, cluster, find_scheduler("sia"), restart_s=100)
    assert stubborn.jobs.restarts.tolist() == [1, 1]


def test_sia_refuses_bad_options() -> None:
    with pytest.raises(SchedulerError, match=r"power is 0\.5.*expected power below 0"):
        find_scheduler("sia", {"power": 0.5})


def test_schedulers_keep_to_what_they_said() -> None:
    table = ThroughputTable.build([("m", 2, kind, 1.0, 1.0) for kind in ("f", "s")])
    workload, cluster = Workload((Job("a", 0.0, 2, 100.0, "m"),), table), Cluster.parse("f:1 s:1 f:2")
    mixed = Allocation.from_rows([(0, 0, [[1, 0], [0, 1], [0, 0]])])
    with pytest.raises(AllocationError, match="several types although its mixes is False"):
        simulate(workload, cluster, Scripted(lambda view: mixed, mixes=False))
    twice = Allocation.from_rows([(0, 0, [[1, 0], [0, 0], [1, 0]]), (0, 1, [[0, 0], [0, 1], [1, 0]])])
    with pytest.raises(AllocationError, match="several gangs although its forks is False"):
        simulate(workload, cluster, Scripted(lambda view: twice))
    with pytest.raises(AllocationError, match="returned NoneType; schedule must return an Allocation"):
        simulate(workload, cluster, Scripted(lambda view: None))  # type: ignore[arg-type, return-value]


def test_runs_without_end_are_refused() -> None:
    table = ThroughputTable.build([("m", 1, "f", 1.0, 1.0)])
    long = Workload((Job("a", 0.0, 1, 1e12, "m"),), table)
    with pytest.raises(ClusterError, match=r"job 'a' alone needs 2\.78e\+09 rounds of 360 s"):
        simulate(long, Cluster.parse("f:1"), find_scheduler("srtf"))
    two = Workload((Job("a", 0.0, 1, 1000.0, "m"), Job("b", 0.0, 1, 500.0, "m")), table)
    with pytest.raises(SchedulerError, match="restart of 360 s must be shorter than a round of 360 s"):
        simulate(two, Cluster.parse("f:1"), find_scheduler("gavel"), restart_s=360)
