"""Graphs built one operation at a time, with edges that follow from what each kernel reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ..errors import GraphError
from .graph import DataflowGraph, GraphInput
from .kernel import Kernel, Reference, TensorType


@dataclass
class GraphBuilder:
    """Collects operations one by one; ``finish`` checks them and returns the graph.

    Operations are added in topological order, and edges follow from the references of their
    kernels: one edge for each producer tensor that an operation reads.
    """

    title: str = "graph"
    inputs: list[GraphInput] = field(default_factory=list)
    kernels: list[Kernel] = field(default_factory=list)
    columns: dict[str, list[Any]] = field(
        default_factory=lambda: {
            name: [] for name in ("names", "kind", "flops", "bytes_moved", "out_bytes", "group", "shard", "layer")
        }
    )
    extra_edges: list[tuple[int, int]] = field(default_factory=list)

    def add_input(self, name: str, kind: TensorType, role: str = "input") -> Reference:
        """Declare a tensor that exists before the run; ``role`` is parameter, buffer or input."""
        self.inputs.append(GraphInput(name, float(kind.bytes), role, kind))
        return Reference("input", len(self.inputs) - 1)

    def add(
        self,
        kernel: Kernel,
        *,
        kind: str,
        flops: float,
        name: str | None = None,
        bytes_moved: float | None = None,
        group: int = -1,
        shard: int = -1,
        layer: int = -1,
    ) -> Reference:
        """Append an operation and return a reference to its first output.

        ``bytes_moved`` defaults to the bytes of all tensors read and written.
        """
        stored = sum(output.bytes for output in kernel.outputs)
        if bytes_moved is None:
            bytes_moved = stored + sum(self.type_of(reference).bytes for reference in kernel.references())
        number = len(self.kernels)
        self.kernels.append(kernel)
        values = (name or f"{kind}_{number}", kind, flops, bytes_moved, stored, group, shard, layer)
        for column, value in zip(self.columns.values(), values, strict=True):
            column.append(value)
        return Reference("op", number)

    def add_order(self, before: Reference, after: Reference) -> None:
        """Make ``after`` wait for ``before`` without a tensor between them (a zero-byte edge).

        Raises:
            GraphError: one of them is a graph input.
        """
        for reference in (before, after):
            if reference.source != "op":
                raise GraphError(f"{self.title}: input {reference.number} cannot be ordered; name two operations.")
        self.extra_edges.append((before.number, after.number))

    def type_of(self, reference: Reference) -> TensorType:
        """Type of the stored tensor behind a reference, before its views."""
        if reference.source == "op":
            return self.kernels[reference.number].outputs[reference.output]
        kind = self.inputs[reference.number].type
        assert kind is not None, "inputs added by add_input always have a type"
        return kind

    def finish(self, outputs: Sequence[Reference] = (), output_names: Sequence[str] | None = None) -> DataflowGraph:
        """Check everything and build the graph.

        Raises:
            GraphError: as ``DataflowGraph.build``.
        """
        edges: dict[tuple[int, int, int], float] = {}
        reads: list[list[int]] = []
        for number, kernel in enumerate(self.kernels):
            read: dict[int, None] = {}
            for reference in kernel.references():
                if reference.source == "input":
                    read[reference.number] = None
                else:
                    edges[reference.number, number, reference.output] = self.type_of(reference).bytes
            reads.append(list(read))
        columns: dict[str, Any] = dict(self.columns)
        carrying = list(edges)
        joined = {(a, b) for a, b, _ in carrying}
        order_only = [pair for pair in dict.fromkeys(self.extra_edges) if pair not in joined]
        return DataflowGraph.build(
            title=self.title,
            edges=[(a, b) for a, b, _ in carrying] + order_only,
            edge_bytes=[*edges.values(), *([0.0] * len(order_only))],
            tensor=[output for _, _, output in carrying] + [("order", i) for i in range(len(order_only))],
            inputs=self.inputs,
            reads=reads,
            kernels=self.kernels,
            outputs=outputs,
            output_names=output_names,
            **columns,
        )
