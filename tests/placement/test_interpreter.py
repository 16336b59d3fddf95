"""Running a graph's kernels gives what the module, and autograd, give."""

import copy
import weakref
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch.utils._pytree import tree_leaves  # noqa: E402

from hadoppler.envs.errors import GraphError  # noqa: E402
from hadoppler.envs.placement import interpreter  # noqa: E402
from hadoppler.envs.placement.graph import DataflowGraph  # noqa: E402
from hadoppler.envs.placement.graph_builder import GraphBuilder  # noqa: E402
from hadoppler.envs.placement.interpreter import join_tiles, module_inputs, run  # noqa: E402
from hadoppler.envs.placement.kernel import Kernel, Reference, TensorType  # noqa: E402
from hadoppler.envs.placement.readers import read_graph, write_graph  # noqa: E402
from hadoppler.envs.placement.readers.torch_export import from_module  # noqa: E402


class Everything(nn.Module):
    """Tied embedding, constants, changed buffers, splits, attention, a dictionary of results."""

    def __init__(self):
        super().__init__()
        self.embedding, self.norm = nn.Embedding(20, 8), nn.LayerNorm(8)
        self.project, self.head = nn.Linear(8, 24), nn.Linear(8, 20, bias=False)
        self.head.weight = self.embedding.weight
        self.batch_norm = nn.BatchNorm1d(6)
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, ids, scale=None):
        self.calls.add_(1)
        h = self.norm(self.batch_norm(self.embedding(ids))) * torch.tensor([2.0, 1.0] * 4)
        q, k, v = (part.view(2, 6, 2, 4).transpose(1, 2) for part in self.project(h).chunk(3, -1))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(2, 6, 8)
        return {"logits": self.head(F.gelu(a) + F.silu(a)) * scale, "calls": 3, "sum": a.sum()}


def images() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(64, 5), nn.LogSoftmax(-1),
    )  # fmt: skip


CASES: dict[str, tuple[Any, tuple[Any, ...], dict[str, Any]]] = {
    "everything": (Everything, (torch.arange(12).reshape(2, 6),), {"scale": torch.ones(20) / 3}),
    "images": (images, (torch.linspace(-1, 1, 384).reshape(2, 3, 8, 8),), {}),
    "lstm": (lambda: nn.LSTM(4, 3, batch_first=True), (torch.linspace(-1, 1, 24).reshape(2, 3, 4),), {}),
}


def doubled(value: Any) -> Any:
    return value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value


def prepared(name: str) -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    torch.manual_seed(0)
    factory, args, kwargs = CASES[name]
    return factory().double(), tuple(map(doubled, args)), {key: doubled(value) for key, value in kwargs.items()}


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_equal_to_the_module_and_autograd(name: str, training: bool, tmp_path: Any) -> None:
    module, args, kwargs = prepared(name)
    graph = from_module(module, args, kwargs, training=training)
    write_graph(graph, tmp_path / "graph.json")
    outputs = run(read_graph(tmp_path / "graph.json"), module_inputs(graph, module, args, kwargs))
    expected = copy.deepcopy(module)
    results = tree_leaves(expected(*args, **kwargs))
    for position, result in enumerate(results):
        if isinstance(result, torch.Tensor):
            torch.testing.assert_close(outputs[f"output_{position}"], result)
    for buffer, value in expected.named_buffers():
        torch.testing.assert_close(outputs[buffer], value)
    if training:
        sum(result.sum() for result in results if isinstance(result, torch.Tensor)).backward()
        for parameter, value in expected.named_parameters():
            torch.testing.assert_close(outputs[f"grad.{parameter}"], value.grad)


def test_tangents_scale_gradients() -> None:
    module, x = nn.Linear(3, 2), torch.ones(4, 3, requires_grad=True)
    graph = from_module(module, (x,), training=True)
    tangent = torch.arange(8.0).reshape(4, 2)
    outputs = run(graph, module_inputs(graph, module, (x,), tangents=[tangent]))
    module(x).backward(tangent)
    torch.testing.assert_close(outputs["grad.weight"], module.weight.grad)
    torch.testing.assert_close(outputs["grad.input"], x.grad)
    with pytest.raises(GraphError, match="0 tangents are given, but the graph has 1"):
        module_inputs(graph, module, (x,), tangents=[])


def chain(length: int) -> DataflowGraph:
    builder = GraphBuilder("chain")
    kind = TensorType((10,))
    last = builder.add_input("x", kind)
    for _ in range(length):
        last = builder.add(Kernel("aten.add.Tensor", (last, 1), (kind,)), kind="elementwise", flops=10)
    return builder.finish([last], ["y"])


def test_tensors_are_freed_after_their_last_use(monkeypatch: pytest.MonkeyPatch) -> None:
    alive: list[weakref.ref[Any]] = []
    most = 0
    original = interpreter.evaluate

    def watched(*args: Any) -> tuple[Any, ...]:
        nonlocal most
        results = original(*args)
        alive.append(weakref.ref(results[0]))
        most = max(most, sum(reference() is not None for reference in alive))
        return results

    monkeypatch.setattr(interpreter, "evaluate", watched)
    assert run(chain(50), {"x": torch.zeros(10)})["y"].tolist() == [50.0] * 10
    assert most <= 3


def test_operations_in_any_given_order() -> None:
    kind = TensorType((2,))
    kernels = [
        Kernel("aten.mul.Tensor", (Reference("op", 1), 3), (kind,)),
        Kernel("aten.add.Tensor", (Reference("input", 0), 1), (kind,)),
    ]
    builder = GraphBuilder()
    builder.add_input("x", kind)
    graph = DataflowGraph.build(
        flops=[1, 1], edges=[(1, 0)], kernels=kernels, inputs=builder.inputs, outputs=[Reference("op", 0)]
    )
    assert run(graph, {"x": torch.zeros(2)})["output_0"].tolist() == [3, 3]


def test_wrong_inputs_are_named() -> None:
    graph = chain(1)
    for inputs, message in (
        ({}, "the input 'x' is missing"),
        ({"x": torch.zeros(11)}, r"'x' has shape \(11,\) and dtype float32; expected one of shape \(10,\)"),
        ({"x": torch.zeros(10, dtype=torch.int64)}, "dtype int64"),
        ({"x": torch.zeros(10), "z": torch.zeros(1)}, "there is no input 'z'; inputs are x"),
    ):
        with pytest.raises(GraphError, match=message):
            run(graph, inputs)
    with pytest.raises(GraphError, match="no kernels"):
        run(DataflowGraph.build(flops=[1]), {})
    module = nn.Linear(3, 2)
    with pytest.raises(GraphError, match="hold 2 tensors, but the graph has 1 inputs"):
        module_inputs(from_module(module, (torch.ones(1, 3),)), module, (torch.ones(1, 3), torch.ones(1)))


def test_unknown_operators_are_named() -> None:
    builder = GraphBuilder()
    x = builder.add_input("x", TensorType((2,)))
    y = builder.add(Kernel("aten.no_such.default", (x,), (TensorType((2,)),)), kind="other", flops=0)
    with pytest.raises(GraphError, match=r"no operator 'aten\.no_such\.default'"):
        run(builder.finish([y]), {"x": torch.zeros(2)})


def test_tiles_join() -> None:
    whole = torch.arange(12.0).reshape(3, 4)
    tiles = {
        f"w[{i}, {j}]": whole[rows, columns]
        for i, rows in enumerate((slice(0, 1), slice(1, 3)))
        for j, columns in enumerate((slice(0, 3), slice(3, 4)))
    }
    joined = join_tiles({**dict(reversed(tiles.items())), "s[]": torch.tensor(1.0), "plain": whole})
    assert torch.equal(joined["w"], whole)
    assert set(joined) == {"w", "s", "plain"}
