"""Whether this machine's memory can take the tensors of a graph at all."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from ...envs.errors import MemoryLimitError
from ...envs.placement import PlacementProblem, Topology, simulate

MEMINFO = Path("/proc/meminfo")


def check_free_memory(problem: PlacementProblem, hint: str) -> None:
    """Refuse a graph whose tensors do not fit while one device executes it.

    Args:
        hint: how to make the graph smaller; ends the sentence.

    Raises:
        MemoryLimitError: they do not fit; the bytes are named.
    """
    free = available_bytes()
    if free is None or problem.graph.kernels is None:
        return
    needed, inputs = peak_bytes(problem)
    if needed > free:
        raise MemoryLimitError(
            f"{problem.graph.title}: its inputs take {inputs:.4g} bytes and one device that executes it holds "
            f"{needed:.4g} at once, but only {free:.4g} are free on this machine; {hint}."
        )


def peak_bytes(problem: PlacementProblem) -> tuple[float, float]:
    """Most bytes that one device holds at once while it executes the graph, and those of the inputs among them.

    By the types of tensors: costs from the public files have other bytes.
    """
    graph = problem.graph
    assert graph.kernels is not None, "only graphs with kernels are executed"
    sizes = [sum(kind.bytes for kind in kernel.outputs) for kernel in graph.kernels]
    inputs = tuple(
        entry if entry.type is None else replace(entry, bytes=float(entry.type.bytes)) for entry in graph.inputs
    )
    real = replace(graph, out_bytes=np.array(sizes, dtype=np.float64), inputs=inputs, seconds={}, allowed=None)
    alone = PlacementProblem(real, Topology.uniform(1), memory="off")
    peak = simulate(alone, np.zeros(graph.n, dtype=np.int32)).peak_memory
    return float(peak[0]), float(alone.input_bytes.sum())


def available_bytes() -> float | None:
    """Bytes that new tensors can get without swapping; None where the system does not tell (anything but Linux)."""
    try:
        lines = MEMINFO.read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    found = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
    return float(found[0]) * 1024 if found else None
