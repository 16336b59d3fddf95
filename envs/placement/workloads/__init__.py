"""Graphs to place: the published DOPPLER workloads built from their mathematics, and generators.

``make_graph("chainmm")`` makes one by name; its options are the builder's parameters.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from ...errors import GraphError, UnknownNameError
from ..graph import DataflowGraph
from .chainmm import chainmm
from .ffnn import ffnn
from .llama import llama_block, llama_layer
from .llama_cuts import LlamaCuts
from .moe import moe_block
from .normalisation import layer_norm, log_softmax, rms_norm, softmax
from .published import published_costs
from .random_graphs import chain, fork_join, ladder, layered_random, random_program
from .sharded_tensor import ShardedTensor
from .tensor_program import TensorProgram

__all__ = [
    "WORKLOADS",
    "LlamaCuts",
    "ShardedTensor",
    "TensorProgram",
    "chain",
    "chainmm",
    "ffnn",
    "fork_join",
    "ladder",
    "layer_norm",
    "layered_random",
    "llama_block",
    "llama_layer",
    "log_softmax",
    "make_graph",
    "moe_block",
    "published_costs",
    "random_program",
    "rms_norm",
    "softmax",
]

WORKLOADS: dict[str, Callable[..., DataflowGraph]] = {
    builder.__name__: builder
    for builder in (
        chainmm,
        ffnn,
        llama_block,
        llama_layer,
        moe_block,
        chain,
        fork_join,
        ladder,
        layered_random,
        random_program,
    )
}
"""Name -> builder."""


def make_graph(name: str, *, costs: str = "real", **options: Any) -> DataflowGraph:
    """Build a workload by name; ``options`` are its builder's parameters.

    Args:
        costs: ``real`` - FLOPs and bytes; ``published`` - the cost columns of the public text files
            (``published_costs``), for the raw cost model.

    Raises:
        UnknownNameError: no such workload, option or cost model; the valid ones are listed.
        GraphError: the sizes and cuts do not fit together.
    """
    builder = WORKLOADS.get(name)
    if builder is None:
        raise UnknownNameError(f"There is no workload {name!r}; use one of {', '.join(WORKLOADS)}.")
    known = inspect.signature(builder).parameters
    for option in options:
        if option not in known:
            raise UnknownNameError(f"{name} has no option {option!r}; use one of {', '.join(known)}.")
    if costs not in ("real", "published"):
        raise UnknownNameError(f"{name}: costs is {costs!r}; expected real or published.")
    for option, value in options.items():
        if option != "seed" and isinstance(value, int) and not isinstance(value, bool) and value < 1:
            raise GraphError(f"{name}: {option} is {value}; expected a whole number from 1 up.")
    graph = builder(**options)
    return published_costs(graph) if costs == "published" else graph
