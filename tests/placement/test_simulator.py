"""The simulator: hand-computed schedules, a second implementation, published values, invariants."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from placement_oracles import oracle, peak_memory, placed

from hadoppler.envs.errors import MemoryLimitError, PlacementError
from hadoppler.envs.placement import (
    DataflowGraph,
    GraphInput,
    PlacementProblem,
    Topology,
    makespans,
    read_graph,
    simulate,
)
from hadoppler.envs.placement.workloads import make_graph

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "doppler_makespans.json").read_text())["makespans"]
OURS = {
    "gdp_chain_mm_112nodes.txt": ("chainmm", 4),
    "gdp_ffnn_192nodes.txt": ("ffnn", 4),
    "gdp_transformer_block_215nodes.txt": ("llama_block", 4),
    "gdp_full_transformer_layer_261nodes.txt": ("llama_layer", 4),
    "8gpu_transformer_block.txt": ("llama_block", 8),
    "8gpu_full_transformer.txt": ("llama_layer", 8),
}


def golden_assignment(key: str, n: int) -> tuple[np.ndarray, int]:
    i = np.arange(n)
    devices = 8 if key.endswith("mod_8") else 4
    return {"a": i * 0, "b": i % devices, "c": i // 8 % devices}[key[0]], devices


def check_golden(graph: DataflowGraph, values: dict[str, float]) -> int:
    for key, value in values.items():
        assignment, devices = golden_assignment(key, graph.n)
        problem = PlacementProblem.raw(graph, devices)
        assert makespans(problem, assignment)[0] / 1e10 == value
        assert simulate(problem, assignment).makespan / 1e10 == value
    return len(values)


def test_parity_with_the_public_simulator_on_its_files(reference: Path) -> None:
    checked = sum(check_golden(read_graph(reference / "doppler_graphs" / name), GOLDEN[name]) for name in GOLDEN)
    assert checked == 34


@pytest.mark.parametrize("name", OURS)
def test_parity_with_the_public_simulator_on_our_graphs(name: str) -> None:
    workload, devices = OURS[name]
    values = dict(GOLDEN[name])
    assert check_golden(make_graph(workload, devices=devices, costs="published"), values) >= 3


def two_devices(**options: Any) -> Topology:
    return Topology.uniform(2, **options)


def test_a_late_input_does_not_hold_the_device() -> None:
    # a on device 0 sends to c on device 1 (arrives at 1 + 4); b on device 1 is ready at 0 and runs meanwhile
    graph = DataflowGraph.build(flops=[1, 3, 1], out_bytes=[4, 0, 0], edges=[(0, 2)])
    schedule = simulate(PlacementProblem(graph, two_devices()), [0, 1, 1])
    assert schedule.start.tolist() == [0, 0, 5]
    assert schedule.makespan == 6
    # an operation that becomes ready while the input is on its way goes first
    graph = DataflowGraph.build(flops=[1, 3, 1, 1], out_bytes=[4, 0, 0, 0], edges=[(0, 2), (1, 3)])
    schedule = simulate(PlacementProblem(graph, two_devices()), [0, 1, 1, 1])
    assert schedule.start.tolist() == [0, 0, 5, 3]


def test_ports_serialise_and_pairs_do_not() -> None:
    # two producers on device 0 and 1 send 4 bytes each to device 2
    graph = DataflowGraph.build(flops=[1, 1, 1], out_bytes=[4, 4, 0], edges=[(0, 2), (1, 2)])
    topology = Topology.uniform(3)
    for contention, end in (("none", 6), ("pair", 6), ("ports", 10)):
        assert simulate(PlacementProblem(graph, topology), [0, 1, 2], contention=contention).makespan == end


def test_latency_does_not_occupy_a_port() -> None:
    graph = DataflowGraph.build(flops=[1, 0, 1, 1], out_bytes=[4, 4, 0, 0], edges=[(0, 2), (1, 3)])
    problem = PlacementProblem(graph, two_devices(latency=10))
    schedule = simulate(problem, [0, 0, 1, 1])
    # both operations run on device 0: 0 ends at 1, 1 (free) ends at 1; transfers leave at 1 and 5
    assert sorted(schedule.transfers.start.tolist()) == [1, 5]
    assert sorted(schedule.transfers.end.tolist()) == [15, 19]


def test_channels_carry_transfers_at_once() -> None:
    graph = DataflowGraph.build(flops=[1, 1, 1], out_bytes=[4, 4, 0], edges=[(0, 2), (1, 2)])
    topology = Topology("two lanes", Topology.uniform(3).devices, np.asarray(1.0), np.asarray(0.0), channels=2)
    assert simulate(PlacementProblem(graph, topology), [0, 1, 2]).makespan == 6


def test_a_shared_tensor_is_sent_once_to_a_device() -> None:
    edges = [(0, 1), (0, 2), (0, 3)]
    one = DataflowGraph.build(flops=[1, 1, 1, 1], out_bytes=[4, 0, 0, 0], edges=edges, tensor=["x"] * 3)
    many = DataflowGraph.build(flops=[1, 1, 1, 1], out_bytes=[4, 0, 0, 0], edges=edges)
    topology = Topology.uniform(3)
    assert simulate(PlacementProblem(one, topology), [0, 1, 1, 2]).bytes_moved == 8
    assert simulate(PlacementProblem(many, topology), [0, 1, 1, 2]).bytes_moved == 12
    assert simulate(PlacementProblem.raw(one, 3), [0, 1, 1, 2]).bytes_moved == 12


def test_priority_decides_where_a_device_has_a_choice() -> None:
    graph = DataflowGraph.build(flops=[2, 1, 5], edges=[(1, 2)])
    problem = PlacementProblem(graph, two_devices())
    assert simulate(problem, [0, 0, 1]).makespan == 8
    assert simulate(problem, [0, 0, 1], order="priority", priority=[1, 0, 2]).makespan == 6


def test_unequal_devices_take_their_own_time() -> None:
    graph = DataflowGraph.build(flops=[4, 4])
    problem = PlacementProblem(graph, Topology.uniform(speeds=(1.0, 0.5)))
    assert simulate(problem, [0, 1]).end.tolist() == [4, 8]


def test_memory_counts_inputs_once_outputs_and_copies() -> None:
    graph = DataflowGraph.build(
        flops=[1, 1, 1],
        out_bytes=[4, 2, 1],
        edges=[(0, 1), (1, 2)],
        inputs=[GraphInput("w", 10.0, "parameter")],
        reads=[[0], [0], []],
    )
    problem = PlacementProblem(graph, two_devices())
    assert simulate(problem, [0, 0, 0]).peak_memory.tolist() == [16, 0]
    # device 0: w + output of 0, or w + outputs of 0 and 1 while 1 runs; device 1: copy of 1 + output of 2
    assert simulate(problem, [0, 0, 1]).peak_memory.tolist() == [16, 3]


def test_a_returned_output_is_kept() -> None:
    from hadoppler.envs.placement import Reference

    parts: dict[str, Any] = {"flops": [1, 1, 1], "out_bytes": [4, 4, 4], "edges": [(0, 1), (1, 2)]}
    problem = PlacementProblem(DataflowGraph.build(**parts), two_devices())
    kept = PlacementProblem(DataflowGraph.build(**parts, outputs=[Reference("op", 0)]), two_devices())
    assert simulate(problem, [0, 0, 0]).peak_memory[0] == 8
    assert simulate(kept, [0, 0, 0]).peak_memory[0] == 12


def test_memory_rules() -> None:
    graph = DataflowGraph.build(flops=[1, 1, 1], out_bytes=[4, 4, 4], edges=[(0, 2), (1, 2)])
    problem = PlacementProblem(graph, two_devices(memory_bytes=12))
    assert simulate(problem, [0, 0, 0]).makespan == 3
    tight = PlacementProblem(graph, two_devices(memory_bytes=8))
    with pytest.raises(MemoryLimitError, match="device 0"):
        simulate(tight, [0, 0, 0])
    with pytest.raises(MemoryLimitError, match="device 0"):
        makespans(tight, [[0, 0, 0], [0, 1, 1]])
    punished = makespans(tight, [[0, 0, 0]], memory="penalty")[0]
    assert punished > tight.serial_s
    assert punished == simulate(tight, [0, 0, 0], memory="penalty").makespan
    assert simulate(tight, [0, 0, 0], memory="off").makespan == 3


@given(
    placed(zero=False, inputs=True), st.lists(st.sampled_from((0.0, 0.25, 3.0, 40.0, np.inf)), min_size=8, max_size=8)
)
@settings(max_examples=80)
def test_devices_that_overflow_cost_their_part_of_the_largest_device(
    case: tuple[PlacementProblem, list[int]], capacity: list[float]
) -> None:
    """Nothing where all fits; else above any schedule's length, by the bytes that do not fit; also without memory."""
    problem, assignment = case
    devices = [replace(d, memory_bytes=capacity[i]) for i, d in enumerate(problem.topology.devices)]
    limited = PlacementProblem(problem.graph, replace(problem.topology, devices=tuple(devices)), memory="penalty")
    free = simulate(limited, assignment, memory="off")
    held = np.array(capacity[: problem.d])
    over = np.maximum(free.peak_memory - held, 0.0).sum()
    largest = held[np.isfinite(held)].max(initial=0.0) or 1.0
    expected = free.makespan + (limited.serial_s * (1 + over / largest) if over else 0.0)
    assert simulate(limited, assignment).makespan == pytest.approx(expected, rel=1e-12)
    assert makespans(limited, [assignment, assignment]).tolist() == [simulate(limited, assignment).makespan] * 2


@given(placed())
@settings(max_examples=600)
def test_agrees_with_a_plain_loop(case: tuple[PlacementProblem, list[int]]) -> None:
    problem, assignment = case
    start, end, sent = oracle(problem, assignment)
    schedule = simulate(problem, assignment)
    assert schedule.start.tolist() == start.tolist()
    assert schedule.end.tolist() == end.tolist()
    assert schedule.makespan == end.max()
    assert sorted(schedule.transfers.start.tolist()) == sorted(item["start"] for item in sent)
    assert makespans(problem, [assignment, assignment]).tolist() == [end.max()] * 2
    assert np.allclose(schedule.busy.sum(), (end - start).sum())


@given(placed())
@settings(max_examples=300)
def test_priorities_agree_with_a_plain_loop(case: tuple[PlacementProblem, list[int]]) -> None:
    problem, assignment = case
    priority = np.random.default_rng(problem.n).permutation(problem.n)
    start, end, _sent = oracle(problem, assignment, order="priority", priority=priority)
    schedule = simulate(problem, assignment, order="priority", priority=priority)
    assert schedule.start.tolist() == start.tolist()
    assert makespans(problem, [assignment], order="priority", priority=priority)[0] == end.max()


@given(placed(zero=False, inputs=True))
@settings(max_examples=200)
def test_peak_memory_agrees_with_intervals(case: tuple[PlacementProblem, list[int]]) -> None:
    problem, assignment = case
    schedule = simulate(problem, assignment)
    assert schedule.peak_memory.tolist() == peak_memory(problem, schedule).tolist()


@given(placed())
@settings(max_examples=150)
def test_schedules_are_legal_and_work_conserving(case: tuple[PlacementProblem, list[int]]) -> None:
    problem, assignment = case
    graph = problem.graph
    schedule = simulate(problem, assignment, order="random", seed=3, noise=0.3)
    arrival = {
        (int(t), int(device)): when
        for t, device, when in zip(
            schedule.transfers.tensor, schedule.transfers.target, schedule.transfers.end, strict=True
        )
    }
    ready = np.zeros(graph.n)
    numbers = np.repeat(np.arange(len(problem.tensor_ptr) - 1), np.diff(problem.tensor_ptr))
    for edge in range(graph.e):
        u, w = graph.edge_source[edge], graph.edge_target[edge]
        local = assignment[u] == assignment[w]
        ready[w] = max(ready[w], schedule.end[u] if local else arrival[int(numbers[edge]), assignment[w]])
    assert (schedule.start >= ready).all()
    for device in range(problem.d):
        mine = [v for v in range(graph.n) if assignment[v] == device]
        mine.sort(key=lambda v: (schedule.start[v], schedule.end[v]))
        free = 0.0
        for v in mine:
            assert schedule.start[v] >= free
            idle = [w for w in mine if ready[w] < schedule.start[v] and schedule.start[w] >= schedule.start[v]]
            assert schedule.start[v] == free or not idle, "a device idled while it had a ready operation"
            free = max(free, schedule.end[v])


def test_random_draws_depend_on_the_seed_alone() -> None:
    problem = PlacementProblem(make_graph("layered_random", seed=1), Topology.preset("mixed"))
    rows = np.random.default_rng(0).integers(0, problem.d, (64, problem.n))
    one = makespans(problem, rows, order="random", noise=0.1, seed=5, threads=1)
    assert np.array_equal(one, makespans(problem, rows, order="random", noise=0.1, seed=5, threads=3))
    assert one[0] == simulate(problem, rows[0], order="random", noise=0.1, seed=5).makespan
    assert not np.array_equal(one, makespans(problem, rows, order="random", noise=0.1, seed=6))


def test_noise_has_mean_one() -> None:
    graph = DataflowGraph.build(flops=[1.0])
    problem = PlacementProblem(graph, two_devices())
    times = makespans(problem, np.zeros((20_000, 1), int), noise=0.5, seed=1)
    assert times.mean() == pytest.approx(1.0, abs=0.015)
    assert np.log(times).std() == pytest.approx(0.5, abs=0.01)


def test_random_orders_differ_and_cover() -> None:
    graph = DataflowGraph.build(flops=[1.0, 2.0, 4.0])
    problem = PlacementProblem(graph, two_devices())
    firsts = {int(simulate(problem, [0, 0, 0], order="random", seed=s).start.argmin()) for s in range(40)}
    assert firsts == {0, 1, 2}


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ([0, 0], "shape"),
        ([0, 0, 2], "device 2"),
        ([0, -1, 0], "device -1"),
        ([0.0, 0.0, 0.0], "integers"),
    ],
)
def test_bad_assignments_are_named(assignment: list[Any], message: str) -> None:
    problem = PlacementProblem(DataflowGraph.build(flops=[1, 1, 1]), two_devices())
    with pytest.raises(PlacementError, match=message):
        simulate(problem, assignment)


@pytest.mark.parametrize(
    "options",
    [{"order": "lifo"}, {"contention": "bus"}, {"noise": -1.0}, {"noise": float("nan")}, {"order": "priority"},
     {"order": "priority", "priority": [0, 0, 1]}, {"order": "priority", "priority": [0, 1]}],
)  # fmt: skip
def test_bad_options_are_one_sentence(options: dict[str, Any]) -> None:
    problem = PlacementProblem(DataflowGraph.build(flops=[1, 1, 1]), two_devices())
    for call in (lambda: simulate(problem, [0, 0, 0], **options), lambda: makespans(problem, [[0, 0, 0]], **options)):
        with pytest.raises(PlacementError) as caught:
            call()
        assert "\n" not in str(caught.value)


def test_pins_are_enforced() -> None:
    graph = DataflowGraph.build(flops=[1, 1]).with_pins([[True, False], [True, True]])
    problem = PlacementProblem(graph, two_devices())
    with pytest.raises(PlacementError, match="may only use"):
        simulate(problem, [1, 0])
    with pytest.raises(PlacementError, match="2 devices"):
        PlacementProblem(graph, Topology.uniform(3))


def test_a_graph_that_fits_no_memory_is_refused_at_once() -> None:
    graph = DataflowGraph.build(flops=[1], inputs=[GraphInput("w", 100.0, "parameter")], reads=[[0]])
    with pytest.raises(MemoryLimitError, match="all devices together"):
        PlacementProblem(graph, two_devices(memory_bytes=40))
    with pytest.raises(MemoryLimitError, match="operation 0 alone"):
        PlacementProblem(graph, two_devices(memory_bytes=60))
    assert PlacementProblem(graph, two_devices(memory_bytes=40), memory="off").n == 1


def test_deep_and_wide_graphs_are_simulated() -> None:
    for graph in (make_graph("chain", length=20_000), make_graph("ladder", rungs=30)):
        problem = PlacementProblem(graph, two_devices(flops_per_s=1e9, bandwidth=1e9))
        assert simulate(problem, np.arange(graph.n) % 2).makespan > 0
