"""The dataflow graph: operations, the tensors that flow between them, and what each costs."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import GraphError
from .graph_checks import (
    Floats as Floats,
    Identifier as Identifier,
    Integers as Integers,
    check_allowed,
    check_costs,
    check_labels,
    input_lists,
    number_edges,
    number_ids,
    number_tensors,
    number_vector,
    plain_label,
    renumber_tensors,
)
from .kernel import Kernel, Reference, TensorType

if TYPE_CHECKING:
    import networkx as nx


@dataclass(frozen=True)
class GraphInput:
    """A tensor that is there before the first operation: a parameter, a buffer or the user's data.

    It occupies ``bytes`` once on every device where an operation reads it, and is never sent.
    """

    name: str
    bytes: float
    role: str = "input"
    type: TensorType | None = None


@dataclass(frozen=True, eq=False)
class DataflowGraph:
    """A static dataflow graph of N operations and E edges, as flat read-only arrays.

    Build one with ``DataflowGraph.build``, a ``GraphBuilder``, a reader or a workload; the
    constructor itself does not check anything.

    Operations are numbered 0..N-1 in the order in which they were given; ``ids`` are the names of
    the source file, with their types. Edges are sorted by source, then tensor, ties in the given
    order; so the edges of one tensor are neighbours.

    Attributes:
        title: name of the whole graph.
        ids: [N] identifiers of the source, distinct (``1`` and ``"1"`` are two).
        names: [N] labels for people; need not be distinct.
        kind: [N] operation kinds such as ``matmul``; devices may differ in speed per kind.
        flops: [N] floating-point operations (``raw`` graphs: the file's computation cost).
        bytes_moved: [N] bytes read and written in the device's memory.
        out_bytes: [N] bytes of the outputs that stay on the device until they are consumed.
        edge_source, edge_target: [E] operation numbers.
        edge_bytes: [E] bytes of the tensor that the edge carries.
        tensor: [E] tensor numbers: edges of one source with the same number carry one tensor, which
            is stored once and sent once to a device.
        group: [N] number of the sharded operation that a shard belongs to, -1 for none.
        shard: [N] position of the shard within its group, -1 for none.
        layer: [N] number of the model's layer, -1 where it is not known.
        inputs: [P] tensors that exist before the run.
        input_ptr, input_index: CSR lists, operation -> the graph inputs that it reads.
        seconds: measured seconds per device kind, each [N]; NaN where not measured. They win over
            FLOPs.
        kernels: [N] executable descriptions, or None.
        outputs: the references that the graph returns, with ``output_names``.
        allowed: bool [N, D] devices that each operation may use, or None for all.
    """

    title: str
    ids: tuple[Identifier, ...]
    names: tuple[str, ...]
    kind: tuple[str, ...]
    flops: Floats
    bytes_moved: Floats
    out_bytes: Floats
    edge_source: Integers
    edge_target: Integers
    edge_bytes: Floats
    tensor: Integers
    group: Integers
    shard: Integers
    layer: Integers
    inputs: tuple[GraphInput, ...] = ()
    input_ptr: Integers = field(default_factory=lambda: np.zeros(1, np.int32))
    input_index: Integers = field(default_factory=lambda: np.zeros(0, np.int32))
    seconds: Mapping[str, Floats] = field(default_factory=dict)
    kernels: tuple[Kernel, ...] | None = None
    outputs: tuple[Reference, ...] = ()
    output_names: tuple[str, ...] = ()
    allowed: NDArray[np.bool_] | None = None

    @classmethod
    def build(
        cls,
        *,
        flops: ArrayLike,
        edges: Iterable[tuple[Identifier, Identifier]] = (),
        edge_bytes: ArrayLike | None = None,
        tensor: Sequence[Hashable] | None = None,
        ids: Sequence[Identifier] | None = None,
        names: Sequence[str] | None = None,
        kind: Sequence[str] | None = None,
        bytes_moved: ArrayLike | None = None,
        out_bytes: ArrayLike | None = None,
        group: ArrayLike | None = None,
        shard: ArrayLike | None = None,
        layer: ArrayLike | None = None,
        inputs: Sequence[GraphInput] = (),
        reads: Sequence[Sequence[int]] | None = None,
        seconds: Mapping[str, ArrayLike] | None = None,
        kernels: Sequence[Kernel] | None = None,
        outputs: Sequence[Reference] = (),
        output_names: Sequence[str] | None = None,
        allowed: ArrayLike | None = None,
        title: str = "graph",
        source: str | None = None,
    ) -> DataflowGraph:
        """Check the parts of a graph and put them together.

        Args:
            flops: [N] cost of each operation.
            edges: pairs of ids (positions where ``ids`` is not given).
            edge_bytes: [E]; by default the source's ``out_bytes``.
            tensor: [E] labels, compared among the edges of one source; by default one tensor per edge.
            out_bytes: [N]; zero by default.
            reads: [N] numbers of the graph inputs that each operation reads.
            source: file name for error messages; by default the title.

        Raises:
            GraphError: cycles, self-loops, unknown or repeated ids, NaN, negative or huge costs,
                array lengths that do not fit, a tensor with two sizes. The offender is named.
        """
        where = source or title
        costs = number_vector(flops, "cost", where)
        count = len(costs)
        if count == 0:
            raise GraphError(f"{where}: the graph has no operation; at least one is needed.")
        labels = tuple(range(count)) if ids is None else tuple(map(plain_label, ids))
        number = number_ids(labels, count, where)
        pairs = list(edges)
        tail, head = number_edges(pairs, number, where)
        stored = check_costs(out_bytes, count, "out_bytes", labels, where)
        sent = (
            stored[tail]
            if edge_bytes is None
            else check_costs(edge_bytes, len(pairs), "bytes", [f"{a!r} -> {b!r}" for a, b in pairs], where)
        )
        carried = number_tensors(tail, tensor, where)
        by_source = np.lexsort((carried, tail))
        ptr, index = input_lists(reads if reads is not None else [()] * count, labels, len(inputs), where)
        check_costs([item.bytes for item in inputs], len(inputs), "bytes", [item.name for item in inputs], where)
        graph = cls(
            title=title,
            ids=labels,
            names=tuple(names) if names is not None else tuple(str(label) for label in labels),
            kind=tuple(kind) if kind is not None else ("op",) * count,
            flops=check_costs(costs, count, "cost", labels, where),
            bytes_moved=check_costs(bytes_moved, count, "bytes_moved", labels, where),
            out_bytes=stored,
            edge_source=tail[by_source],
            edge_target=head[by_source],
            edge_bytes=sent[by_source],
            tensor=renumber_tensors(carried[by_source]),
            group=check_labels(group, "group", labels, where),
            shard=check_labels(shard, "shard", labels, where),
            layer=check_labels(layer, "layer", labels, where),
            inputs=tuple(inputs),
            input_ptr=ptr,
            input_index=index,
            seconds={
                device: check_costs(values, count, f"seconds on {device}", labels, where, missing=True)
                for device, values in (seconds or {}).items()
            },
            kernels=tuple(kernels) if kernels is not None else None,
            outputs=tuple(outputs),
            output_names=tuple(output_names)
            if output_names is not None
            else tuple(f"output_{i}" for i in range(len(outputs))),
            allowed=None if allowed is None else check_allowed(allowed, labels, where),
        )
        graph._check(where)
        return graph

    def _check(self, where: str) -> None:
        """Check what needs the whole graph, then make every array read-only."""
        for field_name in ("names", "kind", "kernels"):
            values = getattr(self, field_name)
            if values is not None and len(values) != self.n:
                raise GraphError(f"{where}: {field_name} has {len(values)} entries, expected {self.n}.")
        if len(self.output_names) != len(self.outputs):
            raise GraphError(f"{where}: {len(self.output_names)} names for {len(self.outputs)} outputs; name each one.")
        for reference in self.outputs:
            if not 0 <= reference.number < (self.n if reference.source == "op" else len(self.inputs)):
                raise GraphError(f"{where}: an output is {reference.source} {reference.number}, which does not exist.")
        first = np.full(self.tensors, -1.0)
        for edge in range(self.e):
            size = first[self.tensor[edge]]
            if size >= 0 and size != self.edge_bytes[edge]:
                raise GraphError(
                    f"{where}: one tensor of operation {self.ids[self.edge_source[edge]]!r} has two sizes, "
                    f"{size:g} and {self.edge_bytes[edge]:g} bytes; give its edges one size or two tensors."
                )
            first[self.tensor[edge]] = self.edge_bytes[edge]
        self._freeze()
        if len(self.topological_order) < self.n:
            self._raise_cycle(where)

    def _freeze(self) -> None:
        for array in (*vars(self).values(), *self.seconds.values()):
            if isinstance(array, np.ndarray):
                frozen(array)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._freeze()

    def _raise_cycle(self, where: str) -> None:
        cycle = " -> ".join(repr(self.ids[v]) for v in _find_cycle(self))
        raise GraphError(f"{where}: the edges form a cycle, {cycle}; a dataflow graph must have none.")

    @property
    def n(self) -> int:
        """Number of operations."""
        return len(self.flops)

    @property
    def e(self) -> int:
        """Number of edges, parallel ones counted singly."""
        return len(self.edge_source)

    @property
    def tensors(self) -> int:
        """Number of distinct tensors that edges carry."""
        return int(self.tensor.max()) + 1 if self.e else 0

    @cached_property
    def out_ptr(self) -> Integers:
        """[N + 1] CSR pointer: edges ``out_ptr[v]:out_ptr[v + 1]`` leave operation v."""
        return frozen(_pointer(self.edge_source, self.n))

    @cached_property
    def tensor_ptr(self) -> Integers:
        """[T + 1] CSR pointer: edges ``tensor_ptr[t]:tensor_ptr[t + 1]`` carry tensor t."""
        return frozen(_pointer(self.tensor, self.tensors))

    @cached_property
    def in_edge(self) -> Integers:
        """[E] edge numbers sorted by target: ``in_edge[in_ptr[v]:in_ptr[v + 1]]`` enter operation v."""
        return frozen(np.argsort(self.edge_target, kind="stable").astype(np.int32))

    @cached_property
    def in_ptr(self) -> Integers:
        """[N + 1] CSR pointer into ``in_edge``."""
        return frozen(_pointer(self.edge_target, self.n))

    @cached_property
    def in_degree(self) -> Integers:
        """[N] number of entering edges."""
        return frozen(np.diff(self.in_ptr))

    @cached_property
    def topological_order(self) -> Integers:
        """[N] operations in an order that respects every edge (breadth first, ties by number)."""
        waiting = self.in_degree.tolist()
        pointer, target = self.out_ptr.tolist(), self.edge_target.tolist()
        order = [v for v, count in enumerate(waiting) if count == 0]
        for v in order:
            for successor in target[pointer[v] : pointer[v + 1]]:
                waiting[successor] -= 1
                if waiting[successor] == 0:
                    order.append(successor)
        return frozen(np.array(order, dtype=np.int32))

    @cached_property
    def depth(self) -> Integers:
        """[N] number of edges on the longest path from an entry."""
        depth = [0] * self.n
        pointer, target = self.out_ptr.tolist(), self.edge_target.tolist()
        for v in self.topological_order.tolist():
            for successor in target[pointer[v] : pointer[v + 1]]:
                depth[successor] = max(depth[successor], depth[v] + 1)
        return frozen(np.array(depth, dtype=np.int32))

    @cached_property
    def edge_index(self) -> Integers:
        """[2, E] sources and targets, the layout of torch-geometric."""
        return frozen(np.stack([self.edge_source, self.edge_target]))

    def index(self, identifier: Identifier) -> int:
        """Number of the operation with this id.

        Raises:
            GraphError: there is none.
        """
        for number, label in enumerate(self.ids):
            if label == identifier and type(label) is type(identifier):
                return number
        raise GraphError(f"{self.title}: no operation has the id {identifier!r}.")

    def with_pins(self, allowed: ArrayLike) -> DataflowGraph:
        """The same graph with ``allowed`` [N, D] devices per operation.

        Raises:
            GraphError: an operation may use no device, or the shape is wrong.
        """
        return replace(self, allowed=frozen(check_allowed(allowed, self.ids, self.title)))

    def to_networkx(self) -> nx.MultiDiGraph:
        """A ``MultiDiGraph`` over the ids, with every cost as an attribute."""
        from .readers.networkx_graph import to_networkx

        return to_networkx(self)

    @classmethod
    def from_networkx(cls, graph: nx.DiGraph, title: str = "networkx") -> DataflowGraph:
        """Read a ``DiGraph`` or ``MultiDiGraph``; see ``readers.networkx_graph``."""
        from .readers.networkx_graph import from_networkx

        return from_networkx(graph, title)

    def to_pyg(self) -> Any:
        """A ``torch_geometric.data.Data`` with costs as float64 and ``edge_index`` as int64.

        Raises:
            MissingExtraError: torch-geometric is not installed.
        """
        from .readers.pyg import to_pyg

        return to_pyg(self)

    def summary(self) -> str:
        """One line for people."""
        return f"{self.title}: {self.n} operations, {self.e} edges, depth {int(self.depth.max()) + 1}"


def frozen(array: NDArray) -> NDArray:
    """The array, which nobody may write to from now on."""
    array.setflags(write=False)
    return array


def _pointer(sorted_or_not: Integers, count: int) -> Integers:
    pointer = np.zeros(count + 1, dtype=np.int32)
    pointer[1:] = np.cumsum(np.bincount(sorted_or_not, minlength=count))
    return pointer


def _find_cycle(graph: DataflowGraph) -> list[int]:
    """One cycle, first operation repeated at the end; walks backwards among operations never freed."""
    stuck = np.ones(graph.n, dtype=bool)
    stuck[graph.topological_order] = False
    walk = [int(np.argmax(stuck))]
    seen = {walk[0]: 0}
    while True:
        entering = graph.in_edge[graph.in_ptr[walk[-1]] : graph.in_ptr[walk[-1] + 1]]
        previous = next(int(v) for v in graph.edge_source[entering] if stuck[v])
        if previous in seen:
            return [previous, *reversed(walk[seen[previous] :])]
        seen[previous] = len(walk)
        walk.append(previous)
