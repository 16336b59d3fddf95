"""Tensors cut into a grid of tiles, and how to read any piece of one.

Words used in this folder: a *boundary list* of a dimension of size n is ``(0, ..., n)``, ascending;
a *region* is one ``(start, stop)`` pair per dimension; a *tile* is the region between neighbouring
boundaries; tiles are listed in row-major order of their grid.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product
from math import prod
from typing import Any

from ...errors import GraphError
from ..kernel import Kernel, Reference, TensorType, View

Region = tuple[tuple[int, int], ...]
Boundaries = tuple[int, ...]
Cut = int | Sequence[int]
"""Pieces of one dimension: a number of nearly equal pieces, or a boundary list."""
Argument = Reference | Kernel
"""A tensor as an argument of a kernel: stored, or computed from stored ones on the way in."""


def boundaries(size: int, cut: Cut = 1) -> Boundaries:
    """Boundary list of a dimension of ``size``; a number of pieces differ in size by one at most.

    Raises:
        GraphError: more pieces than elements, or a list that does not ascend from 0 to ``size``.
    """
    if isinstance(cut, int):
        if not 1 <= cut <= size:
            raise GraphError(f"A dimension of size {size} cannot be cut into {cut} pieces; use 1 to {size}.")
        return tuple(piece * size // cut for piece in range(cut + 1))
    listed = tuple(int(value) for value in cut)
    if len(listed) < 2 or listed[0] != 0 or listed[-1] != size or any(a >= b for a, b in pairwise(listed)):
        raise GraphError(
            f"The boundaries {listed} do not cut a dimension of size {size}; they must ascend from 0 to it."
        )
    return listed


def balanced_factors(number: int, parts: int) -> tuple[int, ...]:
    """Split a number into ``parts`` factors that are as equal as a greedy rule makes them, largest first.

    Prime factors, largest first, go to the smallest factor so far: 16 in three parts is (4, 2, 2).
    """
    factors, primes, divisor = [1] * parts, [], 2
    while number > 1:
        while number % divisor == 0:
            primes.append(divisor)
            number //= divisor
        divisor += 1
    for prime in reversed(primes):
        factors[factors.index(min(factors))] *= prime
    return tuple(sorted(factors, reverse=True))


def all_boundaries(shape: Sequence[int], cuts: Sequence[Cut] | None) -> tuple[Boundaries, ...]:
    """Boundary lists of a whole shape; ``None`` leaves it in one tile.

    Raises:
        GraphError: as ``boundaries``, or the number of cuts is not the number of dimensions.
    """
    given: Sequence[Cut] = [1] * len(shape) if cuts is None else cuts
    if len(given) != len(shape):
        raise GraphError(f"{len(given)} cuts for the {len(shape)} dimensions of {tuple(shape)}; give one for each.")
    return tuple(boundaries(size, cut) for size, cut in zip(shape, given, strict=True))


def tile_regions(bounds: Iterable[Boundaries]) -> Iterator[Region]:
    """Regions of all tiles in row-major order."""
    return product(*(tuple(pairwise(listed)) for listed in bounds))


def extent(region: Region) -> tuple[int, ...]:
    """Shape of a region."""
    return tuple(stop - start for start, stop in region)


def view_of(argument: Argument, target: str, args: tuple[Any, ...], shape: tuple[int, ...]) -> Argument:
    """An argument seen through an ATen view operator; ``shape`` is the result's."""
    if isinstance(argument, Reference):
        return replace(argument, views=(*argument.views, View(target, args)))
    kind = TensorType(shape, argument.outputs[0].dtype)
    return Kernel(target, (argument, *args), (kind,))


@dataclass(frozen=True)
class ShardedTensor:
    """A tensor of ``shape`` and ``dtype`` in a grid of tiles.

    Attributes:
        shape: global shape.
        dtype: torch's name, such as ``float32``.
        cuts: a boundary list per dimension.
        tiles: one reference per tile, row-major; a reference's views end in exactly the tile.
    """

    shape: tuple[int, ...]
    dtype: str
    cuts: tuple[Boundaries, ...]
    tiles: tuple[Reference, ...]

    @property
    def grid(self) -> tuple[int, ...]:
        """Number of pieces per dimension."""
        return tuple(len(listed) - 1 for listed in self.cuts)

    @property
    def whole(self) -> Region:
        """The region of the whole tensor."""
        return tuple((0, size) for size in self.shape)

    def regions(self) -> list[Region]:
        """Regions of the tiles, row-major."""
        return list(tile_regions(self.cuts))

    def read(self, region: Region) -> Argument:
        """The values of a region as an argument of a kernel.

        Within one tile it is a reference (a slice is a view and costs nothing); across tiles it is a
        nested ``aten.cat.default`` of the pieces.
        """
        spans = [_overlap(listed, *span) for listed, span in zip(self.cuts, region, strict=True)]
        return self._join(spans, region, ())

    def _join(self, spans: list[range], region: Region, chosen: tuple[int, ...]) -> Argument:
        """Concatenate along dimension ``len(chosen)`` what the later dimensions give."""
        dim = len(chosen)
        if dim == len(spans):
            return self._piece(chosen, region)
        parts = tuple(self._join(spans, region, (*chosen, position)) for position in spans[dim])
        if len(parts) == 1:
            return parts[0]
        tile = [(self.cuts[d][p], self.cuts[d][p + 1]) for d, p in enumerate(chosen)]
        shape = extent(
            tuple([(max(a, x), min(b, y)) for (a, b), (x, y) in zip(region, tile, strict=False)]) + region[dim:]
        )
        return Kernel("aten.cat.default", (parts, dim), (TensorType(shape, self.dtype),))

    def _piece(self, position: tuple[int, ...], region: Region) -> Argument:
        number = 0
        for index, pieces in zip(position, self.grid, strict=True):
            number = number * pieces + index
        reference: Argument = self.tiles[number]
        shape = [self.cuts[dim][index + 1] - self.cuts[dim][index] for dim, index in enumerate(position)]
        for dim, (index, (start, stop)) in enumerate(zip(position, region, strict=True)):
            low, high = self.cuts[dim][index], self.cuts[dim][index + 1]
            a, b = max(start, low) - low, min(stop, high) - low
            if (a, b) != (0, high - low):
                shape[dim] = b - a
                reference = view_of(reference, "aten.slice.Tensor", (dim, a, b, 1), tuple(shape))
        return reference

    def viewed(
        self, target: str, args: Sequence[tuple[Any, ...]], shape: tuple[int, ...], cuts: Sequence[Cut]
    ) -> ShardedTensor:
        """The tensor with view ``target`` on every tile, ``args`` per tile; the tiles keep their order."""
        views = [
            replace(tile, views=(*tile.views, View(target, given)))
            for tile, given in zip(self.tiles, args, strict=True)
        ]
        return ShardedTensor(shape, self.dtype, all_boundaries(shape, cuts), tuple(views))

    def permute(self, dims: Sequence[int]) -> ShardedTensor:
        """Dimensions in another order; free, the grid is permuted with them."""
        order = tuple(dim % len(self.shape) for dim in dims)
        if sorted(order) != list(range(len(self.shape))):
            raise GraphError(f"permute got the dimensions {tuple(dims)} for a tensor of shape {self.shape}.")
        if order == tuple(range(len(order))):
            return self
        cuts = tuple(self.cuts[dim] for dim in order)
        number = {region: position for position, region in enumerate(self.regions())}
        inverse = [order.index(dim) for dim in range(len(order))]
        moved = [number[tuple(region[dim] for dim in inverse)] for region in tile_regions(cuts)]
        view = View("aten.permute.default", (order,))
        tiles = tuple(replace(self.tiles[old], views=(*self.tiles[old].views, view)) for old in moved)
        return ShardedTensor(tuple(self.shape[dim] for dim in order), self.dtype, cuts, tiles)

    def transpose(self, first: int = -2, second: int = -1) -> ShardedTensor:
        """Two dimensions exchanged; free."""
        order = list(range(len(self.shape)))
        order[first], order[second] = order[second], order[first]
        return self.permute(order)

    def narrow(self, dim: int, start: int, stop: int) -> ShardedTensor:
        """The slice ``start:stop`` of one dimension; free, tiles outside it are dropped."""
        dim %= len(self.shape)
        if not 0 <= start < stop <= self.shape[dim]:
            raise GraphError(f"The slice {start}:{stop} does not lie in dimension {dim} of a tensor {self.shape}.")
        inner = [b for b in self.cuts[dim] if start < b < stop]
        pieces = (start, *inner, stop)
        shifted = (*self.cuts[:dim], pieces, *self.cuts[dim + 1 :])
        tiles = tuple(self.read(region) for region in tile_regions(shifted))
        shape = (*self.shape[:dim], stop - start, *self.shape[dim + 1 :])
        cuts = (*self.cuts[:dim], tuple(b - start for b in pieces), *self.cuts[dim + 1 :])
        return ShardedTensor(shape, self.dtype, cuts, tuple(t for t in tiles if isinstance(t, Reference)))


def _overlap(listed: Boundaries, start: int, stop: int) -> range:
    """Positions of the pieces that share elements with ``start:stop``."""
    inside = [position for position, (a, b) in enumerate(pairwise(listed)) if a < stop and b > start]
    return range(inside[0], inside[-1] + 1)


@dataclass(frozen=True)
class ReshapePlan:
    """How a reshape maps tiles to tiles: ``before`` the cuts that it needs, ``after`` the cuts that it gives.

    ``splits`` says that no two dimensions are merged, so that it is a view whatever the strides are.
    """

    before: tuple[Boundaries, ...]
    after: tuple[Boundaries, ...]
    splits: bool


def plan_reshape(tensor: ShardedTensor, shape: tuple[int, ...]) -> ReshapePlan:
    """Keep the cuts that survive the reshape to ``shape``; drop the others.

    The shapes are matched in blocks of dimensions with equal products. A block's cut survives if only
    its leading dimension is cut and each boundary is one of the leading new dimension.

    Raises:
        GraphError: the shapes have different numbers of elements.
    """
    before: list[Boundaries] = list(tensor.cuts)
    after: list[Boundaries] = [(0, size) for size in shape]
    splits = True
    for old, new in _matching_blocks(tensor.shape, shape):
        long_old, long_new = ([d for d in dims if s[d] > 1] for dims, s in ((old, tensor.shape), (new, shape)))
        splits &= len(long_old) <= 1
        kept = _surviving_cut(tensor, shape, long_old, long_new)
        for dim in old:
            before[dim] = tensor.cuts[dim] if kept and dim == long_old[0] else (0, tensor.shape[dim])
        if kept:
            after[long_new[0]] = kept
    return ReshapePlan(tuple(before), tuple(after), splits)


def _surviving_cut(tensor: ShardedTensor, shape: tuple[int, ...], old: list[int], new: list[int]) -> Boundaries | None:
    if not old or any(tensor.grid[dim] > 1 for dim in old[1:]):
        return None
    old_unit, new_unit = prod(tensor.shape[d] for d in old[1:]), prod(shape[d] for d in new[1:])
    flat = [boundary * old_unit for boundary in tensor.cuts[old[0]]]
    return None if any(f % new_unit for f in flat) else tuple(f // new_unit for f in flat)


def _matching_blocks(old: tuple[int, ...], new: tuple[int, ...]) -> list[tuple[list[int], list[int]]]:
    if prod(old) != prod(new):
        raise GraphError(f"A tensor of shape {old} cannot be reshaped to {new}: {prod(old)} and {prod(new)} elements.")
    blocks: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(old) or j < len(new):
        left: list[int] = []
        right: list[int] = []
        have = want = 1
        while (not left and not right) or have != want:
            if j >= len(new) or (i < len(old) and have <= want):
                left.append(i)
                have, i = have * old[i], i + 1
            else:
                right.append(j)
                want, j = want * new[j], j + 1
        blocks.append((left, right))
    return blocks
