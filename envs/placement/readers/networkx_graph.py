"""Dataflow graphs as networkx graphs, and back."""

from __future__ import annotations

from typing import Any

import networkx as nx

from ...errors import GraphError
from ..graph import DataflowGraph
from . import json_graph


def to_networkx(graph: DataflowGraph) -> nx.MultiDiGraph:
    """The graph over its ids, with the keys of our JSON format (see ``json_graph``) as attributes.

    Parallel edges are kept. The graph attributes hold ``title``, ``inputs`` and ``outputs``, so that
    ``from_networkx`` gives the same graph back (tensors may be numbered in another order).
    """
    document = json_graph.to_document(graph)
    result = nx.MultiDiGraph(**{key: document[key] for key in ("title", "inputs", "outputs")})
    for node in document["nodes"]:
        result.add_node(node.pop("id"), **node)
    for edge in document["edges"]:
        result.add_edge(edge.pop("src"), edge.pop("dst"), **edge)
    return result


def from_networkx(graph: nx.DiGraph, title: str = "networkx") -> DataflowGraph:
    """Read a ``DiGraph`` or ``MultiDiGraph`` whose attributes are those of our JSON format.

    Nodes need ``cost`` or ``flops`` (or ``seconds``); edges may have ``bytes`` and ``tensor``. Node
    labels must be texts or integers; they become the ids. The graph attributes ``title``,
    ``inputs``, ``outputs`` and ``devices`` are used where present.

    Raises:
        GraphError: the graph is undirected, has unknown or missing attributes or a cycle.
    """
    if not graph.is_directed():
        raise GraphError(f"{title}: the networkx graph is undirected; give a DiGraph or MultiDiGraph.")
    document: dict[str, Any] = {
        key: graph.graph[key] for key in ("title", "inputs", "outputs", "devices") if key in graph.graph
    }
    document["nodes"] = [{"id": label, **_plain(values)} for label, values in graph.nodes(data=True)]
    document["edges"] = [{"src": a, "dst": b, **_plain(values)} for a, b, values in graph.edges(data=True)]
    return json_graph.parse(document, title, title)


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    """Attributes with numpy numbers and arrays as Python's own."""
    return {key: value.tolist() if hasattr(value, "tolist") else value for key, value in values.items()}
