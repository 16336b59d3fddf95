"""Tiling rules of operators that combine the elements of a row: softmax, reductions, normalisation, scans."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from .kernel import Kernel, TensorType
from .tiling_operation import Operation, Results
from .workloads.normalisation import log_softmax, softmax
from .workloads.sharded_tensor import Region, extent
from .workloads.tensor_program import ShardedTensor


def soft_maximum(operation: Operation) -> Results:
    """``_softmax`` and ``_log_softmax``: row by row, or across tiles where the dimension is cut."""
    x, dim, result = operation.argument(0), operation.argument(1), operation.kernel.outputs[0]
    if not x.shape or x.grid[dim] == 1:
        return [operation.tilewise(lambda region: (x.read(region), *operation.arguments(1)), x.cuts)]
    if x.dtype != result.dtype:
        x = operation.program.cast(x, result.dtype)
    compose = log_softmax if "log" in operation.kernel.target else softmax
    return [compose(operation.program, x, dim, name=operation.name)]


def reduction(operation: Operation) -> Results | None:
    """``sum``, ``mean``, ``amax`` and ``amin``: per tile, then over tiles."""
    x, result = operation.argument(0), operation.kernel.outputs[0]
    if x.dtype != result.dtype or not x.shape:
        return by_row(operation)
    dims = operation.argument(1)
    axes = tuple(range(len(x.shape))) if dims is None or dims == () else dims
    keepdim = bool(operation.argument(2, False))
    name = operation.kernel.target.split(".")[1]
    return [operation.program.reduce(name, x, axes, keepdim=keepdim, name=operation.name)]


def by_row(operation: Operation) -> Results | None:
    """Operators of (tensor, dimensions, ...) whose rows do not depend on each other; a row is never cut.

    Results have the tensor's shape, or lack the dimensions or have size 1 there.
    """
    x, dims, outputs = operation.argument(0), operation.argument(1), operation.kernel.outputs
    if not isinstance(dims, int | tuple) or dims == () or not x.shape:
        return None
    axes = {dim % len(x.shape) for dim in ([dims] if isinstance(dims, int) else dims)}
    if any(kind.shape != outputs[0].shape for kind in outputs):
        return None
    kept = [dim for dim in range(len(x.shape)) if len(outputs[0].shape) == len(x.shape) or dim not in axes]
    sizes = outputs[0].shape
    cuts = [(0, size) if dim in axes else x.cuts[dim] for dim, size in zip(kept, sizes, strict=True)]

    def args(region: Region) -> list[object]:
        spans = dict(zip(kept, region, strict=True))
        row = tuple(span if dim in axes else spans[dim] for dim, span in enumerate(x.whole))
        return [x.read(row), *operation.kernel.args[1:]]

    return operation.tilewise_all(args, cuts)


def layer_norm(operation: Operation) -> Results | None:
    """``native_layer_norm``: row by row, or across tiles where a normalised dimension is cut."""
    x, normalised, weight, bias, eps = operation.arguments()
    outputs, rows = operation.kernel.outputs, len(x.shape) - len(normalised)
    if all(pieces == 1 for pieces in x.grid[rows:]):
        return _layer_norm_by_row(operation, x, rows)
    if any(kind.dtype != x.dtype for kind in outputs):
        return None
    program, axes, name = operation.program, tuple(range(rows, len(x.shape))), operation.name
    mean = program.reduce("mean", x, axes, name=name)
    centred = operation.elementwise("aten.sub.Tensor", x, mean)
    squares = operation.elementwise("aten.mul.Tensor", centred, centred)
    variance = program.reduce("mean", squares, axes, name=name)
    inverse = operation.elementwise("aten.rsqrt.default", operation.elementwise("aten.add.Tensor", variance, eps))
    result = operation.elementwise("aten.mul.Tensor", centred, inverse)
    if weight is not None:
        result = operation.elementwise("aten.mul.Tensor", result, weight)
    if bias is not None:
        result = operation.elementwise("aten.add.Tensor", result, bias)
    return result, mean, inverse


def _layer_norm_by_row(operation: Operation, x: ShardedTensor, rows: int) -> Results:
    kernel = operation.kernel
    parameters = [p if p is None else operation.gather(p).tiles[0] for p in operation.arguments()[2:4]]
    share = operation.flops / max(kernel.outputs[0].elements, 1)

    def row(region: Region) -> Kernel:
        shapes = [extent(region)] + [extent(region)[:rows] + (1,) * (len(region) - rows)] * 2
        kinds = tuple(TensorType(shape, kind.dtype) for shape, kind in zip(shapes, kernel.outputs, strict=True))
        return Kernel(kernel.target, (x.read(region), kernel.args[1], *parameters, kernel.args[4]), kinds)

    first = operation.program.tilewise(
        row,
        x.shape,
        x.cuts,
        kind=operation.kind,
        name=operation.name,
        dtype=kernel.outputs[0].dtype,
        flops=lambda region: share * prod(extent(region)),
    )
    narrow = (*x.cuts[:rows], *(((0, 1),) * (len(x.shape) - rows)))
    others = [
        ShardedTensor(kind.shape, kind.dtype, narrow, tuple(replace(t, output=n) for t in first.tiles))
        for n, kind in enumerate(kernel.outputs[1:], 1)
    ]
    return [first, *others]
