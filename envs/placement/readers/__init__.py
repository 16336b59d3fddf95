"""Readers and writers of graph files; ``read_graph`` recognises the format by itself."""

from __future__ import annotations

import re
from pathlib import Path

from ...errors import GraphError
from ..graph import DataflowGraph
from . import dnn_partitioning, json_graph, pipedream, text
from .files import read_text
from .rows import load_object

__all__ = ["read_graph", "write_graph"]


def read_graph(path: str | Path) -> DataflowGraph:
    """Read a graph file of any supported format, recognised by its content.

    Formats: our JSON (``json_graph``), dnn-partitioning's JSON (``dnn_partitioning``), the public
    text format (``text``) and PipeDream profiles (``pipedream``; forward and backward together).

    Raises:
        GraphError: the file is missing, of no known format, or not a usable graph.
    """
    content = read_text(path)
    source, title = str(path), Path(path).stem
    first = content.lstrip()[:1]
    if first == "{":
        document = load_object(content, source)
        reader = dnn_partitioning.parse if _is_dnn_partitioning(document) else json_graph.parse
        return reader(document, source, title)
    if re.match(r"\S+ -- .* -- ", content):
        return pipedream.parse(content, source, title.removesuffix(".graph"))
    if re.match(r"\s*\d+\s*$", content.split("\n", 1)[0]):
        return text.parse(content, source, title)
    raise GraphError(
        f"{path}: the format is not known; expected a JSON object with nodes and edges, the public text format "
        "(first line: the number of nodes) or a PipeDream profile."
    )


def write_graph(graph: DataflowGraph, path: str | Path) -> None:
    """Write a graph as our JSON, which keeps everything; ``read_graph`` gives an equal one back.

    Raises:
        GraphError: ``path`` does not end in ``.json`` or cannot be written.
    """
    if Path(path).suffix != ".json":
        raise GraphError(f"{path}: graphs are written as JSON only; give a name that ends in .json.")
    json_graph.write(graph, path)


def _is_dnn_partitioning(document: dict[str, object]) -> bool:
    nodes = document.get("nodes")
    return isinstance(nodes, list) and bool(nodes) and isinstance(nodes[0], dict) and "cpuLatency" in nodes[0]
