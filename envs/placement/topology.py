"""Machines as the methods see them: devices and the links between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..arguments import is_whole
from ..descriptions import check_keys, read_yaml
from ..errors import TopologyError
from ..processors import processors
from .device import MOST_DEVICES, Device, read_devices, read_number, read_numbers

Contention = Literal["none", "pair", "ports"]


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
            matrix = read_numbers(getattr(self, label), f"topology {self.name}: {label}")
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
        if not is_whole(self.channels) or self.channels < 1:
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
        if devices is not None and (not is_whole(devices) or not 1 <= devices <= MOST_DEVICES):
            raise TopologyError(
                f"{where}: devices is {devices!r}; expected a whole number from 1 up, {MOST_DEVICES} at most."
            )
        given = np.ones(devices or 4) if speeds is None else speeds
        factors = read_numbers(given, f"{where}: speeds").reshape(-1)
        if devices is not None and len(factors) != devices:
            raise TopologyError(f"{where}: {len(factors)} speeds are given for {devices} devices; give one per device.")
        speed = read_number(flops_per_s, f"{where}: flops_per_s")
        return cls(
            name=name or f"{len(factors)}x{kind}",
            devices=tuple(
                Device(kind if f == 1.0 else f"{kind}*{f:g}", speed * f, memory_bytes=memory_bytes)
                for f in factors.tolist()
            ),
            bandwidth=read_numbers(bandwidth, f"{where}: bandwidth"),
            latency=read_numbers(latency, f"{where}: latency"),
            contention=contention,
            source="uniform",
        )

    @classmethod
    def preset(cls, name: str) -> Topology:
        """A built-in machine: ``4xP100``, ``8xV100``, ``4xA100``, ``4xH100``, ``4xL4``, ``mixed``.

        Each also as ``NAME-slow`` (links of 3 GB/s) and ``NAME-ideal`` (transfers never wait); ``8xV100``, ``4xA100``,
        ``4xH100`` and ``4xL4`` also as ``NAME-contended``: links of 12 GB/s at most, as over PCIe 3.0, which the other
        two have anyway. All but ``NAME-ideal`` have one port per device; what several devices share, such as a host
        that all traffic goes through, is not modelled.

        Raises:
            UnknownNameError: no preset has this name.
        """
        from .machines import preset  # they are topologies themselves

        return preset(name)

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
            bandwidth=5e9,
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
            devices.extend(read_devices(entry, f"{where}, device {position}"))
        if len(devices) > 1 and "bandwidth" not in values:
            raise TopologyError(f"{where}: bandwidth is missing; give bytes/s between devices.")
        return cls(
            name=str(values.get("name") or where),
            devices=tuple(devices),
            bandwidth=read_numbers(values.get("bandwidth", 1.0), f"{where}: bandwidth"),
            latency=read_numbers(values.get("latency", 0.0), f"{where}: latency"),
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
