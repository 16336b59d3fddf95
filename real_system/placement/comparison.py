"""Whether outputs equal those of one device: up to rounding, and to what rounding does to ill-conditioned ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ...envs.placement import DataflowGraph, interpreter
from ...envs.placement.kernel import Kernel
from .executor import ExecutionError

if TYPE_CHECKING:
    import torch

Values = Mapping[str, "torch.Tensor"]

PERTURBED = 3
"""Executions with perturbed inputs that tell how far outputs move (our choice); one may by chance move them little."""
MULTIPLE = 16.0
"""Rounding within a graph may move an output by so many times as much as rounding of its inputs does (our choice).

Networks with batch normalisation in training mode showed up to 10 times. For well-conditioned outputs it is far less
than ``tolerance``.
"""


class VerificationError(ExecutionError):
    """A placed graph gave other outputs than one device does, or ran in an order that its edges forbid."""


def check_outputs(
    graph: DataflowGraph, found: Values, expected: Values, moved: Callable[[], Mapping[str, float]] = dict
) -> None:
    """Compare outputs by name, on one thread: the threads of a parallel comparison would disturb the next execution.

    An output may differ by ``tolerance`` of its largest value. Where that is not enough, it may differ besides by
    ``MULTIPLE`` times as far as it moves when the graph's inputs are perturbed by a unit of rounding: what is zero but
    for rounding, such as the gradient of a bias before batch normalisation, has a largest value that tells nothing.

    Args:
        moved: gives ``conditioning``; called only where ``tolerance`` is not enough.

    Raises:
        VerificationError: an output is missing, or differs by more.
    """
    if found.keys() != expected.keys():
        raise VerificationError(
            f"{graph.title}: the execution gave the outputs {sorted(found)}; expected {sorted(expected)}."
        )
    pairs = {name: (found[name].detach().cpu(), value) for name, value in expected.items()}
    with _one_thread():
        for name, pair in pairs.items():
            _check_form(f"{graph.title}: output {name!r}", *pair)
        doubtful = {name: pair for name, pair in pairs.items() if not _equal(*pair, _rounding(pair[1]))}
    if not doubtful:
        return
    moves = moved()
    with _one_thread():
        for name, pair in doubtful.items():
            _compare(graph, name, *pair, moves.get(name, 0.0))


def tolerance(dtype: torch.dtype) -> float:
    """Largest difference that rounding may make, as a share of the largest value: the root of the type's epsilon.

    3.5e-4 for float32, 1.5e-8 for float64, 3e-2 for float16 (our choice); 0 for whole numbers.
    """
    import torch

    return float(torch.finfo(dtype).eps ** 0.5) if dtype.is_floating_point or dtype.is_complex else 0.0


def conditioning(graph: DataflowGraph, inputs: Values, expected: Values, seed: int = 0) -> dict[str, float]:
    """Output -> the most by which a value of it moves when every input is multiplied by one plus or minus its epsilon.

    Of ``PERTURBED`` executions on one device with random signs. Outputs that are others without any perturbation, by an
    operator that draws random numbers in secret, are left out: that is no rounding.

    Args:
        expected: what ``interpreter.run`` gives for ``inputs``.
    """
    import torch

    again = interpreter.run(graph, inputs)
    most = {name: 0.0 for name, value in expected.items() if _equal(again[name], value, _rounding(value))}
    for number in range(PERTURBED):
        generator = torch.Generator().manual_seed(seed + number)
        nearby = interpreter.run(graph, {name: _perturbed(value, generator) for name, value in inputs.items()})
        for name in most:
            most[name] = max(most[name], _largest(_difference(nearby[name], expected[name])))
    return most


def _perturbed(value: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """A tensor each of whose values is one unit of rounding larger or smaller; whole numbers as they are."""
    import torch

    if not tolerance(value.dtype):
        return value
    sign = 2.0 * torch.randint(0, 2, value.shape, generator=generator, dtype=torch.int8).to(torch.float32) - 1.0
    return (value * (1.0 + torch.finfo(value.dtype).eps * sign.to(value.real.dtype))).to(value.dtype)


@contextmanager
def _one_thread() -> Iterator[None]:
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _check_form(what: str, found: torch.Tensor, expected: torch.Tensor) -> None:
    if (found.shape, found.dtype) != (expected.shape, expected.dtype):
        raise VerificationError(
            f"{what} has shape {tuple(found.shape)} and type {found.dtype}; one-device execution gives "
            f"{tuple(expected.shape)} and {expected.dtype}."
        )


def _compare(graph: DataflowGraph, name: str, found: torch.Tensor, expected: torch.Tensor, moves: float) -> None:
    """The second look at an output, which rounding of the inputs moves by ``moves``."""
    allowed = _rounding(expected)
    if not tolerance(expected.dtype):
        raise VerificationError(
            f"{graph.title}: output {name!r} differs from one-device execution, and holds whole numbers; "
            f"{_advice(graph)}."
        )
    allowed += MULTIPLE * moves
    if not _equal(found, expected, allowed):
        import torch

        most = _largest(_difference(found, expected), otherwise=float("nan"))
        raise VerificationError(
            f"{graph.title}: output {name!r} differs from one-device execution by up to {most:.3g}, where values "
            f"reach {_largest(expected[torch.isfinite(expected)]):.3g} and {allowed:.1g} is allowed for rounding; "
            f"{_advice(graph)}."
        )


def _rounding(expected: torch.Tensor) -> float:
    """What rounding may make of an output, by its size."""
    import torch

    return tolerance(expected.dtype) * _largest(expected[torch.isfinite(expected)])


def _equal(found: torch.Tensor, expected: torch.Tensor, allowed: float) -> bool:
    """Whether values differ by no more; whole numbers, NaN and infinities must be the same."""
    import torch

    if not tolerance(expected.dtype):
        return torch.equal(found, expected)
    return torch.allclose(_wide(found), _wide(expected), rtol=0.0, atol=allowed, equal_nan=True)


def _difference(found: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    """Of the values that are finite in both."""
    import torch

    finite = torch.isfinite(expected) & torch.isfinite(found)
    return _wide(found[finite]) - _wide(expected[finite])


def _wide(value: torch.Tensor) -> torch.Tensor:
    import torch

    return value.to(torch.complex128 if value.dtype.is_complex else torch.float64)


def _largest(values: torch.Tensor, otherwise: float = 0.0) -> float:
    return float(values.abs().max()) if values.numel() else otherwise


def _advice(graph: DataflowGraph) -> str:
    """What can be the cause: torch's own operators neither draw numbers here, nor change what they read."""
    assert graph.kernels is not None, "only graphs with kernels are executed"
    strange = [name for name, kernel in zip(graph.names, graph.kernels, strict=True) if _is_strange(kernel)]
    if not strange:
        return "all operations are torch's own, so it is a defect, of one of them on these devices or of this package"
    some = ", ".join(strange[:3]) + (f" and {len(strange) - 3} more" if len(strange) > 3 else "")
    return f"look at {some}, whose operator may draw random numbers or change what it reads"


def _is_strange(kernel: Kernel) -> bool:
    """Whether an operator, or one among its arguments, is not torch's own or says that it changes an argument."""
    nested = [value for value in [*kernel.args, *(value for _, value in kernel.kwargs)] if isinstance(value, Kernel)]
    schema: Any = getattr(interpreter.operator_of(kernel.target), "_schema", None)
    own = kernel.target.split(".")[0] in ("aten", "prims", "_operator")
    return not own or (schema is not None and schema.is_mutable) or any(map(_is_strange, nested))
