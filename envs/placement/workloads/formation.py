"""Formation: partial results of one tile become its value."""

from __future__ import annotations

from typing import Literal

from ..kernel import Kernel, Reference, TensorType

Combine = Literal["single", "chain", "tree"]
Partials = list[list[Reference]]
"""Per tile, its partial results; each tile has equally many."""

REDUCTIONS = {
    "sum": ("aten.sum.dim_IntList", "aten.add.Tensor"),
    "mean": ("aten.sum.dim_IntList", "aten.add.Tensor"),
    "amax": ("aten.amax.default", "aten.maximum.default"),
    "amin": ("aten.amin.default", "aten.minimum.default"),
}
"""Reduction -> the operator within a tile, and the one that combines two partial results."""


def pick_operands(parts: list[Reference], combine: Combine) -> tuple[list[list[Reference]], list[Reference]]:
    """Operands of one round of combinations, and the partial results that it leaves for the next.

    ``single`` combines all of them, ``chain`` the first two, ``tree`` neighbouring pairs.
    """
    if combine == "single" or len(parts) < 3:
        return [parts], []
    if combine == "chain":
        return [parts[:2]], parts[2:]
    paired = len(parts) // 2 * 2
    return [parts[start : start + 2] for start in range(0, paired, 2)], parts[paired:]


def combining_kernel(operands: list[Reference], target: str, kind: TensorType) -> Kernel:
    """``target`` applied from left to right; of a single operand, a copy."""
    if len(operands) == 1:
        return Kernel("aten.clone.default", (operands[0],), (kind,))
    kernel = Kernel(target, (operands[0], operands[1]), (kind,))
    for operand in operands[2:]:
        kernel = Kernel(target, (kernel, operand), (kind,))
    return kernel
