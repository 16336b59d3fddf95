"""What an operation computes, as plain data: an ATen operator and where its arguments come from.

Nothing here needs torch: the description can be read, written, tiled and placed without it.
``interpreter.run`` and the real executors turn it into tensors.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any, Literal

ITEM_BYTES = {
    "float64": 8, "int64": 8, "complex64": 8, "float32": 4, "int32": 4, "float16": 2, "bfloat16": 2,
    "int16": 2, "int8": 1, "uint8": 1, "bool": 1, "complex128": 16,
    "float8_e4m3fn": 1, "float8_e5m2": 1,
}  # fmt: skip


@dataclass(frozen=True)
class TensorType:
    """Shape and dtype (torch's name without the prefix, such as ``float32``) of a tensor."""

    shape: tuple[int, ...]
    dtype: str = "float32"

    @property
    def elements(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def bytes(self) -> int:
        """Size in bytes, without padding."""
        return self.elements * ITEM_BYTES[self.dtype]


@dataclass(frozen=True)
class View:
    """A re-interpretation of a tensor that costs nothing: an ATen view operator.

    ``args`` are the arguments after the tensor itself, e.g. ``View("aten.view.default", ((4, 4),))``.
    """

    target: str
    args: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Reference:
    """One tensor: output ``output`` of operation ``number``, or graph input ``number``, then ``views``."""

    source: Literal["op", "input"]
    number: int
    output: int = 0
    views: tuple[View, ...] = ()


@dataclass(frozen=True)
class Symbol:
    """A constant of torch named in an argument, such as ``Symbol("float32")`` for ``torch.float32``."""

    name: str


@dataclass(frozen=True)
class Kernel:
    """A call of one ATen operator.

    ``target`` is its full name (``aten.mm.default``). ``args`` and ``kwargs`` hold references,
    symbols, numbers, strings, booleans, ``None`` and nested tuples of these. ``outputs`` types each
    tensor that the call returns.

    An argument may also be a kernel with one output: it is called first, within the same operation,
    and its result is passed on and then dropped. So one operation can read a piece of a tensor that
    lies in several tiles (``aten.cat.default`` as an argument of ``aten.mm.default``) or add up more
    than two partial results.
    """

    target: str
    args: tuple[Any, ...]
    outputs: tuple[TensorType, ...]
    kwargs: tuple[tuple[str, Any], ...] = ()

    def references(self) -> tuple[Reference, ...]:
        """All tensors that the call reads, in argument order, repetitions kept."""
        return tuple(_references([*self.args, *(value for _, value in self.kwargs)]))


def _references(values: Any) -> list[Reference]:
    found: list[Reference] = []
    for value in values:
        if isinstance(value, Reference):
            found.append(value)
        elif isinstance(value, Kernel):
            found.extend(value.references())
        elif isinstance(value, tuple | list):
            found.extend(_references(value))
    return found


def encode(value: Any) -> Any:
    """Turn a kernel, or any part of one, into JSON values; ``decode`` is its inverse."""
    if isinstance(value, Kernel):
        return {
            "target": value.target,
            "args": [encode(argument) for argument in value.args],
            "kwargs": {key: encode(argument) for key, argument in value.kwargs},
            "outputs": [{"shape": list(kind.shape), "dtype": kind.dtype} for kind in value.outputs],
        }
    if isinstance(value, Reference):
        views = [[view.target, encode(view.args)] for view in value.views]
        return {"ref": [value.source, value.number, value.output], **({"views": views} if views else {})}
    if isinstance(value, Symbol):
        return {"symbol": value.name}
    if isinstance(value, tuple | list):
        return [encode(item) for item in value]
    return value


def decode(value: Any) -> Any:
    """Inverse of ``encode``: JSON lists become tuples, tagged objects their types."""
    if isinstance(value, list):
        return tuple(decode(item) for item in value)
    if not isinstance(value, dict):
        return value
    if "ref" in value:
        source, number, output = value["ref"]
        views = tuple(View(target, decode(args)) for target, args in value.get("views", []))
        return Reference(source, number, output, views)
    if "symbol" in value:
        return Symbol(value["symbol"])
    return Kernel(
        target=value["target"],
        args=decode(value["args"]),
        kwargs=tuple((key, decode(argument)) for key, argument in value["kwargs"].items()),
        outputs=tuple(TensorType(tuple(kind["shape"]), kind["dtype"]) for kind in value["outputs"]),
    )
