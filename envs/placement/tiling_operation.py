"""One operation that is to be cut into tiles, as the rules of ``tiling_rules`` see it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from .kernel import Kernel, Reference, TensorType
from .workloads.sharded_tensor import Boundaries, Region, boundaries, extent
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

    def tilewise(self, args: Callable[[Region], Sequence[Any]], cuts: Sequence[Boundaries]) -> ShardedTensor:
        """The operator itself on each tile of its only output; FLOPs are shared out by size."""
        return self.tilewise_all(args, cuts)[0]

    def tilewise_all(self, args: Callable[[Region], Sequence[Any]], cuts: Sequence[Boundaries]) -> Results:
        """The operator itself on each tile; all its outputs have the same shape and cuts."""
        kernel, outputs = self.kernel, self.kernel.outputs
        share = self.flops / max(outputs[0].elements, 1)
        first = self.program.tilewise(
            lambda region: Kernel(
                kernel.target,
                tuple(args(region)),
                tuple(TensorType(extent(region), kind.dtype) for kind in outputs),
                kernel.kwargs,
            ),
            outputs[0].shape,
            cuts,
            kind=self.kind,
            name=self.name,
            dtype=outputs[0].dtype,
            flops=lambda region: share * prod(extent(region)),
        )
        return [
            replace(first, dtype=kind.dtype, tiles=tuple(replace(tile, output=n) for tile in first.tiles))
            for n, kind in enumerate(outputs)
        ]

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
