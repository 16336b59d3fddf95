"""Tiled graphs compute what the untiled ones do, and have something to place in parallel."""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from hypothesis import (  # noqa: E402
    given,
    settings,
    strategies as st,
)
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from hadoppler.envs.errors import GraphError  # noqa: E402
from hadoppler.envs.placement.graph import DataflowGraph  # noqa: E402
from hadoppler.envs.placement.interpreter import join_tiles, module_inputs, run  # noqa: E402
from hadoppler.envs.placement.readers import read_graph, write_graph  # noqa: E402
from hadoppler.envs.placement.readers.torch_export import from_module  # noqa: E402
from hadoppler.envs.placement.tiling import cut_function, tile  # noqa: E402

Cuts = int | Mapping[str, int] | Callable[..., Any]


class Function(nn.Module):
    """A function of tensors as a module."""

    def __init__(self, function: Callable[..., Any]):
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(*args)


class TrainingLoss(nn.Module):
    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, x: Any, y: Any) -> Any:
        return F.mse_loss(self.model(x), y)


class Block(nn.Module):
    """A transformer block: layer norm, attention, GELU network, residuals."""

    def __init__(self, width: int, heads: int, fused: bool):
        super().__init__()
        self.heads, self.fused = heads, fused
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Any) -> Any:
        batch, time, width = x.shape
        parts = self.qkv(self.norm1(x)).split(width, -1)
        q, k, v = (part.view(batch, time, self.heads, -1).transpose(1, 2) for part in parts)
        if self.fused:
            a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            future = torch.ones(time, time, dtype=torch.bool, device=x.device).triu(1)
            scores = (q @ k.transpose(-1, -2)) / (width // self.heads) ** 0.5
            a = torch.softmax(scores.masked_fill(future, float("-inf")), -1) @ v
        x = x + self.out(a.transpose(1, 2).reshape(batch, time, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


def values(*shape: int) -> Any:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, dtype=torch.float64, generator=generator)


def tiled_equal(
    module: nn.Module, args: tuple[Any, ...], cuts: Cuts, *, training: bool = False
) -> tuple[DataflowGraph, DataflowGraph]:
    """Capture, tile, run both and compare; returns both graphs."""
    torch.manual_seed(0)
    module = module.double()
    graph = from_module(module, args, training=training)
    inputs = module_inputs(graph, module, args)
    expected, tiled = run(graph, inputs), tile(graph, cuts)
    found = join_tiles(run(tiled, inputs))
    assert list(found) == list(expected)
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-9, atol=1e-9)
    check_groups(tiled)
    assert sum(entry.bytes for entry in tiled.inputs) == sum(entry.bytes for entry in graph.inputs)
    products = [float(g.flops[np.array(g.kind) == "matmul"].sum()) for g in (graph, tiled)]
    assert products[0] == pytest.approx(products[1])
    return graph, tiled


def check_groups(graph: DataflowGraph) -> None:
    shards: dict[int, list[int]] = {}
    for group, shard in zip(graph.group.tolist(), graph.shard.tolist(), strict=True):
        shards.setdefault(group, []).append(shard)
    assert -1 not in shards
    assert all(sorted(found) == list(range(len(found))) for found in shards.values())


def network(width: int = 32) -> nn.Module:
    layers = [layer for _ in range(4) for layer in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


@pytest.mark.parametrize(("cuts", "operations"), [(1, 33), (2, 236), (3, 619)])
def test_training_step_of_a_network(cuts: int, operations: int) -> None:
    graph, tiled = tiled_equal(TrainingLoss(network()), (values(32, 32), values(32, 32)), cuts, training=True)
    assert graph.n == 33
    assert tiled.n == operations
    if cuts > 1:
        assert Counter(tiled.depth.tolist()).most_common(1)[0][1] >= cuts**3


def test_training_step_with_sizes_that_do_not_divide() -> None:
    tiled_equal(
        TrainingLoss(nn.Sequential(nn.Linear(23, 19), nn.Tanh(), nn.Linear(19, 5))),
        (values(13, 23), values(13, 5)),
        3,
        training=True,
    )


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("cuts", [2, 3])
@pytest.mark.parametrize("fused", [True, False])
def test_transformer_block(fused: bool, cuts: int, training: bool) -> None:
    graph, tiled = tiled_equal(Block(24, 4, fused), (values(3, 13, 24),), cuts, training=training)
    assert tiled.n > 4 * graph.n
    if fused and not training:
        assert tiled.kind.count("attention") == cuts**2


def test_one_sequence_is_cut_along_its_length() -> None:
    _, tiled = tiled_equal(Block(16, 2, False), (values(1, 16, 16),), 2)
    assert any(entry.name == "x[0, 1, 1]" for entry in tiled.inputs)


def test_embedding_and_head_with_tied_weights() -> None:
    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.head = nn.Embedding(20, 8), nn.Linear(8, 20, bias=False)
            self.head.weight = self.words.weight

        def forward(self, ids: Any) -> Any:
            return F.cross_entropy(self.head(self.words(ids)).flatten(0, 1), ids.flatten())

    ids = torch.arange(24).reshape(3, 8) % 20
    tiled_equal(Words(), (ids,), 2)
    _, tiled = tiled_equal(Words(), (ids,), 2, training=True)
    assert [entry.name for entry in tiled.inputs if entry.role == "parameter"] == [
        "words.weight[0, 0]",
        "words.weight[0, 1]",
    ]


def test_images() -> None:
    module = nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.MaxPool2d(2),
        nn.Conv2d(4, 6, 3, stride=2, groups=2), nn.AvgPool2d(1), nn.Flatten(), nn.Linear(6, 5), nn.Softmax(-1),
    )  # fmt: skip
    for training in (False, True):
        tiled_equal(module, (values(4, 3, 8, 8),), 2, training=training)


FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "softmax over a cut dimension": (lambda x: (x.softmax(-1), x.softmax(0), x.log_softmax(1)), (values(9, 10),)),
    "reductions": (
        lambda x: (x.sum(), x.sum(0), x.mean((0, 1)), x.amax(1, keepdim=True), x.amin(-1), x.sum([], keepdim=True)),
        (values(9, 10),),
    ),
    "other reductions": (
        lambda x: (x.var(0), x.argmax(-1), x.cumsum(0), x.logsumexp(1), (x > 0).sum(-1), (x > 0).any(0), x.max(1)),
        (values(9, 10),),
    ),
    "layer norm over two dimensions": (lambda x: F.layer_norm(x, (8, 10)), (values(9, 8, 10),)),
    "batched products": (lambda a, b: (a @ b, torch.baddbmm(a, a, a)), (values(3, 9, 9), values(3, 9, 10))),
    "products of cut by uncut": (lambda a, b: a.relu() @ b.t() + b[0, 0], (values(17, 9), values(2, 9))),
    "scaled products": (lambda a, b: torch.addmm(a, a, b, beta=2, alpha=3), (values(9, 9), values(9, 9))),
    "vectors": (lambda a, b: (torch.mv(a, b), torch.dot(b, b), torch.outer(b, b)), (values(9, 9), values(9))),
    "broadcasting": (
        lambda a, b: (a[:8, None] * b, a + 1, b * a[3], torch.where(b > 0, b, a)),
        (values(9), values(8, 9)),
    ),
    "views": (
        lambda x: (
            x.view(3, 3, 10) * 2, x.t().flatten() + 1, x[:, ::2] - 1, x[2:7, 3:].exp(), x[4] * x[5],
            x.unsqueeze(1).expand(-1, 4, -1).sum(-1), x.diagonal() + 1, x.view(-1)[5:20].cos(), x.flip(0) + x,
            x.squeeze(0) + 0.5, x.view(9, 1, 10).squeeze(1) * 3, torch.stack(x.unbind(0)[:3]) + 1,
        ),
        (values(9, 10),),
    ),
    "concatenation": (
        lambda a, b: (
            torch.cat([a, b, a], 1).relu(), torch.cat([a, a]) @ torch.cat([b, b], 1), torch.stack([a, a], -1) + 1,
        ),
        (values(9, 9), values(9, 10)),
    ),
    "creation": (
        lambda x: (x + torch.full((9, 10), 2.0), x * torch.arange(10), torch.zeros_like(x) + torch.ones(10), x.tril()),
        (values(9, 10),),
    ),
    "scatter": (
        lambda x: (
            x.index_select(0, torch.tensor([1, 1, 3])), x.scatter(0, torch.zeros(1, 10, dtype=torch.int64), 5.0),
        ),
        (values(9, 10),),
    ),
    "attention with a mask": (
        lambda q, m: F.scaled_dot_product_attention(q, q * 2, q + 1, attn_mask=m),
        (values(3, 4, 9, 8), values(9, 9)),
    ),
    "attention with a mask for each head": (
        lambda q, m: F.scaled_dot_product_attention(q, q * 2, q + 1, attn_mask=m, scale=0.3),
        (values(3, 4, 9, 8), values(3, 4, 9, 9)),
    ),
    "grouped attention": (
        lambda q, k: F.scaled_dot_product_attention(q, k, k, is_causal=True, enable_gqa=True),
        (values(2, 4, 9, 8), values(2, 2, 9, 8)),
    ),
    "passing an input through": (lambda x: (x, x.t(), x + 1), (values(9, 10),)),
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_operators(name: str) -> None:
    function, args = FUNCTIONS[name]
    graph, tiled = tiled_equal(Function(function), args, 2)
    assert tiled.n > graph.n or name in ("grouped attention", "scatter")


def test_changed_buffers() -> None:
    class Counter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("steps", torch.zeros(8))

        def forward(self, x: Any) -> Any:
            before = x * self.steps
            self.steps.add_(1)
            return before

    graph, tiled = tiled_equal(Counter(), (values(8, 8),), 2)
    assert (graph.edge_bytes == 0).sum() == 1
    assert (tiled.edge_bytes == 0).sum() == 4 * 2, "each reading tile comes before each writing one"


@settings(deadline=None, max_examples=15)
@given(
    m=st.integers(1, 12), k=st.integers(1, 12), n=st.integers(1, 12),
    cuts=st.tuples(*[st.integers(1, 3)] * 7), axis=st.sampled_from([0, 1]),
)  # fmt: skip
def test_any_cuts_of_any_sizes(m: int, k: int, n: int, cuts: tuple[int, ...], axis: int) -> None:
    def choose(kind: str, name: str, sizes: tuple[int, ...]) -> list[int]:
        wanted = cuts[:3] if kind == "matmul" else cuts[3:5] if name == "args_0" else cuts[5:]
        return [min(pieces, size) for pieces, size in zip(wanted, sizes, strict=True)]

    module = Function(lambda a, b: (torch.softmax(a @ b, axis), (a.t() * 2).sum(axis)))
    tiled_equal(module, (values(m, k), values(k, n)), choose)


def test_cuts_by_kind_and_their_errors() -> None:
    _, tiled = tiled_equal(network(), (values(32, 32),), {"matmul": 2, "input": 1})
    assert all("[" not in entry.name for entry in tiled.inputs)
    assert tiled.kind.count("matmul") > 4
    assert cut_function({"input": 2})("matmul", "x", (64, 64, 64)) == [1, 1, 1]
    assert cut_function(4)("input", "x", (64, 15)) == [4, 1], "15 elements do not make four pieces of four"
    assert cut_function(2)("input", "x", (3, 64, 64)) == [2, 1, 2]
    assert cut_function(2)("input", "x", (1, 64, 64)) == [1, 2, 2]
    assert cut_function(2)("matmul", "x", (4, 8, 8, 8)) == [2, 2, 1, 1]
    graph = from_module(nn.Linear(8, 8), (torch.zeros(8, 8),))
    for wrong in (0, -1, {"matmul": 0}, True, 1.5):
        with pytest.raises(GraphError, match="expected a whole number from 1"):
            tile(graph, wrong)  # type: ignore[arg-type]
    with pytest.raises(GraphError, match="cannot be cut into 9 pieces"):
        tile(graph, lambda kind, name, sizes: [9] * len(sizes))
    with pytest.raises(GraphError, match="only graphs with kernels"):
        tile(DataflowGraph.build(flops=[1]), 2)


def test_pins_layers_and_files(tmp_path: Any) -> None:
    module, x = network(), values(32, 32)
    graph = from_module(module.double(), (x,))
    pinned = graph.with_pins([[number % 2 == 0, True] for number in range(graph.n)])
    tiled = tile(pinned, 2, title="four layers")
    assert tiled.title == "four layers"
    assert tiled.allowed is not None
    assert tiled.allowed[np.array(tiled.kind) == "matmul"].all()
    assert not tiled.allowed[[name.startswith("1.relu") for name in tiled.names]][:, 0].any()
    assert set(tiled.layer.tolist()) == set(range(7))
    write_graph(tiled, tmp_path / "tiled.json")
    back = read_graph(tmp_path / "tiled.json")
    assert back.kernels == tiled.kernels
    inputs = module_inputs(tiled, module, (x,))
    torch.testing.assert_close(join_tiles(run(back, inputs))["output_0"], module(x).detach())


def test_cuts_of_unknown_kinds_are_refused_and_titles_are_true() -> None:
    graph = from_module(nn.Linear(4, 4), (torch.zeros(2, 4),), title="small")
    with pytest.raises(GraphError, match="cuts names 'matmull'; expected input, default"):
        tile(graph, {"matmull": 2})
    assert tile(graph, 10**6).title == "small", "nothing was cut"
