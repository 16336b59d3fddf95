"""Cuts the operations of a captured graph into tiles, so that there is something to place in parallel."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ..errors import GraphError
from .graph import DataflowGraph
from .interpreter import apply_views, execution_order
from .kernel import Kernel, Reference, View
from .kinds import KINDS
from .tiling_operation import Operation, whole
from .tiling_rules import find_rule
from .workloads.sharded_tensor import Boundaries, all_boundaries, extent, plan_reshape, tile_regions
from .workloads.tensor_program import ShardedTensor, TensorProgram

CutFunction = Callable[[str, str, tuple[int, ...]], Sequence[int]]
"""(kind, name, sizes) -> pieces of each size; see ``tile``."""
Cuts = int | Mapping[str, int] | CutFunction

SMALLEST = 4
"""Elements that each piece of a dimension keeps at least, unless a function decides (our choice)."""


def tile(graph: DataflowGraph, cuts: Cuts, *, title: str | None = None) -> DataflowGraph:
    """Split the operations of a graph with kernels into tiles; the result computes the same.

    Products and batched products become products of tiles and sums of partial results;
    element-wise operations follow the grid of their operands; softmax, layer normalisation and
    reductions work across tiles through partial results where the dimension is cut; attention is
    cut over batch and heads, convolutions over batch and output channels, embeddings over indices
    and columns. Operations that have no rule stay whole: their inputs are gathered, each output is
    one tile. Tiles of one operation share ``group`` and are numbered by ``shard``.

    Inputs and outputs become one per tile, ``name[i, j]``; ``interpreter.run`` takes whole inputs, and
    ``interpreter.join_tiles`` puts outputs together. ``allowed`` is passed on to the tiles, measured
    ``seconds`` are not.

    Args:
        cuts: how many pieces: an integer for every dimension that is worth cutting; a mapping from
            operation kind to that integer (``input`` for graph inputs, ``default`` for kinds not
            named, else 1); or a function of kind, name and sizes. It is asked for ``input`` (its
            shape), ``matmul`` (batch sizes, m, k, n), ``attention`` (the query's shape) and
            ``convolution`` (batch size, output channels), and only counts where the operands are not
            cut already; all other operations follow their operands.

    Raises:
        GraphError: the graph has no kernels, or a number of pieces is not possible.
        MissingExtraError: torch is not installed.
    """
    if graph.kernels is None or any(entry.type is None for entry in graph.inputs):
        raise GraphError(f"{graph.title}: only graphs with kernels and typed inputs can be tiled; capture a module.")
    tiler = _Tiler(graph, graph.kernels, cut_function(cuts), TensorProgram())
    tiler.add_inputs()
    for number in execution_order(graph):
        tiler.add(number)
    tiler.keep_order()
    outputs = {name: tiler.tensor(r) for name, r in zip(graph.output_names, graph.outputs, strict=True)}
    pieces = len(tiler.program.builder.kernels)
    result = tiler.program.finish(outputs, title or (f"{graph.title}, tiled" if pieces > graph.n else graph.title))
    return tiler.with_pins(result)


def cut_function(cuts: Cuts) -> CutFunction:
    """The function behind an integer or a mapping.

    A dimension is worth cutting if each piece keeps ``SMALLEST`` elements. Batch dimensions need one
    element per piece only, and only the first that is long enough is cut: of batched products (then
    with the rows, while columns and the summed dimension stay whole) and of inputs with more than two
    dimensions (then with the last dimension). Attention and convolutions are cut along both.

    Raises:
        GraphError: a number of pieces is below 1 or no integer.
    """
    if callable(cuts):
        return cuts
    table = dict(cuts) if isinstance(cuts, Mapping) else {"default": cuts}
    for kind, pieces in table.items():
        if kind not in (*KINDS, "input", "default"):
            raise GraphError(f"cuts names {kind!r}; expected input, default, {', '.join(KINDS)}.")
        if isinstance(pieces, bool) or not isinstance(pieces, int) or pieces < 1:
            raise GraphError(f"cuts gives {pieces!r} pieces for {kind!r}; expected a whole number from 1.")

    def choose(kind: str, name: str, sizes: tuple[int, ...]) -> list[int]:
        pieces = table.get(kind, table.get("default", 1))
        dims = _dimensions_to_cut(kind, sizes, pieces)
        return [pieces if dim in dims else 1 for dim in range(len(sizes))]

    return choose


def _dimensions_to_cut(kind: str, sizes: tuple[int, ...], pieces: int) -> set[int]:
    """Which dimensions are worth this number of pieces; see ``cut_function``."""
    worth = {dim for dim, size in enumerate(sizes) if size >= pieces * SMALLEST}
    if kind in ("attention", "convolution"):
        return {dim for dim in range(2) if sizes[dim] >= pieces}
    batch = max(len(sizes) - (3 if kind == "matmul" else 2), 0)
    leading = [dim for dim in range(batch) if sizes[dim] >= pieces][:1]
    if kind == "matmul":
        return {*leading, *({batch} & worth)} if leading else worth
    if batch:
        return {*(leading or sorted(worth - {len(sizes) - 1})[:1]), *({len(sizes) - 1} & worth)}
    return worth


@dataclass
class _Tiler:
    graph: DataflowGraph
    kernels: tuple[Kernel, ...]
    choose: CutFunction
    program: TensorProgram
    tensors: dict[Reference, ShardedTensor] = field(default_factory=dict)
    gathered: dict[int, ShardedTensor] = field(default_factory=dict)
    spans: dict[int, range] = field(default_factory=dict)

    def add_inputs(self) -> None:
        """Declare the graph inputs, cut where an operation that reads them can use it."""
        readers: dict[int, list[tuple[Kernel, int]]] = {}
        for kernel in self.kernels:
            for place, reference in enumerate(kernel.references()):
                if reference.source == "input":
                    readers.setdefault(reference.number, []).append((kernel, place))
        for number, entry in enumerate(self.graph.inputs):
            assert entry.type is not None, "checked by tile"
            shape, uses = entry.type.shape, readers.get(number, [])
            pieces = [1] * len(shape)
            if any(find_rule(kernel) for kernel, _ in uses):
                pieces = list(self.choose("input", entry.name, shape))
            if any(place == 0 and ".embedding." in kernel.target for kernel, place in uses):
                pieces[0] = 1
            self.tensors[Reference("input", number)] = self.program.input(
                entry.name, shape, pieces, entry.type.dtype, entry.role
            )

    def add(self, number: int) -> None:
        """Append the tiles of one operation."""
        kernel, start = self.kernels[number], len(self.program.builder.kernels)
        self.program.layer = int(self.graph.layer[number])
        operation = Operation(
            self.program,
            kernel,
            self.graph.names[number],
            self.graph.kind[number],
            float(self.graph.flops[number]),
            self.tensor,
            self.gather,
            self.choose,
        )
        rule = find_rule(kernel)
        results = rule(operation) if rule else None
        for output, result in enumerate(results or whole(operation)):
            self.tensors[Reference("op", number, output)] = result
        self.spans[number] = range(start, len(self.program.builder.kernels))

    def tensor(self, reference: Reference) -> ShardedTensor:
        """The sharded tensor behind a reference of the untiled graph."""
        if reference not in self.tensors:
            source = self.tensor(replace(reference, views=reference.views[:-1]))
            self.tensors[reference] = self.view(source, reference.views[-1])
        return self.tensors[reference]

    def gather(self, tensor: ShardedTensor) -> ShardedTensor:
        """The whole tensor in one tile; gathered once."""
        key = id(tensor)
        if key not in self.gathered:
            self.gathered[key] = self.program.gather(tensor)
            self.gathered[id(self.gathered[key])] = self.gathered[key]
        return self.gathered[key]

    def view(self, tensor: ShardedTensor, view: View) -> ShardedTensor:
        """A view of a sharded tensor: on each tile where it can be, else on the gathered tensor."""
        shape, name = viewed_shape(tensor, view), view.target.split(".")[1]
        dims = len(tensor.shape)
        if name == "permute":
            return tensor.permute(view.args[0])
        if name in ("transpose", "t"):
            first, second = view.args if name == "transpose" else (0, 1)
            return tensor.transpose(first, second) if dims > 1 else tensor
        if name in ("view", "reshape", "unsqueeze", "squeeze"):
            return self.reshape(tensor, shape)
        if name == "expand":
            return self.expand(tensor, shape)
        if name == "slice" and (len(view.args) < 4 or view.args[3] == 1):
            dim = (view.args[0] if view.args else 0) % dims
            start = slice(*view.args[1:3] if len(view.args) > 1 else (None, None)).indices(tensor.shape[dim])[0]
            return tensor.narrow(dim, start, start + shape[dim]) if shape != tensor.shape else tensor
        if name == "select":
            dim, index = view.args[0] % dims, view.args[1] % tensor.shape[view.args[0]]
            return self.reshape(tensor.narrow(dim, index, index + 1), shape)
        return self.gather(tensor).viewed(view.target, [view.args], shape, [1] * len(shape))

    def reshape(self, tensor: ShardedTensor, shape: tuple[int, ...]) -> ShardedTensor:
        """Another shape, with as many cuts kept as tiles that map to tiles allow, leading ones first."""
        kept: list[Boundaries] = [(0, size) for size in tensor.shape]
        for dim, listed in enumerate(tensor.cuts):
            trial = (*kept[:dim], listed, *kept[dim + 1 :])
            if plan_reshape(ShardedTensor(tensor.shape, tensor.dtype, trial, ()), shape).before == trial:
                kept[dim] = listed
        return self.program.reshape(self.program.reform(tensor, kept), shape)

    def expand(self, tensor: ShardedTensor, shape: tuple[int, ...]) -> ShardedTensor:
        """Dimensions of size 1 repeated; the new ones are not cut."""
        padded = self.program.reshape(tensor, (1,) * (len(shape) - len(tensor.shape)) + tensor.shape)
        cuts = [
            (0, size) if old != size else listed
            for size, old, listed in zip(shape, padded.shape, padded.cuts, strict=True)
        ]
        args = [(extent(region),) for region in tile_regions(all_boundaries(shape, cuts))]
        return padded.viewed("aten.expand.default", args, shape, cuts)

    def keep_order(self) -> None:
        """Pass on edges that order two operations without a tensor between them."""
        graph, builder = self.graph, self.program.builder
        for before, after in zip(graph.edge_source.tolist(), graph.edge_target.tolist(), strict=True):
            if not any((r.source, r.number) == ("op", before) for r in self.kernels[after].references()):
                for first in self.spans[before]:
                    for second in self.spans[after]:
                        builder.add_order(Reference("op", first), Reference("op", second))

    def with_pins(self, result: DataflowGraph) -> DataflowGraph:
        """Give the tiles the allowed devices of their operation."""
        if self.graph.allowed is None:
            return result
        allowed = np.ones((result.n, self.graph.allowed.shape[1]), dtype=bool)
        for number, span in self.spans.items():
            allowed[span.start : span.stop] = self.graph.allowed[number]
        return result.with_pins(allowed)


def viewed_shape(tensor: ShardedTensor, view: View) -> tuple[int, ...]:
    """Shape of a tensor seen through a view."""
    import torch

    return tuple(apply_views(torch.empty(tensor.shape, device="meta"), [view]).shape)
