"""Softmax and normalisations of sharded tensors, composed of element-wise operations and reductions.

They work across tiles of the reduced dimension too. ``cuts`` cut the tensor for the reductions and the
element-wise operations; by default it stays as it is cut.
"""

from __future__ import annotations

from collections.abc import Sequence

from .tensor_program import Cut, ShardedTensor, TensorProgram


def softmax(
    program: TensorProgram,
    tensor: ShardedTensor,
    dim: int = -1,
    cuts: Sequence[Cut] | None = None,
    name: str = "softmax",
) -> ShardedTensor:
    """exp(x - max) / sum of it along ``dim``: five sharded operations and two formations."""
    largest = program.reduce("amax", tensor, dim, cuts=cuts, name=f"{name}.max")
    shifted = program.elementwise("aten.sub.Tensor", tensor, largest, cuts=cuts, name=f"{name}.shift")
    powers = program.elementwise("aten.exp.default", shifted, name=f"{name}.exp")
    total = program.reduce("sum", powers, dim, name=f"{name}.sum")
    return program.elementwise("aten.div.Tensor", powers, total, name=f"{name}.divide")


def log_softmax(
    program: TensorProgram,
    tensor: ShardedTensor,
    dim: int = -1,
    cuts: Sequence[Cut] | None = None,
    name: str = "log_softmax",
) -> ShardedTensor:
    """(x - max) - log(sum of exp(x - max)) along ``dim``."""
    largest = program.reduce("amax", tensor, dim, cuts=cuts, name=f"{name}.max")
    shifted = program.elementwise("aten.sub.Tensor", tensor, largest, cuts=cuts, name=f"{name}.shift")
    powers = program.elementwise("aten.exp.default", shifted, name=f"{name}.exp")
    total = program.reduce("sum", powers, dim, name=f"{name}.sum")
    logarithm = program.elementwise("aten.log.default", total, name=f"{name}.log")
    return program.elementwise("aten.sub.Tensor", shifted, logarithm, name=f"{name}.subtract")


def rms_norm(
    program: TensorProgram,
    tensor: ShardedTensor,
    weight: ShardedTensor | None = None,
    eps: float = 1e-6,
    cuts: Sequence[Cut] | None = None,
    name: str = "rms_norm",
    dtype: str | None = None,
) -> ShardedTensor:
    """x / sqrt(mean(x^2) + eps) along the last dimension, times ``weight`` [last dimension].

    ``cuts`` cut the normalised result; the mean follows the tensor's own cuts. ``dtype`` is the result's
    if it is not the tensor's (a conversion before the weight, as LLaMA does).
    """
    squares = program.elementwise("aten.pow.Tensor_Scalar", tensor, 2, name=f"{name}.square")
    mean = program.reduce("mean", squares, -1, name=f"{name}.mean")
    padded = program.elementwise("aten.add.Tensor", mean, eps, name=f"{name}.eps")
    scale = program.elementwise("aten.rsqrt.default", padded, name=f"{name}.rsqrt")
    result = program.elementwise("aten.mul.Tensor", tensor, scale, cuts=cuts, name=f"{name}.scale")
    if dtype is not None:
        result = program.cast(result, dtype)
    return result if weight is None else program.elementwise("aten.mul.Tensor", result, weight, name=f"{name}.weight")


def layer_norm(
    program: TensorProgram,
    tensor: ShardedTensor,
    weight: ShardedTensor | None = None,
    bias: ShardedTensor | None = None,
    eps: float = 1e-5,
    cuts: Sequence[Cut] | None = None,
    name: str = "layer_norm",
) -> ShardedTensor:
    """(x - mean) / sqrt(variance + eps) along the last dimension, times ``weight``, plus ``bias``."""
    mean = program.reduce("mean", tensor, -1, cuts=cuts, name=f"{name}.mean")
    centred = program.elementwise("aten.sub.Tensor", tensor, mean, cuts=cuts, name=f"{name}.centre")
    scaled = rms_norm(program, centred, weight, eps, name=name)
    return scaled if bias is None else program.elementwise("aten.add.Tensor", scaled, bias, name=f"{name}.bias")
