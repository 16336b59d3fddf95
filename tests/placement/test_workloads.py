"""The workloads: exactly the published graphs at default sizes, and exact numbers at small ones."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from hadoppler.envs.errors import GraphError, UnknownNameError
from hadoppler.envs.placement.graph import DataflowGraph
from hadoppler.envs.placement.workloads import WORKLOADS, make_graph, published_costs
from hadoppler.envs.placement.workloads.llama_cuts import even_cuts
from hadoppler.envs.placement.workloads.published import published_kind

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = Path(os.environ.get("HADOPPLER_REFERENCE", ROOT.parent / "shared" / "reference")) / "doppler_graphs"

# name, devices -> operations, edges, input tiles; then the file without and with kinds.
PUBLISHED = {
    ("chainmm", 4): (76, 80, 36, "chain_mm_112nodes.txt", "gdp_chain_mm_112nodes.txt"),
    ("ffnn", 4): (180, 208, 12, "ffnn_192nodes.txt", "gdp_ffnn_192nodes.txt"),
    ("llama_block", 4): (182, 234, 33, "transformer_block_215nodes.txt", "gdp_transformer_block_215nodes.txt"),
    ("llama_layer", 4): (
        229,
        284,
        32,
        "full_transformer_layer_261nodes.txt",
        "gdp_full_transformer_layer_261nodes.txt",
    ),
    ("llama_block", 8): (302, 398, 54, "8gpu_transformer_block.txt", None),
    ("llama_layer", 8): (367, 470, 50, "8gpu_full_transformer.txt", None),
}
# The first form of a file may send one edge elsewhere than the form with kinds: (source, its target, theirs).
ODD_EDGES = {
    "chain_mm_112nodes.txt": (1, 6, 16),
    "transformer_block_215nodes.txt": (0, 7, 18),
    "full_transformer_layer_261nodes.txt": (0, 38, 97),
}
KINDS = {
    ("chainmm", 4): {"einsummable": 56, "formation": 20},
    ("ffnn", 4): {"einsummable": 128, "formation": 52},
    ("llama_block", 4): {"einsummable": 136, "formation": 34, "complexer": 12},
    ("llama_layer", 4): {
        "einsummable": 166,
        "formation": 46,
        "complexer": 12,
        "fill": 2,
        "select": 2,
        "squeezer": 1,
    },
}
SMALL: dict[str, dict[str, Any]] = {
    "chainmm": {"size": 13},
    "ffnn": {"batch": 37, "features": 5, "hidden": 11, "outputs": 3},
    "llama_block": {"sequence": 9, "width": 24, "heads": 4, "feedforward": 10},
    "llama_layer": {"sequence": 9, "width": 24, "heads": 4, "feedforward": 10, "vocabulary": 11},
    "moe_block": {"tokens": 9, "width": 6, "experts": 4, "feedforward": 7},
    "chain": {},
    "fork_join": {},
    "ladder": {},
    "layered_random": {},
    "random_program": {"operations": 8, "size": 6},
}
NUMERIC = ["chainmm", "ffnn", "llama_block", "llama_layer", "moe_block"]


def read_published(name: str) -> tuple[int, int, list[tuple[int, int]], list[list[str]]]:
    """Header count, number of inputs, edges and rows of a published file."""
    path = REFERENCE / name
    if not path.exists():
        pytest.skip(f"reference data is not there: {path} (set HADOPPLER_REFERENCE)")
    lines = [line for line in path.read_text().splitlines() if line.strip()]
    header, inputs, sources, targets = ([int(v) for v in line.replace(",", " ").split()] for line in lines[:4])
    rows = [[cell.strip() for cell in line.split(",")] for line in lines[4:]]
    return header[0], len(inputs), list(zip(sources, targets, strict=True)), rows


def edges_of(graph: DataflowGraph) -> list[tuple[int, int]]:
    return sorted(zip(graph.edge_source.tolist(), graph.edge_target.tolist(), strict=True))


@pytest.fixture(scope="module", params=PUBLISHED, ids=lambda key: f"{key[0]}-{key[1]}")
def published(request: pytest.FixtureRequest) -> tuple[tuple[str, int], DataflowGraph]:
    name, devices = request.param
    return request.param, make_graph(name, devices=devices)


def test_counts_are_the_published_ones(published) -> None:
    key, graph = published
    assert (graph.n, graph.e, len(graph.inputs)) == PUBLISHED[key][:3]
    if key in KINDS:
        assert Counter(map(published_kind, graph.names)) == KINDS[key]


def test_graph_costs_and_kinds_equal_the_published_file(published) -> None:
    key, graph = published
    *_, plain, with_kinds = PUBLISHED[key]
    header, inputs, edges, rows = read_published(with_kinds or plain)
    graph = published_costs(graph)
    assert (header, inputs) == (graph.n + len(graph.inputs), len(graph.inputs))
    assert edges_of(graph) == sorted(edges)
    assert [float(row[0]) for row in rows] == graph.flops.tolist()
    assert [float(row[1]) for row in rows] == graph.out_bytes.tolist()
    assert (graph.edge_bytes == graph.out_bytes[graph.edge_source]).all()
    if with_kinds:
        assert [row[2] for row in rows] == list(graph.kind)


def test_plain_file_differs_in_its_odd_edge_only(published) -> None:
    key, graph = published
    name = PUBLISHED[key][3]
    _, _, edges, rows = read_published(name)
    expected = edges_of(graph)
    if name in ODD_EDGES:
        source, odd, usual = ODD_EDGES[name]
        expected = sorted([*(edge for edge in expected if edge != (source, usual)), (source, odd)])
    assert sorted(edges) == expected
    assert [float(row[0]) for row in rows] == published_costs(graph).flops.tolist()


@pytest.mark.parametrize(("name", "operations"), [("chainmm", 128), ("ffnn", 360)])
def test_eight_device_forms_follow_by_rule(name: str, operations: int) -> None:
    """CHAINMM: 3 * 32 products, 3 * 8 formations, 8 sums; FFNN: 11 groups of 32 and 8 formations."""
    assert make_graph(name, devices=8).n == operations
    assert make_graph(name, shards=32).n == operations


def test_real_costs_are_those_of_the_tiles() -> None:
    graph = make_graph("chainmm")
    products = np.array([kind == "matmul" for kind in graph.kind])
    assert graph.flops[products].tolist() == [2 * 10_000**3 / 16] * 48
    # Sums of 4, 2 and 2 partial results, and of the two chains.
    assert graph.flops[~products].sum() == (3 + 1 + 1 + 1) * 10_000**2
    assert graph.out_bytes[0] == 4 * 5000 * 5000
    layer = make_graph("llama_layer")
    matmul = np.array([kind == "matmul" for kind in layer.kind])
    dense = 2 * 4096 * (4 * 4096**2 + 2 * 4096**2 + 3 * 4096 * 11_008) + 2 * 4096 * 32_000
    assert layer.flops[matmul].sum() == dense


@pytest.mark.parametrize("name", WORKLOADS)
def test_graphs_are_valid_and_deterministic(name: str) -> None:
    graph, again = (make_graph(name, **SMALL[name]) for _ in range(2))
    assert len(graph.topological_order) == graph.n
    assert graph.title == name
    for field in (
        "flops",
        "out_bytes",
        "edge_source",
        "edge_target",
        "edge_bytes",
        "tensor",
        "group",
        "shard",
        "layer",
    ):
        assert np.array_equal(getattr(graph, field), getattr(again, field))
    assert graph.kernels == again.kernels
    assert (graph.layer >= 0).all()
    if graph.kernels is not None:
        pairs = list(zip(graph.group.tolist(), graph.shard.tolist(), strict=True))
        assert len(set(pairs)) == graph.n
        assert min(graph.group) == 0
        assert min(graph.shard) == 0


@pytest.mark.parametrize("name", ["chain", "fork_join", "ladder", "layered_random", "random_program"])
def test_seeds_change_generated_graphs(name: str) -> None:
    first, second = (make_graph(name, seed=seed, **SMALL[name]) for seed in (1, 2))
    assert not np.array_equal(first.flops, second.flops)
    generator = make_graph(name, seed=np.random.default_rng(1), **SMALL[name])
    assert np.array_equal(first.flops, generator.flops)


def test_shapes_of_generators() -> None:
    assert (make_graph("chain", length=5).n, make_graph("chain", length=5).e) == (5, 4)
    graph = make_graph("fork_join", branches=3, length=2, stages=2)
    assert (graph.n, graph.e, int(graph.depth.max())) == (15, 18, 6)
    graph = make_graph("ladder", rungs=2000)
    assert (graph.n, graph.e, int(graph.depth.max())) == (6001, 8000, 4000)


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 6), st.integers(1, 6), st.floats(0, 1), st.integers(0, 99))
def test_layered_random_reads_only_the_layer_before(layers: int, width: int, density: float, seed: int) -> None:
    graph = make_graph("layered_random", layers=layers, width=width, density=density, seed=seed)
    assert graph.n == layers * width
    assert (graph.layer[graph.edge_target] - graph.layer[graph.edge_source] == 1).all()
    assert (graph.in_degree[graph.layer > 0] >= 1).all()
    assert (graph.depth == graph.layer).all()


def test_unknown_names_and_options_are_listed() -> None:
    with pytest.raises(UnknownNameError, match="no workload 'lama'; use one of chainmm, ffnn, llama_block"):
        make_graph("lama")
    with pytest.raises(UnknownNameError, match="chainmm has no option 'sise'; use one of size, devices"):
        make_graph("chainmm", sise=3)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("chainmm", {"size": 3}),
        ("llama_block", {"width": 30, "heads": 4}),
        ("llama_block", {"width": 4, "heads": 4}),
        ("moe_block", {"top_k": 9}),
        ("chain", {"length": 0}),
        ("layered_random", {"density": 2.0}),
    ],
)
def test_sizes_that_do_not_fit_are_refused(name: str, options: dict[str, Any]) -> None:
    with pytest.raises(GraphError):
        make_graph(name, **options)


def test_published_costs_need_kernels() -> None:
    with pytest.raises(GraphError, match="kernels"):
        published_costs(make_graph("chain"))


@pytest.mark.parametrize("devices", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("name", NUMERIC)
def test_kernels_compute_the_dense_result(name: str, devices: int) -> None:
    torch = pytest.importorskip("torch", reason="kernels run with torch")
    size = {"size": 24} if name == "chainmm" else {}
    graph = make_graph(name, devices=devices, dtype="float64", **{**SMALL[name], **size})
    compare(torch, name, graph, SMALL[name])


@pytest.mark.parametrize("combine", ["chain", "tree"])
@pytest.mark.parametrize("name", NUMERIC)
def test_other_combinations_compute_the_same(name: str, combine: str) -> None:
    torch = pytest.importorskip("torch", reason="kernels run with torch")
    compare(torch, name, make_graph(name, combine=combine, dtype="float64", **SMALL[name]), SMALL[name])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_lower_precision(dtype: str) -> None:
    torch = pytest.importorskip("torch", reason="kernels run with torch")
    graph = make_graph("llama_layer", dtype=dtype, **SMALL["llama_layer"])
    compare(torch, "llama_layer", graph, SMALL["llama_layer"], 1e-4 if dtype == "float32" else 5e-2)


def test_llama_stack_and_even_cuts() -> None:
    torch = pytest.importorskip("torch", reason="kernels run with torch")
    options = {**SMALL["llama_layer"], "layers": 3}
    graph = make_graph("llama_layer", cuts=even_cuts(6), dtype="float64", **options)
    assert set(graph.layer.tolist()) == {0, 1, 2, 3}
    compare(torch, "llama_layer", graph, options)


@pytest.mark.parametrize("seed", range(8))
def test_random_programs_run(seed: int) -> None:
    torch = pytest.importorskip("torch", reason="kernels run with torch")
    from hadoppler.envs.placement.interpreter import join_tiles, run

    graph = make_graph("random_program", operations=12, size=7, seed=seed, dtype="float64")
    inputs = {name: torch.randn(7, 7, dtype=torch.float64) for name in ("x0", "x1")}
    outputs = join_tiles(run(graph, inputs))
    assert all(value.isfinite().all() for value in outputs.values())


# Dense references, written with plain torch.


def compare(torch: Any, name: str, graph: DataflowGraph, options: dict[str, Any], tolerance: float = 1e-9) -> None:
    """Run the graph's kernels on random inputs and hold the result against the dense computation."""
    from hadoppler.envs.placement.interpreter import join_tiles, run
    from hadoppler.envs.placement.whole_tensors import whole_types

    generator = torch.Generator().manual_seed(0)
    inputs = {}
    for label, kind in whole_types(graph).items():
        if label == "positions":
            inputs[label] = torch.arange(kind.shape[0])
        elif label == "frequencies":
            inputs[label] = rotary(torch, kind)
        else:
            dtype = getattr(torch, kind.dtype)
            scale = 0.5 if len(kind.shape) > 1 else 1.0
            inputs[label] = (torch.randn(kind.shape, dtype=torch.float64, generator=generator) * scale).to(dtype)
    (result,) = join_tiles(run(graph, inputs)).values()
    exact = {k: v.to(torch.complex128 if v.is_complex() else torch.float64) for k, v in inputs.items()}
    wanted = DENSE[name](torch, exact, options)
    torch.testing.assert_close(result.double(), wanted, rtol=tolerance, atol=tolerance)


def rotary(torch: Any, kind: Any) -> Any:
    rows, half = kind.shape
    angle = torch.outer(torch.arange(rows), 10_000.0 ** (-torch.arange(half) / half)).double()
    return torch.polar(torch.ones_like(angle), angle).to(getattr(torch, kind.dtype))


def dense_chainmm(torch: Any, x: dict[str, Any], options: dict[str, Any]) -> Any:
    return x["a"] @ x["b"] + x["c"] @ x["d"] @ x["e"]


def dense_ffnn(torch: Any, x: dict[str, Any], options: dict[str, Any]) -> Any:
    return torch.softmax(torch.relu(x["x"] @ x["w1"]) @ x["w2"], -1)


def dense_layer(torch: Any, w: dict[str, Any], x: Any, options: dict[str, Any], causal: bool, prefix: str) -> Any:
    F = torch.nn.functional
    rows, width, heads = options["sequence"], options["width"], options["heads"]
    normed = F.rms_norm(x, (width,), w[prefix + "attention_norm"], 1e-6)
    q, k, v = ((normed @ w[prefix + part]).view(rows, heads, -1) for part in ("query", "key", "value"))
    factors = w["frequencies"][:rows, None]
    q, k = (
        torch.view_as_real(torch.view_as_complex(t.reshape(rows, heads, -1, 2)) * factors).flatten(2) for t in (q, k)
    )
    mixed = F.scaled_dot_product_attention(*(t.transpose(0, 1) for t in (q, k, v)), is_causal=causal)
    h = x + mixed.transpose(0, 1).reshape(rows, width) @ w[prefix + "output"]
    normed = F.rms_norm(h, (width,), w[prefix + "feedforward_norm"], 1e-6)
    return h + (F.silu(normed @ w[prefix + "gate"]) * (normed @ w[prefix + "up"])) @ w[prefix + "down"]


def dense_llama_block(torch: Any, x: dict[str, Any], options: dict[str, Any]) -> Any:
    return dense_layer(torch, x, x["x"], options, causal=False, prefix="")


def dense_llama_layer(torch: Any, x: dict[str, Any], options: dict[str, Any]) -> Any:
    layers = options.get("layers", 1)
    state = x["x"]
    for layer in range(layers):
        state = dense_layer(torch, x, state, options, causal=True, prefix=f"layer_{layer}." if layers > 1 else "")
    return torch.nn.functional.rms_norm(state[-1], (options["width"],), x["norm"], 1e-6) @ x["vocabulary"]


def dense_moe_block(torch: Any, w: dict[str, Any], options: dict[str, Any]) -> Any:
    x, total = w["x"], 0.0
    values, chosen = torch.softmax(x @ w["router"], -1).topk(2)
    values = values / values.sum(-1, keepdim=True)
    for expert in range(options["experts"]):
        gate = (values * (chosen == expert)).sum(-1, keepdim=True)
        into, up, back = (w[f"expert_{expert}.{part}"] for part in ("gate", "up", "down"))
        total = total + gate * ((torch.nn.functional.silu(x @ into) * (x @ up)) @ back)
    return total


DENSE = {
    "chainmm": dense_chainmm,
    "ffnn": dense_ffnn,
    "llama_block": dense_llama_block,
    "llama_layer": dense_llama_layer,
    "moe_block": dense_moe_block,
}
