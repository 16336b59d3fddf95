"""LLAMA-BLOCK and LLAMA-LAYER: decoder layers of LLaMA, tile by tile.

A layer is h + FFN(norm(h)) with h = x + Attention(norm(x)): RMS normalisation in single precision, rotary
position embedding as a complex product, attention, and a SwiGLU feed-forward network. LLAMA-BLOCK is one
layer without a mask. LLAMA-LAYER adds the causal mask, the selection of the rotary frequencies and, for the
last token, the final normalisation and the projection to the vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

from ...errors import GraphError
from ..graph import DataflowGraph
from ..kernel import Kernel, TensorType
from .llama_cuts import LlamaCuts, block_cuts, layer_cuts
from .normalisation import rms_norm, softmax
from .sharded_tensor import Region, boundaries, extent, view_of
from .tensor_program import Combine, Cut, ShardedTensor, TensorProgram

MASKED = -65504.0
"""Score of a masked position: the most negative number of every dtype down to float16."""


@dataclass
class _Model:
    """Sizes, cuts and the program under construction."""

    program: TensorProgram
    cuts: LlamaCuts
    sequence: int
    width: int
    heads: int
    feedforward: int
    dtype: str
    prefix: str = ""

    @property
    def head_width(self) -> int:
        return self.width // self.heads

    @property
    def wide(self) -> str:
        """The dtype of normalisation, rotation and softmax."""
        return "float64" if self.dtype == "float64" else "float32"

    def head_columns(self, pieces: int) -> Cut:
        """Boundary list of the width that cuts between heads."""
        return tuple(head * self.head_width for head in boundaries(self.heads, pieces))

    def weight(self, name: str, shape: tuple[int, ...], cuts: tuple[Cut, ...]) -> ShardedTensor:
        return self.program.input(self.prefix + name, shape, cuts, self.dtype, "parameter")


def llama_block(
    sequence: int = 4096,
    width: int = 4096,
    heads: int = 32,
    feedforward: int = 11_008,
    devices: int = 4,
    cuts: LlamaCuts | None = None,
    dtype: str = "float32",
    combine: Combine = "single",
) -> DataflowGraph:
    """One decoder layer without a mask on x [sequence, width].

    Defaults are LLaMA-7B; with 4 and 8 devices the graph is the published one (182 and 302 operations, 33
    and 54 input tiles). Inputs: ``x``, the complex rotary ``frequencies`` [sequence, head width / 2], and
    the weights, laid out [in, out].
    """
    plan = cuts or block_cuts(devices)
    model = _model(plan, sequence, width, heads, feedforward, dtype, combine)
    x = model.program.input("x", (sequence, width), plan.states, dtype)
    shape = (sequence, model.head_width // 2)
    complex_dtype = "complex128" if model.wide == "float64" else "complex64"
    frequencies = model.program.input("frequencies", shape, (plan.key_value[0], 1), complex_dtype, "buffer")
    model.program.layer = 0
    return model.program.finish({"result": _decoder_layer(model, x, frequencies, None)}, title="llama_block")


def llama_layer(
    sequence: int = 4096,
    width: int = 4096,
    heads: int = 32,
    feedforward: int = 11_008,
    vocabulary: int = 32_000,
    layers: int = 1,
    devices: int = 4,
    cuts: LlamaCuts | None = None,
    dtype: str = "float32",
    combine: Combine = "single",
) -> DataflowGraph:
    """Decoder layers with a causal mask on x [sequence, width], then the last token's logits [vocabulary].

    Defaults are one layer of LLaMA-7B and its head; with 4 and 8 devices the graph is the published one
    (229 and 367 operations, 32 and 50 input tiles). Inputs: ``x``, ``positions`` [sequence] (integers), the
    table of complex rotary ``frequencies`` [2 sequence, head width / 2], and the weights.
    """
    plan = cuts or layer_cuts(devices)
    model = _model(plan, sequence, width, heads, feedforward, dtype, combine)
    program = model.program
    program.layer = 0
    x = program.input("x", (sequence, width), plan.states, dtype)
    positions = program.input("positions", (sequence,), None, "int64", "buffer")
    mask = _causal_mask(model, positions)
    complex_dtype = "complex128" if model.wide == "float64" else "complex64"
    table = program.input("frequencies", (2 * sequence, model.head_width // 2), None, complex_dtype, "buffer")
    frequencies = program.copy(table.narrow(0, 0, sequence), kind="gather", name="frequencies.select")
    for layer in range(layers):
        program.layer, model.prefix = layer, f"layer_{layer}." if layers > 1 else ""
        x = _decoder_layer(model, x, frequencies, mask)
    program.layer, model.prefix = layers, ""
    return program.finish({"logits": _head(model, x, vocabulary)}, title="llama_layer")


def _model(
    cuts: LlamaCuts, sequence: int, width: int, heads: int, feedforward: int, dtype: str, combine: Combine
) -> _Model:
    if width % heads or (width // heads) % 2:
        raise GraphError(f"A width of {width} does not give {heads} heads of an even width; change one of them.")
    program = TensorProgram(combine=combine, form_singles=True)
    return _Model(program, cuts, sequence, width, heads, feedforward, dtype)


def _decoder_layer(
    model: _Model, x: ShardedTensor, frequencies: ShardedTensor, mask: ShardedTensor | None
) -> ShardedTensor:
    """h + FFN(norm(h)) with h = x + Attention(norm(x))."""
    program, cuts = model.program, model.cuts
    rows, _, columns = cuts.output
    attended = _attention(model, _norm(model, x, "attention_norm", cuts.attention_input), frequencies, mask)
    h = program.elementwise("aten.add.Tensor", x, attended, cuts=(rows, columns), name="attention.residual")
    rows, _, columns = cuts.down
    fed = _feedforward(model, _norm(model, h, "feedforward_norm", cuts.feedforward_input))
    return program.elementwise("aten.add.Tensor", h, fed, cuts=(rows, columns), name="feedforward.residual")


def _norm(model: _Model, x: ShardedTensor, name: str, cuts: tuple[int, int]) -> ShardedTensor:
    weight = model.weight(name, (model.width,), (cuts[1],))
    wide = model.program.cast(x, model.wide)
    return rms_norm(model.program, wide, weight, cuts=cuts, name=name, dtype=model.dtype)


def _attention(
    model: _Model, x: ShardedTensor, frequencies: ShardedTensor, mask: ShardedTensor | None
) -> ShardedTensor:
    """softmax(Q K^T / sqrt(head width)) V, projected back to the width."""
    program, cuts = model.program, model.cuts
    query = _project(model, x, "query", cuts.query)
    key = _project(model, x, "key", cuts.key_value)
    value = _project(model, x, "value", cuts.key_value)
    query, key = (_rotate(model, t, frequencies, name) for t, name in ((query, "query"), (key, "key")))
    query, key, value = (tensor.permute((1, 0, 2)) for tensor in (query, key, value))
    pieces: dict[str, Cut] = dict(zip("hqk", cuts.attention, strict=True))
    scores = program.einsum("hqd,hkd->hqk", query, key, pieces, name="scores")
    scores = program.elementwise("aten.mul.Tensor", scores, 1 / sqrt(model.head_width), name="scores.scale")
    if mask is not None:
        scores = program.elementwise("aten.masked_fill.Scalar", scores, mask, MASKED, name="scores.mask")
    weights = program.cast(softmax(program, program.cast(scores, model.wide)), model.dtype)
    mixed = program.einsum("hqk,hkd->hqd", weights, value, pieces, name="mixed")
    rows, inner, columns = cuts.output
    weight = model.weight("output", (model.width, model.width), (model.head_columns(inner), columns))
    by_head = program.reshape(weight, (model.heads, model.head_width, model.width))
    return program.einsum("hqd,hdn->qn", mixed, by_head, {"h": inner, "q": rows, "n": columns}, name="output")


def _project(model: _Model, x: ShardedTensor, name: str, cuts: tuple[int, int, int]) -> ShardedTensor:
    """x W as [sequence, heads, head width]."""
    rows, inner, heads = cuts
    columns = model.head_columns(heads)
    weight = model.weight(name, (model.width, model.width), (inner, columns))
    projected = model.program.product(x, weight, (rows, inner, columns), name=name)
    return model.program.reshape(projected, (model.sequence, model.heads, model.head_width))


def _rotate(model: _Model, x: ShardedTensor, frequencies: ShardedTensor, name: str) -> ShardedTensor:
    """Rotary embedding: neighbouring pairs of the last dimension as complex numbers, times ``frequencies``."""
    program, half = model.program, model.head_width // 2
    wide = program.cast(x, model.wide)

    def to_complex(region: Region) -> Kernel:
        shape = extent(region)
        pairs = view_of(wide.read((*region[:2], wide.whole[2])), "aten.view.default", ((*shape, 2),), (*shape, 2))
        numbers = view_of(pairs, "aten.view_as_complex.default", (), shape)
        return Kernel("aten.clone.default", (numbers,), (TensorType(shape, frequencies.dtype),))

    shape = (model.sequence, model.heads, half)
    numbers = program.tilewise(
        to_complex, shape, (*wide.cuts[:2], 1), kind="copy", name=f"{name}.complex", dtype=frequencies.dtype
    )
    factors = program.reshape(frequencies, (model.sequence, 1, half))
    turned = program.elementwise("aten.mul.Tensor", numbers, factors, name=f"{name}.rotate")

    def to_real(region: Region) -> Kernel:
        shape = extent(region)
        pairs = view_of(turned.read((*region[:2], turned.whole[2])), "aten.view_as_real.default", (), shape)
        return Kernel(
            "aten.clone.default",
            (view_of(pairs, "aten.view.default", (shape,), shape),),
            (TensorType(shape, model.wide),),
        )

    real = program.tilewise(to_real, x.shape, wide.cuts, kind="copy", name=f"{name}.complex", dtype=model.wide)
    return program.cast(real, model.dtype)


def _feedforward(model: _Model, x: ShardedTensor) -> ShardedTensor:
    """(silu(x W1) * x W3) W2."""
    program = model.program
    rows, inner, columns = model.cuts.up
    shape = (model.width, model.feedforward)
    gate = program.product(x, model.weight("gate", shape, (inner, columns)), (rows, inner, columns), name="gate")
    gate = program.elementwise("aten.silu.default", gate)
    up = program.product(x, model.weight("up", shape, (inner, columns)), (rows, inner, columns), name="up")
    gated = program.elementwise("aten.mul.Tensor", gate, up, name="gated")
    rows, inner, columns = model.cuts.down
    weight = model.weight("down", (model.feedforward, model.width), (inner, columns))
    return program.product(gated, weight, (rows, inner, columns), name="down")


def _causal_mask(model: _Model, positions: ShardedTensor) -> ShardedTensor:
    """bool [query, key]: true where the key comes after the query."""
    _, queries, keys = model.cuts.attention
    row, column = (model.program.reshape(positions, shape) for shape in ((1, model.sequence), (model.sequence, 1)))
    return model.program.elementwise(
        "aten.gt.Tensor", row, column, cuts=(queries, keys), dtype="bool", name="mask.fill"
    )


def _head(model: _Model, x: ShardedTensor, vocabulary: int) -> ShardedTensor:
    """Logits of the last token."""
    program = model.program
    normed = _norm(model, x, "norm", (x.grid[0], 1))
    last = program.copy(normed.narrow(0, model.sequence - 1, model.sequence), kind="gather", name="last.select")
    token = program.copy(program.reshape(last, (model.width,)), name="last.squeeze")
    weight = model.weight("vocabulary", (model.width, vocabulary), (1, model.cuts.vocabulary))
    return program.einsum("k,kn->n", token, weight, name="vocabulary")
