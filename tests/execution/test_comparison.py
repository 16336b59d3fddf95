"""What counts as equal outputs: rounding also of ill-conditioned ones is forgiven, and nothing else is."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from hadoppler.envs.placement import (
    DataflowGraph,
    GraphBuilder,
    Kernel,
    PlacementProblem,
    TensorType,
    Topology,
    from_module,
    interpreter as meaning,
)
from hadoppler.real_system.placement import cpu, cpu_executor
from hadoppler.real_system.placement.comparison import VerificationError, check_outputs, conditioning, tolerance
from hadoppler.real_system.placement.cpu import random_inputs
from hadoppler.real_system.placement.verified import VerifiedExecutor

torch = pytest.importorskip("torch", reason="torch is not installed")
from torch import nn  # noqa: E402

OWN = torch.library.Library("own_operators", "FRAGMENT")
OWN.define("twice(Tensor x) -> Tensor")
OWN.impl("twice", lambda x: 2 * x, "CPU")
OWN.define("noisy(Tensor x) -> Tensor")
OWN.impl("noisy", lambda x: x + torch.rand_like(x), "CPU")


class Attention(nn.Module):
    """Softmax does not see what the keys' bias adds to all scores of a query: its gradient is zero."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Any) -> Any:
        return torch.softmax(self.query(x) @ self.key(x).transpose(1, 2), dim=-1) @ x


ILL: dict[str, tuple[Any, tuple[int, ...], str, str]] = {
    "convolution": (lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()), (4, 3, 12, 12), "0", "0"),
    "linear": (lambda: nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Tanh()), (64, 8), "0", "0"),
    "attention": (Attention, (4, 16, 8), "key", "query"),
}
"""Module, shape of its input, a layer whose bias has a gradient of zero, and a layer whose gradients are sound."""


def made(name: str, dtype: Any = torch.float32) -> tuple[PlacementProblem, dict[str, Any]]:
    """The problem and inputs of one of ``ILL``."""
    module, shape, _, _ = ILL[name]
    graph = from_module(module().to(dtype), (torch.zeros(shape, dtype=dtype),), training=True)
    problem = PlacementProblem(graph, Topology.this_machine(2), memory="off")
    return problem, random_inputs(problem, 0)


def otherwise_rounded(inputs: dict[str, Any]) -> dict[str, Any]:
    """The same inputs to the last digit, but one."""
    generator, found = torch.Generator().manual_seed(99), {}
    for name, value in inputs.items():
        noise = torch.randn(value.shape, generator=generator, dtype=torch.float64).to(value.dtype)
        found[name] = value * (1 + torch.finfo(value.dtype).eps * noise) if value.is_floating_point() else value
    return found


def test_rounding_is_forgiven_and_nothing_else_is() -> None:
    graph = made("linear")[0].graph
    value = torch.tensor([100.0, 1e-6, float("nan"), float("inf")])
    check_outputs(graph, {"y": value + torch.tensor([1e-2, 1e-2, 0, 0])}, {"y": value})
    wrong = {
        "more": value + torch.tensor([0.1, 0, 0, 0]),
        "no NaN": torch.tensor([100.0, 1e-6, 0.0, float("inf")]),
        "no infinity": torch.tensor([100.0, 1e-6, float("nan"), 5.0]),
        "another type": value.double(),
        "another shape": value[:3],
    }
    for found in wrong.values():
        with pytest.raises(VerificationError, match="output 'y'"):
            check_outputs(graph, {"y": found}, {"y": value})
    with pytest.raises(VerificationError, match=r"gave the outputs \[\]"):
        check_outputs(graph, {}, {"y": value})
    with pytest.raises(VerificationError, match="whole numbers"):
        check_outputs(graph, {"y": torch.tensor([2**40 + 1])}, {"y": torch.tensor([2**40])})


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ILL)
def test_gradients_that_are_zero_but_for_rounding_are_compared_by_their_conditioning(name: str, dtype: Any) -> None:
    problem, inputs = made(name, dtype)
    graph, zero = problem.graph, f"grad.{ILL[name][2]}.bias"
    expected = meaning.run(graph, inputs)
    found = meaning.run(graph, otherwise_rounded(inputs))
    moved = conditioning(graph, inputs, expected)
    largest = {n: float(value.abs().max()) for n, value in expected.items() if value.is_floating_point()}
    share = tolerance(dtype)
    assert moved[zero] > share * largest[zero], "it moves by more than what is forgiven for its size"
    assert all(moved[n] < share * largest[n] for n in largest if n != zero), "and it alone does"
    with pytest.raises(VerificationError, match=f"output '{zero}' differs"):
        check_outputs(graph, found, expected)
    check_outputs(graph, found, expected, lambda: moved)
    assert conditioning(graph, inputs, expected) == moved, "the same each time"


@pytest.mark.parametrize("name", ILL)
def test_wrong_values_are_found_beside_ill_conditioned_ones(name: str) -> None:
    """Every sound output is off by a thousandth, and the zero gradient by a thousandth of its neighbour's size."""
    problem, inputs = made(name)
    graph, zero, sound = problem.graph, f"grad.{ILL[name][2]}.bias", f"grad.{ILL[name][3]}.weight"
    expected = meaning.run(graph, inputs)
    check = partial(check_outputs, graph, expected=expected, moved=lambda: conditioning(graph, inputs, expected))
    check(expected)
    for key, value in expected.items():
        if key != zero and value.is_floating_point():
            with pytest.raises(VerificationError, match=f"output '{key}' differs"):
                check(expected | {key: value * 1.001})
    step = 1e-3 * float(expected[sound].abs().max())
    with pytest.raises(VerificationError, match=f"output '{zero}' differs"):
        check(expected | {zero: expected[zero] + step})


@pytest.mark.parametrize("name", ILL)
def test_placements_of_training_graphs_are_verified(name: str) -> None:
    problem, inputs = made(name)
    with VerifiedExecutor(cpu_executor(problem), inputs) as executor:
        for shift in range(2):
            executor.run([(v + shift) % 2 for v in range(problem.n)])
        assert executor.compared == "outputs"


def test_a_kernel_that_is_off_is_found_in_a_training_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """The backward pass of the convolution gives all its gradients a thousandth too large."""
    problem, inputs = made("convolution")
    honest, off = meaning.evaluate, list[str]()

    def wrong(kernel: Any, *others: Any) -> Any:
        results = honest(kernel, *others)
        if kernel.target != "aten.convolution_backward.default":
            return results
        off.append(kernel.target)
        return tuple(None if value is None else value * 1.001 for value in results)

    monkeypatch.setattr(cpu, "evaluate", wrong)
    with (
        VerifiedExecutor(cpu_executor(problem), inputs) as executor,
        pytest.raises(VerificationError, match=r"output 'grad.0.weight' differs .* all operations are torch's own"),
    ):
        executor.run([v % 2 for v in range(problem.n)])
    assert off


def one_operation(target: str) -> DataflowGraph:
    """An operation called ``it`` that reads and gives four numbers."""
    builder, kind = GraphBuilder("one"), TensorType((4,))
    x = builder.add_input("x", kind)
    return builder.finish([builder.add(Kernel(target, (x,), (kind,)), kind="elementwise", flops=1.0, name="it")])


def test_random_numbers_in_secret_are_no_rounding() -> None:
    """An operator that does not tell torch that it draws moves its output also where nothing is perturbed."""
    problem = PlacementProblem(one_operation("own_operators.noisy.default"), Topology.this_machine(2))
    with (
        VerifiedExecutor(cpu_executor(problem), random_inputs(problem, 0)) as executor,
        pytest.raises(VerificationError, match="look at it, whose operator may draw random numbers"),
    ):
        executor.run([0])


@pytest.mark.parametrize(
    ("target", "blamed"),
    [("aten.relu.default", False), ("aten.relu_.default", True), ("own_operators.twice.default", True)],
)
def test_the_sentence_blames_only_what_may_be_to_blame(target: str, blamed: bool) -> None:
    graph = one_operation(target)
    (name,) = graph.output_names
    with pytest.raises(VerificationError) as caught:
        check_outputs(graph, {name: torch.ones(4)}, {name: torch.zeros(4)})
    assert blamed == ("look at it, whose operator may draw random numbers" in str(caught.value))
    assert blamed != ("all operations are torch's own" in str(caught.value))
