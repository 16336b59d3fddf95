"""Bytes that a kernel reads and writes in its device's memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ..kernel import Kernel, Reference, TensorType


def bytes_moved(kernel: Kernel, type_of: Callable[[Reference], TensorType]) -> float:
    """Bytes that a call reads and writes: each tensor argument as far as its views reach, and each output.

    The result of a nested kernel is written and read again. ``type_of`` gives the stored tensor behind
    a reference (`GraphBuilder.type_of`).
    """
    total = float(sum(output.bytes for output in kernel.outputs))
    for argument in _tensor_arguments([*kernel.args, *(value for _, value in kernel.kwargs)]):
        if isinstance(argument, Kernel):
            total += bytes_moved(argument, type_of) + argument.outputs[0].bytes
        else:
            kind = type_of(argument)
            total += kind.bytes * _fraction(argument, kind.shape)
    return total


def _tensor_arguments(values: Sequence[Any]) -> Iterator[Reference | Kernel]:
    for value in values:
        if isinstance(value, Reference | Kernel):
            yield value
        elif isinstance(value, tuple):
            yield from _tensor_arguments(value)


def _fraction(reference: Reference, shape: tuple[int, ...]) -> float:
    """Share of a stored tensor's elements that the views leave."""
    share = 1.0
    for view in reference.views:
        if view.target == "aten.slice.Tensor":
            dim, start, stop = view.args[:3]
            share *= (stop - start) / shape[dim]
            shape = (*shape[:dim], stop - start, *shape[dim + 1 :])
        elif view.target == "aten.permute.default":
            shape = tuple(shape[dim] for dim in view.args[0])
        elif view.target in ("aten.view.default", "aten.reshape.default"):
            shape = view.args[0]
    return share
