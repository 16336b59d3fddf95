"""Machines that are built in: their devices, links, and where the numbers come from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import UnknownNameError
from .device import Device
from .topology import Contention, Topology

GB = 1e9
TERA = 1e12


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


PRESETS: dict[str, Callable[[], Topology]] = {
    "4xP100": lambda: _machine("4xP100", [_P100] * 4, 12, 10, "PCIe 3.0 x16, 12 of 15.75 GB/s sustained"),
    "8xV100": lambda: _machine("8xV100", [_V100] * 8, _v100_links(), 10, "DGX-1 hybrid cube mesh"),
    "4xA100": lambda: _machine("4xA100", [_A100] * 4, 240, 5, "NVLink 3 with NVSwitch, 80 % of 300 GB/s"),
    "4xH100": lambda: _machine("4xH100", [_H100] * 4, 360, 5, "NVLink 4 with NVSwitch, 80 % of 450 GB/s"),
    "4xL4": lambda: _machine("4xL4", [_L4] * 4, 24, 10, "PCIe 4.0 x16, 24 of 31.5 GB/s sustained"),
    "mixed": lambda: _machine("mixed", [_V100, _V100, _P100, _K80], 12, 10, "V100, V100, P100, K80 on PCIe 3.0 x16"),
}

VARIANTS: dict[str, tuple[float, Contention]] = {
    "slow": (3 * GB, "ports"),
    "contended": (12 * GB, "ports"),
    "ideal": (np.inf, "none"),
}
"""Name -> most bytes/s of a link, contention. A machine has those that differ from it."""


def preset(name: str) -> Topology:
    """A built-in machine, see ``Topology.preset``.

    Raises:
        UnknownNameError: no preset has this name.
    """
    base, dash, variant = str(name).partition("-")
    if base in PRESETS and not dash:
        return PRESETS[base]()
    if base in PRESETS and variant in VARIANTS:
        found = _variant(PRESETS[base](), variant)
        if found is not None:
            return found
    raise UnknownNameError(
        f"no topology is called {name!r}; choose one of {', '.join(PRESETS)}, alone or followed by -slow, -ideal or, "
        f"where links are faster than {VARIANTS['contended'][0] / GB:g} GB/s, -contended, or give a YAML file."
    )


def _variant(topology: Topology, variant: str) -> Topology | None:
    """A machine with slower links or without contention; None if it is as it is already."""
    limit, contention = VARIANTS[variant]
    apart = topology.bandwidth[~np.eye(topology.d, dtype=bool)]
    if contention == topology.contention and (apart <= limit).all():
        return None
    name = f"{topology.name}-{variant}"
    return replace(topology, name=name, bandwidth=np.minimum(topology.bandwidth, limit), contention=contention)
