"""Arithmetic over the ranks of a gang, made of sums alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    Reduce = Callable[[torch.Tensor], None]
    """Adds up a flat buffer over all ranks, in place, on every rank."""


def copy_back(flat: torch.Tensor, into: Sequence[torch.Tensor]) -> None:
    """Write the pieces of a flat buffer into tensors, in their own types."""
    begin = 0
    for tensor in into:
        tensor.copy_(flat[begin : begin + tensor.numel()].view(tensor.shape))
        begin += tensor.numel()


def largest(values: torch.Tensor, reduce: Reduce) -> torch.Tensor:
    """Largest integers over the ranks by sums alone: ranks vote bit by bit, from the highest; int64 [N]."""
    import torch

    bound = values.abs().double()
    reduce(bound)
    bits = int(bound.max().item()).bit_length()
    values = values + (1 << bits)  # none is negative now
    found, running = torch.zeros_like(values), torch.ones_like(values, dtype=torch.bool)
    for bit in range(bits, -1, -1):
        mine = running & ((values >> bit) & 1).bool()
        votes = mine.double()
        reduce(votes)
        found += (votes > 0).long() << bit
        running = mine | (running & (votes == 0))
    return found - (1 << bits)
