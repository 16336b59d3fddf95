"""The cost columns of the published DOPPLER graph files, for graphs of our builders."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ...errors import GraphError
from ..graph import DataflowGraph, Floats

BYTES_PER_COST = 4.0
"""Communication cost = 4 bytes x computation cost, in every published file."""

_KINDS = {"form": "formation", "complex": "complexer", "fill": "fill", "select": "select", "squeeze": "squeezer"}
"""Last part of an operation's name -> kind in the published files; the others are ``einsummable``."""


def published_costs(graph: DataflowGraph) -> DataflowGraph:
    """The same graph with the costs and kinds of the published files; use it with the ``raw`` cost model.

    Every operation costs what its whole sharded operation (its group) does: multiply-adds of products,
    elements read by reductions, elements written by all others; formations count what they write. (So a
    product of three 10,000 x 10,000 dimensions costs 1e12 in each of its 16 shards.) ``flops`` holds
    this cost, ``out_bytes`` and ``edge_bytes`` hold four times it; ``bytes_moved`` is zero.

    Raises:
        GraphError: the graph has no kernels.
    """
    if graph.kernels is None:
        raise GraphError(f"{graph.title}: published costs need a graph with kernels, such as those of make_graph.")
    own = np.array([kernel.outputs[0].elements for kernel in graph.kernels], dtype=np.float64)
    for number, (kind, name) in enumerate(zip(graph.kind, graph.names, strict=True)):
        if kind == "matmul":
            own[number] = graph.flops[number] / 2
        elif kind == "reduction" and published_kind(name) == "einsummable":
            own[number] = graph.flops[number]
    cost = _group_totals(own, graph)
    columns = (cost, np.zeros(graph.n), BYTES_PER_COST * cost, BYTES_PER_COST * cost[graph.edge_source])
    for column in columns:
        column.setflags(write=False)
    flops, moved, stored, sent = columns
    kinds = tuple(published_kind(name) for name in graph.names)
    return replace(graph, flops=flops, bytes_moved=moved, out_bytes=stored, edge_bytes=sent, kind=kinds)


def published_kind(name: str) -> str:
    """Kind of an operation in the published files, by its name such as ``query.form[0]``."""
    return _KINDS.get(name.partition("[")[0].rpartition(".")[2], "einsummable")


def _group_totals(own: Floats, graph: DataflowGraph) -> Floats:
    total = np.zeros(int(graph.group.max(initial=-1)) + 1)
    grouped = graph.group >= 0
    np.add.at(total, graph.group[grouped], own[grouped])
    return np.where(grouped, total[graph.group] if len(total) else own, own)
