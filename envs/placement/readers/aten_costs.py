"""What an ATen operator costs: its kind, FLOPs and bytes moved, from the shapes of a traced call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..kinds import aten_kind

if TYPE_CHECKING:
    import torch
    from torch._ops import OpOverload

FREE = ("copy", "create", "gather")
"""Kinds that move data and compute nothing."""

READS_ROWS = ("embedding", "index", "index_select", "gather")
"""Operators that read only as many elements of their first tensor as they write."""


def kind_of(operator: OpOverload) -> str:
    """Standard kind of an operator; see ``kinds.KINDS``."""
    import torch

    return aten_kind(packet_name(operator), pointwise=torch.Tag.pointwise in operator.tags)


def packet_name(operator: OpOverload) -> str:
    """Name without namespace and overload, such as ``mm``."""
    return operator._schema.name.split("::")[1]


def flops_of(operator: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> float:
    """FLOPs of a call.

    torch's own formula where it has one, else the larger of the elements read and written, none for
    kinds that only move data. For operators of no known kind that estimate may be far too low
    (``is_guessed``).

    Args:
        args, kwargs: the call's arguments; tensors may be fake.
        result: what the call returned.
    """
    import torch
    from torch.utils.flop_counter import flop_registry, sdpa_flop_count

    formula = flop_registry.get(operator.overloadpacket)
    if formula is not None:
        return float(formula(*args, **kwargs, out_val=result))
    if operator is torch.ops.aten.scaled_dot_product_attention.default:
        query, key, value = (tuple(tensor.shape) for tensor in args[:3])
        count: Any = sdpa_flop_count
        return float(count(query, _repeat_heads(key, query), _repeat_heads(value, query)))
    if kind_of(operator) in FREE:
        return 0.0
    return float(max((tensor.numel() for tensor in [*tensors([args, kwargs]), *tensors(result)]), default=0))


def is_guessed(operator: OpOverload) -> bool:
    """Whether neither a formula nor the kind of an operator tells what it computes."""
    from torch.utils.flop_counter import flop_registry

    return kind_of(operator) == "other" and operator.overloadpacket not in flop_registry


def _repeat_heads(shape: tuple[int, ...], query: tuple[int, ...]) -> tuple[int, ...]:
    """Shape of keys or values after each head is repeated for its group of query heads."""
    return (*query[:-2], *shape[-2:])


def tensors(value: Any) -> list[torch.Tensor]:
    """All tensors in nested lists, tuples and dictionaries, in order."""
    import torch

    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, Mapping):
        value = list(value.values())
    return [tensor for item in value for tensor in tensors(item)] if isinstance(value, list | tuple) else []


def bytes_moved(operator: OpOverload, reads: Sequence[float], writes: float) -> float:
    """Bytes read and written by a call; ``reads`` are the bytes of each tensor it is given."""
    if reads and packet_name(operator) in READS_ROWS:
        return 2 * writes + sum(reads[1:])
    return sum(reads) + writes
