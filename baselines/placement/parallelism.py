"""The placements that people use by hand: tensor parallel and pipeline parallel."""

from __future__ import annotations

import numpy as np

from ...envs.errors import PlacementError
from ...envs.placement import Placement, PlacementProblem
from ...envs.placement.graph import Floats, Integers
from .simple import nearest_allowed


class GraphStructureError(PlacementError):
    """The graph has nothing that a method by hand goes by; other methods can place it."""


def tensor_parallel(problem: PlacementProblem, *, rng: np.random.Generator, execution: str) -> Placement:
    """Shard k of every sharded operation on device k mod D; what is not sharded goes where most inputs are.

    Raises:
        GraphStructureError: the graph has no shards.
    """
    graph = problem.graph
    if not (graph.shard >= 0).any():
        raise GraphStructureError(
            f"{graph.title}: tensor_parallel needs a graph with shards; tile it first, or use another method."
        )
    assignment = np.where(graph.shard >= 0, graph.shard % problem.d, -1)
    for v in graph.topological_order:
        if assignment[v] < 0:
            edges = graph.in_edge[graph.in_ptr[v] : graph.in_ptr[v + 1]]
            here = assignment[graph.edge_source[edges]]
            assignment[v] = np.bincount(here, graph.edge_bytes[edges], minlength=problem.d).argmax()
    return Placement(nearest_allowed(problem, assignment), graph.topological_order)


def pipeline(problem: PlacementProblem, *, rng: np.random.Generator, execution: str) -> Placement:
    """Consecutive layers on consecutive devices, cut so that the slowest stage is fastest.

    Layers are the graph's own, or, where it names fewer than there are devices, its levels of depth.

    Raises:
        GraphStructureError: the graph has a single layer.
    """
    graph = problem.graph
    named = (graph.layer >= 0).all() and len(np.unique(graph.layer)) >= problem.d
    layers, number = np.unique(graph.layer if named else graph.depth, return_inverse=True)
    if len(layers) < 2:
        raise GraphStructureError(f"{graph.title}: pipeline needs a graph with two layers or more; use another method.")
    seconds = np.zeros((len(layers), problem.d))
    np.add.at(seconds, number, problem.compute_s)
    stage = balanced_stages(seconds)
    order = np.lexsort((_positions(graph.topological_order), graph.depth)).astype(np.int32)
    return Placement(nearest_allowed(problem, stage[number]), order)


def balanced_stages(seconds: Floats) -> Integers:
    """[L] device of each layer: contiguous, in device order, the largest sum least (dynamic programming).

    ``seconds`` [L, D] is each layer's time on each device; devices may stay empty.
    """
    layers, devices = seconds.shape
    prefix = np.vstack([np.zeros(devices), np.cumsum(seconds, axis=0)])
    best = prefix[:, 0].copy()
    cuts = np.zeros((devices, layers + 1), dtype=np.int64)
    for device in range(1, devices):
        stage = prefix[None, :, device] - prefix[:, None, device]  # [first, end]
        worst = np.maximum(best[:, None], stage)
        worst[np.tril_indices(layers + 1, -1)] = np.inf
        cuts[device] = layers - worst[::-1].argmin(axis=0)  # the last of equals: later devices take less
        best = worst[cuts[device], np.arange(layers + 1)]
    assignment = np.zeros(layers, dtype=np.int32)
    end = layers
    for device in range(devices - 1, -1, -1):
        first = int(cuts[device, end])
        assignment[first:end] = device
        end = first
    return assignment


def _positions(order: Integers) -> Integers:
    position = np.empty_like(order)
    position[order] = np.arange(len(order))
    return position
