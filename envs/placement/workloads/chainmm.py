"""CHAINMM: a chain of matrix products, A B + C (D E)."""

from __future__ import annotations

from ..graph import DataflowGraph
from .sharded_tensor import balanced_factors
from .tensor_program import Combine, TensorProgram


def chainmm(
    size: int = 10_000,
    devices: int = 4,
    shards: int | None = None,
    dtype: str = "float32",
    combine: Combine = "single",
) -> DataflowGraph:
    """A B + C (D E) for square matrices of ``size``; each product in ``shards`` partial products.

    The default is the published graph (76 operations, 36 input tiles). The number of shards (4 per
    device) is split into three balanced factors, largest first: r rows of the result, i pieces of the
    inner dimension and c columns. A B and C (D E) are cut (r, i, c); D E, whose rows are the inner
    dimension, (i, r, c). For 16 shards that is (4, 2, 2) and (2, 4, 2); for the 8-device form (4, 4, 2)
    and (4, 4, 2).
    """
    rows, inner, columns = balanced_factors(shards or 4 * devices, 3)
    program = TensorProgram(combine=combine, form_singles=True)
    shape = (size, size)
    a = program.input("a", shape, (rows, inner), dtype)
    b = program.input("b", shape, (inner, columns), dtype)
    c = program.input("c", shape, (rows, inner), dtype)
    d = program.input("d", shape, (inner, rows), dtype)
    e = program.input("e", shape, (rows, columns), dtype)
    program.layer = 0
    de = program.product(d, e, name="de")
    program.layer = 1
    cde = program.product(c, de, name="cde")
    ab = program.product(a, b, name="ab")
    program.layer = 2
    total = program.elementwise("aten.add.Tensor", cde, ab, name="add")
    return program.finish({"result": total}, title="chainmm")
