"""Graphs of a user's module: structure, costs, inputs, side effects, and what cannot be captured."""

import sys
import warnings
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from hadoppler.envs.errors import GraphError  # noqa: E402
from hadoppler.envs.placement.graph import DataflowGraph  # noqa: E402
from hadoppler.envs.placement.interpreter import module_inputs, run  # noqa: E402
from hadoppler.envs.placement.kinds import KINDS, aten_kind  # noqa: E402
from hadoppler.envs.placement.readers.factory import load_factory  # noqa: E402
from hadoppler.envs.placement.readers.torch_export import from_module  # noqa: E402

COUNTED = ("matmul", "attention", "convolution")


class Branch(nn.Module):
    """Control flow that depends on data."""

    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 4)

    def forward(self, x):
        if x.sum() > 0:
            return self.lin(x)
        return x


class Shared(nn.Module):
    """One module called twice: two products, one set of weights."""

    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 4)

    def forward(self, x):
        return self.lin(x) + self.lin(x)


class RmsNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


class LlamaLayer(nn.Module):
    def __init__(self, width, heads, inner):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.gate, self.up = (nn.Linear(width, inner, bias=False) for _ in range(2))
        self.down = nn.Linear(inner, width, bias=False)
        self.norm1, self.norm2 = RmsNorm(width), RmsNorm(width)

    def forward(self, x):
        batch, time, width = x.shape
        h = self.norm1(x)
        q, k, v = (f(h).view(batch, time, self.heads, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(a.transpose(1, 2).reshape(batch, time, width))
        h = self.norm2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Llama(nn.Module):
    def __init__(self, words=40, width=16, heads=2, inner=24, layers=1):
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.layers = nn.ModuleList(LlamaLayer(width, heads, inner) for _ in range(layers))
        self.head = nn.Linear(width, words, bias=False)

    def forward(self, ids):
        x = self.embedding(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


class Gpt(nn.Module):
    """Tied embedding, positions, torch's own layers."""

    def __init__(self, words=40, width=16, heads=2, layers=1):
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(8, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, heads, 32, 0.0, "gelu", batch_first=True, norm_first=True)
            for _ in range(layers)
        )
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)
        self.head.weight = self.words.weight

    def forward(self, ids):
        x = self.words(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


class Convolutions(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.second, self.head = nn.Conv2d(4, 6, 3, stride=2, groups=2), nn.Linear(6, 5)

    def forward(self, x):
        x = F.relu(self.norm(self.first(x)), inplace=True)
        return self.head(F.adaptive_avg_pool2d(self.second(F.max_pool2d(x, 2)), 1).flatten(1))


def counted(graph: DataflowGraph) -> float:
    return float(sum(flops for flops, kind in zip(graph.flops, graph.kind, strict=True) if kind in COUNTED))


IDS = torch.arange(24).reshape(3, 8) % 40
MODELS = {"llama": (Llama, (IDS,)), "gpt": (Gpt, (IDS,)), "convolutions": (Convolutions, (torch.ones(2, 3, 12, 12),))}


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_flops_equal_torchs_own_count(name: str, training: bool) -> None:
    factory, args = MODELS[name]
    module = factory()
    graph = from_module(module, args, training=training)
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        result = module(*args)
        if training:
            result.sum().backward()
    assert counted(graph) == counter.get_total_flops()
    assert set(graph.kind) <= set(KINDS)
    assert graph.kernels is not None
    assert all(kernel.target.startswith("aten.") for kernel in graph.kernels)


def test_operation_counts() -> None:
    forward, training = (from_module(Llama(layers=2), (IDS,), training=training) for training in (False, True))
    assert forward.kind.count("matmul") == 2 * 7 + 1
    assert forward.kind.count("attention") == 2
    assert forward.kind.count("gather") == 1
    assert training.kind.count("matmul") == 3 * (2 * 9 + 1), "attention is two products; backward twice as many"
    assert 50 < forward.n < 70
    assert 150 < training.n < 260
    assert sorted(set(forward.layer.tolist())) == [-1, 0, 1]
    assert "layers.1.down.mm" in forward.names
    assert "layers.1.down.mm (backward)" in training.names


def test_shared_module_is_two_operations_and_one_weight() -> None:
    graph = from_module(Shared(), (torch.zeros(2, 4),))
    assert graph.n == 3
    assert sum(entry.bytes for entry in graph.inputs if entry.role == "parameter") == 80
    assert graph.flops.tolist() == [64, 64, 8]
    assert graph.out_bytes.tolist() == [32, 32, 32]
    assert graph.bytes_moved.tolist() == [144, 144, 96]
    assert graph.title == "Shared"


def test_tied_weights_are_one_input() -> None:
    for training in (False, True):
        graph = from_module(Gpt(), (IDS,), training=training)
        names = [entry.name for entry in graph.inputs]
        assert "words.weight" in names
        assert "head.weight" not in names
        assert len(set(names)) == len(names)
        assert len(set(graph.output_names)) == len(graph.output_names)


@pytest.mark.parametrize("training", [False, True])
def test_data_dependent_control_flow_is_explained(training: bool, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(GraphError, match=r"Branch: .*if x\.sum\(\) > 0.*torch\.where") as caught:
        from_module(Branch(), (torch.zeros(2, 4),), training=training)
    assert "\n" not in str(caught.value)
    assert capfd.readouterr() == ("", ""), "torch's own messages are kept back"


def test_other_failures_are_explained() -> None:
    class Unbounded(nn.Module):
        def forward(self, x):
            return x[x > 0]

    class Constant(nn.Module):
        def forward(self, x):
            return x

    linear = nn.Linear(4, 4)
    with pytest.raises(GraphError, match=r"Unbounded: .*values of tensors"):
        from_module(Unbounded(), (torch.zeros(4),))
    with pytest.raises(GraphError, match="Constant: the module computes nothing"):
        from_module(Constant(), (torch.zeros(4),))
    with pytest.raises(GraphError, match=r"Linear: torch\.export could not capture its forward"):
        from_module(linear, (torch.zeros(2, 5),))
    with pytest.raises(GraphError, match="expected a torch"):
        from_module(lambda x: x, (torch.zeros(2),))  # type: ignore[arg-type]
    with pytest.raises(GraphError, match="args is a Tensor"):
        from_module(linear, torch.zeros(2, 4))
    with pytest.raises(GraphError, match="requires_grad"):
        from_module(linear.requires_grad_(False), (torch.zeros(2, 4),), training=True)


def test_conditional_operators_are_refused() -> None:
    class Conditional(nn.Module):
        def forward(self, x):
            return torch.cond(x.sum() > 0, lambda y: y + 1, lambda y: y - 1, (x,))

    with pytest.raises(GraphError, match=r"Conditional: .*cond"):
        from_module(Conditional(), (torch.zeros(3),))


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("arguments", ["meta", "cpu"])
def test_modules_without_data(training: bool, arguments: str) -> None:
    with torch.device("meta"):
        module = Gpt()
    graph = from_module(module, (IDS.to(arguments),), training=training)
    real = from_module(Gpt(), (IDS,), training=training)
    assert graph.kernels == real.kernels
    assert next(module.parameters()).device.type == "meta"


def test_large_module_needs_no_memory() -> None:
    with torch.device("meta"):
        module = Llama(32000, 4096, 32, 11008, 1)
    graph = from_module(module, (torch.zeros(1, 2048, dtype=torch.int64),))
    assert sum(entry.bytes for entry in graph.inputs) > 1.8e9
    assert graph.flops.sum() > 1e12


def test_side_effects_are_outputs_in_order() -> None:
    class Counter(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("steps", torch.zeros(2))
            self.norm = nn.BatchNorm1d(2)

        def forward(self, x, scale):
            before = x * self.steps
            self.steps.add_(scale)
            x.mul_(2)
            return self.norm(before + self.steps)

    graph = from_module(Counter(), (torch.ones(3, 2), torch.ones(2)))
    changed = {"steps", "x", "norm.running_mean", "norm.running_var", "norm.num_batches_tracked"}
    assert set(graph.output_names) == {"output_0", *changed}
    reader, writer = graph.names.index("mul"), graph.outputs[graph.output_names.index("steps")].number
    order = [
        size
        for a, b, size in zip(graph.edge_source, graph.edge_target, graph.edge_bytes, strict=True)
        if (a, b) == (reader, writer)
    ]
    assert order == [0], "the old value is read before the new one is written"


def test_views_are_no_operations() -> None:
    class Views(nn.Module):
        def forward(self, x):
            first, second, third = x.view(4, 3, 2).unbind(1)
            left, right = x.t().split([4, 8])
            return (
                (first + second.detach()) @ third.t(),
                left.unsqueeze(0).expand(2, -1, -1) * 2,
                right[2, 1:] + 1,
            )

    graph = from_module(Views(), (torch.zeros(2, 12),))
    assert sorted(graph.kind) == ["elementwise", "elementwise", "elementwise", "matmul"]
    assert graph.bytes_moved[0] == 3 * 32, "only the elements seen count"


def test_operators_of_several_results() -> None:
    class Several(nn.Module):
        def forward(self, x):
            values, indices = x.max(-1)
            spread, mean = torch.var_mean(x, dim=0)
            return {"best": values, "where": indices, "count": 3, "rest": (spread, mean)}

    graph = from_module(Several(), (torch.rand(4, 5),))
    assert graph.output_names == ("output_0", "output_1", "output_3", "output_4")
    assert graph.kernels is not None
    assert max(len(kernel.outputs) for kernel in graph.kernels) == 2


def test_keyword_arguments_and_clashing_names() -> None:
    class Clash(nn.Module):
        def __init__(self):
            super().__init__()
            self.x = nn.Parameter(torch.ones(3))

        def forward(self, x, *, shift=None, power=2):
            return self.x * x**power + shift

    graph = from_module(Clash(), (torch.ones(3),), {"shift": torch.ones(3), "power": 3})
    assert [(entry.name, entry.role) for entry in graph.inputs] == [
        ("x", "parameter"),
        ("input.x", "input"),
        ("shift", "input"),
    ]


@pytest.mark.parametrize("training", [False, True])
def test_changed_arguments_and_state_of_one_name(training: bool) -> None:
    class Same(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))
            self.register_buffer("total", torch.zeros(3))

        def forward(self, weight, total):
            result = weight * self.weight
            self.total.add_(1)
            total.mul_(2)
            return result

    args = (torch.ones(3, requires_grad=training), torch.ones(3))
    graph = from_module(Same(), args, training=training)
    names = {"output_0", "total", "input.total"} | ({"grad.weight", "grad.input.weight"} if training else set())
    assert set(graph.output_names) == names


def test_kind_table() -> None:
    assert aten_kind("mm") == "matmul"
    assert aten_kind("_scaled_dot_product_flash_attention") == "attention"
    assert aten_kind("native_layer_norm_backward") == "normalisation"
    assert aten_kind("tanh", pointwise=True) == "elementwise"
    assert aten_kind("unheard_of") == "other"


def test_factories_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_models.py").write_text(
        "import torch\n"
        "def small():\n    return torch.nn.Linear(4, 2), (torch.zeros(3, 4),)\n"
        "class Table(torch.nn.Module):\n    def forward(self):\n        return torch.ones(2)\n"
        "def alone():\n    return Table()\n"
        "def named():\n    return torch.nn.Linear(4, 2), (), {'input': torch.zeros(3, 4)}\n"
        "def unnamed():\n    return torch.nn.Linear(4, 2), (), {0: torch.zeros(3, 4)}\n"
        "def misnamed():\n    return torch.nn.Linear(4, 2), (), {'inputs': torch.zeros(3, 4)}\n"
        "def hungry():\n    return torch.nn.Linear(4, 2)\n"
        "def broken():\n    return 1 / 0\n"
        "def wrong():\n    return 5\n"
        "number = 3\n"
    )
    (tmp_path / "bad_models.py").write_text("import nothing_of_that_name\n")
    (tmp_path / "worse_models.py").write_text("x = (\n")
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)
    for name, given in (("small", (1, [])), ("named", (0, ["input"]))):
        module, args, kwargs = load_factory(f"own_models:{name}")
        assert isinstance(module, nn.Linear)
        assert (len(args), list(kwargs)) == given
        assert from_module(module, args, kwargs).n == 1
    assert load_factory("own_models:alone")[1] == ()
    for name, message in {
        "own_models": "not of the form",
        "own_models:smal": "did you mean 'small'",
        "own_models:hungry": "missing a required argument: 'input'.; return .module, args.",
        "own_models:unnamed": "returned a tuple of Linear, tuple, dict; expected .module, args. or .module, args, kwar",
        "own_models:misnamed": "missing a required argument: 'input'",
        "own_models.py:small": "give its module, own_models:small",
        "own_models:broken": "the factory failed .ZeroDivisionError",
        "own_models:wrong": "returned a int",
        "own_models:number": "expected a function",
        "no_models:f": "there is no module 'no_models'",
        "bad_models:f": "needs 'nothing_of_that_name'",
        "worse_models:f": "SyntaxError",
    }.items():
        with pytest.raises(GraphError, match=message):
            load_factory(name)
    assert sys.path == before


def test_operators_without_a_formula_are_priced_and_named() -> None:
    class Spectrum(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cdist(torch.fft.fft(x).abs(), x)

    with pytest.warns(
        UserWarning, match="Spectrum: no FLOP formula is known for _fft_r2c, _cdist_forward, priced"
    ) as told:
        graph = from_module(Spectrum(), (torch.zeros(4, 8),))
    assert len(told) == 1
    assert (graph.flops > 0).all()


class Losing(nn.Module):
    """Dropout of several kinds on pooled, resized and looked-up values."""

    def __init__(self) -> None:
        super().__init__()
        self.bag, self.norm, self.convolution = nn.EmbeddingBag(10, 8), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 3, padding=1)
        self.attention = nn.MultiheadAttention(8, 2, dropout=0.1, batch_first=True)

    def forward(self, image: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
        x = nn.functional.interpolate(self.norm(self.convolution(image)), scale_factor=2, mode="bilinear")
        x = nn.functional.max_pool2d(x, 2) + nn.functional.adaptive_max_pool2d(x, 8)
        x = nn.functional.alpha_dropout(nn.functional.dropout(x, 0.5), 0.5)
        x = nn.functional.pad(x, (1, 1, 1, 1), mode="replicate")[..., :8].mean((1, 2))
        y = (x + self.bag(words))[:, None]
        return self.attention(y, y, y)[0] + torch.multinomial(y[:, 0].softmax(-1), 2).sum()


@pytest.mark.parametrize("training", [False, True])
def test_common_layers_are_of_known_kinds(training: bool) -> None:
    args = torch.rand(2, 4, 8, 8), torch.zeros(2, 3, dtype=torch.long)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        graph = from_module(Losing(), args, training=training)
    assert "other" not in graph.kind
    kinds = {
        name.rpartition(".")[2].partition(" ")[0]: kind for name, kind in zip(graph.names, graph.kind, strict=True)
    }
    assert kinds["native_dropout"] == "elementwise"
    assert kinds["max_pool2d_with_indices"] == kinds["adaptive_max_pool2d"] == "reduction"
    assert kinds["_embedding_bag"] == "gather"


@pytest.mark.parametrize("training", [False, True])
def test_one_tensor_given_twice_is_two_inputs(training: bool) -> None:
    """A graph captured with (x, x) computes f(a, b) for different a and b."""

    class Difference(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

        def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return self.weight * a - b

    module, x = Difference(), torch.randn(3)
    graph = from_module(module, (x, x), training=training)
    a, b = torch.randn(3), torch.randn(3)
    found = run(graph, module_inputs(graph, module, (a, b)))
    torch.testing.assert_close(found["output_0"], module(a, b).detach())
