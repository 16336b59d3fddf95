"""What the simulator learns from executions, and how times are measured for training."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from placement_oracles import problems
from scipy.stats import spearmanr

from hadoppler import place
from hadoppler.envs.errors import PlacementError
from hadoppler.envs.placement import DataflowGraph, PlacementProblem, Topology, make_graph, makespans, simulate
from hadoppler.real_system.placement import Execution, ExecutionError, ExecutionTimeoutError, emulated_executor
from hadoppler.real_system.placement.calibration import calibrated
from hadoppler.real_system.placement.measured_time import MeasuredTime


def executed(problem: PlacementProblem, assignment: Any, **options: Any) -> Execution:
    """An execution as the simulator would have it, without any delay."""
    schedule = simulate(problem, assignment, memory="off", **options)
    return Execution(schedule, schedule.start)


@settings(max_examples=40)
@given(problems(zero=False), st.integers(0, 2**31))
def test_exact_traces_give_the_truth_back(problem: PlacementProblem, seed: int) -> None:
    """From exact executions on every device, every operation's time on every device is found again."""
    rng = np.random.default_rng(seed)
    rows = [np.full(problem.n, device) for device in range(problem.d)]
    rows += [rng.integers(problem.d, size=problem.n) for _ in range(6)]
    believed = calibrated(problem, [executed(problem, row) for row in rows])
    np.testing.assert_allclose(believed.compute_s, problem.compute_s, rtol=1e-9)
    assert believed.time_unit == 1.0


def test_links_and_contention_are_found_again() -> None:
    """One slow link, a latency, and ports: 12 random executions of 60 operations tell them."""
    graph = _layered()
    bandwidth = np.full((3, 3), 2.0)
    bandwidth[0, 1] = 0.5
    rng = np.random.default_rng(0)
    for rule in ("ports", "pair", "none"):
        truth = PlacementProblem(graph, Topology.uniform(3, bandwidth=bandwidth, latency=0.25, contention=rule))
        guess = PlacementProblem(graph, Topology.uniform(3, bandwidth=4.0, contention="none"))
        rows = [rng.integers(3, size=graph.n) for _ in range(12)]
        believed = calibrated(guess, [executed(truth, row) for row in rows])
        assert believed.contention == rule
        apart = ~np.eye(3, dtype=bool)
        np.testing.assert_allclose(believed.topology.bandwidth[apart], bandwidth[apart], rtol=1e-6)
        np.testing.assert_allclose(believed.topology.latency[apart], 0.25, rtol=1e-6)
        fresh = rng.integers(3, size=(20, graph.n))
        np.testing.assert_allclose(makespans(believed, fresh), makespans(truth, fresh), rtol=0.01)  # ties


def _layered() -> DataflowGraph:
    rng = np.random.default_rng(1)
    edges = [(int(rng.integers(max(0, v - 12), v)), v) for v in range(4, 60) for _ in range(2)]
    return DataflowGraph.build(
        flops=rng.integers(1, 6, size=60), edges=sorted(set(edges)), out_bytes=rng.integers(1, 5, size=60)
    )


def test_what_was_not_run_somewhere_is_scaled() -> None:
    """Class A was run on both devices (1 and 3 s), class B on device 0 only (2 s): B takes 6 s on device 1."""
    graph = DataflowGraph.build(flops=[1.0, 1.0, 2.0], edges=[])
    truth = PlacementProblem(graph, Topology.uniform(speeds=[1.0, 1 / 3]))
    guess = PlacementProblem(graph, Topology.uniform(2))
    believed = calibrated(guess, [executed(truth, [0, 1, 0])])
    np.testing.assert_allclose(believed.compute_s, [[1, 3], [1, 3], [2, 6]], rtol=1e-9)


def test_outliers_do_not_count() -> None:
    graph = DataflowGraph.build(flops=[1.0], edges=[])
    problem = PlacementProblem(graph, Topology.uniform(1))
    runs = [executed(problem, [0]) for _ in range(9)]
    slow = replace(runs[0].schedule, end=np.array([50.0]), makespan=50.0)
    assert calibrated(problem, [*runs, Execution(slow, slow.start)]).compute_s[0, 0] == pytest.approx(1.0)


def test_emulated_devices_are_predicted() -> None:
    """After a dozen executions the simulator ranks other placements as the devices do."""
    problem = PlacementProblem.raw(make_graph("chainmm", costs="published"))
    rng = np.random.default_rng(0)
    with emulated_executor(problem, bound_s=0.01, contention="ports", slow_links=[(0, 1, 3.0)]) as executor:
        believed = calibrated(problem, [executor.run(rng.integers(4, size=problem.n)) for _ in range(12)])
        good = [place(name, problem).assignment for name in ("round_robin", "heft", "etf", "portfolio")]
        rows = np.stack(
            [*good, *(rng.choice(4, size=problem.n, p=rng.dirichlet(np.full(4, c))) for c in (0.3, 1, 9) * 4)]
        )
        measured = [min(executor.run(row).makespan for _ in range(2)) for row in rows]
    assert spearmanr(makespans(believed, rows, memory="off"), measured)[0] > 0.85


def test_calibration_needs_executions_of_the_graph() -> None:
    problem = PlacementProblem(DataflowGraph.build(flops=[1.0, 1.0]), Topology.uniform(1))
    other = PlacementProblem(DataflowGraph.build(flops=[1.0]), Topology.uniform(1))
    with pytest.raises(PlacementError, match="at least one execution"):
        calibrated(problem, [])
    with pytest.raises(PlacementError, match="another graph"):
        calibrated(problem, [executed(other, [0])])


class Told:
    """An executor that tells given times; NaN is a time-out, negative ones are disturbed."""

    def __init__(self, problem: PlacementProblem, times: list[float]) -> None:
        self.problem, self.left = problem, list(times)

    def run(self, assignment: Any, inputs: Any = None, **options: Any) -> Execution:
        seconds = self.left.pop(0)
        limit = options.get("timeout")
        if np.isnan(seconds) or (limit is not None and abs(seconds) > limit):
            raise ExecutionTimeoutError("too long")
        schedule = replace(simulate(self.problem, assignment), makespan=abs(seconds))
        return Execution(schedule, schedule.start, interference=abs(seconds) if seconds < 0 else 0.0)


def test_medians_of_clean_repetitions() -> None:
    problem = PlacementProblem(DataflowGraph.build(flops=[1.0]), Topology.uniform(1))
    zero = np.zeros(1, dtype=np.int32)
    source = MeasuredTime(Told(problem, [9, 1.0, -7.0, 1.2, 50.0, 2.0]), repeats=3)  # type: ignore[arg-type]
    assert source.measure(zero, zero)[0] == 1.2  # warm-up 9; -7 dropped; 1, 1.2, 50
    assert (source.calls, source.dropped) == (5, 1)
    assert source.run(problem, zero, zero, limit=1.5) == 1.5
    assert source.calls == 6


def test_where_all_repetitions_are_disturbed_the_least_ones_count() -> None:
    problem = PlacementProblem(DataflowGraph.build(flops=[1.0]), Topology.uniform(1))
    zero = np.zeros(1, dtype=np.int32)
    source = MeasuredTime(Told(problem, [-4.0, -3.0, -2.0, -5.0]), warm_up=0)  # type: ignore[arg-type]
    assert source.times(problem, zero[None], zero[None], np.random.default_rng(0)).tolist() == [2.0]
    assert source.dropped == 4


class Forgetful(Told):
    """One that forgets its inputs with each time-out, and notes what each run was given."""

    def __init__(self, problem: PlacementProblem, times: list[float]) -> None:
        super().__init__(problem, times)
        self.runs: list[tuple[list[int], Any]] = []
        self.inputs: Any = "random"

    def run(self, assignment: Any, inputs: Any = None, **options: Any) -> Execution:
        self.inputs = self.inputs if inputs is None else inputs
        self.runs.append((assignment.tolist(), self.inputs))
        try:
            return super().run(assignment, inputs, **options)
        except ExecutionTimeoutError:
            self.inputs = "random"
            raise


@pytest.mark.parametrize("calls", [0, 1, 57])
@pytest.mark.parametrize("warm_up", [0, 1, 2])
def test_devices_are_given_the_inputs_and_warmed_up_wherever_they_begin(calls: int, warm_up: int) -> None:
    """At first, whatever ``calls`` was set to, and after each run that was ended: with what is known to end."""
    problem = PlacementProblem(DataflowGraph.build(flops=[1.0]), Topology.uniform(2))
    one, two, inputs = np.array([0], np.int32), np.array([1], np.int32), {"x": 1}
    times = [9.0] * warm_up + [1.0, 1.1, np.nan] + [8.0] * warm_up + [1.2]
    source = MeasuredTime(Forgetful(problem, times), warm_up=warm_up, inputs=inputs)  # type: ignore[arg-type]
    source.calls = calls
    found = [source.run(problem, row, one, limit) for row, limit in ((one, 5), (one, 5), (two, 5), (two, 5))]
    assert found == [1.0, 1.1, 5.0, 1.2]
    assert source.executor.runs == [([row], inputs) for row in [0] * warm_up + [0, 0, 1] + [0] * warm_up + [1]]
    assert [item.makespan for item in source.recent] == [1.0, 1.1, 1.2]
    assert source.calls == calls + len(times)


def test_devices_whose_process_has_died_are_given_the_inputs_again() -> None:
    problem = PlacementProblem(DataflowGraph.build(flops=[1.0]), Topology.uniform(1))
    zero, given = np.zeros(1, dtype=np.int32), []

    class Dying(Told):
        def run(self, assignment: Any, inputs: Any = None, **options: Any) -> Execution:
            given.append(inputs)
            if len(given) == 3:
                raise ExecutionError("the process of its devices has died")
            return super().run(assignment, inputs, **options)

    source = MeasuredTime(Dying(problem, [1.0] * 9), inputs={"x": 1})  # type: ignore[arg-type]
    assert source.run(problem, zero, zero) == 1.0
    with pytest.raises(ExecutionError):
        source.run(problem, zero, zero)
    assert source.run(problem, zero, zero) == 1.0
    assert given == [{"x": 1}, None, None, {"x": 1}, None]


def test_wrong_settings_of_measurement() -> None:
    executor: Any = None
    with pytest.raises(PlacementError, match="execution is 'random'"):
        MeasuredTime(executor, execution="random")  # type: ignore[arg-type]
    with pytest.raises(PlacementError, match="repeats is 0"):
        MeasuredTime(executor, repeats=0)
