"""Measured profiles of PipeDream: ``graph.txt``.

``nodeN -- description -- forward_compute_time=ms, backward_compute_time=ms, activation_size=bytes,
parameter_size=bytes`` for each node, and ``<tab>nodeA -- nodeB`` for each edge.
"""

from __future__ import annotations

import re
from pathlib import Path

from ...errors import GraphError
from ..graph import DataflowGraph, GraphInput
from ..kinds import module_kind
from .files import read_text

DEVICE_KIND = "profiled"
"""Device kind under which the measured seconds stand."""

FIELDS = ("forward_compute_time", "backward_compute_time", "activation_size", "parameter_size")


def read(path: str | Path, *, training: bool = True) -> DataflowGraph:
    """Read a profile; see ``parse``."""
    return parse(read_text(path), str(path), Path(path).stem.removesuffix(".graph"), training=training)


def parse(text: str, source: str, title: str = "graph", *, training: bool = True) -> DataflowGraph:
    """Read the text of a profile.

    Milliseconds become ``seconds["profiled"]``: forward and backward together, or only forward with
    ``training=False``. ``activation_size`` becomes ``out_bytes`` (a list is summed), one tensor per
    operation; ``parameter_size`` becomes a graph input of role parameter. FLOPs are not known and zero.

    Raises:
        GraphError: a malformed line, with its number; an edge that names no node; a cycle.
    """
    ids, names, values, edges = list[str](), list[str](), list[list[float]](), list[tuple[str, str]]()
    for line, row in enumerate(text.splitlines(), 1):
        parts = [part.strip() for part in row.split(" -- ")]
        if not row.strip():
            continue
        if row.startswith(("\t", "  ")):
            if len(parts) != 2 or not all(parts):
                raise GraphError(f"{source}: line {line} has {row.strip()!r}, expected an edge 'node1 -- node2'.")
            edges.append((parts[0], parts[1]))
            continue
        if len(parts) < 3:
            raise GraphError(f"{source}: line {line} has {row[:60]!r}, expected 'node1 -- description -- figures'.")
        if parts[-1].startswith("stage_id="):
            parts.pop()
        ids.append(parts[0])
        names.append(" -- ".join(parts[1:-1]))
        values.append([_figure(parts[-1], field, source, line) for field in FIELDS])
    owners = [number for number, row in enumerate(values) if row[3] > 0]
    reads: list[list[int]] = [[] for _ in ids]
    for number, owner in enumerate(owners):
        reads[owner].append(number)
    return DataflowGraph.build(
        title=title,
        source=source,
        ids=ids,
        names=names,
        kind=[module_kind(name) for name in names],
        flops=[0.0] * len(ids),
        seconds={DEVICE_KIND: [(row[0] + row[1] * training) / 1e3 for row in values]},
        out_bytes=[row[2] for row in values],
        edges=edges,
        tensor=[0] * len(edges),
        inputs=[GraphInput(f"{ids[owner]}.parameters", values[owner][3], "parameter") for owner in owners],
        reads=reads,
    )


def _figure(text: str, field: str, source: str, line: int) -> float:
    """One figure of a node's line; lists in square brackets are summed."""
    match = re.search(rf"(?:^|[ ,]){field}=(\[[^\]]*\]|[^,]*)", text)
    cells = match.group(1).strip("[] ").split(";") if match else []
    try:
        figure = sum(float(cell) for cell in cells)
    except ValueError:
        figure = float("nan")
    if not cells or not 0 <= figure < float("inf"):
        raise GraphError(f"{source}: line {line} gives no {field} from 0; expected '{field}=NUMBER'.")
    return figure
