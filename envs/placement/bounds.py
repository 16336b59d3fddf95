"""Lower bounds on the makespan of every placement and every order."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit

from .graph import Floats
from .problem import PlacementProblem


@dataclass(frozen=True)
class LowerBounds:
    """Bounds in seconds (or the problem's raw unit), valid for any assignment, order and contention.

    Attributes:
        load: total work spread over all devices without a gap (a linear program if they differ).
        critical_path: longest chain, each operation on its fastest device, transfers for free.
        communication: longest chain where at every join and fan-out the producers (consumers)
            either share a device one after the other or wait for a transfer.
    """

    load: float
    critical_path: float
    communication: float

    @property
    def best(self) -> float:
        """The largest of them."""
        return max(self.load, self.critical_path, self.communication)

    @property
    def name(self) -> str:
        """Which bound is the largest."""
        values = {"communication": self.communication, "load": self.load, "critical path": self.critical_path}
        return max(values, key=lambda label: values[label])


def lower_bounds(problem: PlacementProblem) -> LowerBounds:
    """Compute all bounds (our choice of three; placement on unrelated devices has no closed form)."""
    heads, tails = path_bounds(problem, communication=True)
    plain_heads, _ = path_bounds(problem, communication=False)
    return LowerBounds(
        load=_load_bound(problem),
        critical_path=float(plain_heads.max()),
        communication=float((heads + tails).max()),
    )


def path_bounds(problem: PlacementProblem, *, communication: bool = True) -> tuple[Floats, Floats]:
    """Earliest end [N] of each operation, and least time [N] from its end to the end of the run."""
    graph = problem.graph
    duration = problem.best_s
    transfer = problem.least_transfer_s if communication else np.zeros(graph.e)
    allowed = np.ascontiguousarray(problem.allowed)
    order = graph.topological_order
    heads = np.zeros(problem.n)
    _earliest_ends(order, graph.in_ptr, graph.in_edge, graph.edge_source, transfer, duration, allowed, heads)
    reverse_ends = np.zeros(problem.n)
    edges = np.arange(graph.e, dtype=np.int32)
    _earliest_ends(
        order[::-1].copy(), graph.out_ptr, edges, graph.edge_target, transfer, duration, allowed, reverse_ends
    )
    return heads, reverse_ends - duration


@njit(cache=True)
def _earliest_ends(order, pointer, edges, other_end, transfer, duration, allowed, ends):  # type: ignore[no-untyped-def]
    """Fill ``ends``: for each operation, no schedule can end it sooner.

    At a join, sort the producers by when their tensor could arrive from another device, latest
    first. Either none of the first k waits for a transfer, so they share the consumer's device and
    run there one after the other; or one of them does. The minimum over k of the larger of the two
    is a bound. Read against the edges, the same holds for a fan-out.
    """
    for v in order:
        first, last = pointer[v], pointer[v + 1]
        count = last - first
        arrival, begin, length = np.empty(count), np.empty(count), np.empty(count)
        together = np.ones(count, np.bool_)
        for i in range(count):
            edge = edges[first + i]
            u = other_end[edge]
            arrival[i] = ends[u] + transfer[edge]
            begin[i] = ends[u] - duration[u]
            length[i] = duration[u]
            together[i] = (allowed[u] & allowed[v]).any()
            for j in range(i):  # a parallel edge: one producer, the later of its tensors
                if other_end[edges[first + j]] == u:
                    arrival[i] = max(arrival[i], arrival[j])
                    arrival[j], length[j] = -1.0, 0.0
        ends[v] = duration[v] + _least_start(arrival, begin, length, together)


@njit(cache=True)
def _least_start(arrival, begin, length, together):  # type: ignore[no-untyped-def]
    """Minimum over k of max(the k latest run in sequence, the next one is sent)."""
    count = len(arrival)
    if count == 0:
        return 0.0
    by_arrival = np.argsort(-arrival, kind="mergesort")
    by_begin = np.argsort(begin, kind="mergesort")
    position = np.empty(count, np.int64)
    position[by_arrival] = np.arange(count)
    best = arrival[by_arrival[0]]
    for k in range(1, count + 1):
        if not together[by_arrival[k - 1]]:
            break
        sequence = 0.0
        for i in by_begin:
            if position[i] < k:
                sequence = max(sequence, begin[i]) + length[i]
        sent = arrival[by_arrival[k]] if k < count else 0.0
        best = min(best, max(sequence, sent))
        if sequence >= best:
            break
    return best


def _load_bound(problem: PlacementProblem) -> float:
    """Least T such that all work, cut at will, fits on the devices in T."""
    seconds = problem.compute_s
    if problem.graph.allowed is None and np.ptp(seconds, axis=1).max() == 0:
        return float(seconds[:, 0].sum() / problem.d)
    if problem.graph.allowed is None:
        # devices that differ by one factor for all operations need no program
        fastest = seconds.min(axis=1)
        with np.errstate(invalid="ignore", divide="ignore"):
            factor = np.where(fastest[:, None] > 0, seconds / fastest[:, None], np.nan)
        work = fastest > 0
        if not work.any():
            return 0.0
        if np.allclose(factor[work], factor[work][0], rtol=1e-12):
            return float(fastest.sum() / (1.0 / factor[work][0]).sum())
    return _load_program(problem)


def _load_program(problem: PlacementProblem) -> float:
    """min T subject to sum_d x[v, d] = 1, sum_v seconds[v, d] x[v, d] <= T; equal rows are merged."""
    from scipy.optimize import linprog
    from scipy.sparse import coo_matrix

    priced = np.where(problem.allowed, problem.compute_s, -1.0)
    rows, amount = np.unique(priced, axis=0, return_counts=True)
    v, d = np.nonzero(rows >= 0)
    cell = np.arange(len(v))
    scale = max(float(rows.max()) * float(amount.sum()) / problem.d, 1e-300)
    last = np.full(problem.d, len(v))
    balance = coo_matrix(
        (
            np.concatenate([rows[v, d] / scale, -np.ones(problem.d)]),
            (np.concatenate([d, np.arange(problem.d)]), np.concatenate([cell, last])),
        )
    )
    whole = coo_matrix((np.ones(len(v)), (v, cell)), shape=(len(rows), len(v) + 1))
    cost = np.zeros(len(v) + 1)
    cost[-1] = 1.0
    solved = linprog(cost, A_ub=balance, b_ub=np.zeros(problem.d), A_eq=whole, b_eq=amount, method="highs")
    # the solver's tolerance must not lift the bound above the truth
    return max(float(solved.fun) * scale * (1 - 1e-6), 0.0) if solved.status == 0 else 0.0
