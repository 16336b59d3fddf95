"""Arithmetic over the ranks of a gang, made of sums alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    Reduce = Callable[[torch.Tensor], None]
    """Adds up a flat buffer over all ranks, in place, on every rank."""


def flatten(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """The numbers of tensors one after the other, in the widest of their types; a complex number is two."""
    import torch

    return torch.cat(
        [torch.view_as_real(t.resolve_conj()).reshape(-1) if t.is_complex() else t.reshape(-1) for t in tensors]
    )


def copy_back(flat: torch.Tensor, into: Sequence[torch.Tensor]) -> None:
    """Write the pieces of a flat buffer, as ``flatten`` makes them, into tensors, in their own types."""
    import torch

    begin = 0
    for tensor in into:
        end = begin + tensor.numel() * (2 if tensor.is_complex() else 1)
        piece, begin = flat[begin:end], end
        if tensor.is_complex():
            piece = torch.complex(piece[0::2], piece[1::2])
        tensor.copy_(piece.view(tensor.shape))


def largest(values: torch.Tensor, reduce: Reduce) -> torch.Tensor:
    """Largest integers over the ranks by sums alone: ranks vote sign first, then bit by bit from the highest.

    Args:
        values: [N] of int64; any, the outermost too.
    """
    import torch

    bound = values.double().abs()
    reduce(bound)
    bits = min(int(bound.max().item()).bit_length(), 63)
    running = torch.ones_like(values, dtype=torch.bool)

    def vote(mine: torch.Tensor) -> torch.Tensor:
        """Whether any rank that is still running says yes; those that say no to it run no more."""
        nonlocal running
        votes = (running & mine).double()
        reduce(votes)
        running = running & (mine | (votes == 0))
        return votes > 0

    found = torch.where(vote(values >= 0), 0, -(1 << bits))  # two's complement: below 0 the bits count up from there
    for bit in range(bits - 1, -1, -1):
        found += vote(((values >> bit) & 1).bool()).long() << bit
    return found
