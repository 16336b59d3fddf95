"""What a policy is told about a problem before the first decision, as tensors."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...envs.placement import EpisodeBatch, PlacementProblem
from ...envs.placement.features import NODE_FEATURES, longest_paths, static_features

SCALED_FEATURES = (
    "computation",
    "communication_in",
    "communication_out",
    "largest_tensor",
    "b_level",
    "t_level",
    "in_degree",
    "out_degree",
    "best_device",
    "allowed",
    "group_size",
    "shard",
    "shard_sine",
    "shard_cosine",
)
"""Columns beside the standardised ``NODE_FEATURES``, which keep what standardising loses: times in mean
computations (logarithms) or in lower bounds (levels); how much faster the best device is; which shard of its
sharded operation this is, as a share and as an angle. Our choice."""

PROBLEM_FEATURES = (
    "operations",
    "devices",
    "parallelism",
    "communication",
    "unequal",
    "contended",
    "latency",
    "memory",
)
"""Columns that are alike for all operations of a problem. Our choice."""

EDGE_COLUMNS = 3
"""Features of an edge: standardised seconds, seconds in mean computations (logarithm), share of its tensor."""


@dataclass(frozen=True, eq=False)
class ProblemInputs:
    """Tensors of one problem; float32.

    Attributes:
        nodes: [N, K] features of operations, random ones last.
        edge_index: int64 [2, E].
        edges: [E, EDGE_COLUMNS].
        to_exit, to_entry: jumps along each operation's longest path, see ``path_jumps``.
        longest: operations on the longest path of all.
        unit: mean seconds of an operation, the unit of times among the policy's device features.
        scale: the bound by which the environment divides its times.
    """

    problem: PlacementProblem
    nodes: Tensor
    edge_index: Tensor
    edges: Tensor
    to_exit: tuple[Tensor, ...]
    to_entry: tuple[Tensor, ...]
    longest: int
    unit: float
    scale: float

    def to(self, device: torch.device) -> ProblemInputs:
        """The same tensors on another device."""
        if self.nodes.device == device:
            return self
        return replace(
            self,
            nodes=self.nodes.to(device),
            edge_index=self.edge_index.to(device),
            edges=self.edges.to(device),
            to_exit=tuple(jump.to(device) for jump in self.to_exit),
            to_entry=tuple(jump.to(device) for jump in self.to_entry),
        )


def node_columns(random: int) -> int:
    """Number of node features of a policy with ``random`` random ones."""
    return len(NODE_FEATURES) + len(SCALED_FEATURES) + len(PROBLEM_FEATURES) + random


def problem_inputs(problem: PlacementProblem, rng: np.random.Generator, random: int) -> ProblemInputs:
    """Compute the inputs of a problem; ``rng`` draws ``random`` features of each operation.

    The random features tell apart shards that no other feature does, so that a policy can treat them differently.
    """
    static = static_features(problem)
    unit = float(problem.mean_s.mean()) or 1.0
    batch = EpisodeBatch(problem, 1)
    depth = int(problem.graph.depth.max()) + 1
    columns = (
        static.nodes,
        _scaled_features(problem, unit, batch.scale),
        np.tile(_problem_features(problem, unit), (problem.n, 1)),
        rng.standard_normal((problem.n, random)),
    )
    return ProblemInputs(
        problem=problem,
        nodes=torch.from_numpy(np.concatenate(columns, axis=1).astype(np.float32)),
        edge_index=torch.from_numpy(static.edge_index.astype(np.int64)),
        edges=torch.from_numpy(_edge_features(problem, static.edges, unit)),
        to_exit=path_jumps(static.next_to_exit, depth),
        to_entry=path_jumps(static.next_to_entry, depth),
        longest=depth,
        unit=unit,
        scale=batch.scale,
    )


def path_jumps(following: NDArray[np.int32], depth: int) -> tuple[Tensor, ...]:
    """Where 1, 2, 4, ... steps along a path lead: int64 [N + 1] each, N at the path's end.

    With them the sums over all paths take log2(depth) additions of whole arrays, however long the paths are.
    """
    n = len(following)
    jump = np.append(np.where(following < 0, n, following), n).astype(np.int64)
    jumps = []
    for _ in range(max(depth - 1, 1).bit_length()):
        jumps.append(torch.from_numpy(jump))
        jump = jump[jump]
    return tuple(jumps)


def path_sums(values: Tensor, jumps: tuple[Tensor, ...]) -> Tensor:
    """[N, W] sum of ``values`` over each operation's path, itself included."""
    sums = torch.cat((values, values.new_zeros(1, values.shape[1])))
    for jump in jumps:
        sums = sums + sums[jump]
    return sums[:-1]


def _scaled_features(problem: PlacementProblem, unit: float, scale: float) -> NDArray[np.float64]:
    graph, transfer = problem.graph, problem.mean_transfer_s
    (to_exit, _), (to_entry, _) = longest_paths(problem)
    largest = np.zeros(problem.n)
    np.maximum.at(largest, graph.edge_source, transfer)
    size = np.ones(problem.n)
    grouped = graph.group >= 0
    _, number, count = np.unique(graph.group[grouped], return_inverse=True, return_counts=True)
    size[grouped] = count[number]
    share = np.where(graph.shard >= 0, graph.shard / size, 0.0)
    return np.stack(
        (
            np.log1p(problem.mean_s / unit),
            np.log1p(np.bincount(graph.edge_target, transfer, minlength=problem.n) / unit),
            np.log1p(np.bincount(graph.edge_source, transfer, minlength=problem.n) / unit),
            np.log1p(largest / unit),
            to_exit / scale,
            (to_entry - problem.mean_s) / scale,
            np.log1p(graph.in_degree),
            np.log1p(np.diff(graph.out_ptr)),
            problem.best_s / np.where(problem.mean_s > 0, problem.mean_s, 1.0),
            problem.allowed.mean(axis=1),
            np.log(size),
            share,
            np.sin(2 * np.pi * share),
            np.cos(2 * np.pi * share),
        ),
        axis=1,
    ).clip(-10.0, 10.0)


def _problem_features(problem: PlacementProblem, unit: float) -> NDArray[np.float64]:
    work, transfer = float(problem.mean_s.sum()), float(problem.mean_transfer_s.sum())
    longest = float(longest_paths(problem)[0][0].max()) or 1.0
    speed = problem.compute_s.sum(axis=0)
    capacity = float(problem.topology.memory_bytes.sum())
    carried = float(problem.input_bytes.sum() + problem.graph.out_bytes.sum())
    apart = ~np.eye(problem.d, dtype=bool)
    return np.array(
        (
            np.log(problem.n) / 5.0,
            np.log2(problem.d),
            np.log1p(work / longest),
            np.log1p(transfer / work) if work > 0 else 0.0,
            1.0 - speed.min() / speed.max() if speed.max() > 0 else 0.0,
            float(problem.contention != "none"),
            np.log1p(problem.latency[apart].mean() / unit) if problem.d > 1 else 0.0,
            _part(carried, capacity) if problem.memory != "off" else 0.0,
        )
    )


def _part(carried: float, capacity: float) -> float:
    """How full devices would be if everything stayed on them, at most 1."""
    return min(carried / capacity, 1.0) if capacity > 0 else float(carried > 0)


def _edge_features(problem: PlacementProblem, standardised: NDArray[np.float32], unit: float) -> NDArray[np.float32]:
    sharers = np.diff(problem.tensor_ptr)
    share = 1.0 / np.repeat(sharers, sharers)
    scaled = np.log1p(problem.mean_transfer_s / unit)
    return np.stack((standardised[:, 0], scaled, share), axis=1).astype(np.float32).reshape(-1, EDGE_COLUMNS)
