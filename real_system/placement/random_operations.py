"""Operations that draw random numbers: what they give is another thing each time."""

from __future__ import annotations

from typing import Any

from ...envs.placement import DataflowGraph
from ...envs.placement.interpreter import operator_of
from ...envs.placement.kernel import Kernel

SWITCHES: dict[str, Any] = {"dropout_p": 0.0, "train": False}
"""Arguments with the value at which an operator draws nothing."""


def random_operations(graph: DataflowGraph) -> list[str]:
    """Names of the operations of a graph with kernels that draw random numbers, by torch's own tags."""
    assert graph.kernels is not None, "only graphs with kernels are executed"
    return [name for name, kernel in zip(graph.names, graph.kernels, strict=True) if _draws(kernel)]


def _draws(kernel: Kernel) -> bool:
    """Whether a kernel, or one among its arguments, draws random numbers."""
    import torch

    nested = [value for value in [*kernel.args, *(value for _, value in kernel.kwargs)] if isinstance(value, Kernel)]
    if any(map(_draws, nested)):
        return True
    operator: Any = operator_of(kernel.target)
    if torch.Tag.nondeterministic_seeded not in getattr(operator, "tags", ()):
        return False
    declared = operator._schema.arguments
    given = {argument.name: argument.default_value for argument in declared if argument.has_default_value()}
    given |= {argument.name: value for argument, value in zip(declared, kernel.args, strict=False)}
    given |= dict(kernel.kwargs)
    return not any(name in given and given[name] == quiet for name, quiet in SWITCHES.items())
