"""MOE-BLOCK: a mixture of experts, as in Mixtral, with the gates of the chosen experts in dense form."""

from __future__ import annotations

from ...errors import GraphError
from ..graph import DataflowGraph
from ..kernel import Kernel, TensorType
from .normalisation import softmax
from .sharded_tensor import Region, ShardedTensor, balanced_factors, extent
from .tensor_program import Combine, TensorProgram


def moe_block(
    tokens: int = 4096,
    width: int = 4096,
    experts: int = 8,
    top_k: int = 2,
    feedforward: int = 14_336,
    devices: int = 4,
    shards: int | None = None,
    dtype: str = "float32",
    combine: Combine = "single",
) -> DataflowGraph:
    """sum over experts e of gate_e(x) * (silu(x W1_e) * x W3_e) W2_e for x [tokens, width].

    gate = softmax(x R) where it is among the token's ``top_k`` largest, else 0, divided by their sum
    (experts that tie with the last one chosen count too). Every expert sees every token, so that all
    shapes are static. Each product is cut into ``shards`` pieces (one per device): rows, and columns of
    the feed-forward width. Defaults are the sizes of Mixtral 8x7B; cuts are our choice.

    Raises:
        GraphError: ``top_k`` is not within 1 and the number of experts.
    """
    if not 1 <= top_k <= experts:
        raise GraphError(f"top_k is {top_k}; expected 1 to {experts}, the number of experts.")
    columns, rows = balanced_factors(shards or devices, 2)
    program = TensorProgram(combine=combine)
    x = program.input("x", (tokens, width), (rows, 1), dtype)
    program.layer = 0
    gates = _gates(program, x, experts, top_k)
    program.layer = 1
    parts = []
    for expert in range(experts):
        result = _expert(program, x, f"expert_{expert}", feedforward, columns)
        gate = gates.narrow(1, expert, expert + 1)
        parts.append(program.elementwise("aten.mul.Tensor", result, gate, name=f"expert_{expert}.weigh"))
    program.layer = 2
    return program.finish({"result": program.accumulate(parts, name="mixture")}, title="moe_block")


def _gates(program: TensorProgram, x: ShardedTensor, experts: int, top_k: int) -> ShardedTensor:
    """[tokens, experts] weights, zero for the experts that were not chosen."""
    router = program.input("router", (x.shape[1], experts), None, x.dtype, "parameter")
    scores = softmax(program, program.product(x, router, name="router"), name="router.softmax")

    def largest(region: Region) -> Kernel:
        shape = extent(region)
        values = scores.read((region[0], (0, experts)))
        outputs = (TensorType(shape, x.dtype), TensorType(shape, "int64"))
        return Kernel("aten.topk.default", (values, top_k, 1), outputs)

    cuts = (scores.cuts[0], 1)
    best = program.tilewise(largest, (x.shape[0], top_k), cuts, kind="reduction", name="router.topk", dtype=x.dtype)
    chosen = program.elementwise("aten.ge.Tensor", scores, best.narrow(1, top_k - 1, top_k), dtype="bool")
    kept = program.elementwise("aten.mul.Tensor", scores, chosen, name="router.keep")
    total = program.reduce("sum", kept, 1, name="router.total")
    return program.elementwise("aten.div.Tensor", kept, total, name="router.gates")


def _expert(program: TensorProgram, x: ShardedTensor, name: str, feedforward: int, pieces: int) -> ShardedTensor:
    """(silu(x W1) * x W3) W2."""
    width = x.shape[1]
    into = [
        program.input(f"{name}.{part}", (width, feedforward), (1, pieces), x.dtype, "parameter")
        for part in ("gate", "up")
    ]
    back = program.input(f"{name}.down", (feedforward, width), (pieces, 1), x.dtype, "parameter")
    gate = program.elementwise("aten.silu.default", program.product(x, into[0], name=f"{name}.gate"))
    up = program.product(x, into[1], name=f"{name}.up")
    gated = program.elementwise("aten.mul.Tensor", gate, up, name=f"{name}.gated")
    return program.product(gated, back, name=f"{name}.down")
