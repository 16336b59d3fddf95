"""The contraction of two sharded tensors: its loop dimensions, and one ATen call per tile of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from ...errors import GraphError
from ..kernel import Kernel, TensorType
from .sharded_tensor import Argument, Boundaries, Cut, Region, ShardedTensor, boundaries, view_of


@dataclass(frozen=True)
class Contraction:
    """``left, right -> output`` with one letter per dimension.

    Letters are *batch* (in both operands and the output), *summed* (in both operands only) or free, in
    one operand and the output. Kernels produce ``natural_output``: batch, free of a, free of b.
    """

    a: ShardedTensor
    b: ShardedTensor
    left: str
    right: str
    output: str

    @classmethod
    def parse(cls, equation: str, a: ShardedTensor, b: ShardedTensor) -> Contraction:
        """Read an equation such as ``"mk,kn->mn"``.

        Raises:
            GraphError: it is not of this form, or does not fit the operands.
        """
        operands, _, output = equation.replace(" ", "").partition("->")
        left, _, right = operands.partition(",")
        for letters, tensor in ((left, a), (right, b)):
            if len(set(letters)) != len(letters) or len(letters) != len(tensor.shape):
                raise GraphError(f"{equation!r}: {letters!r} does not name the dimensions of a tensor {tensor.shape}.")
        sizes: dict[str, int] = dict(zip(left, a.shape, strict=True))
        for letter, size in zip(right, b.shape, strict=True):
            if sizes.setdefault(letter, size) != size:
                raise GraphError(f"{equation!r}: {letter!r} is {sizes[letter]} in one operand, {size} in the other.")
        if len(set(output)) != len(output) or set(output) - set(sizes) or (set(left) ^ set(right)) - set(output):
            raise GraphError(f"{equation!r}: the output must hold each letter of one operand, and no new one.")
        if a.dtype != b.dtype:
            raise GraphError(f"{equation!r}: the operands have dtypes {a.dtype} and {b.dtype}; cast one of them.")
        return cls(a, b, left, right, output)

    @property
    def summed(self) -> str:
        """Letters that are summed."""
        return "".join(letter for letter in self.left if letter in self.right and letter not in self.output)

    @property
    def batch(self) -> str:
        """Letters of both operands that are kept."""
        return "".join(letter for letter in self.output if letter in self.left and letter in self.right)

    @property
    def free(self) -> tuple[str, str]:
        """Letters of the first operand only, and of the second only."""
        return (
            "".join(letter for letter in self.left if letter not in self.right),
            "".join(letter for letter in self.right if letter not in self.left),
        )

    @property
    def natural_output(self) -> str:
        """Letters of the tiles that the kernels produce."""
        return self.batch + "".join(self.free)

    @property
    def output_order(self) -> tuple[int, ...]:
        """Permutation of ``natural_output`` that gives ``output``."""
        return tuple(self.natural_output.index(letter) for letter in self.output)

    def boundaries(self, cuts: Mapping[str, Cut]) -> dict[str, Boundaries]:
        """Boundary list of each letter: the given cut, or that of the operand with most pieces.

        Raises:
            GraphError: a cut names no letter of the equation.
        """
        chosen: dict[str, Boundaries] = {}
        for letters, tensor in ((self.left, self.a), (self.right, self.b)):
            for letter, listed in zip(letters, tensor.cuts, strict=True):
                chosen[letter] = max(chosen.get(letter, ()), listed, key=len)
        unknown = set(cuts) - set(chosen)
        if unknown:
            raise GraphError(f"{self.left},{self.right}->{self.output} has no dimension {sorted(unknown)[0]!r} to cut.")
        return {
            letter: boundaries(listed[-1], cuts[letter]) if letter in cuts else listed
            for letter, listed in chosen.items()
        }

    def tile(self, region: Region, inner: Region) -> tuple[Kernel, float]:
        """Kernel and FLOPs of one partial product: ``region`` of the natural output, ``inner`` of the sum."""
        spans = dict(zip(self.natural_output + self.summed, (*region, *inner), strict=True))
        size = {letter: stop - start for letter, (start, stop) in spans.items()}
        a = self.a.read(tuple(spans[letter] for letter in self.left))
        b = self.b.read(tuple(spans[letter] for letter in self.right))
        kind = TensorType(tuple(size[letter] for letter in self.natural_output), self.a.dtype)
        return self._kernel(a, b, size, kind), 2.0 * prod(size.values())

    def _kernel(self, a: Argument, b: Argument, size: Mapping[str, int], kind: TensorType) -> Kernel:
        batch, summed, (free_a, free_b) = self.batch, self.summed, self.free
        lengths = (len(batch), len(summed), len(free_a), len(free_b))
        if lengths in ((0, 1, 1, 1), (1, 1, 1, 1)):
            first = _arrange(a, self.left, batch + free_a + summed, size)
            second = _arrange(b, self.right, batch + summed + free_b, size)
            return Kernel("aten.bmm.default" if batch else "aten.mm.default", (first, second), (kind,))
        if lengths == (0, 1, 0, 1):
            return Kernel("aten.mv.default", (_arrange(b, self.right, free_b + summed, size), a), (kind,))
        if lengths == (0, 1, 1, 0):
            return Kernel("aten.mv.default", (_arrange(a, self.left, free_a + summed, size), b), (kind,))
        if summed and not batch:
            dims = [tuple(letters.index(letter) for letter in summed) for letters in (self.left, self.right)]
            return Kernel("aten.tensordot.default", (a, b, *dims), (kind,))
        return Kernel("aten.einsum.default", (f"{self.left},{self.right}->{self.natural_output}", (a, b)), (kind,))


def _arrange(argument: Argument, letters: str, wanted: str, size: Mapping[str, int]) -> Argument:
    """The argument with its dimensions in the wanted order, as a view."""
    if letters == wanted:
        return argument
    order = tuple(letters.index(letter) for letter in wanted)
    return view_of(argument, "aten.permute.default", (order,), tuple(size[letter] for letter in wanted))
