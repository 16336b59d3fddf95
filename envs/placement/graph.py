"""The dataflow graph: operations, the tensors that flow between them, and what each costs."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import GraphError
from .kernel import Kernel, Reference, TensorType

if TYPE_CHECKING:
    import networkx as nx

Floats = NDArray[np.float64]
Integers = NDArray[np.int32]
Identifier = int | str

COST_LIMIT = 1e30
"""Costs above this are refused: sums of them would no longer be finite numbers (our choice)."""


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
        costs = _vector(flops, "cost", where)
        count = len(costs)
        if count == 0:
            raise GraphError(f"{where}: the graph has no operation; at least one is needed.")
        labels = tuple(range(count)) if ids is None else tuple(map(_plain, ids))
        number = _number_ids(labels, count, where)
        pairs = list(edges)
        tail, head = _number_edges(pairs, number, where)
        stored = _costs(out_bytes, count, "out_bytes", labels, where)
        sent = (
            stored[tail]
            if edge_bytes is None
            else _costs(edge_bytes, len(pairs), "bytes", [f"{a!r} -> {b!r}" for a, b in pairs], where)
        )
        carried = _number_tensors(tail, tensor, where)
        by_source = np.lexsort((carried, tail))
        ptr, index = _csr(reads if reads is not None else [()] * count, labels, len(inputs), where)
        _costs([item.bytes for item in inputs], len(inputs), "bytes", [item.name for item in inputs], where)
        graph = cls(
            title=title,
            ids=labels,
            names=tuple(names) if names is not None else tuple(str(label) for label in labels),
            kind=tuple(kind) if kind is not None else ("op",) * count,
            flops=_costs(costs, count, "cost", labels, where),
            bytes_moved=_costs(bytes_moved, count, "bytes_moved", labels, where),
            out_bytes=stored,
            edge_source=tail[by_source],
            edge_target=head[by_source],
            edge_bytes=sent[by_source],
            tensor=_renumber(carried[by_source]),
            group=_labels(group, "group", labels, where),
            shard=_labels(shard, "shard", labels, where),
            layer=_labels(layer, "layer", labels, where),
            inputs=tuple(inputs),
            input_ptr=ptr,
            input_index=index,
            seconds={
                device: _costs(values, count, f"seconds on {device}", labels, where, missing=True)
                for device, values in (seconds or {}).items()
            },
            kernels=tuple(kernels) if kernels is not None else None,
            outputs=tuple(outputs),
            output_names=tuple(output_names)
            if output_names is not None
            else tuple(f"output_{i}" for i in range(len(outputs))),
            allowed=None if allowed is None else _mask(allowed, labels, where),
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
                _frozen(array)

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
        return _frozen(_pointer(self.edge_source, self.n))

    @cached_property
    def tensor_ptr(self) -> Integers:
        """[T + 1] CSR pointer: edges ``tensor_ptr[t]:tensor_ptr[t + 1]`` carry tensor t."""
        return _frozen(_pointer(self.tensor, self.tensors))

    @cached_property
    def in_edge(self) -> Integers:
        """[E] edge numbers sorted by target: ``in_edge[in_ptr[v]:in_ptr[v + 1]]`` enter operation v."""
        return _frozen(np.argsort(self.edge_target, kind="stable").astype(np.int32))

    @cached_property
    def in_ptr(self) -> Integers:
        """[N + 1] CSR pointer into ``in_edge``."""
        return _frozen(_pointer(self.edge_target, self.n))

    @cached_property
    def in_degree(self) -> Integers:
        """[N] number of entering edges."""
        return _frozen(np.diff(self.in_ptr))

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
        return _frozen(np.array(order, dtype=np.int32))

    @cached_property
    def depth(self) -> Integers:
        """[N] number of edges on the longest path from an entry."""
        depth = [0] * self.n
        pointer, target = self.out_ptr.tolist(), self.edge_target.tolist()
        for v in self.topological_order.tolist():
            for successor in target[pointer[v] : pointer[v + 1]]:
                depth[successor] = max(depth[successor], depth[v] + 1)
        return _frozen(np.array(depth, dtype=np.int32))

    @cached_property
    def edge_index(self) -> Integers:
        """[2, E] sources and targets, the layout of torch-geometric."""
        return _frozen(np.stack([self.edge_source, self.edge_target]))

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
        return replace(self, allowed=_frozen(_mask(allowed, self.ids, self.title)))

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


def _frozen(array: NDArray) -> NDArray:
    array.setflags(write=False)
    return array


def _plain(label: Any) -> Any:
    """NumPy's integers and texts as Python's, so that ids compare by value and type."""
    return label.item() if isinstance(label, np.generic) else label


def _number_ids(labels: tuple[Identifier, ...], count: int, where: str) -> dict[tuple[type, Identifier], int]:
    if len(labels) != count:
        raise GraphError(f"{where}: {len(labels)} ids for {count} costs; give one id per operation.")
    number: dict[tuple[type, Identifier], int] = {}
    for position, label in enumerate(labels):
        if isinstance(label, bool) or not isinstance(label, int | str):
            raise GraphError(f"{where}: operation {position} has the id {label!r}; ids are integers or texts.")
        if number.setdefault((type(label), label), position) != position:
            raise GraphError(f"{where}: the id {label!r} stands twice; ids must be distinct.")
    return number


def _number_edges(
    pairs: list[tuple[Identifier, Identifier]], number: dict[tuple[type, Identifier], int], where: str
) -> tuple[Integers, Integers]:
    ends = np.empty((2, len(pairs)), dtype=np.int32)
    for edge, pair in enumerate(pairs):
        try:
            tail, head = pair
        except (TypeError, ValueError):
            raise GraphError(f"{where}: edge {edge} is {pair!r}; expected a pair (source, target).") from None
        for side, label in enumerate((_plain(tail), _plain(head))):
            position = number.get((type(label), label)) if isinstance(label, int | str) else None
            if position is None:
                raise GraphError(f"{where}: edge {edge} ({tail!r} -> {head!r}) names no operation {label!r}.")
            ends[side, edge] = position
        if ends[0, edge] == ends[1, edge]:
            raise GraphError(f"{where}: operation {tail!r} has an edge to itself; remove the self-loop.")
    return ends[0], ends[1]


def _number_tensors(tail: Integers, labels: Sequence[Hashable] | None, where: str) -> Integers:
    if labels is None:
        return np.arange(len(tail), dtype=np.int32)
    if len(labels) != len(tail):
        raise GraphError(f"{where}: {len(labels)} tensor labels for {len(tail)} edges; give one per edge.")
    number: dict[tuple[int, Hashable], int] = {}
    keys = [(int(source), label) for source, label in zip(tail, labels, strict=True)]
    try:
        return np.array([number.setdefault(key, len(number)) for key in keys], dtype=np.int32)
    except TypeError as error:
        raise GraphError(f"{where}: a tensor label cannot be compared ({error}); use texts or numbers.") from error


def _renumber(carried: Integers) -> Integers:
    """Number the tensors by their first edge."""
    starts = np.ones(len(carried), dtype=bool)
    starts[1:] = carried[1:] != carried[:-1]
    return (np.cumsum(starts) - 1).astype(np.int32)


def _vector(values: ArrayLike, what: str, where: str) -> Floats:
    """A new flat array of numbers."""
    try:
        array = np.array(values, dtype=np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise GraphError(f"{where}: {what} must be a list of numbers ({error}).") from error
    if array.ndim != 1:
        raise GraphError(f"{where}: {what} has shape {array.shape}; expected a flat list of numbers.")
    return array


def _costs(
    values: ArrayLike | None, count: int, what: str, labels: Sequence[Any], where: str, missing: bool = False
) -> Floats:
    if values is None:
        return np.zeros(count)
    array = _vector(values, what, where)
    if len(array) != count:
        raise GraphError(f"{where}: {what} has {len(array)} entries, expected {count}.")
    with np.errstate(invalid="ignore"):
        bad = ~((array >= 0) & (array <= COST_LIMIT))
    if missing:
        bad &= ~np.isnan(array)
    if bad.any():
        offender = int(np.argmax(bad))
        raise GraphError(
            f"{where}: {labels[offender]!r} has {what} {array[offender]}; expected a number from 0 to {COST_LIMIT:g}."
        )
    return array + 0.0


def _labels(values: ArrayLike | None, what: str, ids: tuple[Identifier, ...], where: str) -> Integers:
    if values is None:
        return np.full(len(ids), -1, dtype=np.int32)
    array = _vector(values, what, where)
    if len(array) != len(ids):
        raise GraphError(f"{where}: {what} has {len(array)} entries, expected {len(ids)}.")
    bad = ~((np.floor(array) == array) & (np.abs(array) < 2**31))
    if bad.any():
        offender = int(np.argmax(bad))
        raise GraphError(f"{where}: {ids[offender]!r} has {what} {array[offender]:g}; expected a whole number.")
    return array.astype(np.int32)


def _csr(
    rows: Sequence[Sequence[int]], ids: tuple[Identifier, ...], limit: int, where: str
) -> tuple[Integers, Integers]:
    """Pointer [N + 1] and graph inputs, each once per operation."""
    if len(rows) != len(ids):
        raise GraphError(f"{where}: reads has {len(rows)} entries, expected {len(ids)}.")
    pointer, index = np.zeros(len(ids) + 1, dtype=np.int32), []
    for position, row in enumerate(rows):
        if not isinstance(row, Iterable):
            raise GraphError(f"{where}: {ids[position]!r} reads {row!r}; expected a list of graph inputs.")
        for item in dict.fromkeys(row):
            if not isinstance(item, int | np.integer) or not 0 <= item < limit:
                raise GraphError(
                    f"{where}: {ids[position]!r} reads a graph input outside the {limit} that exist, {item!r}."
                )
            index.append(item)
        pointer[position + 1] = len(index)
    return pointer, np.array(index, dtype=np.int32)


def _mask(allowed: ArrayLike, ids: tuple[Identifier, ...], where: str) -> NDArray[np.bool_]:
    """Check and copy ``allowed`` [N, D]."""
    try:
        given = np.array(allowed)
    except ValueError as error:
        raise GraphError(f"{where}: the rows of allowed differ in length; give one value per device.") from error
    if given.ndim != 2 or len(given) != len(ids):
        raise GraphError(f"{where}: allowed has shape {given.shape}, expected ({len(ids)}, devices).")
    if not np.isin(given, (0, 1)).all():
        raise GraphError(f"{where}: allowed holds values other than true and false; give one of them per device.")
    mask = given.astype(bool)
    if not mask.any(axis=1).all():
        offender = ids[int(np.argmin(mask.any(axis=1)))]
        raise GraphError(f"{where}: operation {offender!r} may use no device; allow at least one.")
    return mask


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
