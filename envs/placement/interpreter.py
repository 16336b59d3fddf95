"""Runs the kernels of a dataflow graph one after the other with torch: what a graph means.

Placements and real executors may change where and when an operation runs, but not the result that
``run`` gives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from ..errors import GraphError, MissingExtraError
from .graph import DataflowGraph
from .kernel import Kernel, Reference, Symbol, View
from .whole_tensors import cut_inputs, join_tiles, module_inputs

if TYPE_CHECKING:
    import torch

__all__ = [
    "apply_views",
    "cut_inputs",
    "evaluate",
    "execution_order",
    "join_tiles",
    "module_inputs",
    "operator_of",
    "run",
]

Fetch = Callable[[Reference], "torch.Tensor"]


def run(graph: DataflowGraph, inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Execute a graph sequentially, without gradients; tensors are dropped after their last use.

    Args:
        inputs: a tensor for every graph input, by name. Where the graph has tiles ``w[0, 1]`` of an
            input, the whole tensor may be given as ``w`` (see ``cut_inputs``).

    Returns:
        The graph's outputs by name; ``join_tiles`` puts tiles together.

    Raises:
        GraphError: the graph has no kernels; an input is missing, unknown or of another type.
        MissingExtraError: torch is not installed.
    """
    library = _torch()
    if graph.kernels is None:
        raise GraphError(f"{graph.title}: the graph has no kernels and cannot be executed; capture or build one.")
    given = cut_inputs(graph, inputs)
    device = given[0].device if given else library.device("cpu")
    stored: dict[tuple[int, int], torch.Tensor] = {}

    def fetch(reference: Reference) -> torch.Tensor:
        if reference.source == "input":
            return given[reference.number]
        return stored[reference.number, reference.output]

    last, order = _last_uses(graph), execution_order(graph)
    with library.no_grad():
        for number in order:
            kernel = graph.kernels[number]
            for output, result in enumerate(evaluate(kernel, fetch, device)):
                if (number, output) in last:
                    stored[number, output] = result
            for reference in kernel.references():
                if last.get((reference.number, reference.output)) == number and reference.source == "op":
                    stored.pop((reference.number, reference.output), None)
        return {
            name: apply_views(fetch(reference), reference.views)
            for name, reference in zip(graph.output_names, graph.outputs, strict=True)
        }


def evaluate(kernel: Kernel, fetch: Fetch, device: torch.device | None = None) -> tuple[Any, ...]:
    """Call one kernel; kernels among its arguments are called first.

    Args:
        fetch: gives the stored tensor behind a reference; its views are applied here.
        device: where operators without tensor arguments create their result.

    Returns:
        One entry per output of the kernel; entries that are no tensors may be anything.
    """
    operator = operator_of(kernel.target)
    args = [_argument(value, fetch, device) for value in kernel.args]
    kwargs = {key: _argument(value, fetch, device) for key, value in kernel.kwargs}
    if device is not None and takes_device(kernel.target):
        kwargs["device"] = device
    result = operator(*args, **kwargs)
    return tuple(result) if isinstance(result, tuple | list) else (result,)


def apply_views(tensor: torch.Tensor, views: Sequence[View]) -> torch.Tensor:
    """See a tensor through views; a changed shape is copied only where strides forbid a view."""
    for view in views:
        if view.target in ("aten.view.default", "aten.reshape.default"):
            tensor = tensor.reshape(view.args[0])
        else:
            tensor = operator_of(view.target)(tensor, *view.args)
    return tensor


@cache
def operator_of(target: str) -> Callable[..., Any]:
    """The torch operator with a full name such as ``aten.mm.default``.

    Raises:
        GraphError: this version of torch has none.
    """
    found: Any = _torch().ops
    for part in target.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        raise GraphError(f"torch has no operator {target!r}; the graph may come from another version of torch.")
    operator: Callable[..., Any] = found
    return operator


@cache
def takes_device(target: str) -> bool:
    """Whether an operator is told on which device to create its result."""
    schema = getattr(operator_of(target), "_schema", None)
    return schema is not None and any(argument.name == "device" for argument in schema.arguments)


def _last_uses(graph: DataflowGraph) -> dict[tuple[int, int], int]:
    """(operation, output) -> the last operation that reads it; N for what the graph returns."""
    last: dict[tuple[int, int], int] = {}
    assert graph.kernels is not None, "checked by run"
    for number in execution_order(graph):
        for reference in graph.kernels[number].references():
            if reference.source == "op":
                last[reference.number, reference.output] = number
    for reference in graph.outputs:
        if reference.source == "op":
            last[reference.number, reference.output] = graph.n
    return last


def execution_order(graph: DataflowGraph) -> Iterable[int]:
    """Operation numbers in the given order where it respects the edges, else in a topological one."""
    if (graph.edge_source < graph.edge_target).all():
        return range(graph.n)
    return graph.topological_order.tolist()


def _argument(value: Any, fetch: Fetch, device: torch.device | None) -> Any:
    if isinstance(value, Reference):
        return apply_views(fetch(value), value.views)
    if isinstance(value, Kernel):
        return evaluate(value, fetch, device)[0]
    if isinstance(value, Symbol):
        return getattr(_torch(), value.name)
    if isinstance(value, tuple | list):
        return [_argument(item, fetch, device) for item in value]
    return value


def _torch() -> Any:
    try:
        import torch
    except ImportError as error:
        raise MissingExtraError("Executing a graph needs torch; install hadoppler[torch].") from error
    return torch
