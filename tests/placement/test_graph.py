"""The dataflow graph: what is refused, what the flat arrays promise, and graphs that broke other tools."""

from __future__ import annotations

import copy
import pickle
import re
import time
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from hadoppler import place
from hadoppler.envs.errors import GraphError
from hadoppler.envs.placement import (
    DataflowGraph,
    GraphBuilder,
    GraphInput,
    Kernel,
    PlacementProblem,
    Reference,
    TensorType,
    Topology,
    lower_bounds,
    makespans,
    read_graph,
    simulate,
)

CASES = Path(__file__).parents[1] / "cases"
NAN, INFINITY = float("nan"), float("inf")


def same(a: DataflowGraph, b: DataflowGraph) -> bool:
    """Whether two graphs agree in every field, types of ids included."""
    for name in DataflowGraph.__dataclass_fields__:
        left, right = getattr(a, name), getattr(b, name)
        if name == "seconds":
            if list(left) != list(right) or not all(np.array_equal(left[k], right[k], equal_nan=True) for k in left):
                return False
        elif not (np.array_equal(left, right) if isinstance(left, np.ndarray) else left == right):
            return False
    return [type(label) for label in a.ids] == [type(label) for label in b.ids]


# --- what is refused ----------------------------------------------------------------------------------


def refused(**parts: Any) -> str:
    """The one sentence with which a graph of two operations and one edge, changed by ``parts``, is refused."""
    all_parts: dict[str, Any] = {"flops": [1, 1], "ids": ["a", "b"], "edges": [("a", "b")]} | parts
    with pytest.raises(GraphError) as caught:
        DataflowGraph.build(**all_parts, source="x.json")
    text = str(caught.value)
    assert text.startswith("x.json: ")
    assert "\n" not in text
    assert text.endswith(".")
    return text


@pytest.mark.parametrize("value", [NAN, -1, INFINITY, -INFINITY, 1.1e30, -1e-300, None])
@pytest.mark.parametrize(
    ("column", "what"), [("flops", "cost"), ("bytes_moved", "bytes_moved"), ("out_bytes", "out_bytes")]
)
def test_costs_that_are_no_costs_are_refused(column: str, what: str, value: Any) -> None:
    text = refused(**{column: [0, value]})
    assert f"'b' has {what} {np.float64(value)}" in text
    assert "from 0 to 1e+30" in text


def test_costs_at_the_limits_are_taken() -> None:
    graph = DataflowGraph.build(flops=[0, 1e30], out_bytes=[-0.0, 1e30])
    assert graph.flops.tolist() == [0, 1e30]
    assert np.signbit(graph.out_bytes).tolist() == [False, False], "a negative zero would sort and print badly"


@pytest.mark.parametrize("value", [NAN, -1, INFINITY])
def test_edges_seconds_and_inputs_are_checked_too(value: float) -> None:
    assert "\"'a' -> 'b'\" has bytes" in refused(edge_bytes=[value])
    assert "'weights' has bytes" in refused(inputs=[GraphInput("weights", value)], reads=[[0], []])
    if value == value:
        assert "'b' has seconds on P100" in refused(seconds={"P100": [1, value]})


def test_seconds_may_be_missing() -> None:
    graph = DataflowGraph.build(flops=[1, 1], seconds={"P100": [NAN, 2]})
    assert np.array_equal(graph.seconds["P100"], [NAN, 2], equal_nan=True)


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"flops": []}, "no operation"),
        ({"flops": [1, 1, 1]}, "2 ids for 3 costs"),
        ({"flops": ["fast", 1]}, "cost must be a list of numbers"),
        ({"flops": [[1], [1, 2]]}, "cost must be a list of numbers"),
        ({"flops": [10**400, 1]}, "cost must be a list of numbers"),
        ({"flops": [[1, 1]]}, r"cost has shape \(1, 2\)"),
        ({"flops": 2}, r"cost has shape \(\)"),
        ({"bytes_moved": [1]}, "bytes_moved has 1 entries, expected 2"),
        ({"out_bytes": [1, 2, 3]}, "out_bytes has 3 entries, expected 2"),
        ({"edge_bytes": [1, 2]}, "bytes has 2 entries, expected 1"),
        ({"seconds": {"P100": [1]}}, "seconds on P100 has 1 entries"),
        ({"names": ["a"]}, "names has 1 entries"),
        ({"kind": ["a"] * 3}, "kind has 3 entries"),
        ({"kernels": [Kernel("aten.mm.default", (), ())]}, "kernels has 1 entries"),
        ({"group": [1]}, "group has 1 entries"),
        ({"group": [0, 1.5]}, "'b' has group 1.5; expected a whole number"),
        ({"shard": [0, NAN]}, "'b' has shard nan"),
        ({"layer": [2**31, 0]}, "'a' has layer 2.147"),
        ({"layer": ["first", 0]}, "layer must be a list of numbers"),
        ({"ids": ["a", "a"]}, "id 'a' stands twice"),
        ({"ids": ["a", True]}, "operation 1 has the id True"),
        ({"ids": ["a", 1.0]}, r"operation 1 has the id 1\.0"),
        ({"ids": ["a", None]}, "operation 1 has the id None"),
        ({"edges": [("a", "c")]}, r"edge 0 \('a' -> 'c'\) names no operation 'c'"),
        ({"edges": [("a", 0)]}, "names no operation 0"),
        ({"edges": [("a", ["b"])]}, r"names no operation \['b'\]"),
        ({"edges": [("a",)]}, r"edge 0 is \('a',\); expected a pair"),
        ({"edges": [("a", "b", 3)]}, "expected a pair"),
        ({"edges": [None]}, "edge 0 is None"),
        ({"edges": [("b", "b")]}, "operation 'b' has an edge to itself"),
        ({"edges": [("a", "b"), ("b", "a")]}, r"cycle, ('a' -> 'b' -> 'a'|'b' -> 'a' -> 'b');"),
        ({"tensor": []}, "0 tensor labels for 1 edges"),
        ({"tensor": [["t"]]}, "tensor label cannot be compared"),
        (
            {"edges": [("a", "b"), ("a", "b")], "tensor": [0, 0], "edge_bytes": [5, 3]},
            "one tensor of operation 'a' has two sizes, 5 and 3 bytes",
        ),
        ({"reads": [[0], []]}, "'a' reads a graph input outside the 0 that exist, 0"),
        ({"reads": [[], [-1]], "inputs": [GraphInput("w", 1)]}, "'b' reads a graph input outside the 1 that exist, -1"),
        ({"reads": [[0.5], []], "inputs": [GraphInput("w", 1)]}, r"outside the 1 that exist, 0\.5"),
        ({"reads": [0, 0], "inputs": [GraphInput("w", 1)]}, "'a' reads 0; expected a list"),
        ({"reads": [[0]], "inputs": [GraphInput("w", 1)]}, "reads has 1 entries"),
        ({"outputs": [Reference("op", 2)]}, "an output is op 2"),
        ({"outputs": [Reference("input", 0)]}, "an output is input 0"),
        ({"outputs": [Reference("op", 0)], "output_names": []}, "0 names for 1 outputs"),
        ({"allowed": [True, True]}, r"allowed has shape \(2,\)"),
        ({"allowed": [[True]]}, r"allowed has shape \(1, 1\)"),
        ({"allowed": [[True], [True, False]]}, "rows of allowed differ in length"),
        ({"allowed": [[0, 2], [1, 3]]}, "other than true and false"),
        ({"allowed": [[True, True], [False, False]]}, "operation 'b' may use no device"),
    ],
)
def test_bad_parts_are_named(parts: dict[str, Any], words: str) -> None:
    assert re.search(words, refused(**parts))


def test_a_cycle_is_named_in_its_order_and_the_rest_is_left_out() -> None:
    with pytest.raises(GraphError, match=r"cycle, 'A' -> 'B' -> 'C' -> 'A';") as caught:
        read_graph(CASES / "H11_cycle.json")
    assert "'D'" not in str(caught.value)
    assert str(CASES / "H11_cycle.json") in str(caught.value)
    with pytest.raises(GraphError, match="'A' has an edge to itself"):
        read_graph(CASES / "H11_selfloop.json")


def test_a_long_cycle_behind_a_long_chain_is_found_at_once() -> None:
    edges = [*pairwise(range(20_000)), (19_999, 15_000)]
    begin = time.perf_counter()
    with pytest.raises(GraphError, match="form a cycle") as caught:
        DataflowGraph.build(flops=np.ones(20_000), edges=edges)
    assert time.perf_counter() - begin < 1
    cycle = str(caught.value).partition("cycle, ")[2].partition(";")[0].split(" -> ")
    assert cycle[0] == cycle[-1]
    assert len(cycle) == 5_001
    assert set(pairwise(cycle)) <= {(str(a), str(b)) for a, b in edges}


def test_pins_are_checked_and_kept() -> None:
    graph = DataflowGraph.build(flops=[1, 1], ids=["a", "b"], title="two")
    pinned = graph.with_pins([[True, False], [True, True]])
    assert graph.allowed is None
    assert pinned.allowed is not None
    assert pinned.allowed.tolist() == [[True, False], [True, True]]
    assert not pinned.allowed.flags.writeable
    for allowed, words in (
        ([[True, False]], r"shape \(1, 2\)"),
        ([[False, False], [True, True]], "'a' may use no device"),
        ([[True], [True, True]], "differ in length"),
    ):
        with pytest.raises(GraphError, match=f"^two: .*{words}"):
            graph.with_pins(allowed)


# --- ids ----------------------------------------------------------------------------------------------


def test_ids_of_mixed_types_are_distinct() -> None:
    graph = DataflowGraph.build(flops=[1, 2, 3, 4], ids=["1", 1, "", -1], edges=[("1", 1), (1, ""), ("", -1)])
    assert [graph.index(label) for label in ("1", 1, "", -1)] == [0, 1, 2, 3]
    assert graph.edge_index.tolist() == [[0, 1, 2], [1, 2, 3]]
    for absent in (True, 2, "2", 1.0):
        with pytest.raises(GraphError, match="no operation has the id"):
            graph.index(absent)  # type: ignore[arg-type]


def test_numpy_ids_become_plain_ones() -> None:
    graph = DataflowGraph.build(flops=[1, 2], ids=np.array([4, 2]), edges=np.array([[4, 2]]))  # type: ignore[arg-type]
    assert graph.ids == (4, 2)
    assert [type(label) for label in graph.ids] == [int, int]
    texts = DataflowGraph.build(flops=[1, 2], ids=np.array(["x", "y"]), edges=[("x", "y")])  # type: ignore[arg-type]
    assert [type(label) for label in texts.ids] == [str, str]
    assert texts.edge_index.tolist() == [[0], [1]]


def test_edges_without_ids_are_positions() -> None:
    graph = DataflowGraph.build(flops=[1, 2, 3], edges=[(2, 0), (1, 0)])
    assert graph.ids == (0, 1, 2)
    assert graph.edge_index.tolist() == [[1, 2], [0, 0]]
    assert graph.topological_order.tolist() == [1, 2, 0]


# --- flat arrays --------------------------------------------------------------------------------------


@st.composite
def graphs(draw: st.DrawFn) -> tuple[DataflowGraph, list[tuple[int, int, int]]]:
    """A graph whose numbering is not topological, with its edges as (source, target, tensor label)."""
    count = draw(st.integers(1, 9))
    rank = draw(st.permutations(range(count)))
    pairs = [(a, b) for a, b in product(range(count), repeat=2) if rank[a] < rank[b]]
    edges = draw(st.lists(st.tuples(st.sampled_from(pairs), st.integers(0, 2)), max_size=20)) if pairs else []
    size = draw(st.lists(st.integers(0, 9), min_size=3 * count, max_size=3 * count))
    triples = [(a, b, label) for (a, b), label in edges]
    graph = DataflowGraph.build(
        flops=draw(st.lists(st.integers(0, 9), min_size=count, max_size=count)),
        edges=[(a, b) for a, b, _ in triples],
        edge_bytes=[size[3 * a + label] for a, _, label in triples],
        tensor=[label for _, _, label in triples],
    )
    return graph, triples


@given(graphs())
def test_flat_arrays_hold_together(case: tuple[DataflowGraph, list[tuple[int, int, int]]]) -> None:
    graph, triples = case
    assert graph.n == len(graph.flops)
    assert graph.e == len(triples)
    given_pairs = sorted((a, b) for a, b, _ in triples)
    assert sorted(zip(graph.edge_source.tolist(), graph.edge_target.tolist(), strict=True)) == given_pairs
    assert graph.tensors == len({(a, label) for a, _, label in triples})
    assert (np.diff(graph.edge_source) >= 0).all(), "edges are sorted by source"
    assert (np.isin(np.diff(graph.tensor), (0, 1))).all(), "the edges of a tensor are neighbours"
    assert graph.edge_index.tolist() == [graph.edge_source.tolist(), graph.edge_target.tolist()]
    for pointer, ends, count in (
        (graph.out_ptr, graph.edge_source, graph.n),
        (graph.in_ptr, graph.edge_target[graph.in_edge], graph.n),
        (graph.tensor_ptr, graph.tensor, graph.tensors),
    ):
        assert pointer[0] == 0
        assert pointer[-1] == graph.e
        assert len(pointer) == count + 1
        for item in range(count):
            assert (ends[pointer[item] : pointer[item + 1]] == item).all()
    for tensor in range(graph.tensors):
        edges = slice(graph.tensor_ptr[tensor], graph.tensor_ptr[tensor + 1])
        assert len(set(graph.edge_bytes[edges])) == 1
        assert len(set(graph.edge_source[edges])) == 1
    assert sorted(graph.in_edge.tolist()) == list(range(graph.e))
    assert graph.in_degree.tolist() == [sum(b == v for _, b, _ in triples) for v in range(graph.n)]
    position = np.argsort(graph.topological_order)
    assert sorted(graph.topological_order.tolist()) == list(range(graph.n))
    depth: dict[int, int] = {}
    for v in graph.topological_order.tolist():
        depth[v] = max((depth[a] + 1 for a, b, _ in triples if b == v), default=0)
    assert all(position[a] < position[b] for a, b, _ in triples)
    assert graph.depth.tolist() == [depth[v] for v in range(graph.n)]


@given(graphs())
def test_copies_are_equal_and_read_only(case: tuple[DataflowGraph, list[tuple[int, int, int]]]) -> None:
    graph, _ = case
    derived = ("out_ptr", "tensor_ptr", "in_edge", "in_ptr", "in_degree", "topological_order", "depth", "edge_index")
    for other in (graph, pickle.loads(pickle.dumps(graph)), copy.deepcopy(graph), copy.copy(graph)):
        assert same(graph, other)
        for name in (*DataflowGraph.__dataclass_fields__, *derived):
            value = getattr(other, name)
            if isinstance(value, np.ndarray):
                assert not value.flags.writeable, name
                assert value.dtype in (np.float64, np.int32, np.bool_), name
                if name in derived:
                    assert np.array_equal(value, getattr(graph, name))


def test_the_users_arrays_are_copied() -> None:
    costs, sizes = np.array([1.0, 2.0]), np.array([3.0, 4.0])
    allowed = np.array([[True, False], [True, True]])
    graph = DataflowGraph.build(flops=costs, out_bytes=sizes, allowed=allowed, seconds={"gpu": costs})
    costs[:], sizes[:], allowed[:] = 9, 9, False
    assert graph.flops.tolist() == graph.seconds["gpu"].tolist() == [1, 2]
    assert graph.out_bytes.tolist() == [3, 4]
    assert graph.allowed is not None
    assert graph.allowed.tolist() == [[True, False], [True, True]]
    assert costs.flags.writeable
    for array in (graph.flops, graph.seconds["gpu"]):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 5
    with pytest.raises(AttributeError):
        graph.title = "other"  # type: ignore[misc]


def test_a_placements_order_cannot_change_its_graph() -> None:
    problem = PlacementProblem(DataflowGraph.build(flops=[1, 1, 1]), Topology.uniform(2))
    order = place("round_robin", problem).order
    with pytest.raises(ValueError, match="read-only"):
        order[0] = 2


def test_edges_take_the_bytes_of_their_source_by_default() -> None:
    graph = DataflowGraph.build(flops=[1, 1, 1], out_bytes=[5, 7, 0], edges=[(0, 2), (1, 2), (0, 1)])
    assert graph.edge_index.tolist() == [[0, 0, 1], [2, 1, 2]]
    assert graph.edge_bytes.tolist() == [5, 5, 7]
    assert graph.tensors == 3, "one tensor per edge by default"
    assert DataflowGraph.build(flops=[1, 1], edges=[(0, 1)]).edge_bytes.tolist() == [0]


def test_tensor_labels_count_within_one_source_only() -> None:
    graph = DataflowGraph.build(flops=[1] * 4, edges=[(0, 2), (1, 2), (0, 3), (1, 3)], tensor=["x", "x", "y", "x"])
    assert graph.edge_source.tolist() == [0, 0, 1, 1]
    assert graph.tensor.tolist() == [0, 1, 2, 2]
    assert graph.tensor_ptr.tolist() == [0, 1, 2, 4]


def test_an_input_that_is_read_twice_counts_once() -> None:
    graph = DataflowGraph.build(flops=[1, 1], inputs=[GraphInput("w", 5.0)], reads=[[0, 0], [0]])
    assert graph.input_ptr.tolist() == [0, 1, 2]
    assert PlacementProblem(graph, Topology.uniform(2, memory_bytes=5)).n == 2


def test_the_summary_is_one_line() -> None:
    graph = DataflowGraph.build(flops=[1, 1, 1], edges=[(0, 1), (1, 2)], title="abc")
    assert graph.summary() == "abc: 3 operations, 2 edges, depth 3"


# --- builder ------------------------------------------------------------------------------------------


def test_the_builder_derives_edges_reads_and_bytes() -> None:
    builder = GraphBuilder("built")
    x = builder.add_input("x", TensorType((4, 8)))
    w = builder.add_input("w", TensorType((8, 4), "bfloat16"), "parameter")
    two = (TensorType((4, 4)), TensorType((4,)))
    first = builder.add(Kernel("aten.mm.default", (x, w), two), kind="matmul", flops=256)
    second_output = Reference("op", first.number, 1)
    second = builder.add(
        Kernel("aten.add.Tensor", (first, first, second_output), (TensorType((4, 4)),)),
        kind="elementwise",
        flops=16,
        name="sum",
    )
    third = builder.add(Kernel("aten.relu.default", (x,), (TensorType((4, 8)),)), kind="elementwise", flops=32)
    builder.add_order(second, third)
    builder.add_order(second, third)
    builder.add_order(first, second)  # they are joined by a tensor already
    graph = builder.finish([second])
    assert graph.names == ("matmul_0", "sum", "elementwise_2")
    assert graph.edge_index.tolist() == [[0, 0, 1], [1, 1, 2]]
    assert graph.edge_bytes.tolist() == [64, 16, 0]
    assert graph.tensor.tolist() == [0, 1, 2]
    assert graph.out_bytes.tolist() == [80, 64, 128]
    assert graph.bytes_moved.tolist() == [80 + 128 + 64, 64 + 64 + 64 + 16, 128 + 128]
    assert [item.bytes for item in graph.inputs] == [128, 64]
    assert graph.input_ptr.tolist() == [0, 2, 2, 3]
    assert graph.input_index.tolist() == [0, 1, 0]
    assert graph.output_names == ("output_0",)


def test_an_order_edge_beside_a_tensor_of_a_late_output_is_dropped() -> None:
    builder = GraphBuilder()
    ten = tuple(TensorType((1,)) for _ in range(10))
    first = builder.add(Kernel("aten.split.Tensor", (), ten), kind="copy", flops=0)
    last = Reference("op", 0, 9)
    second = builder.add(Kernel("aten.relu.default", (last,), ten[:1]), kind="elementwise", flops=1)
    builder.add_order(first, second)
    assert builder.finish().edge_bytes.tolist() == [4]


def test_an_input_cannot_be_ordered() -> None:
    builder = GraphBuilder("built")
    x = builder.add_input("x", TensorType((1,)))
    first = builder.add(Kernel("aten.relu.default", (x,), (TensorType((1,)),)), kind="elementwise", flops=1)
    with pytest.raises(GraphError, match="input 0 cannot be ordered"):
        builder.add_order(x, first)


# --- graphs that broke other tools --------------------------------------------------------------------


def deep(shape: str) -> DataflowGraph:
    """H12: a chain of 20,000 operations, or 30 diamonds in a row (91 operations), of unit cost."""
    if shape == "chain":
        return DataflowGraph.build(flops=np.ones(20_000), edges=list(pairwise(range(20_000))))
    rungs = [pair for i in range(0, 90, 3) for pair in ((i, i + 1), (i, i + 2), (i + 1, i + 3), (i + 2, i + 3))]
    return DataflowGraph.build(flops=np.ones(91), edges=rungs)


@pytest.mark.parametrize(("shape", "length"), [("chain", 20_000), ("ladder", 61)])
def test_deep_graphs(shape: str, length: int) -> None:
    begin = time.perf_counter()
    graph = deep(shape)
    problem = PlacementProblem(graph, Topology.uniform(2))
    assert lower_bounds(problem).critical_path == length
    assert int(graph.depth.max()) + 1 == length
    assert place("heft", problem).makespan >= length
    for other in (pickle.loads(pickle.dumps(problem)), copy.deepcopy(problem)):
        assert same(graph, other.graph)
        assert lower_bounds(other).critical_path == length
    assert time.perf_counter() - begin < 10


def test_parallel_edges_are_kept_and_weigh() -> None:
    graph = read_graph(CASES / "H13_multi_edge.json")
    a, b, c = (graph.index(label) for label in "ABC")
    assert graph.e == graph.tensors == 4
    assert PlacementProblem.raw(graph, 2).compute_s.sum() == 0
    problem = PlacementProblem(graph, Topology.uniform(3, contention="none"))
    # everything apart: A -> C takes 40, A -> B -> C takes 5 + 10
    apart = np.empty(3, dtype=int)
    apart[[a, b, c]] = 0, 1, 2
    schedule = simulate(problem, apart)
    assert schedule.makespan == 40
    assert schedule.bytes_moved == 5 + 3 + 10 + 40
    alone = simulate(problem, np.where(np.arange(3) == b, 1, 0))
    into = alone.transfers.target == 1
    assert alone.transfers.bytes[into].sum() == 8, "both tensors of A -> B are sent"
    assert alone.makespan == 15
    forced = np.zeros((3, 3), dtype=bool)
    forced[[a, b, c], [0, 1, 2]] = True
    pinned = PlacementProblem(graph.with_pins(forced), Topology.uniform(3))
    assert lower_bounds(pinned).communication == 40, "the communication-weighted critical path"


def test_rows_follow_positions_whatever_the_ids() -> None:
    names = ("H14_ids.json", "H14_ids_relabelled.json", "H14_ids_text.json")
    for graph in (read_graph(CASES / name) for name in names):
        assert graph.n == 3
        assert graph.flops.tolist() == [4, 2, 6]
        assert graph.edge_index.tolist() == [[0, 1], [2, 2]]
        everywhere = np.array(list(product(range(2), repeat=3)))
        assert makespans(PlacementProblem.raw(graph, 1), [[0, 0, 0]]).tolist() == [12]
        assert makespans(PlacementProblem.raw(graph, 2), everywhere).min() == 10
    ids = [read_graph(CASES / name).ids for name in names]
    assert ids[0] == (4, 2, 6)
    assert ids[2] == ("10", 10, "矩阵乘_1/é")
