"""ENUMERATIVE OPTIMIZER: shard by shard along the sharded operations of a tensor program.

The paper names it as its authors' strong hand-made baseline; the algorithm here is our choice.
"""

from __future__ import annotations

import numpy as np

from ...envs.placement import DataflowGraph, Placement, PlacementProblem
from ...envs.placement.graph import Floats, Integers


def enumerative(problem: PlacementProblem, *, rng: np.random.Generator, execution: str) -> Placement:
    """Place one sharded operation after the other, each optimally given the earlier ones.

    The shards of one operation (``group``; without it: same kind, cost and depth) are spread evenly,
    or in proportion to speed, so that the time to bring their inputs is least. That is an assignment
    problem, solved exactly; ties go to the device where a shard would end first.
    """
    graph = problem.graph
    assignment = np.full(problem.n, -1, dtype=np.int32)
    end, free = np.zeros(problem.n), np.zeros(problem.d)
    order: list[int] = []
    for shards in meta_operations(graph):
        ready, moved = _arrivals(problem, shards, assignment, end)
        devices = _assign(problem, shards, ready, moved, free)
        for i in np.lexsort((shards, ready[np.arange(len(shards)), devices])):
            v, device = shards[i], devices[i]
            assignment[v] = device
            free[device] = max(free[device], ready[i, device]) + problem.compute_s[v, device]
            end[v] = free[device]
            order.append(int(v))
    return Placement(assignment, np.array(order, dtype=np.int32))


def meta_operations(graph: DataflowGraph) -> list[Integers]:
    """The sharded operations in topological order, each as the numbers of its shards.

    Shards that depend on each other (chains of partial sums) are split by depth.
    """
    labels = [
        (int(depth), "group", int(group), 0.0) if group >= 0 else (int(depth), kind, -1, float(cost))
        for depth, group, kind, cost in zip(graph.depth, graph.group, graph.kind, graph.flops, strict=True)
    ]
    members: dict[tuple, list[int]] = {}
    for v in graph.topological_order.tolist():
        members.setdefault(labels[v], []).append(v)
    return [np.array(sorted(members[label]), dtype=np.int32) for label in sorted(members, key=lambda item: item[0])]


def _arrivals(problem: PlacementProblem, shards: Integers, assignment: Integers, end: Floats) -> tuple[Floats, Floats]:
    """[S, D] when the inputs of each shard could be on each device, and the transfer time they take."""
    graph, rate, delay = problem.graph, problem.seconds_per_byte, problem.latency
    ready, moved = np.zeros((len(shards), problem.d)), np.zeros((len(shards), problem.d))
    for i, v in enumerate(shards):
        edges = graph.in_edge[graph.in_ptr[v] : graph.in_ptr[v + 1]]
        source = graph.edge_source[edges]
        if len(edges):
            here = assignment[source]
            seconds = delay[here] + graph.edge_bytes[edges, None] * rate[here]
            ready[i] = (end[source, None] + seconds).max(axis=0)
            moved[i] = seconds.sum(axis=0)
    return ready, moved


def _assign(problem: PlacementProblem, shards: Integers, ready: Floats, moved: Floats, free: Floats) -> Integers:
    """[S] devices: least transfer time, then earliest end, with balanced numbers of shards."""
    from scipy.optimize import linear_sum_assignment

    seconds = problem.compute_s[shards]
    finish = np.maximum(ready, free) + seconds
    speed = 1.0 / np.maximum(seconds.mean(axis=0), 1e-300)
    places = np.ceil(len(shards) * speed / speed.sum() - 1e-9).astype(int)
    column = np.repeat(np.arange(problem.d), np.maximum(places, 1))
    # the copies of one device finish one after the other
    turn = np.concatenate([np.arange(count) for count in np.maximum(places, 1)])
    scale = max(float(moved.max()), float(finish.max()), 1e-300)
    late = finish[:, column] + turn * seconds[:, column]
    price = moved[:, column] / scale + 1e-6 * late / max(float(late.max()), 1e-300)
    price = np.where(problem.allowed[shards][:, column], price, 1e6)
    rows, chosen = linear_sum_assignment(price)
    devices = np.empty(len(shards), dtype=np.int32)
    devices[rows] = column[chosen]
    blocked = ~problem.allowed[shards, devices]
    if blocked.any():  # pins leave no balanced assignment: these shards go where they end first
        devices[blocked] = np.where(problem.allowed[shards], finish, np.inf)[blocked].argmin(axis=1)
    return devices
