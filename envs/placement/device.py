"""Devices: what they compute a second and hold, and how they are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..arguments import is_number, is_whole
from ..descriptions import check_keys
from ..errors import TopologyError

MOST_DEVICES = 4096
"""Links are kept for every pair, so that many more would not fit the memory (our choice)."""
SLOWEST = 1e-30
"""FLOP/s below this, or above its inverse, would overflow times (our choice)."""


@dataclass(frozen=True)
class Device:
    """One accelerator or processor.

    Attributes:
        kind: hardware type, such as ``P100``; matched with the device kinds of measured graphs.
        flops_per_s: sustained FLOP/s of an operation kind that ``kind_flops_per_s`` does not name.
        kind_flops_per_s: FLOP/s per operation kind (``matmul``, ``elementwise``, ...).
        memory_bytes: capacity; infinite for no limit.
        memory_bytes_per_s: bandwidth of the device's own memory; infinite for none to model.
        overhead_s: fixed seconds per operation (launch).
    """

    kind: str = "device"
    flops_per_s: float = 1.0
    kind_flops_per_s: Mapping[str, float] = field(default_factory=dict)
    memory_bytes: float = np.inf
    memory_bytes_per_s: float = np.inf
    overhead_s: float = 0.0

    def __post_init__(self) -> None:
        if not isinstance(self.kind_flops_per_s, Mapping):
            raise TopologyError(
                f"device kind {self.kind}: kind_flops_per_s is {self.kind_flops_per_s!r}; expected kind: FLOP/s."
            )
        positive = {"flops_per_s": self.flops_per_s, "memory_bytes_per_s": self.memory_bytes_per_s}
        positive |= {f"kind_flops_per_s[{name}]": value for name, value in self.kind_flops_per_s.items()}
        for name, value in positive.items():
            if not (is_number(value) and value > 0):
                raise TopologyError(f"device kind {self.kind}: {name} is {value!r}; expected a number above 0.")
            if "flops_per_s" in name and not SLOWEST <= value <= 1 / SLOWEST:
                limits = f"{SLOWEST:g} to {1 / SLOWEST:g}"
                raise TopologyError(f"device kind {self.kind}: {name} is {value!r}; expected FLOP/s from {limits}.")
        for name, value, end in (("memory_bytes", self.memory_bytes, ""), ("overhead_s", self.overhead_s, ", finite")):
            if not (is_number(value) and value >= 0 and (not end or value < np.inf)):
                raise TopologyError(f"device kind {self.kind}: {name} is {value!r}; expected a number from 0 up{end}.")

    def at_speed(self, factor: float) -> Device:
        """The same device with all rates times ``factor``; its kind tells the factor."""
        return replace(
            self,
            kind=self.kind if factor == 1 else f"{self.kind}*{factor:g}",
            flops_per_s=self.flops_per_s * factor,
            kind_flops_per_s={kind: rate * factor for kind, rate in self.kind_flops_per_s.items()},
            memory_bytes_per_s=self.memory_bytes_per_s * factor,
        )

    def seconds(self, kind: Sequence[str], flops: NDArray, bytes_moved: NDArray) -> NDArray[np.float64]:
        """Roofline seconds of operations: overhead + max(FLOPs / FLOP/s, bytes / memory bandwidth)."""
        speed = np.array([self.kind_flops_per_s.get(name, self.flops_per_s) for name in kind])
        return self.overhead_s + np.maximum(flops / speed, bytes_moved / self.memory_bytes_per_s)


def read_devices(entry: Any, where: str) -> list[Device]:
    """The devices of one entry of a topology file, ``count`` of them.

    Raises:
        TopologyError: a key is unknown, missing or of the wrong type; it is named.
    """
    if not isinstance(entry, Mapping):
        raise TopologyError(f"{where}: expected keys such as kind and flops_per_s, found {entry!r}.")
    numeric = ("flops_per_s", "memory_bytes", "memory_bytes_per_s", "overhead_s")
    check_keys(entry, ("kind", "count", "kind_flops_per_s", *numeric), where, TopologyError)
    if "flops_per_s" not in entry:
        raise TopologyError(f"{where}: flops_per_s is missing; give the device's FLOP/s.")
    count = entry.get("count", 1)
    if not is_whole(count) or not 1 <= count <= MOST_DEVICES:
        raise TopologyError(f"{where}: count is {count!r}; expected a whole number from 1 up, {MOST_DEVICES} at most.")
    kind = entry.get("kind", "device")
    if not (isinstance(kind, str) or is_number(kind)):
        raise TopologyError(f"{where}: kind is {kind!r}; expected a text such as P100.")
    numbers = {key: read_number(entry[key], f"{where}: {key}") for key in numeric if key in entry}
    speeds = entry.get("kind_flops_per_s") or {}
    if not isinstance(speeds, Mapping):
        raise TopologyError(f"{where}: kind_flops_per_s is {speeds!r}; expected keys such as matmul with FLOP/s.")
    per_kind = {str(name): read_number(value, f"{where}: kind_flops_per_s.{name}") for name, value in speeds.items()}
    try:
        device = Device(kind=str(kind), kind_flops_per_s=per_kind, **numbers)
    except TopologyError as error:
        raise TopologyError(f"{where}: {error}") from None
    return [device] * count


def read_numbers(value: Any, where: str) -> NDArray[np.float64]:
    """A new array; texts such as ``1e9``, which YAML does not take for numbers, are read too.

    Raises:
        TopologyError: it holds something else; ``where`` says what was read.
    """
    try:
        if value is None or np.asarray(value).dtype == bool:
            raise ValueError(value)
        return np.array(value, dtype=np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise TopologyError(f"{where} is {value!r}; expected a number or a list of numbers.") from error


def read_number(value: Any, where: str) -> float:
    """One number.

    Raises:
        TopologyError: it is none; ``where`` says what was read.
    """
    array = read_numbers(value, where)
    if array.ndim:
        raise TopologyError(f"{where} is {value!r}; expected one number.")
    return float(array)
