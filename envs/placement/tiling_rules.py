"""How each ATen operator is cut into tiles: a rule per operator, on top of ``TensorProgram``.

A rule gets an ``Operation`` and returns one sharded tensor per output of the kernel, or ``None`` where
it does not apply; then the operation stays whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from .interpreter import operator_of
from .kernel import Kernel, Reference, TensorType
from .workloads.normalisation import log_softmax, softmax
from .workloads.sharded_tensor import Argument, Boundaries, Region, boundaries, extent
from .workloads.tensor_program import ShardedTensor, TensorProgram

Results = Sequence[ShardedTensor]
Rule = Callable[["Operation"], Results | None]


@dataclass
class Operation:
    """One operation of the untiled graph.

    Attributes:
        program: where the tiles go.
        kernel, name, kind, flops: of the operation.
        tensor: gives the sharded tensor behind a reference of the untiled graph.
        gather: gives a sharded tensor in one tile.
        choose: pieces by kind, name and sizes; see ``tiling.tile``.
    """

    program: TensorProgram
    kernel: Kernel
    name: str
    kind: str
    flops: float
    tensor: Callable[[Reference], ShardedTensor]
    gather: Callable[[ShardedTensor], ShardedTensor]
    choose: Callable[[str, str, tuple[int, ...]], Sequence[int]]

    def argument(self, position: int, default: Any = None) -> Any:
        """An argument by position; references become sharded tensors."""
        if position >= len(self.kernel.args):
            return default
        value = self.kernel.args[position]
        return self.tensor(value) if isinstance(value, Reference) else value

    def arguments(self, start: int = 0) -> list[Any]:
        """All positional arguments from ``start`` on."""
        return [self.argument(position) for position in range(start, len(self.kernel.args))]

    def bounds(self, kind: str, natural: Sequence[Boundaries]) -> list[Boundaries]:
        """Boundary lists of an iteration space: the operands' own, else the chosen number of pieces."""
        sizes = tuple(listed[-1] for listed in natural)
        chosen = self.choose(kind, self.name, sizes)
        return [
            listed if len(listed) > 2 else boundaries(size, pieces)
            for listed, size, pieces in zip(natural, sizes, chosen, strict=True)
        ]

    def tilewise(
        self, args: Callable[[Region], Sequence[Any]], cuts: Sequence[Boundaries], output: int = 0
    ) -> ShardedTensor:
        """The operator itself on each tile of its first output; FLOPs are shared out by size."""
        kind, kernel = self.kernel.outputs[output], self.kernel
        share = self.flops / max(kind.elements, 1)
        return self.program.tilewise(
            lambda region: Kernel(
                kernel.target, tuple(args(region)), (TensorType(extent(region), kind.dtype),), kernel.kwargs
            ),
            kind.shape,
            cuts,
            kind=self.kind,
            name=self.name,
            dtype=kind.dtype,
            flops=lambda region: share * prod(extent(region)),
        )

    def elementwise(self, name: str, *operands: Any) -> ShardedTensor:
        """One element-wise step of an operation that is composed of several."""
        return self.program.elementwise(name, *operands, cuts=broadcast_cuts(operands), name=self.name)


def whole(operation: Operation) -> Results:
    """Leave an operation whole: gather its inputs, each output is one tile."""
    kernel = operation.kernel

    def gathered(value: Any) -> Any:
        if isinstance(value, Reference):
            return operation.gather(operation.tensor(value)).tiles[0]
        if isinstance(value, Kernel):
            return replace(value, args=gathered(value.args), kwargs=gathered(value.kwargs))
        return tuple(gathered(item) for item in value) if isinstance(value, tuple | list) else value

    moved = replace(kernel, args=gathered(kernel.args), kwargs=gathered(kernel.kwargs))
    return operation.program.single(moved, kind=operation.kind, name=operation.name, flops=operation.flops)


def broadcast_cuts(operands: Sequence[Any]) -> list[Boundaries]:
    """For each dimension of an element-wise result, the cuts of the operand with most pieces."""
    tensors = [operand for operand in operands if isinstance(operand, ShardedTensor)]
    cuts = []
    for dim in range(-max(len(tensor.shape) for tensor in tensors), 0):
        present = [tensor for tensor in tensors if -dim <= len(tensor.shape)]
        size = max(tensor.shape[dim] for tensor in present)
        cuts.append(max((tensor.cuts[dim] for tensor in present if tensor.shape[dim] == size), key=len))
    return cuts


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
    """``mm`` and ``bmm``."""
    return [_product(operation, operation.argument(0), operation.argument(1))]


def _product(operation: Operation, a: ShardedTensor, b: ShardedTensor) -> ShardedTensor:
    batch = "b" * (len(a.shape) - 2)
    summed = max(a.cuts[-1], b.cuts[-2], key=len)
    natural = [*(max(x, y, key=len) for x, y in zip(a.cuts[:-2], b.cuts[:-2], strict=True)), a.cuts[-2], summed, b.cuts[-1]]
    bounds = operation.bounds("matmul", natural)
    equation = f"{batch}mk,{batch}kn->{batch}mn"
    return operation.program.einsum(equation, a, b, dict(zip(f"{batch}mkn", bounds, strict=True)), operation.name)


def product_and_sum(operation: Operation) -> Results | None:
    """``addmm`` and ``baddbmm``: a product, then the addition; one operation per tile if no sum is cut."""
    bias, a, b = operation.arguments()[:3]
    if operation.kernel.kwargs or len(operation.kernel.args) > 3:
        return None
    formed = _product(operation, a, b)
    return [operation.program.elementwise("aten.add.Tensor", formed, bias, name=f"{operation.name}.bias")]


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
    """``sum``, ``mean``, ``amax`` and ``amin`` over some or all dimensions."""
    x, result = operation.argument(0), operation.kernel.outputs[0]
    if x.dtype != result.dtype or not x.shape:
        return None
    dims = operation.argument(1)
    axes = tuple(range(len(x.shape))) if dims is None or dims == () else dims
    keepdim = bool(operation.argument(2, False))
    name = operation.kernel.target.split(".")[1]
    return [operation.program.reduce(name, x, axes, keepdim=keepdim, name=operation.name)]


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
        seen = [] if len(operation.kernel.args) < 4 else [None if mask is None else broadcast_read(mask, scores)]
        return [*pieces, *seen, *operation.kernel.args[4:]]

    return [operation.tilewise(args, cuts)]


def broadcast_read(tensor: ShardedTensor, region: Region) -> Argument:
    """What a tile of a broadcast result needs of an operand."""
    own = region[len(region) - len(tensor.shape) :]
    return tensor.read(tuple((0, 1) if size == 1 else span for size, span in zip(tensor.shape, own, strict=True)))


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
