"""The public text format of dataflow graphs, with and without a column of operation kinds.

Line 1 holds the number of nodes with the input nodes, line 2 the ids of the input nodes, lines 3
and 4 the sources and targets of the edges; then one line follows for each remaining node:
``computation cost, communication cost[, kind]``. The edges join these remaining nodes, which they
number from 0 in the order of their lines; the ids of line 2 belong to another numbering, so that
input nodes have no edges (the published makespans hold under this reading alone).
"""

from __future__ import annotations

from pathlib import Path

from ...errors import GraphError
from ..graph import DataflowGraph, GraphInput
from ..graph_checks import COST_LIMIT
from .files import read_text


def read(path: str | Path) -> DataflowGraph:
    """Read a graph in the public text format; see ``parse``."""
    return parse(read_text(path), str(path), Path(path).stem)


def parse(text: str, source: str, title: str = "graph") -> DataflowGraph:
    """Read the text of a graph file.

    ``flops`` is the computation cost and ``out_bytes`` the communication cost, both in the file's
    own units; every edge of an operation carries its one tensor. Ids are the numbers that the
    edges use. Input nodes become graph inputs of zero bytes. Repeated edges are kept.

    Args:
        source: file name for error messages.

    Raises:
        GraphError: a malformed line, with its number.
    """
    lines = text.splitlines()
    if len(lines) < 4:
        raise GraphError(f"{source}: line {len(lines) + 1} is missing; the format has four header lines, then costs.")
    count = _whole(lines[0], source, 1)
    input_ids = _ids(lines[1], count, source, 2)
    if len(set(input_ids)) < len(input_ids):
        raise GraphError(f"{source}: line 2 names an input node twice; name each one once.")
    operations = count - len(input_ids)
    tails, heads = _ids(lines[2], operations, source, 3), _ids(lines[3], operations, source, 4)
    if len(tails) != len(heads):
        raise GraphError(f"{source}: line 3 has {len(tails)} edge sources, but line 4 has {len(heads)} edge targets.")
    costs = _costs(lines, operations, source)
    return DataflowGraph.build(
        title=title,
        source=source,
        flops=[cost[0] for cost in costs],
        out_bytes=[cost[1] for cost in costs],
        kind=[cost[2] for cost in costs],
        edges=list(zip(tails, heads, strict=True)),
        tensor=[0] * len(tails),
        inputs=[GraphInput(str(label), 0.0) for label in input_ids],
    )


def _whole(cell: str, source: str, line: int) -> int:
    try:
        value = int(cell)
    except ValueError:
        raise GraphError(
            f"{source}: line {line} has {_shown(cell)}, expected a whole number; commas separate them."
        ) from None
    if value < 0:
        raise GraphError(f"{source}: line {line} has {value}, expected a whole number from 0.")
    return value


def _ids(text: str, count: int, source: str, line: int) -> list[int]:
    cells = [cell for cell in text.rstrip().rstrip(",").split(",") if cell.strip() or "," in text.rstrip().rstrip(",")]
    values = [_whole(cell, source, line) for cell in cells]
    for value in values:
        if value >= count:
            raise GraphError(f"{source}: line {line} names node {value}, expected numbers from 0 to {count - 1}.")
    return values


def _costs(lines: list[str], count: int, source: str) -> list[tuple[float, float, str]]:
    """Cost lines, of which there must be ``count``; blank lines at the end are ignored."""
    rows = list(enumerate(lines[4:], 5))
    while rows and not rows[-1][1].strip():
        rows.pop()
    if len(rows) != count:
        line = 5 + min(len(rows), count)
        raise GraphError(
            f"{source}: line {line}: there are {len(rows)} lines of costs for {count} nodes that are not inputs."
        )
    return [_cost(text, line, source) for line, text in rows]


def _cost(text: str, line: int, source: str) -> tuple[float, float, str]:
    cells = [cell.strip() for cell in text.split(",")]
    if len(cells) not in (2, 3) or not all(cells):
        raise GraphError(
            f"{source}: line {line} has {_shown(text)}, expected 'computation cost, communication cost[, kind]'."
        )
    values = []
    for cell in cells[:2]:
        try:
            value = float(cell)
        except ValueError:
            value = -1.0
        if not 0 <= value <= COST_LIMIT:
            raise GraphError(
                f"{source}: line {line} has the cost {_shown(cell)}, expected a number from 0 to {COST_LIMIT:g}."
            )
        values.append(value)
    return values[0], values[1], cells[2] if len(cells) == 3 else "op"


def _shown(text: str) -> str:
    """The text in quotes, shortened to one line."""
    return repr(text if len(text) <= 40 else text[:37] + "...")
