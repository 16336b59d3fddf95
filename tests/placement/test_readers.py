"""Readers and writers of graph files: every format, what it keeps, and what it refuses."""

import contextlib
import copy
import json
import math
import os
import pickle
import time
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from hadoppler.envs.errors import GraphError
from hadoppler.envs.placement.graph import DataflowGraph, GraphInput
from hadoppler.envs.placement.graph_builder import GraphBuilder
from hadoppler.envs.placement.kernel import Kernel, Reference, Symbol, TensorType, View
from hadoppler.envs.placement.readers import dnn_partitioning, json_graph, pipedream, read_graph, text, write_graph

ROOT = Path(__file__).parents[2]
CASES = ROOT / "tests" / "cases"
REFERENCE = Path(os.environ.get("HADOPPLER_REFERENCE", ROOT.parent / "shared" / "reference"))

TEXT = "5\n0, 1, \n0, 0, 1\n1,1, 2\n10,40\n20,80,einsummable\n30,0\n"
PROFILE = (
    "node1 -- Input0 -- forward_compute_time=0.000, backward_compute_time=0.000, activation_size=0.0, "
    "parameter_size=0.000\n"
    "node2 -- Linear(in=4, out=5) -- forward_compute_time=2.000, backward_compute_time=3.000, "
    "activation_size=[80.0; 20.0], parameter_size=96.000\n"
    "\tnode1 -- node2\n"
)
PARTITIONING = {
    "maxFPGAs": 2,
    "nodes": [
        {"id": 7, "name": "a", "cpuLatency": 4.0, "fpgaLatency": 2.0, "size": 64.0, "colorClass": 3},
        {"id": 9, "cpuLatency": 6, "fpgaLatency": 3, "size": 0, "isBackwardNode": True, "supportedOnFpga": 0},
    ],
    "edges": [{"sourceId": 7, "destId": 9, "cost": 1.5, "size": 10}, {"sourceId": 7, "destId": 9, "cost": 3}],
}


def same(a: DataflowGraph, b: DataflowGraph) -> bool:
    """Whether two graphs agree in every field."""
    for name, value in vars(a).items():
        other = getattr(b, name, None)
        if name == "seconds":
            pairs = [(value[key], other[key]) for key in value] if list(value) == list(other) else [(0, 1)]
            if not all(np.array_equal(x, y, equal_nan=True) for x, y in pairs):
                return False
        elif name in DataflowGraph.__dataclass_fields__ and not (
            np.array_equal(value, other) if isinstance(value, np.ndarray) else value == other
        ):
            return False
    return [type(label) for label in a.ids] == [type(label) for label in b.ids]


def reference_files(pattern: str) -> list[Path]:
    return sorted(REFERENCE.glob(pattern))


# --- the public text format -----------------------------------------------------------------------


def test_text_format_is_read_as_it_stands(tmp_path: Path) -> None:
    path = tmp_path / "small.txt"
    path.write_text(TEXT)
    graph = read_graph(path)
    assert graph.ids == (0, 1, 2)
    assert graph.title == "small"
    assert graph.flops.tolist() == [10, 20, 30]
    assert graph.out_bytes.tolist() == [40, 80, 0]
    assert graph.kind == ("op", "einsummable", "op")
    assert graph.edge_index.tolist() == [[0, 0, 1], [1, 1, 2]], "the repeated edge is kept"
    assert graph.edge_bytes.tolist() == [40, 40, 80]
    assert graph.tensor.tolist() == [0, 0, 1], "one tensor per operation"
    assert [entry.bytes for entry in graph.inputs] == [0, 0]


def test_text_format_without_inputs_and_edges() -> None:
    graph = text.parse("1\n\n\n\n5,6\n\n", "x.txt")
    assert (graph.n, graph.e, len(graph.inputs)) == (1, 0, 0)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (("5\n0", "five\n0"), 1),
        (("5\n0", "-5\n0"), 1),
        (("0, 1, \n", "0, x\n"), 2),
        (("0, 1, \n", "0, 0\n"), 2),
        (("0, 1, \n", "0,, 1\n"), 2),
        (("0, 0, 1\n", "0, 0\n"), 3),
        (("0, 0, 1\n", "0, 0, 3\n"), 3),
        (("1,1, 2\n", "1,1, 2.5\n"), 4),
        (("1,1, 2\n", "1,3, 2\n"), 4),
        (("10,40\n", "10\n"), 5),
        (("10,40\n", "10,40,a,b\n"), 5),
        (("10,40\n", "10,nan\n"), 5),
        (("20,80", "-20,80"), 6),
        (("20,80", "inf,80"), 6),
        (("30,0\n", "30,0\n40,0\n"), 8),
        (("30,0\n", ""), 7),
        (("10,40\n20,80,einsummable\n30,0\n", ""), 5),
    ],
)
def test_malformed_text_names_file_and_line(change: tuple[str, str], line: int) -> None:
    broken = TEXT.replace(*change)
    assert broken != TEXT
    with pytest.raises(GraphError, match=rf"x\.txt: lines? .*{line}\b"):
        text.parse(broken, "x.txt")


def test_text_graphs_have_neither_cycles_nor_self_loops() -> None:
    with pytest.raises(GraphError, match=r"x\.txt: operation 1 has an edge to itself"):
        text.parse(TEXT.replace("1,1, 2", "1,1, 1"), "x.txt")
    with pytest.raises(GraphError, match=r"x\.txt: the edges form a cycle, 0 -> 1 -> 0"):
        text.parse(TEXT.replace("0, 0, 1", "0, 1, 1").replace("1,1, 2", "1,0, 2"), "x.txt")


def test_short_text_names_the_missing_line() -> None:
    with pytest.raises(GraphError, match="line 3 is missing"):
        text.parse("5\n0\n", "x.txt")


@given(st.text(alphabet="0123456789,. -\nxe", max_size=60))
def test_text_reader_never_fails_otherwise(content: str) -> None:
    with contextlib.suppress(GraphError):
        text.parse(content, "x.txt")


# --- profiles and partitioning graphs ---------------------------------------------------------------


def test_pipedream_profile(tmp_path: Path) -> None:
    path = tmp_path / "model.graph.txt"
    path.write_text(PROFILE)
    graph = read_graph(path)
    assert graph.title == "model"
    assert graph.ids == ("node1", "node2")
    assert graph.names[1] == "Linear(in=4, out=5)"
    assert graph.kind == ("create", "matmul")
    assert graph.seconds["profiled"].tolist() == pytest.approx([0, 0.005])
    assert pipedream.read(path, training=False).seconds["profiled"].tolist() == pytest.approx([0, 0.002])
    assert graph.out_bytes.tolist() == [0, 100]
    assert graph.inputs == (GraphInput("node2.parameters", 96.0, "parameter"),)
    assert graph.input_ptr.tolist() == [0, 0, 1]


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (("forward_compute_time=2.000", "forward_compute_time=two"), 2),
        (("forward_compute_time=2.000, ", ""), 2),
        (("parameter_size=96.000", "parameter_size=-1"), 2),
        (("Linear(in=4, out=5) -- ", ""), 2),
        (("\tnode1 -- node2", "\tnode1"), 3),
        (("\tnode1 -- node2", "\tnode1 -- node3"), None),
        (("\tnode1 -- node2", "\tnode1 -- node1"), None),
        (("node2 -- Linear", "node1 -- Linear"), None),
    ],
)
def test_malformed_profile_is_refused(change: tuple[str, str], line: int | None) -> None:
    with pytest.raises(GraphError, match=r"p\.txt" if line is None else rf"p\.txt: line {line} "):
        pipedream.parse(PROFILE.replace(*change), "p.txt")


def test_dnn_partitioning_graph(tmp_path: Path) -> None:
    path = tmp_path / "graph.json"
    path.write_text(json.dumps(PARTITIONING))
    graph = read_graph(path)
    assert graph.ids == (7, 9)
    assert graph.names == ("a", "9")
    assert graph.kind == ("forward", "backward")
    assert graph.group.tolist() == [0, -1]
    assert graph.seconds["cpu"].tolist() == pytest.approx([0.004, 0.006])
    assert graph.seconds["accelerator"].tolist() == pytest.approx([0.002, dnn_partitioning.UNSUPPORTED_S])
    assert (graph.edge_bytes / dnn_partitioning.BANDWIDTH).tolist() == pytest.approx([0.0015, 0.003])
    assert graph.tensors == 2, "one tensor per edge"
    assert graph.inputs == (GraphInput("a.size", 64.0, "parameter"),)


@pytest.mark.parametrize(
    ("where", "key", "value", "message"),
    [
        ("nodes", "cpuLatency", "fast", "node 0 has cpuLatency 'fast', expected a number"),
        ("nodes", "cpuLatency", float("nan"), "node 0 has cpuLatency nan, expected a number"),
        ("nodes", "id", None, "node 0 has id None"),
        ("nodes", "colour", 1, "unknown key 'colour'"),
        ("edges", "cost", None, "edge 0 has cost None"),
        ("edges", "destId", 8, "names no operation 8"),
        ("edges", "destId", 7, "edge to itself"),
    ],
)
def test_malformed_partitioning_graph_is_refused(where: str, key: str, value: object, message: str) -> None:
    document = copy.deepcopy(PARTITIONING)
    document[where][0][key] = value  # type: ignore[index]
    with pytest.raises(GraphError, match=message):
        dnn_partitioning.parse(document, "d.json")


@pytest.mark.skipif(not REFERENCE.exists(), reason="the reference data are not here (HADOPPLER_REFERENCE)")
@pytest.mark.parametrize("path", reference_files("doppler_graphs/*.txt"), ids=lambda path: path.stem)
def test_public_graphs_load(path: Path) -> None:
    graph = read_graph(path)
    operations = {"chain_mm": 76, "ffnn": 180, "transformer_block_215": 182, "full_transformer_layer": 229}
    operations |= {"8gpu_transformer_block": 302, "8gpu_full_transformer": 367}
    expected = [n for name, n in operations.items() if path.stem.removeprefix("gdp_").startswith(name)]
    assert [graph.n] == expected
    assert graph.e == len(path.read_text().split("\n")[2].rstrip(" ,").split(","))
    assert graph.n + len(graph.inputs) == int(path.read_text().split("\n", 1)[0])
    assert np.array_equal(graph.edge_bytes, graph.out_bytes[graph.edge_source])


@pytest.mark.skipif(not REFERENCE.exists(), reason="the reference data are not here (HADOPPLER_REFERENCE)")
@pytest.mark.parametrize(
    "path", [*reference_files("graphs/*/*.json"), *reference_files("graphs/*/*.graph.txt")], ids=lambda path: path.stem
)
def test_profiled_graphs_load_and_round_trip(path: Path, tmp_path: Path) -> None:
    graph = read_graph(path)
    assert graph.n > 20
    assert sum(column.sum() for column in graph.seconds.values()) > 0
    write_graph(graph, tmp_path / "copy.json")
    assert same(graph, read_graph(tmp_path / "copy.json"))


# --- our JSON ---------------------------------------------------------------------------------------


def test_cycles_and_self_loops_are_named() -> None:
    with pytest.raises(GraphError, match=r"'A' -> 'B' -> 'C' -> 'A'"):
        read_graph(CASES / "H11_cycle.json")
    with pytest.raises(GraphError, match=r"'A' has an edge to itself"):
        read_graph(CASES / "H11_selfloop.json")


def test_cycle_deep_inside_is_found_quickly() -> None:
    nodes = [{"id": i, "cost": 1} for i in range(5000)]
    edges = [{"src": i, "dst": i + 1} for i in range(4999)] + [{"src": 4000, "dst": 3000}]
    start = time.perf_counter()
    with pytest.raises(GraphError, match=r"form a cycle, .*3000"):
        json_graph.parse({"nodes": nodes, "edges": edges}, "x.json")
    assert time.perf_counter() - start < 1


def test_parallel_edges_are_kept() -> None:
    graph = read_graph(CASES / "H13_multi_edge.json")
    assert sorted(graph.edge_bytes.tolist()) == [3, 5, 10, 40]
    assert graph.tensors == 4
    assert nx.dag_longest_path_length(nx.DiGraph(_heaviest(graph)), weight="bytes") == 40
    back = DataflowGraph.from_networkx(graph.to_networkx())
    assert same(graph, back)


def _heaviest(graph: DataflowGraph) -> list[tuple[object, object, dict[str, float]]]:
    best: dict[tuple[object, object], float] = {}
    for a, b, values in graph.to_networkx().edges(data=True):
        best[a, b] = max(best.get((a, b), 0), values["bytes"])
    return [(a, b, {"bytes": size}) for (a, b), size in best.items()]


def test_ids_keep_their_types_and_features_their_rows(tmp_path: Path) -> None:
    graph = read_graph(CASES / "H14_ids.json")
    assert graph.ids == (4, 2, 6)
    assert graph.edge_index.tolist() == [[0, 1], [2, 2]]
    mixed = read_graph(CASES / "H14_ids_text.json")
    assert mixed.ids == ("10", 10, "矩阵乘_1/é")
    assert mixed.n == 3
    assert (mixed.index("10"), mixed.index(10)) == (0, 1)
    write_graph(mixed, tmp_path / "ids.json")
    assert same(mixed, read_graph(tmp_path / "ids.json"))
    relabelled = read_graph(CASES / "H14_ids_relabelled.json")
    for other in (mixed, relabelled):
        assert np.array_equal(other.edge_index, graph.edge_index)
        assert np.array_equal(other.flops, graph.flops)


def test_pyg_rows_follow_positions() -> None:
    pytest.importorskip("torch_geometric", reason="torch-geometric is not installed")
    data = read_graph(CASES / "H14_ids.json").to_pyg()
    assert data.x[:, 0].tolist() == [4, 2, 6]
    assert data.edge_index.tolist() == [[0, 1], [2, 2]]
    assert data.validate()


def test_hints_are_accepted() -> None:
    assert read_graph(CASES / "H16_heft_slots.json").n == 5


def deep_documents() -> dict[str, tuple[dict[str, object], int]]:
    """A chain of 20,000 operations and a ladder of 30 diamonds, with the operations on their longest paths."""
    chain = {
        "nodes": [{"id": i, "cost": 1} for i in range(20000)],
        "edges": [{"src": i, "dst": i + 1, "bytes": 0} for i in range(19999)],
    }
    rungs = [edge for i in range(0, 90, 3) for edge in ((i, i + 1), (i, i + 2), (i + 1, i + 3), (i + 2, i + 3))]
    ladder = {
        "nodes": [{"id": i, "cost": 1} for i in range(91)],
        "edges": [{"src": a, "dst": b, "bytes": 0} for a, b in rungs],
    }
    return {"chain": (chain, 20000), "ladder": (ladder, 61)}


@pytest.mark.parametrize("shape", ["chain", "ladder"])
def test_deep_graphs_load_copy_and_pickle(shape: str, tmp_path: Path) -> None:
    document, longest = deep_documents()[shape]
    path = tmp_path / "deep.json"
    path.write_text(json.dumps(document))
    start = time.perf_counter()
    graph = read_graph(path)
    assert int(graph.depth.max()) + 1 == longest
    assert time.perf_counter() - start < 10
    assert same(graph, pickle.loads(pickle.dumps(graph)))
    assert same(graph, copy.deepcopy(graph))
    assert same(graph, DataflowGraph.from_networkx(graph.to_networkx()))
    write_graph(graph, path)
    assert same(graph, read_graph(path))


def full_graph() -> DataflowGraph:
    """A graph that uses every field."""
    builder = GraphBuilder("everything é")
    x = builder.add_input("x", TensorType((4, 4)))
    w = builder.add_input("w", TensorType((4, 4), "bfloat16"), "parameter")
    flipped = Reference(x.source, x.number, 0, (View("aten.permute.default", ((1, 0),)),))
    first = builder.add(
        Kernel("aten.mm.default", (flipped, w), (TensorType((4, 4)), TensorType(()))), kind="matmul", flops=128, layer=2
    )
    piece = Kernel("aten.cat.default", ((first, x), 0), (TensorType((8, 4)),))
    second = builder.add(
        Kernel("aten.clamp.default", (piece, -math.inf, None), (TensorType((8, 4)),), (("dtype", Symbol("float32")),)),
        kind="elementwise",
        flops=32.5,
        group=1,
        shard=0,
    )
    third = builder.add(
        Kernel("aten.add.Tensor", (second, Reference("op", 0, 1)), (TensorType((8, 4)),)), kind="elementwise", flops=1
    )
    builder.add_order(first, third)
    graph = builder.finish([third, x], ["sum", "x again"])
    vars(graph)["seconds"] = {"A": np.array([1.0, np.nan, 3.0]), "B": np.full(3, np.nan)}
    return graph.with_pins([[True, False], [True, True], [False, True]])


def test_everything_round_trips(tmp_path: Path) -> None:
    graph = full_graph()
    write_graph(graph, tmp_path / "all.json")
    back = read_graph(tmp_path / "all.json")
    assert same(graph, back)
    assert back.kernels == graph.kernels
    assert same(graph, DataflowGraph.from_networkx(graph.to_networkx()))
    assert [path.name for path in tmp_path.iterdir()] == ["all.json"], "no temporary file is left"


labels = st.one_of(st.integers(-(2**40), 2**40), st.text(max_size=6))
numbers = st.floats(0, 1e29)


@st.composite
def graphs(draw: st.DrawFn) -> DataflowGraph:
    ids = draw(st.lists(labels, min_size=1, max_size=8, unique_by=lambda label: (type(label), label)))
    count = len(ids)
    pairs = [(a, b) for a in range(count) for b in range(a + 1, count)]
    chosen = draw(st.lists(st.sampled_from(pairs), max_size=12)) if pairs else []
    stored = draw(st.lists(numbers, min_size=count, max_size=count))
    return DataflowGraph.build(
        flops=draw(st.lists(numbers, min_size=count, max_size=count)),
        out_bytes=stored,
        ids=ids,
        names=draw(st.lists(st.text(max_size=4), min_size=count, max_size=count)),
        edges=[(ids[a], ids[b]) for a, b in chosen],
        tensor=draw(st.lists(st.integers(0, 2), min_size=len(chosen), max_size=len(chosen))),
        group=draw(st.lists(st.integers(-1, 3), min_size=count, max_size=count)),
        seconds={"gpu": draw(st.lists(st.one_of(numbers, st.just(math.nan)), min_size=count, max_size=count))},
        allowed=draw(
            st.one_of(
                st.none(),
                st.lists(st.sampled_from([[True, False], [False, True], [True, True]]), min_size=count, max_size=count),
            )
        ),
        inputs=[GraphInput("w", draw(numbers), "parameter")],
        reads=draw(st.lists(st.sampled_from([[], [0]]), min_size=count, max_size=count)),
        title=draw(st.text(max_size=5)),
    )


@settings(deadline=None, max_examples=60)
@given(graphs())
def test_any_graph_round_trips(graph: DataflowGraph) -> None:
    document = json.loads(json.dumps(json_graph.to_document(graph)))
    assert same(graph, json_graph.parse(document, "x.json"))
    back = DataflowGraph.from_networkx(graph.to_networkx())
    assert (back.ids, back.names, back.tensors) == (graph.ids, graph.names, graph.tensors)
    assert edge_list(back) == edge_list(graph), "networkx may give the edges of an operation in another order"


def edge_list(graph: DataflowGraph) -> list[tuple[float, ...]]:
    columns = (graph.edge_source, graph.edge_target, graph.edge_bytes)
    return sorted(zip(*(column.tolist() for column in columns), strict=True))


def test_defaults_of_nodes_and_edges() -> None:
    nodes = [{"id": "a", "cost": 2, "out_bytes": 8}, {"id": "b", "flops": 3}, {"id": "c", "seconds": {"x": 1}}]
    edges = [{"src": "a", "dst": "b"}, {"src": "a", "dst": "c", "tensor": 0}, {"src": "a", "dst": "b", "tensor": 0}]
    graph = json_graph.parse({"nodes": nodes, "edges": edges}, "x.json", "x")
    assert graph.edge_bytes.tolist() == [8, 8, 8]
    assert graph.tensors == 2
    assert graph.title == "x"
    assert graph.flops.tolist() == [2, 3, 0]
    assert np.isnan(graph.seconds["x"]).tolist() == [True, True, False]


def test_allowed_lists_device_numbers() -> None:
    nodes = [{"id": "a", "cost": 1, "allowed": [0, 2]}, {"id": "b", "cost": 1}]
    graph = json_graph.parse({"nodes": nodes, "devices": 3}, "x.json")
    assert graph.allowed is not None
    assert graph.allowed.tolist() == [[True, False, True], [True, True, True]]


@pytest.mark.parametrize(
    ("node", "message"),
    [
        ({"id": "a"}, "node 'a' has no 'flops'"),
        ({"cost": 1}, "node 0 has no 'id'"),
        ({"id": 1.5, "cost": 1}, "expected a text or an integer"),
        ({"id": True, "cost": 1}, "expected a text or an integer"),
        ({"id": "a", "cost": "1"}, "node 'a' has cost '1', expected a number"),
        ({"id": "a", "cost": True}, "expected a number"),
        ({"id": "a", "cost": -1}, "'a' has cost -1"),
        ({"id": "a", "cost": math.nan}, "'a' has cost nan"),
        ({"id": "a", "cost": 10**400}, "not so large"),
        ({"id": "a", "cost": 1, "flops": 1}, "both flops and cost"),
        ({"id": "a", "cost": 1, "outbytes": 1}, "unknown key 'outbytes'; did you mean 'out_bytes'"),
        ({"id": "a", "cost": 1, "group": 1.5}, "group 1.5, expected a whole number"),
        ({"id": "a", "cost": 1, "seconds": 5}, "expected an object of device kinds"),
        ({"id": "a", "seconds": {"x": "y"}}, "has x 'y', expected a number"),
        ({"id": "a", "cost": 1, "allowed": [5]}, "device numbers below"),
        ({"id": "a", "cost": 1, "reads": [0]}, "reads a graph input outside"),
        ({"id": "a", "cost": 1, "kernel": {"target": 1}}, "expected an object with target"),
        ({"id": "a", "cost": 1, "kernel": {"ref": ["op", 0, 0]}}, "expected an object with target"),
        (
            {
                "id": "a",
                "cost": 1,
                "kernel": {"target": "x", "args": [{"ref": ["op", 9, 0]}], "kwargs": {}, "outputs": []},
            },
            "refers to 'op' 9",
        ),
        ([], "node 0 is"),
    ],
)
def test_malformed_nodes_are_refused(node: object, message: str) -> None:
    with pytest.raises(GraphError, match=rf"x\.json: .*{message}"):
        json_graph.parse({"nodes": [node]}, "x.json")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "the format is not known"),
        ("hello", "the format is not known"),
        ("[1]", "the format is not known"),
        ("{", "line 1 is not valid JSON"),
        ('{"nodes": [],\n"edges" []}', "line 2 is not valid JSON"),
        ('{"nodes": [{"id": 1, "id": 2, "cost": 1}]}', "the key 'id' twice"),
        ("{}", "has no 'nodes'"),
        ('{"nodes": []}', "no operation"),
        ('{"nodes": 5}', "expected a list"),
        ('{"node": []}', "did you mean 'nodes'"),
        ('{"version": 2, "nodes": []}', "version 2, expected 1"),
        ('{"nodes": [{"id": 1, "cost": 1}, {"id": 1, "cost": 1}]}', "stands twice"),
        ('{"nodes": [{"id": 1, "cost": 1}], "edges": [{"src": 1, "dst": "1"}]}', "names no operation '1'"),
        ('{"nodes": [{"id": 1, "cost": 1}], "edges": [{"src": 1}]}', "edge 0 has no 'dst'"),
        ('{"nodes": [{"id": 1, "cost": 1}], "edges": [{"src": 1, "to": 1}]}', "unknown key 'to'"),
        ('{"a":' * 100000, "nested too deeply"),
    ],
)
def test_malformed_documents_are_refused(content: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text(content)
    with pytest.raises(GraphError, match=message) as caught:
        read_graph(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_unreadable_and_unwritable_files(tmp_path: Path) -> None:
    graph = read_graph(CASES / "H14_ids.json")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    for path, message in (("none.json", "cannot be read"), (".", "cannot be read"), ("binary", "not UTF-8")):
        with pytest.raises(GraphError, match=message):
            read_graph(tmp_path / path)
    with pytest.raises(GraphError, match=r"ends in \.json"):
        write_graph(graph, tmp_path / "x.txt")
    with pytest.raises(GraphError, match="cannot be written"):
        write_graph(graph, tmp_path / "none" / "x.json")


def test_networkx_digraph_and_refusals() -> None:
    graph = nx.DiGraph()
    graph.add_node("a", cost=np.float64(3), out_bytes=np.int64(8))
    graph.add_node(1, cost=1)
    graph.add_edge("a", 1)
    assert DataflowGraph.from_networkx(graph).edge_bytes.tolist() == [8]
    with pytest.raises(GraphError, match="undirected"):
        DataflowGraph.from_networkx(graph.to_undirected())
    graph.add_node((1, 2), cost=1)
    with pytest.raises(GraphError, match="expected a text or an integer"):
        DataflowGraph.from_networkx(graph)
