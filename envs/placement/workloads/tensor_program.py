"""Sharded tensor programs: tensor operations appended tile by tile to a dataflow graph.

A `TensorProgram` looks like a small tensor library whose values are `ShardedTensor`s. Each call appends
one *sharded operation* (one group of the graph): one graph operation per tile of its iteration space. A
contraction or reduction that is cut along a summed dimension gives partial results first, which a second
group, the *formation*, combines.

Operands may be cut in any way: an operation whose operand is cut differently reads the piece that it
needs (a slice is a view; a piece in several tiles is concatenated on the way in). `reform` makes
such a re-formation an operation of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

from ...errors import GraphError
from ..graph import DataflowGraph
from ..graph_builder import GraphBuilder
from ..kernel import Kernel, Reference, Symbol, TensorType
from ..kinds import aten_kind
from .broadcasting import broadcast, read_broadcast
from .contraction import Contraction
from .formation import REDUCTIONS, Combine, Partials, combining_kernel, pick_operands
from .sharded_tensor import (
    Boundaries,
    Cut,
    Region,
    ShardedTensor,
    all_boundaries,
    boundaries,
    extent,
    plan_reshape,
    tile_regions,
)
from .traffic import bytes_moved

__all__ = ["Combine", "Cut", "Region", "ShardedTensor", "TensorProgram", "boundaries"]


@dataclass
class TensorProgram:
    """Appends sharded operations to ``builder``; ``finish`` returns the graph.

    Attributes:
        builder: collects the operations; may be shared with hand-written ones.
        combine: how partial results become one: ``single``, one operation of any number of operands;
            ``chain``, one operation per further operand; ``tree``, pairs, then pairs of pairs.
        form_singles: also form a result that has one partial only (a copy, as systems do that move
            each result out of the operation's workspace).
        layer: layer number of the operations to come, -1 for none.
        groups: number of groups so far; the next one gets this number.
    """

    builder: GraphBuilder = field(default_factory=GraphBuilder)
    combine: Combine = "single"
    form_singles: bool = False
    layer: int = -1
    groups: int = 0

    def input(
        self,
        name: str,
        shape: Sequence[int],
        cuts: Sequence[Cut] | None = None,
        dtype: str = "float32",
        role: str = "input",
    ) -> ShardedTensor:
        """Declare a tensor that exists before the run: one graph input per tile, ``name[i, j]``."""
        bounds = all_boundaries(shape, cuts)
        single = all(len(listed) == 2 for listed in bounds)
        tiles = []
        for number, region in enumerate(tile_regions(bounds)):
            label = name if single else f"{name}[{_position(number, bounds)}]"
            tiles.append(self.builder.add_input(label, TensorType(extent(region), dtype), role))
        return ShardedTensor(tuple(shape), dtype, bounds, tuple(tiles))

    def tilewise(
        self,
        kernel: Callable[[Region], Kernel],
        shape: Sequence[int],
        cuts: Sequence[Cut] | None,
        *,
        kind: str,
        name: str,
        dtype: str = "float32",
        flops: Callable[[Region], float] | None = None,
    ) -> ShardedTensor:
        """Append one operation per tile of a new tensor: ``kernel(region)`` computes it.

        The base of all others. ``flops`` counts a tile's operations (default: its elements). The first
        output of each kernel is the tile.
        """
        bounds = all_boundaries(shape, cuts)
        group, tiles = self._new_group(), []
        for number, region in enumerate(tile_regions(bounds)):
            count = flops(region) if flops else float(prod(extent(region)))
            label = f"{name}[{_position(number, bounds)}]"
            tiles.append(self._append(kernel(region), kind=kind, flops=count, name=label, group=group, shard=number))
        return ShardedTensor(tuple(shape), dtype, bounds, tuple(tiles))

    def single(self, kernel: Kernel, *, kind: str, name: str, flops: float) -> tuple[ShardedTensor, ...]:
        """Append one operation that is not cut; gives one tensor in one tile per output of the kernel."""
        reference = self._append(kernel, kind=kind, flops=flops, name=name, group=self._new_group(), shard=0)
        return tuple(
            ShardedTensor(
                output.shape, output.dtype, tuple((0, size) for size in output.shape), (replace(reference, output=n),)
            )
            for n, output in enumerate(kernel.outputs)
        )

    def elementwise(
        self,
        target: str,
        *operands: Any,
        cuts: Sequence[Cut] | None = None,
        dtype: str | None = None,
        kwargs: Mapping[str, Any] | None = None,
        kind: str | None = None,
        name: str | None = None,
    ) -> ShardedTensor:
        """Apply an element-wise ATen operator with broadcasting; other arguments are passed on as they are.

        Cuts follow, dimension by dimension, the first operand that has this dimension in full; the dtype
        is the first operand's.
        """
        tensors = [operand for operand in operands if isinstance(operand, ShardedTensor)]
        shape, natural = broadcast(target, tensors)
        result = dtype or tensors[0].dtype
        extra = tuple((kwargs or {}).items())

        def kernel(region: Region) -> Kernel:
            args = tuple(read_broadcast(o, region) if isinstance(o, ShardedTensor) else o for o in operands)
            return Kernel(target, args, (TensorType(extent(region), result),), extra)

        short = target.split(".")[1]
        sort = kind or aten_kind(short, pointwise=True)
        label = name or short.strip("_")
        return self.tilewise(kernel, shape, natural if cuts is None else cuts, kind=sort, name=label, dtype=result)

    def cast(self, tensor: ShardedTensor, dtype: str, cuts: Sequence[Cut] | None = None) -> ShardedTensor:
        """Convert to another dtype (a copy if it is the same)."""
        kwargs = {"dtype": Symbol(dtype)}
        return self.elementwise("aten._to_copy.default", tensor, cuts=cuts, dtype=dtype, kwargs=kwargs, name="cast")

    def einsum(
        self,
        equation: str,
        a: ShardedTensor,
        b: ShardedTensor,
        cuts: Mapping[str, Cut] | None = None,
        name: str = "product",
    ) -> ShardedTensor:
        """Contract two tensors, ``"mk,kn->mn"``: partial products per tile, then their sum.

        Args:
            equation: one letter per dimension; letters missing after ``->`` are summed.
            cuts: pieces per letter; by default those of the operand with most pieces.

        The kernel is a matrix product (``mm``, ``bmm``, ``mv``) where the letters allow it, else
        ``tensordot`` or ``einsum``. FLOPs are two per multiply-add.
        """
        contraction = Contraction.parse(equation, a, b)
        bounds = contraction.boundaries(cuts or {})
        output = tuple(bounds[letter] for letter in contraction.natural_output)
        summed = list(tile_regions([bounds[letter] for letter in contraction.summed]))
        partials: Partials = []
        group, shard = self._new_group(), 0
        for region in tile_regions(output):
            partials.append([])
            for inner in summed:
                kernel, flops = contraction.tile(region, inner)
                label = f"{name}[{shard}]"
                reference = self._append(kernel, kind="matmul", flops=flops, name=label, group=group, shard=shard)
                partials[-1].append(reference)
                shard += 1
        shape = tuple(listed[-1] for listed in output)
        formed = self._form(partials, shape, output, a.dtype, "aten.add.Tensor", name)
        return formed.permute(contraction.output_order)

    def product(
        self,
        a: ShardedTensor,
        b: ShardedTensor,
        cuts: tuple[Cut | None, Cut | None, Cut | None] = (None, None, None),
        name: str = "product",
    ) -> ShardedTensor:
        """Matrix product ``[..., m, k] @ [k, n]`` or, batched, ``[..., m, k] @ [..., k, n]``.

        ``cuts`` are the pieces of m, k and n; ``None`` takes the operands' own.
        """
        batch = "abcdefgh"[: len(a.shape) - 2]
        right = batch if len(b.shape) > 2 else ""
        chosen = {letter: cut for letter, cut in zip("mkn", cuts, strict=True) if cut is not None}
        return self.einsum(f"{batch}mk,{right}kn->{batch}mn", a, b, chosen, name)

    def reduce(
        self,
        reduction: str,
        tensor: ShardedTensor,
        dims: int | Sequence[int],
        keepdim: bool = True,
        cuts: Sequence[Cut] | None = None,
        name: str | None = None,
    ) -> ShardedTensor:
        """``sum``, ``mean``, ``amax`` or ``amin`` over ``dims``: per tile, then over tiles.

        ``cuts`` cut the tensor before the reduction (default: as it is). FLOPs are the elements read.

        Raises:
            GraphError: an unknown reduction, or no dimension.
        """
        if reduction not in REDUCTIONS:
            raise GraphError(f"There is no reduction {reduction!r}; use one of {', '.join(REDUCTIONS)}.")
        inside, across = REDUCTIONS[reduction]
        axes = tuple(sorted(d % len(tensor.shape) for d in ([dims] if isinstance(dims, int) else dims)))
        bounds = all_boundaries(tensor.shape, tensor.cuts if cuts is None else cuts)
        if not axes:
            raise GraphError(f"{reduction} of a tensor {tensor.shape} got no dimension to reduce; name at least one.")
        share = 1 / prod(tensor.shape[d] for d in axes) if reduction == "mean" else None
        partials: dict[Region, list[Reference]] = {}
        group, label = self._new_group(), name or reduction
        for shard, region in enumerate(tile_regions(bounds)):
            kind = TensorType(tuple(1 if d in axes else b - a for d, (a, b) in enumerate(region)), tensor.dtype)
            kernel = Kernel(inside, (tensor.read(region), axes, True), (kind,))
            if share is not None:
                kernel = Kernel("aten.mul.Tensor", (kernel, share), (kind,))
            flops, title = float(prod(extent(region))), f"{label}[{_position(shard, bounds)}]"
            reference = self._append(kernel, kind="reduction", flops=flops, name=title, group=group, shard=shard)
            place = tuple(span for d, span in enumerate(region) if d not in axes)
            partials.setdefault(place, []).append(reference)
        kept = tuple((0, 1) if d in axes else listed for d, listed in enumerate(bounds))
        shape = tuple(listed[-1] for listed in kept)
        formed = self._form(list(partials.values()), shape, kept, tensor.dtype, across, label)
        return formed if keepdim else self.reshape(formed, [s for d, s in enumerate(shape) if d not in axes])

    def reform(self, tensor: ShardedTensor, cuts: Sequence[Cut] | None = None, name: str = "reform") -> ShardedTensor:
        """Another grid: each new tile is one operation that concatenates the pieces it covers.

        Free if each new tile lies within an old one: then it is a view. ``cuts=None`` gathers all
        into one tile.
        """
        bounds = all_boundaries(tensor.shape, cuts)
        pieces = [tensor.read(region) for region in tile_regions(bounds)]
        views = tuple(piece for piece in pieces if isinstance(piece, Reference))
        if len(views) == len(pieces):
            return ShardedTensor(tensor.shape, tensor.dtype, bounds, views)
        return self.copy(tensor, bounds, name=name)

    def gather(self, tensor: ShardedTensor) -> ShardedTensor:
        """The whole tensor in one tile."""
        return self.reform(tensor, None, name="gather")

    def copy(
        self, tensor: ShardedTensor, cuts: Sequence[Cut] | None = None, kind: str = "copy", name: str = "copy"
    ) -> ShardedTensor:
        """One operation per new tile that stores its values anew, even where a view would do."""

        def kernel(region: Region) -> Kernel:
            piece = tensor.read(region)
            if isinstance(piece, Kernel):
                return piece
            return Kernel("aten.clone.default", (piece,), (TensorType(extent(region), tensor.dtype),))

        return self.tilewise(
            kernel, tensor.shape, cuts, kind=kind, name=name, dtype=tensor.dtype, flops=lambda region: 0.0
        )

    def accumulate(self, tensors: Sequence[ShardedTensor], name: str = "accumulate") -> ShardedTensor:
        """Sum of tensors of one shape, combined like partial results; cut as the first of them."""
        first = tensors[0]
        aligned = [self.reform(tensor, first.cuts) for tensor in tensors]
        partials = [list(parts) for parts in zip(*(tensor.tiles for tensor in aligned), strict=True)]
        return self._form(partials, first.shape, first.cuts, first.dtype, "aten.add.Tensor", name)

    def reshape(self, tensor: ShardedTensor, shape: Sequence[int]) -> ShardedTensor:
        """Another shape of as many elements; free where tiles map to tiles, else re-formed first.

        Splitting a dimension is always a view. Merging uses ``aten.reshape.default``, which a consumer
        turns into a copy if the tile's strides forbid a view.
        """
        plan = plan_reshape(tensor, tuple(shape))
        ready = self.reform(tensor, plan.before)
        target = "aten.view.default" if plan.splits else "aten.reshape.default"
        args = [(extent(region),) for region in tile_regions(plan.after)]
        return ready.viewed(target, args, tuple(shape), plan.after)

    def permute(self, tensor: ShardedTensor, dims: Sequence[int]) -> ShardedTensor:
        """Dimensions in another order; free."""
        return tensor.permute(dims)

    def finish(
        self, outputs: Mapping[str, ShardedTensor] | Sequence[ShardedTensor], title: str | None = None
    ) -> DataflowGraph:
        """Build the graph; it returns the tiles of ``outputs`` in order, named ``name[i, j]``."""
        named = outputs if isinstance(outputs, Mapping) else {f"output_{i}": o for i, o in enumerate(outputs)}
        references = [tile for tensor in named.values() for tile in tensor.tiles]
        names = [
            f"{name}[{_position(i, tensor.cuts)}]" for name, tensor in named.items() for i in range(len(tensor.tiles))
        ]
        if title is not None:
            self.builder.title = title
        return self.builder.finish(references, names)

    def _new_group(self) -> int:
        self.groups += 1
        return self.groups - 1

    def _append(self, kernel: Kernel, **columns: Any) -> Reference:
        return self.builder.add(
            kernel, bytes_moved=bytes_moved(kernel, self.builder.type_of), layer=self.layer, **columns
        )

    def _form(
        self,
        partials: Partials,
        shape: tuple[int, ...],
        bounds: tuple[Boundaries, ...],
        dtype: str,
        target: str,
        name: str,
    ) -> ShardedTensor:
        """Combine the partial results of each tile."""
        kinds = [TensorType(extent(region), dtype) for region in tile_regions(bounds)]
        if len(partials[0]) > 1 or self.form_singles:
            partials = self._form_step(partials, kinds, target, name)
        while len(partials[0]) > 1:
            partials = self._form_step(partials, kinds, target, name)
        return ShardedTensor(shape, dtype, bounds, tuple(parts[0] for parts in partials))

    def _form_step(self, partials: Partials, kinds: list[TensorType], target: str, name: str) -> Partials:
        """One group of combinations: of all partial results, of the first two, or of neighbouring pairs."""
        group, shard, combined = self._new_group(), 0, []
        for parts, kind in zip(partials, kinds, strict=True):
            operand_lists, left_over = pick_operands(parts, self.combine)
            row: list[Reference] = []
            for operands in operand_lists:
                kernel, label = combining_kernel(operands, target, kind), f"{name}.form[{shard}]"
                flops, sort = float((len(operands) - 1) * kind.elements), "elementwise" if operands[1:] else "copy"
                row.append(self._append(kernel, kind=sort, flops=flops, name=label, group=group, shard=shard))
                shard += 1
            combined.append(row + left_over)
        return combined


def _position(number: int, bounds: Sequence[Boundaries]) -> str:
    """Grid position of a tile, ``i, j``."""
    position: list[int] = []
    for listed in reversed(bounds):
        number, index = divmod(number, len(listed) - 1)
        position.append(index)
    return ", ".join(map(str, reversed(position)))
