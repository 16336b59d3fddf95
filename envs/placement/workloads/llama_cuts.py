"""How the operations of a LLaMA layer are cut: the published plans for 4 and 8 devices, and a rule."""

from __future__ import annotations

from dataclasses import dataclass

from .sharded_tensor import balanced_factors

Pair = tuple[int, int]
Triple = tuple[int, int, int]


@dataclass(frozen=True)
class LlamaCuts:
    """Numbers of pieces per dimension.

    Attributes:
        states: (rows, columns) of the layer's input and of its first normalisation's statistics.
        attention_input: (rows, columns) of the normalised input of attention.
        query: (rows, inner, heads) of the query projection.
        key_value: (rows, inner, heads) of the key and value projections.
        attention: (heads, queries, keys).
        output: (rows, inner in heads, columns) of the output projection and of the second
            normalisation's statistics.
        feedforward_input: (rows, columns) of the normalised input of the feed-forward network.
        up: (rows, inner, columns) of the two products into the feed-forward width.
        down: (rows, inner, columns) of the product back, and of the layer's output.
        vocabulary: columns of the vocabulary projection.
    """

    states: Pair
    attention_input: Pair
    query: Triple
    key_value: Triple
    attention: Triple
    output: Triple
    feedforward_input: Pair
    up: Triple
    down: Triple
    vocabulary: int


_BLOCK = {
    4: LlamaCuts(
        states=(2, 2),
        attention_input=(2, 2),
        query=(1, 2, 2),
        key_value=(2, 1, 2),
        attention=(2, 1, 2),
        output=(1, 2, 2),
        feedforward_input=(1, 1),
        up=(1, 1, 4),
        down=(1, 4, 1),
        vocabulary=4,
    ),
    8: LlamaCuts(
        states=(2, 4),
        attention_input=(2, 2),
        query=(2, 2, 2),
        key_value=(2, 2, 2),
        attention=(2, 2, 2),
        output=(2, 2, 2),
        feedforward_input=(1, 2),
        up=(1, 2, 4),
        down=(1, 4, 2),
        vocabulary=8,
    ),
}
_LAYER = {
    4: LlamaCuts(
        states=(2, 2),
        attention_input=(2, 2),
        query=(2, 1, 2),
        key_value=(1, 2, 2),
        attention=(2, 2, 1),
        output=(2, 2, 1),
        feedforward_input=(2, 1),
        up=(2, 1, 2),
        down=(2, 2, 1),
        vocabulary=4,
    ),
    8: LlamaCuts(
        states=(2, 4),
        attention_input=(2, 2),
        query=(2, 2, 2),
        key_value=(2, 2, 2),
        attention=(2, 2, 2),
        output=(2, 2, 2),
        feedforward_input=(2, 1),
        up=(2, 1, 4),
        down=(2, 4, 1),
        vocabulary=8,
    ),
}


def block_cuts(devices: int) -> LlamaCuts:
    """Plan of LLAMA-BLOCK: as published for 4 and 8 devices, else ``even_cuts``."""
    return _BLOCK.get(devices) or even_cuts(devices)


def layer_cuts(devices: int) -> LlamaCuts:
    """Plan of LLAMA-LAYER: as published for 4 and 8 devices, else ``even_cuts``."""
    return _LAYER.get(devices) or even_cuts(devices)


def even_cuts(devices: int) -> LlamaCuts:
    """One piece per device: balanced pieces of the rows and of the heads or columns (our choice)."""
    columns, rows = balanced_factors(devices, 2)
    return LlamaCuts(
        states=(rows, columns),
        attention_input=(rows, columns),
        query=(rows, 1, columns),
        key_value=(rows, 1, columns),
        attention=(columns, rows, 1),
        output=(rows, 1, columns),
        feedforward_input=(rows, columns),
        up=(rows, 1, columns),
        down=(rows, columns, 1),
        vocabulary=devices,
    )
