"""Broadcasting of sharded tensors: numpy's rules, dimensions aligned at the last one."""

from __future__ import annotations

from ...errors import GraphError
from .sharded_tensor import Argument, Boundaries, Region, ShardedTensor


def broadcast(target: str, tensors: list[ShardedTensor]) -> tuple[tuple[int, ...], tuple[Boundaries, ...]]:
    """Shape of an element-wise result, and its cuts: per dimension the first operand's that has it in full.

    Raises:
        GraphError: no operand, or shapes that do not fit together.
    """
    if not tensors:
        raise GraphError(f"{target} got no tensor; an element-wise operation needs at least one.")
    shape: list[int] = []
    cuts: list[Boundaries] = []
    for dim in range(-max(len(tensor.shape) for tensor in tensors), 0):
        present = [tensor for tensor in tensors if -dim <= len(tensor.shape)]
        size = max(tensor.shape[dim] for tensor in present)
        if any(tensor.shape[dim] not in (1, size) for tensor in present):
            raise GraphError(f"{target}: the shapes {[tensor.shape for tensor in tensors]} do not broadcast.")
        shape.append(size)
        cuts.append(next(tensor.cuts[dim] for tensor in present if tensor.shape[dim] == size))
    return tuple(shape), tuple(cuts)


def read_broadcast(tensor: ShardedTensor, region: Region) -> Argument:
    """What an operand contributes to ``region`` of the result; its dimensions of size 1 are read in full."""
    own = region[len(region) - len(tensor.shape) :]
    return tensor.read(tuple((0, 1) if size == 1 else span for size, span in zip(tensor.shape, own, strict=True)))
