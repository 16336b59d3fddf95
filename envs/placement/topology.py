"""Devices and the links between them: presets with their sources, or the user's own as YAML."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, cast, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..descriptions import check_keys, read_yaml
from ..errors import TopologyError, UnknownNameError

Contention = Literal["none", "pair", "ports"]
GB = 1e9
TERA = 1e12
MOST_DEVICES = 4096
"""Links are kept for every pair, so that many more would not fit the memory (our choice)."""
SLOWEST = 1e-30
"""FLOP/s below this, or above its inverse, would overflow times (our choice)."""


def processors() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


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
            if not (_is_number(value) and value > 0):
                raise TopologyError(f"device kind {self.kind}: {name} is {value!r}; expected a number above 0.")
            if "flops_per_s" in name and not SLOWEST <= value <= 1 / SLOWEST:
                limits = f"{SLOWEST:g} to {1 / SLOWEST:g}"
                raise TopologyError(f"device kind {self.kind}: {name} is {value!r}; expected FLOP/s from {limits}.")
        for name, value, end in (("memory_bytes", self.memory_bytes, ""), ("overhead_s", self.overhead_s, ", finite")):
            if not (_is_number(value) and value >= 0 and (not end or value < np.inf)):
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


@dataclass(frozen=True, eq=False)
class Topology:
    """D devices and the links between every ordered pair.

    Attributes:
        name: for tables.
        devices: [D].
        bandwidth: [D, D] bytes/s; the diagonal is not used.
        latency: [D, D] seconds; a fixed delay of each transfer that occupies nothing.
        contention: ``ports`` - each device has one egress and one ingress port, a transfer holds
            both; ``pair`` - one queue per ordered pair of devices; ``none`` - transfers never wait.
        channels: transfers that a port (or pair) carries at once, each at full bandwidth.
        source: where the numbers come from.
    """

    name: str
    devices: tuple[Device, ...]
    bandwidth: NDArray[np.float64]
    latency: NDArray[np.float64]
    contention: Contention = "ports"
    channels: int = 1
    source: str = ""

    def __post_init__(self) -> None:
        count = len(self.devices)
        if count == 0:
            raise TopologyError(f"topology {self.name}: it has no device; at least one is needed.")
        for label, legal in (("bandwidth", "above 0"), ("latency", "from 0 up, finite")):
            matrix = _numbers(getattr(self, label), f"topology {self.name}: {label}")
            if matrix.ndim == 0:
                matrix = np.full((count, count), float(matrix))
            if matrix.shape != (count, count):
                raise TopologyError(
                    f"topology {self.name}: {label} has shape {matrix.shape}, expected one number or "
                    f"({count}, {count})."
                )
            good = matrix > 0 if label == "bandwidth" else (matrix >= 0) & (matrix < np.inf)
            for a, b in np.argwhere(~good & ~np.eye(count, dtype=bool)):
                raise TopologyError(
                    f"topology {self.name}: the {label} from device {a} to {b} is {matrix[a, b]}; expected a number "
                    f"{legal}."
                )
            np.fill_diagonal(matrix, np.inf if label == "bandwidth" else 0.0)
            matrix.setflags(write=False)
            object.__setattr__(self, label, matrix)
        if self.contention not in get_args(Contention):
            raise TopologyError(
                f"topology {self.name}: contention is {self.contention!r}; expected none, pair or ports."
            )
        if not _is_whole(self.channels) or self.channels < 1:
            raise TopologyError(f"topology {self.name}: channels is {self.channels!r}; expected 1 or more.")

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        for matrix in (self.bandwidth, self.latency):
            matrix.setflags(write=False)

    @property
    def d(self) -> int:
        """Number of devices."""
        return len(self.devices)

    @property
    def memory_bytes(self) -> NDArray[np.float64]:
        """[D] capacity in bytes."""
        return np.array([device.memory_bytes for device in self.devices], dtype=np.float64)

    @property
    def relative_speed(self) -> NDArray[np.float64]:
        """[D] FLOP/s as a share of the fastest device's."""
        speed = np.array([device.flops_per_s for device in self.devices])
        return speed / speed.max()

    def with_links(
        self,
        *,
        bandwidth: ArrayLike | None = None,
        latency: ArrayLike | None = None,
        contention: Contention | None = None,
    ) -> Topology:
        """The same devices with other links."""
        return replace(
            self,
            bandwidth=self.bandwidth if bandwidth is None else np.asarray(bandwidth, dtype=np.float64),
            latency=self.latency if latency is None else np.asarray(latency, dtype=np.float64),
            contention=contention or self.contention,
        )

    def subset(self, devices: ArrayLike) -> Topology:
        """Some of the devices, given by number, with the links between them.

        Raises:
            TopologyError: a device does not exist or is named twice, or none is named.
        """
        chosen = np.asarray(devices, dtype=np.int64).reshape(-1)
        if not chosen.size or len(set(chosen.tolist())) < chosen.size or chosen.min() < 0 or chosen.max() >= self.d:
            raise TopologyError(f"topology {self.name}: {chosen.tolist()} are no devices; it has 0 to {self.d - 1}.")
        pairs = np.ix_(chosen, chosen)
        return replace(
            self,
            devices=tuple(self.devices[number] for number in chosen),
            bandwidth=self.bandwidth[pairs],
            latency=self.latency[pairs],
        )

    @classmethod
    def uniform(
        cls,
        devices: int | None = None,
        *,
        flops_per_s: float = 1.0,
        speeds: ArrayLike | None = None,
        bandwidth: ArrayLike = 1.0,
        latency: ArrayLike = 0.0,
        memory_bytes: float = np.inf,
        contention: Contention = "ports",
        kind: str = "device",
        name: str | None = None,
    ) -> Topology:
        """Devices alike but for ``speeds``: factors on ``flops_per_s``, one per device.

        Without ``speeds`` there are ``devices`` of them, by default 4.

        Raises:
            TopologyError: a number is not usable, or there are not as many speeds as devices.
        """
        where = f"topology {name or 'uniform'}"
        if devices is not None and (not _is_whole(devices) or not 1 <= devices <= MOST_DEVICES):
            raise TopologyError(
                f"{where}: devices is {devices!r}; expected a whole number from 1 up, {MOST_DEVICES} at most."
            )
        given = np.ones(devices or 4) if speeds is None else speeds
        factors = _numbers(given, f"{where}: speeds").reshape(-1)
        if devices is not None and len(factors) != devices:
            raise TopologyError(f"{where}: {len(factors)} speeds are given for {devices} devices; give one per device.")
        speed = _number(flops_per_s, f"{where}: flops_per_s")
        return cls(
            name=name or f"{len(factors)}x{kind}",
            devices=tuple(
                Device(kind if f == 1.0 else f"{kind}*{f:g}", speed * f, memory_bytes=memory_bytes)
                for f in factors.tolist()
            ),
            bandwidth=_numbers(bandwidth, f"{where}: bandwidth"),
            latency=_numbers(latency, f"{where}: latency"),
            contention=contention,
            source="uniform",
        )

    @classmethod
    def preset(cls, name: str) -> Topology:
        """A built-in machine: ``4xP100``, ``8xV100``, ``4xA100``, ``4xH100``, ``4xL4``, ``mixed``.

        Each also as ``NAME-slow`` (3 GB/s links), ``NAME-contended`` (all traffic through the host:
        12 GB/s at most, one port per device) and ``NAME-ideal`` (transfers never wait).

        Raises:
            UnknownNameError: no preset has this name.
        """
        base, dash, variant = str(name).partition("-")
        if base not in PRESETS or (dash and variant not in _VARIANTS):
            raise UnknownNameError(
                f"no topology is called {name!r}; choose one of {', '.join(PRESETS)}, alone or followed by "
                f"{', '.join('-' + v for v in _VARIANTS)}, or give a YAML file."
            )
        topology = PRESETS[base]()
        if not variant:
            return topology
        limit, contention = _VARIANTS[variant]
        return replace(
            topology,
            name=name,
            bandwidth=np.minimum(topology.bandwidth, limit),
            contention=cast(Contention, contention),
        )

    @classmethod
    def at_speeds(
        cls,
        name: str,
        speeds: ArrayLike,
        *,
        bandwidth: ArrayLike = 1.2e10,
        latency: ArrayLike = 1e-5,
        contention: Contention = "ports",
    ) -> Topology:
        """The first device of a preset at several speeds, one factor per device.

        Args:
            bandwidth: bytes/s, one number or [D, D].
            latency: seconds.

        Raises:
            TopologyError: a number is not usable.
            UnknownNameError: no preset has this name.
        """
        links = cls.uniform(speeds=speeds, bandwidth=bandwidth, latency=latency, contention=contention)
        device, factors = cls.preset(name).devices[0], np.asarray(speeds, dtype=np.float64).reshape(-1)
        devices = tuple(device.at_speed(factor) for factor in factors.tolist())
        rates = links.bandwidth[~np.eye(links.d, dtype=bool)]
        shown = f"{rates.min() / 1e9:g} GB/s" if rates.size else "alone"
        told = f"{device.kind} at {' '.join(f'{factor:g}' for factor in factors)}, {shown}"
        return replace(links, name=told, devices=devices, source=f"{name} at speeds, our choice")

    @classmethod
    def this_machine(cls, devices: int | None = None) -> Topology:
        """Processors of this machine, by default all, as devices: 20 GFLOP/s each, 5 GB/s between them (our choice).

        The numbers are placeholders of the right size for one core with one thread; calibration
        replaces them by measured ones.
        """
        count = processors() if devices is None else devices
        return cls.uniform(
            count,
            flops_per_s=20e9,
            bandwidth=5 * GB,
            latency=50e-6,
            kind="cpu",
            name=f"this machine, {count} CPU devices",
        )

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], where: str = "topology") -> Topology:
        """Build a topology from plain values, the schema of a topology file.

        Keys: ``devices`` (a list; each with ``kind``, ``count`` (1), ``flops_per_s`` (needed),
        ``kind_flops_per_s``, ``memory_bytes``, ``memory_bytes_per_s``, ``overhead_s``),
        ``bandwidth`` (one number in bytes/s or a D x D list; needed for two devices and more),
        ``latency`` (0), ``contention`` (``ports``), ``channels`` (1), ``name``, ``source``.

        Raises:
            TopologyError: a key is unknown, missing or of the wrong type; it is named.
        """
        if not isinstance(values, Mapping):
            raise TopologyError(f"{where}: expected keys such as devices and bandwidth, found {type(values).__name__}.")
        check_keys(
            values,
            ("devices", "bandwidth", "latency", "contention", "channels", "name", "source"),
            where,
            TopologyError,
        )
        entries = values.get("devices")
        if not isinstance(entries, Sequence) or isinstance(entries, str) or not entries:
            raise TopologyError(f"{where}: devices is missing; give a list of devices with kind and flops_per_s.")
        devices: list[Device] = []
        for position, entry in enumerate(entries):
            devices.extend(_read_device(entry, f"{where}, device {position}"))
        if len(devices) > 1 and "bandwidth" not in values:
            raise TopologyError(f"{where}: bandwidth is missing; give bytes/s between devices.")
        return cls(
            name=str(values.get("name") or where),
            devices=tuple(devices),
            bandwidth=_numbers(values.get("bandwidth", 1.0), f"{where}: bandwidth"),
            latency=_numbers(values.get("latency", 0.0), f"{where}: latency"),
            contention=cast(Contention, values.get("contention", "ports")),
            channels=values.get("channels", 1),
            source=str(values.get("source") or ""),
        )

    @classmethod
    def from_yaml(cls, path: str | Path) -> Topology:
        """Read a topology file; ``from_dict`` tells its keys.

        Raises:
            TopologyError: the file is missing, is no YAML or does not fit the schema.
        """
        return cls.from_dict(read_yaml(path, TopologyError), str(path))

    def to_dict(self) -> dict[str, Any]:
        """Plain values that ``from_dict`` reads back."""
        return {
            "name": self.name,
            "source": self.source,
            "devices": [
                {
                    "kind": device.kind,
                    "flops_per_s": device.flops_per_s,
                    "kind_flops_per_s": dict(device.kind_flops_per_s),
                    "memory_bytes": device.memory_bytes,
                    "memory_bytes_per_s": device.memory_bytes_per_s,
                    "overhead_s": device.overhead_s,
                }
                for device in self.devices
            ],
            "bandwidth": np.where(np.eye(self.d, dtype=bool), 1.0, self.bandwidth).tolist(),
            "latency": self.latency.tolist(),
            "contention": self.contention,
            "channels": self.channels,
        }


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _numbers(value: Any, where: str) -> NDArray[np.float64]:
    """A new array; texts such as ``1e9``, which YAML does not take for numbers, are read too."""
    try:
        if value is None or np.asarray(value).dtype == bool:
            raise ValueError(value)
        return np.array(value, dtype=np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise TopologyError(f"{where} is {value!r}; expected a number or a list of numbers.") from error


def _number(value: Any, where: str) -> float:
    array = _numbers(value, where)
    if array.ndim:
        raise TopologyError(f"{where} is {value!r}; expected one number.")
    return float(array)


def _read_device(entry: Any, where: str) -> list[Device]:
    if not isinstance(entry, Mapping):
        raise TopologyError(f"{where}: expected keys such as kind and flops_per_s, found {entry!r}.")
    numeric = ("flops_per_s", "memory_bytes", "memory_bytes_per_s", "overhead_s")
    check_keys(entry, ("kind", "count", "kind_flops_per_s", *numeric), where, TopologyError)
    if "flops_per_s" not in entry:
        raise TopologyError(f"{where}: flops_per_s is missing; give the device's FLOP/s.")
    count = entry.get("count", 1)
    if not _is_whole(count) or not 1 <= count <= MOST_DEVICES:
        raise TopologyError(f"{where}: count is {count!r}; expected a whole number from 1 up, {MOST_DEVICES} at most.")
    kind = entry.get("kind", "device")
    if not (isinstance(kind, str) or _is_number(kind)):
        raise TopologyError(f"{where}: kind is {kind!r}; expected a text such as P100.")
    numbers = {key: _number(entry[key], f"{where}: {key}") for key in numeric if key in entry}
    speeds = entry.get("kind_flops_per_s") or {}
    if not isinstance(speeds, Mapping):
        raise TopologyError(f"{where}: kind_flops_per_s is {speeds!r}; expected keys such as matmul with FLOP/s.")
    per_kind = {str(name): _number(value, f"{where}: kind_flops_per_s.{name}") for name, value in speeds.items()}
    try:
        device = Device(kind=str(kind), kind_flops_per_s=per_kind, **numbers)
    except TopologyError as error:
        raise TopologyError(f"{where}: {error}") from None
    return [device] * count


def _gpu(kind: str, matmul: float, vector: float, memory: float, memory_rate: float) -> Device:
    """Data-sheet peaks: products reach 80 % of them, memory 80 %; 5 microseconds a launch (our choice)."""
    return Device(
        kind=kind,
        flops_per_s=0.8 * vector * TERA,
        kind_flops_per_s=dict.fromkeys(("matmul", "convolution", "attention"), 0.8 * matmul * TERA),
        memory_bytes=memory * GB,
        memory_bytes_per_s=0.8 * memory_rate * GB,
        overhead_s=5e-6,
    )


# Peaks from NVIDIA's data sheets: TFLOP/s of float32 products (tensor cores with TF32 where there
# are any) and vector float32, memory GB and GB/s. A K80 board holds two such GPUs.
_P100 = _gpu("P100", 9.3, 9.3, 16, 732)
_V100 = _gpu("V100", 15.7, 15.7, 16, 900)
_K80 = _gpu("K80", 2.8, 2.8, 12, 240)
_A100 = _gpu("A100", 156, 19.5, 40, 1555)
_H100 = _gpu("H100", 494, 67, 80, 3350)
_L4 = _gpu("L4", 60, 30.3, 24, 300)


def _machine(name: str, devices: Sequence[Device], gigabytes: ArrayLike, microseconds: float, source: str) -> Topology:
    return Topology(
        name=name,
        devices=tuple(devices),
        bandwidth=np.asarray(gigabytes) * GB,
        latency=np.asarray(microseconds * 1e-6),
        source=source,
    )


def _v100_links() -> NDArray[np.float64]:
    """NVLink of a DGX-1 (25 GB/s a link and direction); pairs without one go over PCIe at 10 GB/s."""
    links = np.full((8, 8), 10.0)
    double = [(0, 3), (0, 4), (1, 2), (1, 5), (2, 3), (4, 7), (5, 6), (6, 7)]
    single = [(0, 1), (0, 2), (1, 3), (2, 6), (3, 7), (4, 5), (4, 6), (5, 7)]
    for pairs, rate in ((single, 25.0), (double, 50.0)):
        for a, b in pairs:
            links[a, b] = links[b, a] = rate
    return links


PRESETS = {
    "4xP100": lambda: _machine("4xP100", [_P100] * 4, 12, 10, "PCIe 3.0 x16, 12 of 15.75 GB/s sustained"),
    "8xV100": lambda: _machine("8xV100", [_V100] * 8, _v100_links(), 10, "DGX-1 hybrid cube mesh"),
    "4xA100": lambda: _machine("4xA100", [_A100] * 4, 240, 5, "NVLink 3 with NVSwitch, 80 % of 300 GB/s"),
    "4xH100": lambda: _machine("4xH100", [_H100] * 4, 360, 5, "NVLink 4 with NVSwitch, 80 % of 450 GB/s"),
    "4xL4": lambda: _machine("4xL4", [_L4] * 4, 24, 10, "PCIe 4.0 x16, 24 of 31.5 GB/s sustained"),
    "mixed": lambda: _machine("mixed", [_V100, _V100, _P100, _K80], 12, 10, "V100, V100, P100, K80 on PCIe 3.0 x16"),
}

_VARIANTS = {"slow": (3 * GB, "ports"), "contended": (12 * GB, "ports"), "ideal": (np.inf, "none")}
