"""Our JSON format, which keeps everything that a ``DataflowGraph`` holds.

A document has ``nodes`` and ``edges``, and may have ``version`` (1), ``title``, ``inputs``,
``outputs`` and the hints ``devices`` (a number, needed where ``allowed`` lists device numbers) and
``bandwidth`` (ignored).

- node: ``id`` (text or integer, needed), ``flops`` or its synonym ``cost`` (needed unless
  ``seconds`` is there), ``bytes_moved``, ``out_bytes``, ``kind``, ``name``, ``group``, ``shard``,
  ``layer``, ``seconds`` {device kind: seconds, or null where not measured}, ``allowed`` (device
  numbers, or one boolean per device), ``reads`` (numbers of the graph inputs), ``kernel``.
- edge: ``src``, ``dst`` (ids), ``bytes`` (default: the source's ``out_bytes``), ``tensor`` (label;
  edges of one source with equal labels carry one tensor; default: one tensor per edge).
- input: ``name``, ``bytes`` (needed unless shape and dtype are there), ``role``, ``shape``, ``dtype``.
- output: ``name``, ``ref`` and ``views`` as in a kernel's arguments.

Infinite numbers in kernels are written as Python's ``json`` does (``Infinity``).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import GraphError
from ..graph import DataflowGraph, GraphInput
from ..kernel import ITEM_BYTES, Kernel, Reference, TensorType, decode, encode
from .files import read_text, write_text
from .rows import Row, load_object

TOP_KEYS = ("version", "title", "nodes", "edges", "inputs", "outputs", "devices", "bandwidth")
NODE_KEYS = (
    "id", "name", "kind", "flops", "cost", "bytes_moved", "out_bytes", "group", "shard", "layer", "seconds",
    "allowed", "reads", "kernel",
)  # fmt: skip
EDGE_KEYS = ("src", "dst", "bytes", "tensor")
INPUT_KEYS = ("name", "bytes", "role", "shape", "dtype")
OUTPUT_KEYS = ("name", "ref", "views")


def read(path: str | Path) -> DataflowGraph:
    """Read a graph in our JSON format; see ``parse``."""
    return parse(load_object(read_text(path), str(path)), str(path), Path(path).stem)


def write(graph: DataflowGraph, path: str | Path) -> None:
    """Write a graph as JSON; reading it back gives an equal graph.

    Raises:
        GraphError: the file cannot be written.
    """
    write_text(path, json.dumps(to_document(graph), ensure_ascii=False, separators=(",", ":")) + "\n")


def parse(document: dict[str, Any], source: str, title: str = "graph") -> DataflowGraph:
    """Build a graph from the JSON object.

    Args:
        source: file name for error messages.
        title: used where the document has none.

    Raises:
        GraphError: the document is not usable; node, edge or key are named.
    """
    top = Row.checked(document, "the document", source, TOP_KEYS)
    if top.values.get("version", 1) != 1:
        raise top.wrong("version", "1")
    nodes = top.rows("nodes", NODE_KEYS, needed=True)
    ids = [node.identifier("id") for node in nodes]
    nodes = [Row(node.values, f"node {label!r}", source) for node, label in zip(nodes, ids, strict=True)]
    inputs = [_input(row) for row in top.rows("inputs", INPUT_KEYS)]
    outputs = top.rows("outputs", OUTPUT_KEYS)
    limits = {"op": len(nodes), "input": len(inputs)}
    return DataflowGraph.build(
        title=top.text("title", title),
        source=source,
        ids=ids,
        names=[node.text("name", str(label)) for node, label in zip(nodes, ids, strict=True)],
        kind=[node.text("kind", "op") for node in nodes],
        flops=[_flops(node) for node in nodes],
        bytes_moved=[node.number("bytes_moved", 0.0) for node in nodes],
        out_bytes=[node.number("out_bytes", 0.0) for node in nodes],
        group=[node.whole("group", -1) for node in nodes],
        shard=[node.whole("shard", -1) for node in nodes],
        layer=[node.whole("layer", -1) for node in nodes],
        inputs=inputs,
        reads=[node.wholes("reads") for node in nodes],
        seconds=_seconds(nodes),
        kernels=_kernels(nodes, limits),
        outputs=[_output(row, limits) for row in outputs],
        output_names=[row.text("name", f"output_{i}") for i, row in enumerate(outputs)],
        allowed=_allowed(nodes, top),
        **_edges(top.rows("edges", EDGE_KEYS), nodes),
    )


def _flops(node: Row) -> float:
    if "flops" in node.values and "cost" in node.values:
        raise GraphError(f"{node.source}: {node.where} has both flops and cost, which mean the same; give one.")
    if "cost" in node.values:
        return node.number("cost")
    return node.number("flops", 0.0 if "seconds" in node.values else None)


def _edges(edges: list[Row], nodes: list[Row]) -> dict[str, Any]:
    stored = {(type(node.values["id"]), node.values["id"]): node.number("out_bytes", 0.0) for node in nodes}
    pairs, sizes, tensors = [], [], list[Any]()
    for number, edge in enumerate(edges):
        tail, head = edge.identifier("src"), edge.identifier("dst")
        pairs.append((tail, head))
        sizes.append(edge.number("bytes", stored.get((type(tail), tail), 0.0)))
        if "tensor" in edge.values:
            label = edge.identifier("tensor")
            tensors.append((type(label), label))
        else:
            tensors.append(number)
    return {"edges": pairs, "edge_bytes": sizes, "tensor": tensors}


def _input(row: Row) -> GraphInput:
    kind = None
    if "shape" in row.values:
        dtype = row.text("dtype", "float32")
        if dtype not in ITEM_BYTES:
            raise row.wrong("dtype", f"one of {', '.join(ITEM_BYTES)}")
        kind = TensorType(tuple(row.wholes("shape")), dtype)
    size = row.number("bytes", None if kind is None else float(kind.bytes))
    if not 0 <= size < float("inf"):
        raise row.wrong("bytes", "a number from 0")
    return GraphInput(row.text("name", row.where.replace(" ", "_")), size, row.text("role", "input"), kind)


def _seconds(nodes: list[Row]) -> dict[str, Any]:
    """Device kind -> [N] seconds; NaN where a node gives none."""
    columns: dict[str, Any] = {}
    for number, node in enumerate(nodes):
        measured = node.values.get("seconds", {})
        if not isinstance(measured, dict):
            raise node.wrong("seconds", "an object of device kinds and seconds")
        row = Row(measured, f"{node.where}, seconds", node.source)
        for device, value in measured.items():
            column = columns.setdefault(device, np.full(len(nodes), np.nan))
            column[number] = np.nan if value is None else row.number(device)
    return columns


def _kernels(nodes: list[Row], limits: dict[str, int]) -> list[Kernel] | None:
    if not any("kernel" in node.values for node in nodes):
        return None
    kernels = []
    for node in nodes:
        try:
            kernel = decode(node.need("kernel"))
            kernel = kernel if isinstance(kernel, Kernel) else None
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            if isinstance(error, GraphError):
                raise
            kernel = None
        if kernel is None:
            raise node.wrong("kernel", "an object with target, args, kwargs and outputs")
        for reference in kernel.references():
            _check_reference(reference, node, limits)
        kernels.append(kernel)
    return kernels


def _output(row: Row, limits: dict[str, int]) -> Reference:
    row.need("ref")
    try:
        reference = decode({key: value for key, value in row.values.items() if key != "name"})
    except (KeyError, TypeError, ValueError):
        raise row.wrong("ref", "['op' or 'input', number, output]") from None
    assert isinstance(reference, Reference), "objects with a ref decode to references"
    _check_reference(reference, row, limits)
    return reference


def _check_reference(reference: Reference, row: Row, limits: dict[str, int]) -> None:
    limit = limits.get(reference.source, 0)
    if type(reference.number) is not int or not 0 <= reference.number < limit:
        raise GraphError(
            f"{row.source}: {row.where} refers to {reference.source!r} {reference.number!r}; expected 'op' from 0 to "
            f"{limits['op'] - 1} or 'input' from 0 to {limits['input'] - 1}."
        )


def _allowed(nodes: list[Row], top: Row) -> list[list[bool]] | None:
    """Boolean rows [N][D], or None where no node is restricted."""
    if not any("allowed" in node.values for node in nodes):
        return None
    masks: list[list[bool] | None] = []
    for node in nodes:
        values = node.values.get("allowed")
        if values is None:
            masks.append(None)
        elif isinstance(values, list) and values and all(isinstance(value, bool) for value in values):
            masks.append(values)
        else:
            devices = top.whole("devices", 0)
            numbers = node.wholes("allowed")
            if not all(0 <= number < devices for number in numbers):
                raise node.wrong("allowed", f"device numbers below the document's 'devices' ({devices})")
            masks.append([number in numbers for number in range(devices)])
    widths = {len(mask) for mask in masks if mask is not None}
    if len(widths) != 1:
        raise GraphError(f"{top.source}: allowed has rows of {sorted(widths)} devices; give all nodes the same number.")
    (width,) = widths
    return [[True] * width if mask is None else mask for mask in masks]


def to_document(graph: DataflowGraph) -> dict[str, Any]:
    """The graph as JSON values; defaults are left out."""
    return {
        "version": 1,
        "title": graph.title,
        "nodes": [_node(graph, number) for number in range(graph.n)],
        "edges": _edge_rows(graph),
        "inputs": [_input_row(entry) for entry in graph.inputs],
        "outputs": [
            {"name": name, **encode(reference)}
            for name, reference in zip(graph.output_names, graph.outputs, strict=True)
        ],
    }


def _node(graph: DataflowGraph, number: int) -> dict[str, Any]:
    reads = graph.input_index[graph.input_ptr[number] : graph.input_ptr[number + 1]].tolist()
    seconds = {
        device: None if np.isnan(column[number]) else float(column[number]) for device, column in graph.seconds.items()
    }
    values: dict[str, tuple[Any, Any]] = {
        "name": (graph.names[number], str(graph.ids[number])),
        "kind": (graph.kind[number], "op"),
        "bytes_moved": (float(graph.bytes_moved[number]), 0.0),
        "out_bytes": (float(graph.out_bytes[number]), 0.0),
        "group": (int(graph.group[number]), -1),
        "shard": (int(graph.shard[number]), -1),
        "layer": (int(graph.layer[number]), -1),
        "reads": (reads, []),
        "seconds": (seconds, {}),
        "allowed": (None if graph.allowed is None else graph.allowed[number].tolist(), None),
        "kernel": (None if graph.kernels is None else encode(graph.kernels[number]), None),
    }
    row = {"id": graph.ids[number], "flops": float(graph.flops[number])}
    return row | {key: value for key, (value, default) in values.items() if value != default}


def _edge_rows(graph: DataflowGraph) -> list[dict[str, Any]]:
    single = graph.tensors == graph.e
    rows = []
    for edge, (tail, head) in enumerate(zip(graph.edge_source.tolist(), graph.edge_target.tolist(), strict=True)):
        row = {"src": graph.ids[tail], "dst": graph.ids[head], "bytes": float(graph.edge_bytes[edge])}
        rows.append(row if single else row | {"tensor": int(graph.tensor[edge])})
    return rows


def _input_row(entry: GraphInput) -> dict[str, Any]:
    row: dict[str, Any] = {"name": entry.name, "bytes": entry.bytes, "role": entry.role}
    if entry.type is not None:
        row |= {"shape": list(entry.type.shape), "dtype": entry.type.dtype}
    return row
