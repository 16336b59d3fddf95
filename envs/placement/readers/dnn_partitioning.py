"""Operator and layer graphs of msr-fiddle/dnn-partitioning, in JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..graph import DataflowGraph, GraphInput
from .files import read_text
from .rows import Row, load_object

BANDWIDTH = 12e9
"""Bytes/s by which edge costs (seconds) become bytes: about what PCIe 3.0 x16 delivers (our choice)."""

UNSUPPORTED_S = 1e6
"""Seconds of an operation on an accelerator that does not support it: far beyond any real one."""

TOP_KEYS = ("nodes", "edges", "maxSizePerFPGA", "maxFPGAs", "maxCPUs")
NODE_KEYS = (
    "id", "name", "cpuLatency", "fpgaLatency", "size", "isBackwardNode", "colorClass", "supportedOnFpga", "layerId",
)  # fmt: skip
EDGE_KEYS = ("sourceId", "destId", "cost", "size")


def read(path: str | Path) -> DataflowGraph:
    """Read a graph; see ``parse``."""
    return parse(load_object(read_text(path), str(path)), str(path), Path(path).stem)


def parse(document: dict[str, Any], source: str, title: str = "graph") -> DataflowGraph:
    """Build a graph from the JSON object.

    Latencies in ms become ``seconds["cpu"]`` and ``seconds["accelerator"]`` (``UNSUPPORTED_S`` where
    ``supportedOnFpga`` is false), ``size`` a graph input of role parameter, ``colorClass`` the
    group, ``isBackwardNode`` the kind ``backward`` or ``forward``. FLOPs are not known and zero.

    An edge's cost is the time in ms between an accelerator and the host; it becomes bytes, so that
    bytes / ``BANDWIDTH`` gives the time back. Between two accelerators the format's tensors go
    through the host and pay it **twice**: a topology for these graphs gives pairs of accelerators
    half of ``BANDWIDTH``. Every edge carries its own tensor; ``out_bytes`` is the largest of them,
    because all of them are copies of one output.

    Raises:
        GraphError: missing or malformed keys, with the node or edge; cycles.
    """
    top = Row.checked(document, "the document", source, TOP_KEYS)
    nodes, edges = top.rows("nodes", NODE_KEYS, needed=True), top.rows("edges", EDGE_KEYS, needed=True)
    ids = [node.identifier("id") for node in nodes]
    pairs = [(edge.identifier("sourceId"), edge.identifier("destId")) for edge in edges]
    sent = [edge.number("cost") / 1e3 * BANDWIDTH for edge in edges]
    stored: dict[int | str, float] = dict.fromkeys(ids, 0.0)
    for (tail, _), size in zip(pairs, sent, strict=True):
        stored[tail] = max(stored.get(tail, 0.0), size)
    names = [node.text("name", str(label)) for node, label in zip(nodes, ids, strict=True)]
    sizes = [node.number("size", 0.0) for node in nodes]
    owners = [number for number, size in enumerate(sizes) if size > 0]
    position = {owner: number for number, owner in enumerate(owners)}
    return DataflowGraph.build(
        title=title,
        source=source,
        ids=ids,
        names=names,
        kind=["backward" if node.values.get("isBackwardNode") else "forward" for node in nodes],
        flops=[0.0] * len(ids),
        seconds={"cpu": [node.number("cpuLatency") / 1e3 for node in nodes], "accelerator": _accelerator(nodes)},
        out_bytes=[stored[label] for label in ids],
        group=_groups(nodes),
        edges=pairs,
        edge_bytes=sent,
        inputs=[GraphInput(f"{names[owner]}.size", sizes[owner], "parameter") for owner in owners],
        reads=[[position[number]] if number in position else [] for number in range(len(ids))],
    )


def _accelerator(nodes: list[Row]) -> list[float]:
    return [
        node.number("fpgaLatency") / 1e3 if node.values.get("supportedOnFpga", True) else UNSUPPORTED_S
        for node in nodes
    ]


def _groups(nodes: list[Row]) -> list[int]:
    """Colour classes, numbered by first appearance; -1 for none."""
    numbers: dict[str, int] = {}
    colours = [node.values.get("colorClass") for node in nodes]
    return [-1 if colour is None else numbers.setdefault(repr(colour), len(numbers)) for colour in colours]
