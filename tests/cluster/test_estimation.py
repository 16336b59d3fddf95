"""Throughput estimates: the formula by hand, its correction by measurements, and every scheduler on estimates."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cluster.oracle import audit, worlds
from cluster.scripted import Scripted, fork_everywhere, greedy_mix
from hypothesis import given, settings, strategies as st

from hadoppler.baselines.cluster.registry import SCHEDULERS, find_scheduler
from hadoppler.envs.cluster import (
    Allocation,
    Cluster,
    Job,
    NodeEvent,
    RateEstimator,
    Scheduler,
    Simulation,
    SimulationRules,
    ThroughputTable,
    Workload,
    disturbed,
    estimate_table,
    make_workload,
    prior_table,
    simulate,
)
from hadoppler.envs.cluster.estimation import step_seconds
from hadoppler.envs.cluster.facts import GPUS, MODELS, GpuFacts, ModelFacts
from hadoppler.envs.errors import ClusterError, ThroughputError
from hadoppler.scripts import simulate as command

GPU = GpuFacts(1e12, 1e11, 1e10)
MODEL = ModelFacts(flops=1e9, bytes_moved=1e8, input_bytes=1e6, parameter_bytes=1e8)


def gangs(*rows: tuple[int, list[tuple[int, int, int]]]) -> Allocation:
    """Gangs from (job, [(node, type, GPUs)])."""
    entries = np.array([entry for _, places in rows for entry in places]).T
    ptr = np.cumsum([0, *(len(places) for _, places in rows)])
    return Allocation(np.array([job for job, _ in rows]), np.zeros(len(rows), np.int64), ptr, *entries)


# --- the formula --------------------------------------------------------------------------------------


def test_a_step_by_hand() -> None:
    # compute 3 x 1e9 x 10 / (.35 x 1e12) = 0.0857 s, memory 1e8 x 10 / 1e11 = 0.01 s, input 1e6 x 10 / 1e10 = 0.001 s
    assert step_seconds(MODEL, GPU, 10) == pytest.approx(30 / 350 + 0.001)
    slow_memory = GpuFacts(1e12, 1e9, 1e10)
    assert step_seconds(MODEL, slow_memory, 10) == pytest.approx(1.0 + 0.001)
    assert step_seconds(ModelFacts(1e9, 0, 0, 0, batch_size=7), GPU) == pytest.approx(21 / 350)


def test_gangs_exchange_their_gradients() -> None:
    facts: dict[str, Any] = {"models": {"m": MODEL}, "gpus": {"g": GPU}}
    table = estimate_table([("m (batch size 10)", 4), ("m (batch size 10)", 1)], ["g"], **facts)
    alone = 30 / 350 + 0.001
    near, spread = table.job_rates("m (batch size 10)", 4)
    assert near[0] == pytest.approx(4 / (alone + 1.5 * 1e8 / 1e10))
    assert spread[0] == pytest.approx(4 / (alone + 1.5 * 1e8 / 1.25e9))
    assert table.job_rates("m (batch size 10)", 1)[0][0] == pytest.approx(1 / alone)


def test_facts_cover_the_bundled_table_and_say_where_they_come_from() -> None:
    table = ThroughputTable.default()
    estimated = estimate_table(table.rows, table.types)
    assert estimated.rows.keys() == table.rows.keys()
    assert (estimated.rates > 0).all()
    assert {"t4", "a100", "h100", "l4"} <= set(GPUS)
    assert all(facts.source for facts in (*GPUS.values(), *MODELS.values()))


def test_unknown_names_are_told() -> None:
    with pytest.raises(ThroughputError, match="model 'ResNet18'; did you mean 'ResNet-18'"):
        estimate_table([("ResNet18 (batch size 4)", 1)], ["v100"])
    with pytest.raises(ThroughputError, match="GPU type 'abacus'; known are k80"):
        estimate_table([("LM (batch size 4)", 1)], ["abacus"])


def test_relative_speeds_refer_to_the_formulas_first_type() -> None:
    workload, cluster = make_workload("physical", jobs=3, seed=0), Cluster.built_in("lab_like")
    rates, _ = prior_table("formula", workload, cluster).rates_of(workload.jobs, cluster)
    assert rates / rates[:, :1] == pytest.approx(np.tile([1, 0.9, 0.5, 0.35, 0.15], (3, 1)))


def test_disturbed_is_wrong_by_the_factor_and_repeatable() -> None:
    table = ThroughputTable.default()
    wrong = disturbed(table, 3.0, seed=5)
    runs = table.rates > 0
    ratio = wrong.rates[runs] / table.rates[runs]
    assert set(np.round(ratio, 9)) == {3.0, round(1 / 3, 9)}
    assert 0.4 < (ratio > 1).mean() < 0.6
    assert np.array_equal(wrong.rates, disturbed(table, 3.0, seed=5).rates, equal_nan=True)
    assert not np.array_equal(wrong.rates, disturbed(table, 3.0, seed=6).rates, equal_nan=True)
    assert np.array_equal(disturbed(table, 1.0).rates, table.rates, equal_nan=True)
    with pytest.raises(ThroughputError, match=r"factor is 0\.5"):
        disturbed(table, 0.5)


# --- the correction -----------------------------------------------------------------------------------


def estimator(rates: list[list[float]], workers: list[int], **options: Any) -> RateEstimator:
    return RateEstimator(np.array(rates), 0.8 * np.array(rates), np.array(workers), **options)


def test_the_first_measurement_counts_whole_and_later_ones_half() -> None:
    believed = estimator([[10.0, 6.0, 0.0], [1.0, 1.0, 1.0]], [2, 1])
    one = gangs((0, [(0, 0, 2)]))
    believed.observe(one, np.array([20.0]))
    assert believed.rates[0].tolist() == pytest.approx([20, 12, 0])  # the others times 2; what does not fit stays
    assert believed.spread[0].tolist() == pytest.approx([16, 9.6, 0])
    believed.observe(one, np.array([30.0]))
    assert believed.rates[0].tolist() == pytest.approx([25, 15, 0])
    assert believed.rates[1].tolist() == [1, 1, 1]
    literal = estimator([[10.0, 6.0]], [2], prior_weight=0.5)
    literal.observe(one, np.array([20.0]))
    assert literal.rates[0].tolist() == pytest.approx([15, 9])


def test_others_follow_as_far_as_errors_agree_and_gangs_over_nodes_have_their_own() -> None:
    believed = estimator([[10.0, 6.0, 4.0]], [2])
    believed.observe(gangs((0, [(0, 0, 2)])), np.array([20.0]))
    assert believed.rates[0].tolist() == pytest.approx([20, 12, 8])
    believed.observe(gangs((0, [(2, 1, 1), (3, 1, 1)])), np.array([1.2]))  # spread: prior 4.8, a quarter
    # errors ln 2 and -2 ln 2 disagree: c = (1 - 2 ln^2 2) / (1 + 2.5 ln^2 2) = 0.0178; ratio (2 x 1/4)^(c / (1 + c))
    agreement = (1 - 2 * np.log(2) ** 2) / (1 + 2.5 * np.log(2) ** 2)
    ratio = 0.5 ** (agreement / (1 + agreement))
    assert believed.agreement == pytest.approx(agreement)
    assert believed.rates[0].tolist() == pytest.approx([20, 1.5, 4 * ratio])
    assert believed.spread[0].tolist() == pytest.approx([16, 1.2, 3.2 * ratio])
    believed.observe(gangs((0, [(2, 2, 1), (3, 2, 1)])), np.array([50.0]))
    assert believed.rates[0, 2] == pytest.approx(50 / 0.8)
    assert believed.spread[0, 2] == 50
    backwards = RateEstimator(np.array([[10.0]]), np.array([[9.0]]), np.array([2]))
    for rate, gang in ((10.0, [(0, 0, 2)]), (20.0, [(0, 0, 1), (1, 0, 1)])):
        backwards.observe(gangs((0, gang)), np.array([rate]))
    assert (backwards.rates[0, 0], backwards.spread[0, 0]) == (10, 10)  # never faster over nodes than in one


def test_where_errors_agree_the_mean_ratio_is_believed() -> None:
    believed = estimator([[10.0, 6.0, 4.0], [1.0, 1.0, 1.0]], [1, 1])
    for gpu_type, rate in ((0, 20.0), (1, 48.0)):  # errors ln 2 and 3 ln 2
        believed.observe(gangs((0, [(0, gpu_type, 1)])), np.array([rate]))
    c = (1 + 3 * np.log(2) ** 2) / (1 + 5 * np.log(2) ** 2)
    assert believed.rates[0].tolist() == pytest.approx([20, 48, 4 * 16 ** (c / (1 + c))])
    believed.observe(gangs((1, [(0, 2, 1)])), np.array([2.0]))  # other rows learn how far errors agree
    assert believed.rates[1].tolist() == pytest.approx([2**c, 2**c, 2])


def test_where_errors_are_independent_types_not_tried_are_tried() -> None:
    rng = np.random.default_rng(0)
    true = rng.uniform(1, 50, (100, 3))
    prior = true * 3.0 ** rng.choice([-1, 1], true.shape)
    believed = estimator(prior.tolist(), [1] * 100)
    for gpu_type in (0, 1):
        believed.observe(gangs(*[(job, [(0, gpu_type, 1)]) for job in range(99)]), true[:99, gpu_type])
    assert believed.agreement < 0.2
    assert believed.rates[:99, 2] == pytest.approx(prior[:99, 2], rel=0.5)


def test_jobs_of_a_row_share_what_is_measured() -> None:
    rates = [[10.0, 6.0], [4.0, 4.0], [10.0, 6.0], [10.0, 6.0]]
    believed = estimator(rates, [2, 2, 2, 2], row=np.array([7, 3, 7, 7]))
    believed.observe(gangs((0, [(0, 0, 2)]), (3, [(1, 0, 2)])), np.array([20.0, 40.0]))  # together: 30
    assert believed.rates[[0, 2, 3]].tolist() == pytest.approx(np.array([[30, 18]] * 3))
    assert believed.rates[1].tolist() == [4, 4]
    assert believed.measured[0].tolist() == [[True, False], [False, False], [True, False], [True, False]]
    believed.observe(gangs((2, [(0, 0, 2)])), np.array([10.0]))
    assert believed.rates[0].tolist() == pytest.approx([20, 12])


def test_rows_are_those_of_the_table() -> None:
    table = ThroughputTable.build([("m", workers, "fast", 1.0 * workers, np.nan) for workers in (1, 2)])
    jobs = tuple(Job(f"j{i}", 0, workers, 10.0, "m") for i, workers in enumerate((1, 2, 1)))
    believed = RateEstimator.from_table(table, Workload(jobs, table), Cluster.parse("fast:4"))
    believed.observe(gangs((2, [(0, 0, 1)])), np.array([5.0]))
    assert believed.rates[:, 0].tolist() == [5, 2, 5]


def test_a_mixed_gang_tells_about_the_type_that_was_not_known() -> None:
    believed = estimator([[10.0, 6.0]], [4])
    believed.observe(gangs((0, [(0, 0, 4)])), np.array([20.0]))
    # 3 x 20 / 4 + 1 x Y / 4 = 16 steps/s leaves Y = 4
    believed.observe(gangs((0, [(0, 0, 3), (0, 1, 1)])), np.array([16.0]))
    assert believed.rates[0].tolist() == pytest.approx([20, 4])
    # all known: 16 believed, 8 measured, so that both halve, by halves
    believed.observe(gangs((0, [(0, 0, 3), (0, 1, 1)])), np.array([8.0]))
    assert believed.rates[0].tolist() == pytest.approx([15, 3])
    assert believed.gang_rates(gangs((0, [(0, 0, 3), (0, 1, 1)]))).tolist() == pytest.approx([12])


def test_under_min_the_number_is_the_slowest_types() -> None:
    believed = estimator([[10.0, 6.0, 2.0]], [4], mixed_rate="min")
    gang = gangs((0, [(0, 0, 3), (0, 1, 1)]))
    assert believed.gang_rates(gang).tolist() == [6]
    believed.observe(gang, np.array([3.0]))
    assert believed.rates[0].tolist() == pytest.approx([5, 3, 1])
    believed.observe(gang, np.array([20.0]))  # neither can be slower than 20
    assert believed.rates[0, 0] == 20


def test_copies_of_a_job_report_together_and_silence_changes_nothing() -> None:
    believed = estimator([[10.0, 6.0]], [1])
    copies = gangs((0, [(0, 0, 1)]), (0, [(1, 0, 1)]), (0, [(2, 1, 1)]))
    believed.observe(copies, np.full(3, np.nan))
    assert believed.rates[0].tolist() == [10, 6]
    believed.observe(copies, np.array([4.0, 6.0, np.nan]))
    assert believed.rates[0].tolist() == [5, 3]
    assert believed.spread[0].tolist() == [5, 3]  # one worker is never spread
    believed.observe(Allocation.empty(), np.zeros(0))


@pytest.mark.parametrize("seed", range(3))
def test_priors_wrong_by_three_converge_in_three_rounds(seed: int) -> None:
    rng = np.random.default_rng(seed)
    true = rng.uniform(1, 50, (200, 3))
    wrong = true * 3.0 ** rng.choice([-1, 1], true.shape)
    believed = estimator(wrong.tolist(), [1] * 200)
    errors = []
    for _ in range(3):
        rows = [(job, [(r, r, 1)]) for job in range(200) for r in range(3)]
        believed.observe(gangs(*rows), true.ravel() * rng.lognormal(0, 0.05, true.size))  # a copy on every type
        errors.append(float(np.abs(believed.rates / true - 1).mean()))
    assert errors[-1] < 0.1
    assert np.abs(wrong / true - 1).mean() > 1


def test_one_error_for_all_types_is_gone_after_one_measurement() -> None:
    true = np.array([[10.0, 6.0, 2.0]])
    believed = estimator((true / 3).tolist(), [2])
    believed.observe(gangs((0, [(0, 1, 2)])), np.array([6.0]))
    assert believed.rates == pytest.approx(true)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(0, 3), st.floats(0.01, 100)), max_size=12))
def test_beliefs_stay_positive_and_ordered(reports: list[tuple[int, int, int, float]]) -> None:
    rates = np.array([[3.0, 2.0, 1.0], [0.0, 5.0, 1.0], [4.0, 0.0, 0.0], [1.0, 1.0, 1.0]])
    believed = RateEstimator(rates, 0.8 * rates, np.array([4, 2, 1, 3]))
    for job, gpu_type, spread, rate in reports:
        if rates[job, gpu_type] > 0:
            size = int([4, 2, 1, 3][job])
            places = [(0, gpu_type, 1), (1, gpu_type, size - 1)] if spread and size > 1 else [(0, gpu_type, size)]
            believed.observe(gangs((job, places)), np.array([rate]))
    assert (believed.rates[rates > 0] > 0).all()
    assert (believed.rates[rates == 0] == 0).all()
    assert (believed.spread <= believed.rates).all()
    assert np.isfinite(believed.rates).all()


# --- in the simulator ---------------------------------------------------------------------------------


TABLE = ThroughputTable.build(
    [
        ("m", 1, "fast", 4.0, np.nan),
        ("m", 1, "slow", 1.0, np.nan),
        ("n", 1, "fast", 0.0, np.nan),
        ("n", 1, "slow", 2.0, np.nan),
    ]
)


def test_views_show_estimates_and_rounds_mend_them() -> None:
    workload = Workload((Job("a", 0, 1, 1000.0, "m"), Job("b", 0, 1, 1000.0, "n")), TABLE)
    wrong = ThroughputTable(TABLE.types, TABLE.rows, np.array([[1.0, 3.0], [7.0, 7.0]]), np.full((2, 2), np.nan))

    def slow_then_fast(view: Any) -> Allocation:
        type_of_a = 1 if view.time == 0 else 0
        rows = [(0, 0, np.eye(2, dtype=int)[[type_of_a]])] if 0 in view.job else []
        rows = rows or ([(1, 0, np.array([[0, 1]]))] if 1 in view.job else [])
        return Allocation.from_rows(rows)

    scheduler = Scripted(slow_then_fast)
    result = simulate(workload, Cluster.parse("fast:1+slow:1"), scheduler, round_s=100, estimates=wrong)
    views = scheduler.views
    assert views[0].rates.tolist() == [[1, 3], [0, 7]]  # n does not fit the fast type, and that is known
    assert views[1].rates[0].tolist() == pytest.approx([1 / 3, 1])
    assert views[1].rates[1].tolist() == [0, 7]
    assert views[2].rates[0].tolist() == pytest.approx([4, 1])
    assert result.jobs.finish[0] == pytest.approx(110 + (1000 - 90) / 4)  # the true rates drive it


def test_a_gang_that_did_not_work_or_was_lost_tells_nothing() -> None:
    workload = Workload((Job("a", 0, 1, 1000.0, "m"),), TABLE)
    wrong = disturbed(TABLE, 3.0)

    def shown(restart_s: float, failures: list[NodeEvent]) -> list[float]:
        scheduler = Scripted(greedy_mix)
        rules = {"round_s": 100.0, "restart_s": restart_s, "max_rounds": 2}
        simulate(workload, Cluster.parse("slow:1 fast:1"), scheduler, estimates=wrong, failures=failures, **rules)
        return scheduler.views[1].rates[0].tolist()

    before = wrong.job_rates("m", 1)[0][::-1].tolist()
    assert shown(100.0, []) == before
    assert shown(10.0, [NodeEvent(50.0, "n0", "fail")]) == before
    assert shown(10.0, [])[0] == pytest.approx(1.0)


def test_copies_are_split_by_what_is_believed() -> None:
    workload = Workload((Job("a", 0, 1, 1e5, "m"),), TABLE)
    wrong = ThroughputTable(TABLE.types, TABLE.rows, np.array([[4.0, 2.0], [0.0, 2.0]]), np.full((2, 2), np.nan))
    scheduler = Scripted(fork_everywhere, forks=True)
    rules = {"round_s": 115.0, "restart_s": 0.0, "consolidation_s": 15.0}
    simulate(workload, Cluster.parse("fast:1 slow:1"), scheduler, estimates=wrong, max_rounds=3, **rules)
    # 400 + 200 steps are given out, the slow copy manages 100 of them; then both are known
    assert [float(view.remaining[0]) for view in scheduler.views] == [1e5, 1e5 - 500, 1e5 - 1000]
    low = ThroughputTable(TABLE.types, TABLE.rows, np.array([[1.0, 1.0], [0.0, 2.0]]), np.full((2, 2), np.nan))
    simulate(workload, Cluster.parse("fast:1 slow:1"), scheduler, estimates=low, max_rounds=3, **rules)
    assert [float(view.remaining[0]) for view in scheduler.views] == [1e5, 1e5 - 200, 1e5 - 700]


ROWS = [
    *((name, {}) for name in SCHEDULERS if name not in ("replay", "gavel", "learned")),
    *(("gavel", {"objective": name}) for name in ("max_min", "makespan", "finish_time_fairness", "max_sum_throughput")),
    ("hadar", {"mode": "horizon"}),
    ("hadar", {"mode": "admission"}),
    ("mix", {}),
    ("fork", {}),
]


def make(name: str, options: dict[str, Any]) -> Scheduler:
    if name == "fork":
        return Scripted(fork_everywhere, forks=True)
    return Scripted(greedy_mix) if name == "mix" else find_scheduler(name, options)


@pytest.mark.parametrize(("name", "options"), [row for row in ROWS if row[0] != "fork"])
@given(world=worlds(), refill=st.booleans(), seed=st.integers(0, 3))
@settings(max_examples=12)
def test_every_scheduler_runs_on_estimates(
    name: str, options: dict, world: tuple[Workload, Cluster], refill: bool, seed: int
) -> None:
    workload, cluster = world
    wrong, scheduler = disturbed(workload.throughputs, 3.0, seed), make(name, options)
    rules = {"round_s": 50.0, "restart_s": 5.0, "early_refill": refill}
    result = simulate(workload, cluster, scheduler, estimates=wrong, **rules)
    assert all("fit" in reason or "refused" in reason for reason in result.left_out.values())
    if not scheduler.forks:
        audit(result, restart_s=5.0)


@pytest.mark.parametrize(("name", "options"), ROWS)
def test_estimates_with_failures_and_refills(name: str, options: dict) -> None:
    workload, cluster = make_workload("physical", jobs=4, seed=1), Cluster.built_in("lab_like")
    events = [NodeEvent(900.0, "n0", "fail"), NodeEvent(3000.0, "n0", "restore"), NodeEvent(5000.0, "n2", "drain")]
    first, again = (
        simulate(
            workload, cluster, make(name, options), early_refill=True, failures=events,
            estimates=disturbed(workload.throughputs),
        )
        for _ in range(2)
    )  # fmt: skip
    assert all("refused" in reason for reason in first.left_out.values())
    assert np.array_equal(first.jobs.finish, again.jobs.finish, equal_nan=True)


@pytest.mark.parametrize(("name", "options"), ROWS[:-2])
def test_right_estimates_change_nothing(name: str, options: dict) -> None:
    workload, cluster = make_workload("headline", jobs=15, seed=3), Cluster.parse("v100:4x2 p100:4 k80:4")
    plain = simulate(workload, cluster, make(name, options))
    informed = simulate(workload, cluster, make(name, options), estimates=workload.throughputs)
    assert plain.jobs.finish.tolist() == pytest.approx(informed.jobs.finish.tolist(), rel=1e-9, nan_ok=True)


def test_gavel_follows_rates_that_change() -> None:
    table = ThroughputTable.build([("a", 1, "fast", 4.0, np.nan), ("b", 1, "fast", 1.0, np.nan)])
    wrong = ThroughputTable(table.types, table.rows, np.array([[1.5], [2.0]]), table.spread)
    workload = Workload((Job("a", 0, 1, 4e4, "a"), Job("b", 0, 1, 4e4, "b")), table)
    scheduler = find_scheduler("gavel", {"objective": "max_sum_throughput", "reset_s": 360.0})
    finish = simulate(workload, Cluster.parse("fast:1"), scheduler, estimates=wrong).jobs.finish
    assert finish[0] < finish[1]  # b, believed the faster, runs first, and is left when it shows that it is not


def test_a_simulation_driven_from_outside_takes_an_estimator() -> None:
    workload, cluster = make_workload("headline", jobs=10, seed=0), Cluster.parse("v100:4x2 k80:4")
    believed = RateEstimator.from_table(disturbed(workload.throughputs), workload, cluster)
    run = Simulation(workload, cluster, SimulationRules(), mixes=False, estimator=believed)
    scheduler = find_scheduler("srtf")
    while (view := run.next_view()) is not None:
        run.apply(scheduler.schedule(view))
    true = np.array(workload.rates(cluster))
    assert believed.measured.any()
    assert np.array([believed.rates, believed.spread])[believed.measured] == pytest.approx(true[believed.measured])


def test_refusals() -> None:
    workload, cluster = make_workload("headline", jobs=4, seed=0), Cluster.parse("v100:4x2")
    gavel = find_scheduler("gavel", {})
    with pytest.raises(ClusterError, match="knows no estimates"):
        simulate(workload, cluster, gavel, mechanism="gavel", estimates=workload.throughputs)
    table = workload.throughputs
    nothing = ThroughputTable(table.types, table.rows, table.rates * 0, table.spread)
    with pytest.raises(ThroughputError, match="no rate above 0 of"):
        simulate(workload, cluster, gavel, estimates=nothing)
    with pytest.raises(ThroughputError, match="expected one of formula, disturbed"):
        prior_table("guess", workload, cluster)  # type: ignore[arg-type]


# --- on the command line ------------------------------------------------------------------------------


def run_simulate(*arguments: str) -> dict[str, Any]:
    """``results.json`` of a run in the current folder."""
    before = set(Path().glob("runs/simulate/*/results.json"))
    assert command.main(["workload.jobs=12", "pictures=false", "rounds=false", *arguments]) == 0
    (new,) = set(Path().glob("runs/simulate/*/results.json")) - before
    return json.loads(new.read_text())


def test_simulate_takes_estimates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    small = ["cluster=parse", "cluster.text=v100:4 p100:4 k80:4"]
    plain = run_simulate("scheduler=[tiresias,gavel]", *small)
    assert "shown estimates" not in capsys.readouterr().out
    for prior, told in (("formula", "estimated from published figures"), ("disturbed", "wrong by 2x at random")):
        rows = run_simulate("scheduler=[tiresias,gavel]", f"estimates={prior}", "estimates_factor=2", *small)["rows"]
        assert told in capsys.readouterr().out
        assert rows[0]["ttd_s"] == plain["rows"][0]["ttd_s"]  # Tiresias knows no rates
        assert rows[1]["ttd_s"] != plain["rows"][1]["ttd_s"]
    for arguments, message in (
        (["estimates=guess"], "estimates is 'guess'; expected none, formula or disturbed."),
        (["estimates=disturbed", "estimates_factor=0"], "the factor is 0.0; expected a number from 1 up"),
        (["estimates=formula", "mechanism=gavel", "scheduler=[gavel]"], "mechanism=gavel knows no estimates"),
    ):
        assert command.main(arguments) == 2
        assert message in capsys.readouterr().err
