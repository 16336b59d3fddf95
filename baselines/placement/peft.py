"""PEFT: predict earliest finish time (Arabnejad, Barbosa, 2014)."""

from __future__ import annotations

import numpy as np
from numba import njit

from ...envs.placement import Placement, PlacementProblem
from .list_scheduling import schedule_by_rank


def peft(problem: PlacementProblem, *, rng: np.random.Generator, execution: str) -> Placement:
    """Like HEFT, but ranks and devices look ahead by a table of optimistic costs.

    The table [N, D] holds the longest path from the operation's end to an exit if every successor
    takes its best device; an operation goes where its end plus this entry is least.
    """
    graph = problem.graph
    table = np.zeros((problem.n, problem.d))
    seconds = np.where(problem.allowed, problem.compute_s, np.inf)
    _optimistic_costs(
        graph.topological_order[::-1].copy(), graph.out_ptr, graph.edge_target, problem.mean_transfer_s, seconds, table
    )
    return schedule_by_rank(problem, table.mean(axis=1), look_ahead=table)


@njit(cache=True)
def _optimistic_costs(order, pointer, target, transfer, seconds, table):  # type: ignore[no-untyped-def]
    d = table.shape[1]
    for v in order:
        for here in range(d):
            longest = 0.0
            for edge in range(pointer[v], pointer[v + 1]):
                w = target[edge]
                shortest = np.inf
                for there in range(d):
                    path = table[w, there] + seconds[w, there]
                    if there != here:
                        path += transfer[edge]
                    shortest = min(shortest, path)
                longest = max(longest, shortest)
            table[v, here] = longest
