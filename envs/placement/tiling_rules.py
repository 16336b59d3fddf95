"""How each ATen operator is cut into tiles: a rule per operator, on top of ``TensorProgram``.

A rule gets an ``Operation`` and returns one sharded tensor per output of the kernel, or ``None`` where
it does not apply; then the operation stays whole.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from .interpreter import operator_of
from .kernel import Kernel, Reference, TensorType
from .tiling_operation import Operation, Results, Rule, broadcast_cuts
from .tiling_rows import by_row, layer_norm, reduction, soft_maximum
from .workloads.broadcasting import read_broadcast
from .workloads.sharded_tensor import Argument, Boundaries, Region
from .workloads.tensor_program import ShardedTensor


def elementwise(operation: Operation) -> Results | None:
    """One operation per tile of the result."""
    kernel, operands = operation.kernel, operation.arguments()
    result = kernel.outputs[0]
    cuts = broadcast_cuts(operands)
    if tuple(listed[-1] for listed in cuts) != result.shape or len(kernel.outputs) > 1:
        return None
    tensor = operation.program.elementwise(
        kernel.target,
        *operands,
        cuts=cuts,
        dtype=result.dtype,
        kwargs=dict(kernel.kwargs),
        kind=operation.kind,
        name=operation.name,
    )
    return [tensor]


def product(operation: Operation) -> Results:
    """``mm`` and ``bmm``: products of tiles, and sums of them where the summed dimension is cut."""
    a, b = operation.argument(0), operation.argument(1)
    bounds = product_bounds(operation, a, b)
    batch = "b" * (len(a.shape) - 2)
    cuts = dict(zip(f"{batch}mkn", bounds, strict=True))
    return [operation.program.einsum(f"{batch}mk,{batch}kn->{batch}mn", a, b, cuts, operation.name)]


def product_bounds(operation: Operation, a: ShardedTensor, b: ShardedTensor) -> list[Boundaries]:
    """Boundary lists of batch, m, k and n; those of the operand with more pieces where both have one."""
    batch = [max(x, y, key=len) for x, y in zip(a.cuts[:-2], b.cuts[:-2], strict=True)]
    return operation.bounds("matmul", [*batch, a.cuts[-2], max(a.cuts[-1], b.cuts[-2], key=len), b.cuts[-1]])


def product_and_sum(operation: Operation) -> Results | None:
    """``addmm`` and ``baddbmm``: tile by tile, or products, their sums and an addition where k is cut."""
    bias, a, b = operation.arguments()[:3]
    if operation.kernel.kwargs or len(operation.kernel.args) > 3:
        return None
    *batch, m, k, n = product_bounds(operation, a, b)
    if len(k) > 2:
        (formed,) = product(replace(operation, kernel=replace(operation.kernel, args=operation.kernel.args[1:])))
        return [operation.program.elementwise("aten.add.Tensor", formed, bias, name=f"{operation.name}.bias")]

    def args(region: Region) -> list[Argument]:
        outer = region[:-2]
        return [
            read_broadcast(bias, region),
            a.read((*outer, region[-2], a.whole[-1])),
            b.read((*outer, b.whole[-2], region[-1])),
        ]

    return [operation.tilewise(args, [*batch, m, n])]


def attention(operation: Operation) -> Results | None:
    """``scaled_dot_product_attention`` over batch and heads; with grouped heads over the batch only."""
    query, key, value, mask, dropout = (operation.argument(position) for position in range(5))
    if len(query.shape) != 4 or dropout or any(t.shape[0] != query.shape[0] for t in (key, value)):
        return None
    bounds = operation.bounds("attention", [*query.cuts[:2], *((0, size) for size in query.shape[2:])])
    grouped = key.shape[1] != query.shape[1]
    heads = (0, query.shape[1]) if grouped else bounds[1]
    cuts = [bounds[0], heads, *((0, size) for size in operation.kernel.outputs[0].shape[2:])]

    def args(region: Region) -> list[Any]:
        pieces = [
            t.read((region[0], (0, t.shape[1]) if grouped else region[1], *t.whole[2:])) for t in (query, key, value)
        ]
        scores = (*region[:2], (0, query.shape[2]), (0, key.shape[2]))
        seen = [] if len(operation.kernel.args) < 4 else [None if mask is None else read_broadcast(mask, scores)]
        return [*pieces, *seen, *operation.kernel.args[4:]]

    return [operation.tilewise(args, cuts)]


def embedding(operation: Operation) -> Results:
    """Rows of a table: cut over the indices and the columns."""
    table, indices = operation.argument(0), operation.argument(1)
    return [
        operation.tilewise(
            lambda region: (
                table.read(((0, table.shape[0]), region[-1])),
                indices.read(region[:-1]),
                *operation.kernel.args[2:],
            ),
            [*indices.cuts, table.cuts[1]],
        )
    ]


def index_put(operation: Operation) -> Results | None:
    """Rows written by one tensor of indices (the gradient of an embedding): cut over the columns."""
    table, indices, values = operation.argument(0), operation.argument(1), operation.argument(2)
    if len(indices) != 1 or not isinstance(indices[0], Reference):
        return None
    rows = operation.tensor(indices[0])
    if values.shape != rows.shape + table.shape[1:] or rows.dtype == "bool":
        return None
    where = operation.gather(rows).tiles[0]
    return [
        operation.tilewise(
            lambda region: (
                table.read(region),
                (where,),
                values.read((*rows.whole, *region[1:])),
                *operation.kernel.args[3:],
            ),
            [(0, table.shape[0]), *values.cuts[len(rows.shape) :]],
        )
    ]


def convolution(operation: Operation) -> Results | None:
    """Cut over the batch and, without groups, over the output channels."""
    x, weight, bias = (operation.argument(position) for position in range(3))
    transposed, groups, result = operation.argument(6), operation.argument(8), operation.kernel.outputs[0]
    if transposed or len(x.shape) != len(weight.shape):
        return None
    images, channels = operation.bounds("convolution", [x.cuts[0], weight.cuts[0]])
    if groups != 1:
        channels = (0, weight.shape[0])
    return [
        operation.tilewise(
            lambda region: (
                x.read((region[0], *x.whole[1:])),
                weight.read((region[1], *weight.whole[1:])),
                None if bias is None else bias.read((region[1],)),
                *operation.kernel.args[3:],
            ),
            [images, channels, *((0, size) for size in result.shape[2:])],
        )
    ]


def concatenation(operation: Operation) -> Results | None:
    """``cat``: free; the tiles of the parts become those of the result."""
    references, dim = operation.argument(0), operation.argument(1, 0)
    parts = [operation.tensor(reference) for reference in references]
    result = operation.kernel.outputs[0]
    if any(len(part.shape) != len(result.shape) or part.dtype != result.dtype for part in parts):
        return None
    dim %= len(result.shape)
    others = [max((part.cuts[d] for part in parts), key=len) for d in range(len(result.shape))]
    tiles: dict[Region, Reference] = {}
    joint, start = [0], 0
    for part in parts:
        cuts = tuple(part.cuts[d] if d == dim else others[d] for d in range(len(result.shape)))
        aligned = operation.program.reform(part, cuts)
        for region, reference in zip(aligned.regions(), aligned.tiles, strict=True):
            moved = (region[dim][0] + start, region[dim][1] + start)
            tiles[(*region[:dim], moved, *region[dim + 1 :])] = reference
        joint += [boundary + start for boundary in part.cuts[dim][1:]]
        start += part.shape[dim]
    cuts = tuple(tuple(joint) if d == dim else listed for d, listed in enumerate(others))
    empty = ShardedTensor(result.shape, result.dtype, cuts, ())
    return [replace(empty, tiles=tuple(tiles[region] for region in empty.regions()))]


def pooling(operation: Operation) -> Results | None:
    """Operators that work on each image and channel by itself."""
    x, result = operation.argument(0), operation.kernel.outputs[0]
    if len(x.shape) != len(result.shape) or any(kind.shape != result.shape for kind in operation.kernel.outputs):
        return None
    return operation.tilewise_all(
        lambda region: (x.read((*region[:2], *x.whole[2:])), *operation.kernel.args[1:]),
        [*x.cuts[:2], *((0, size) for size in result.shape[2:])],
    )


def constant(operation: Operation) -> Results:
    """``full``, ``zeros`` and ``ones``: one stored element, repeated by a view."""
    kernel, (kind,) = operation.kernel, operation.kernel.outputs
    one = TensorType((1,) * len(kind.shape), kind.dtype)
    small = replace(kernel, args=(one.shape, *kernel.args[1:]), outputs=(one,))
    (element,) = operation.program.single(small, kind=operation.kind, name=operation.name, flops=operation.flops)
    return [element.viewed("aten.expand.default", [(kind.shape,)], kind.shape, [1] * len(kind.shape))]


RULES: dict[str, Rule] = {
    "mm": product,
    "bmm": product,
    "addmm": product_and_sum,
    "baddbmm": product_and_sum,
    "_softmax": soft_maximum,
    "_log_softmax": soft_maximum,
    "sum": reduction,
    "mean": reduction,
    "amax": reduction,
    "amin": reduction,
    "native_layer_norm": layer_norm,
    "scaled_dot_product_attention": attention,
    "embedding": embedding,
    "index_put": index_put,
    "convolution": convolution,
    "cat": concatenation,
    **dict.fromkeys(("any", "all", "argmax", "argmin", "prod", "var", "std", "logsumexp", "cumsum", "cumprod"), by_row),
    **dict.fromkeys(("max_pool2d_with_indices", "avg_pool2d", "_adaptive_avg_pool2d"), pooling),
    **dict.fromkeys(("full", "zeros", "ones"), constant),
    **dict.fromkeys(("clone", "_to_copy", "full_like", "zeros_like", "ones_like"), elementwise),
}
"""Rule of each operator; point-wise operators not named here follow ``elementwise``."""


def find_rule(kernel: Kernel) -> Rule | None:
    """The rule of a kernel's operator, or None where there is none."""
    import torch

    if _has_tensor(kernel.kwargs) or any(isinstance(value, Kernel) for value in kernel.args):
        return None
    name = kernel.target.split(".")[1]
    if name in RULES:
        return RULES[name]
    tags = getattr(operator_of(kernel.target), "tags", [])
    nested = any(isinstance(value, tuple) and _has_tensor(value) for value in kernel.args)
    if torch.Tag.pointwise in tags and torch.Tag.nondeterministic_seeded not in tags and not nested:
        return elementwise if kernel.references() else None
    return None


def _has_tensor(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return any(_has_tensor(item) for item in value)
    return isinstance(value, Reference | Kernel)
