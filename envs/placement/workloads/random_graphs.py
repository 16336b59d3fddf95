"""Generated graphs: chains, fork-joins, ladders, random layers, and random sharded tensor programs.

``seed`` is a number or a generator; equal numbers give equal graphs. Costs are drawn log-normally (deviation
1 in natural logarithms, our choice) around ``flops`` and ``out_bytes``.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from ...errors import GraphError
from ..graph import DataflowGraph
from .normalisation import softmax
from .tensor_program import ShardedTensor, TensorProgram

Seed = int | np.random.Generator
Edges = list[tuple[int, int]]

_UNARY = ("aten.relu.default", "aten.sigmoid.default", "aten.tanh.default", "aten.neg.default")
_BINARY = ("aten.add.Tensor", "aten.sub.Tensor", "aten.mul.Tensor", "aten.maximum.default")


def chain(length: int = 16, seed: Seed = 0, flops: float = 1e9, out_bytes: float = 1e6) -> DataflowGraph:
    """``length`` operations, each reading the one before."""
    _check_positive(length=length)
    edges = [(v, v + 1) for v in range(length - 1)]
    return _draw_costs("chain", length, edges, np.arange(length), seed, flops, out_bytes)


def fork_join(
    branches: int = 4,
    length: int = 2,
    stages: int = 2,
    seed: Seed = 0,
    flops: float = 1e9,
    out_bytes: float = 1e6,
) -> DataflowGraph:
    """``stages`` times: one operation forks into chains of ``length``, which join in the next one."""
    _check_positive(branches=branches, length=length, stages=stages)
    edges: Edges = []
    layer, last = [0], 0
    for stage in range(stages):
        join = last + branches * length + 1
        for branch in range(branches):
            path = [last, *range(last + 1 + branch * length, last + 1 + (branch + 1) * length), join]
            edges.extend(pairwise(path))
        layer += [stage] * (branches * length) + [stage + 1]
        last = join
    return _draw_costs("fork_join", len(layer), edges, np.array(layer), seed, flops, out_bytes)


def ladder(rungs: int = 8, seed: Seed = 0, flops: float = 1e9, out_bytes: float = 1e6) -> DataflowGraph:
    """``rungs`` diamonds in a row: 2^rungs paths with 3 * rungs + 1 operations."""
    _check_positive(rungs=rungs)
    edges: Edges = []
    for top in range(0, 3 * rungs, 3):
        edges += [(top, top + 1), (top, top + 2), (top + 1, top + 3), (top + 2, top + 3)]
    count = 3 * rungs + 1
    return _draw_costs("ladder", count, edges, np.arange(count) // 3, seed, flops, out_bytes)


def layered_random(
    layers: int = 8,
    width: int = 8,
    density: float = 0.3,
    seed: Seed = 0,
    flops: float = 1e9,
    out_bytes: float = 1e6,
) -> DataflowGraph:
    """``layers`` of ``width`` operations; an operation reads each one of the layer before with
    probability ``density``, and always at least one.
    """  # fmt: skip
    _check_positive(layers=layers, width=width)
    if not 0 <= density <= 1:
        raise GraphError(f"density is {density}; expected a probability from 0 to 1.")
    rng = np.random.default_rng(seed)
    edges: Edges = []
    for layer in range(1, layers):
        read = rng.random((width, width)) < density
        read[rng.integers(width, size=width), np.arange(width)] = True
        sources, targets = np.nonzero(read)
        edges += [(int(u) + (layer - 1) * width, int(v) + layer * width) for u, v in zip(sources, targets, strict=True)]
    numbers = np.repeat(np.arange(layers), width)
    return _draw_costs("layered_random", layers * width, edges, numbers, rng, flops, out_bytes)


def random_program(
    operations: int = 12, size: int = 64, pieces: int = 4, seed: Seed = 0, dtype: str = "float32"
) -> DataflowGraph:
    """A random sharded tensor program of ``operations`` sharded operations, executable.

    Values are square matrices of ``size``, cut at random into up to ``pieces`` per dimension; operations
    are products, element-wise operations, reductions that are added back, softmaxes, transposes and
    re-formations of earlier values. Values that nobody reads are returned.
    """
    _check_positive(operations=operations, size=size, pieces=pieces)
    rng = np.random.default_rng(seed)
    program = TensorProgram()
    limit = min(size, pieces)
    values = [program.input(f"x{i}", (size, size), _draw_cuts(rng, limit), dtype) for i in range(2)]
    unread: dict[int, ShardedTensor] = {}
    for step in range(operations):
        program.layer = step
        # Recent values are read more often, so that the graph is deep.
        first, second = (max(int(rng.integers(len(values))), int(rng.integers(len(values)))) for _ in range(2))
        result = _draw_operation(rng, program, values[first], values[second], limit)
        values.append(result)
        unread = {number: value for number, value in unread.items() if number not in (first, second)}
        unread[len(values) - 1] = result
    if not program.builder.kernels:
        unread = {len(values): program.copy(values[-1])}
    return program.finish(list(unread.values()), title="random_program")


def _draw_cuts(rng: np.random.Generator, limit: int) -> tuple[int, int]:
    return int(rng.integers(1, limit + 1)), int(rng.integers(1, limit + 1))


def _draw_operation(
    rng: np.random.Generator, program: TensorProgram, a: ShardedTensor, b: ShardedTensor, limit: int
) -> ShardedTensor:
    cuts = _draw_cuts(rng, limit)
    match int(rng.integers(7)):
        case 0:
            scaled = program.product(a, b, (cuts[0], int(rng.integers(1, limit + 1)), cuts[1]))
            return program.elementwise("aten.tanh.default", scaled)
        case 1:
            return program.elementwise(_UNARY[int(rng.integers(len(_UNARY)))], a, cuts=cuts)
        case 2:
            return program.elementwise(_BINARY[int(rng.integers(len(_BINARY)))], a, b, cuts=cuts)
        case 3:
            reduction = ("sum", "mean", "amax", "amin")[int(rng.integers(4))]
            return program.elementwise("aten.add.Tensor", b, program.reduce(reduction, a, int(rng.integers(2))))
        case 4:
            return softmax(program, a, int(rng.integers(2)), cuts)
        case 5:
            return program.elementwise("aten.mul.Tensor", program.permute(a, (1, 0)), b)
        case _:
            return program.copy(a, cuts)


def _check_positive(**counts: int) -> None:
    for name, value in counts.items():
        if value < 1:
            raise GraphError(f"{name} is {value}; expected at least 1.")


def _draw_costs(
    title: str,
    count: int,
    edges: Edges,
    layer: np.ndarray,
    seed: Seed,
    flops: float,
    out_bytes: float,
) -> DataflowGraph:
    rng = np.random.default_rng(seed)
    work = flops * rng.lognormal(0.0, 1.0, count)
    stored = np.round(out_bytes * rng.lognormal(0.0, 1.0, count))
    labels = [source for source, _ in edges]
    return DataflowGraph.build(
        title=title,
        flops=work,
        out_bytes=stored,
        bytes_moved=2 * stored,
        edges=edges,
        tensor=labels,
        layer=layer,
        kind=["matmul"] * count,
    )
