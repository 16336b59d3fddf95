"""Bytes that were held on each device in the course of a measured schedule."""

from __future__ import annotations

import numpy as np

from ...envs.placement import PlacementProblem, Transfers
from ...envs.placement.graph import Floats, Integers


def peak_memory(
    problem: PlacementProblem, assignment: Integers, start: Floats, end: Floats, transfers: Transfers
) -> Floats:
    """[D] most bytes that were held at once, by the simulator's rules.

    A device holds the graph inputs that its operations read; outputs from their operation's start until the last
    consumer there and the last transfer have ended (for ever, where the graph returns them or nobody reads them); and
    received copies from the transfer's start until their last consumer has ended.
    """
    graph, last = problem.graph, end.copy()
    here = assignment[graph.edge_source] == assignment[graph.edge_target]
    np.fmax.at(last, graph.edge_source[here], end[graph.edge_target[here]])
    np.fmax.at(last, transfers.operation, transfers.end)
    last[problem.arrays.returned] = np.inf
    copy_last = np.full((max(len(problem.tensor_ptr) - 1, 1), problem.d), -np.inf)
    tensor = problem.arrays.edge_tensor
    np.fmax.at(copy_last, (tensor, assignment[graph.edge_target]), end[graph.edge_target])
    device = np.concatenate([assignment, transfers.target])
    begin = np.concatenate([start, transfers.start])
    until = np.concatenate([last, copy_last[transfers.tensor, transfers.target]])
    size = np.concatenate([graph.out_bytes, transfers.bytes])
    peak = np.zeros(problem.d)
    for number in range(problem.d):
        mine = (device == number) & ~np.isnan(begin)
        peak[number] = _inputs(problem, assignment == number) + _most_at_once(begin[mine], until[mine], size[mine])
    return peak


def _inputs(problem: PlacementProblem, mine: Integers) -> float:
    """Bytes of the graph inputs that some operations read."""
    reader = np.repeat(np.arange(problem.n), np.diff(problem.graph.input_ptr))
    read = np.unique(problem.graph.input_index[mine[reader]])
    return float(problem.input_bytes[read].sum()) if read.size else 0.0


def _most_at_once(begin: Floats, until: Floats, size: Floats) -> float:
    """Most bytes alive; at one instant what ends goes before what begins."""
    time, change = np.concatenate([begin, until]), np.concatenate([size, -size])
    order = np.lexsort((change, time))
    return float(np.cumsum(change[order]).max(initial=0.0))
