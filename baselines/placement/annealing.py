"""Simulated annealing over the simulator: parallel chains, one compiled loop each."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from threading import Event
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import ArrayLike, NDArray

from ...envs.errors import MemoryLimitError, PlacementError
from ...envs.placement import Placement, PlacementProblem, event_loop, event_memory, fifo_kernel, simulate
from ...envs.placement.event_workspace import event_workspace
from ...envs.placement.graph import Floats, Integers
from ...envs.placement.placement import order_by_start
from ...envs.placement.random_draws import draw
from ...envs.placement.simulator import Order, simulation_options
from ...envs.processors import processors

CLUSTER = 8
"""Operations that one step moves together at most."""
HOT, COLD = 0.003, 2e-5
"""Temperatures at the start and the end, as shares of the first makespan (our choice)."""
SLICES = 50
"""The temperature is set anew this many times, at which a budget in seconds is also looked at."""
LONGEST_SLICE = 10_000
"""Steps between two looks at the clock and at an interruption."""
REPAIR_CALLS = 20_000
"""Simulator calls to mend a placement that overflows a device's memory."""


class Chain(NamedTuple):
    """One walker; ``score`` is [current, best], ``random`` the state of its generator."""

    assignment: Integers
    rank: Floats
    best_assignment: Integers
    best_rank: Floats
    score: Floats
    random: NDArray[np.uint64]


@dataclass(frozen=True)
class Budget:
    """When to stop: after ``calls`` of the simulator by all chains, or after ``seconds``."""

    calls: int
    seconds: float | None


def annealing(
    problem: PlacementProblem,
    *,
    rng: np.random.Generator,
    execution: Order,
    calls: int = 200_000,
    seconds: float | None = None,
    chains: int = 2,
    start: ArrayLike | None = None,
) -> Placement:
    """Search assignments (and, under ``order=priority``, priorities too) by simulated annealing.

    A step moves an operation to any device or to a neighbour's, moves a cluster of neighbours to one
    device, or swaps two operations; under ``order=priority`` it may also move an operation in the order.
    Each chain starts from another list heuristic's placement and cools geometrically; the best
    placement of all chains is returned. Moves and schedule are our choice.

    Args:
        calls: simulator calls of all chains together.
        seconds: a budget in seconds instead; the result is then not repeatable.
        chains: walkers, run on as many threads as the machine has processors.
        start: [N] assignment that every chain starts from instead of the heuristics'.

    Raises:
        PlacementError: a budget or the number of chains is not positive.
    """
    for name, value in (("calls", calls), ("chains", chains), ("seconds", seconds)):
        if value is not None and not 0 < value < np.inf:
            raise PlacementError(f"annealing: {name} is {value}; expected a number above 0.")
    begin = time.perf_counter()
    if start is None:
        starts = _heuristic_starts(problem, rng, execution)
    else:
        starts = [Placement(problem.check_assignment(start), problem.graph.topological_order)]
    walkers = [
        open_chain(problem, starts[i % len(starts)], seed)
        for i, seed in enumerate(rng.integers(1, 2**63, size=chains, dtype=np.uint64))
    ]
    spent = 0.0 if seconds is None else time.perf_counter() - begin
    budget = Budget(calls, None if seconds is None else max(seconds - spent, 0.05))
    used = run_chains(problem, walkers, execution, budget)
    best = min(walkers, key=lambda walker: walker.score[1])
    return close_chain(problem, best, execution, calls=used + len(starts), repeatable=seconds is None)


def improve(
    problem: PlacementProblem,
    placements: Sequence[Placement],
    *,
    rng: np.random.Generator,
    execution: Order,
    calls: int,
    seconds: float | None = None,
    hot: float = HOT,
) -> list[Placement]:
    """Local search from each of some placements: a chain of its own, all of them on the machine's processors.

    Args:
        calls: simulator calls of all chains together; a placement's ``calls`` are its chain's share.
        seconds: a budget in seconds instead.
        hot: temperature at the start, as a share of each placement's makespan.

    Returns:
        What each became, never worse; ``makespan`` as simulated under ``execution``, with the penalty of devices that
        overflow.
    """
    walkers = [
        open_chain(problem, placement, seed)
        for placement, seed in zip(
            placements, rng.integers(1, 2**63, size=len(placements), dtype=np.uint64), strict=True
        )
    ]
    used = run_chains(problem, walkers, execution, Budget(calls, seconds), hot)
    each = -(-used // len(walkers))
    found = [close_chain(problem, walker, execution, calls=each, repeatable=seconds is None) for walker in walkers]
    return [replace(item, makespan=float(walker.score[1])) for item, walker in zip(found, walkers, strict=True)]


def repair(problem: PlacementProblem, placement: Placement, rng: np.random.Generator) -> Placement:
    """Move operations of a placement that overflows a device's memory until it fits.

    Raises:
        MemoryLimitError: no placement that fits was found.
    """
    relaxed = problem.with_options(memory="penalty")
    walker = open_chain(relaxed, placement, int(rng.integers(1, 2**63)))
    run_chains(relaxed, [walker], placement.execution, Budget(REPAIR_CALLS, None))
    found = close_chain(relaxed, walker, placement.execution, calls=placement.calls + REPAIR_CALLS)
    try:
        found.simulate(problem)
    except MemoryLimitError as error:
        capacity = ", ".join(f"{item:.4g}" for item in problem.topology.memory_bytes)
        raise MemoryLimitError(
            f"{problem.graph.title}: the method {placement.method!r} found no placement that fits the devices' memory "
            f"({capacity} bytes); use larger devices, tile the graph, or memory=off."
        ) from error
    notes = dict(placement.notes) | {"repaired": True}
    return replace(
        placement, assignment=found.assignment, order=found.order, planned=None, notes=notes, calls=found.calls
    )


def open_chain(problem: PlacementProblem, placement: Placement, seed: int) -> Chain:
    """A walker at a placement."""
    rank = np.empty(problem.n)
    rank[placement.order] = np.arange(problem.n)
    assignment = placement.assignment.astype(np.int32)
    return Chain(
        assignment, rank, assignment.copy(), rank.copy(), np.array([np.inf, np.inf]), np.array([seed], dtype=np.uint64)
    )


def close_chain(
    problem: PlacementProblem, chain: Chain, execution: Order, *, calls: int, repeatable: bool = True
) -> Placement:
    """The best placement that a walker has met."""
    priority = np.lexsort((np.arange(problem.n), chain.best_rank)).astype(np.int32)
    schedule = simulate(
        problem,
        chain.best_assignment,
        order=execution if execution != "random" else "fifo",
        priority=priority if execution == "priority" else None,
        memory="off",
    )
    order = order_by_start(problem.graph, schedule.start)
    return Placement(chain.best_assignment.copy(), order, execution=execution, calls=calls, repeatable=repeatable)


def run_chains(
    problem: PlacementProblem, walkers: list[Chain], execution: Order, budget: Budget, hot: float = HOT
) -> int:
    """Anneal all walkers in place; returns the simulator calls that they made."""
    arrays = problem.arrays
    allowed = np.ascontiguousarray(problem.allowed)
    options = simulation_options(problem, "fifo" if execution == "random" else execution)
    threads = min(len(walkers), processors())
    stop = Event()

    def walk(walker: Chain) -> int:
        tensors = len(problem.tensor_ptr) - 1
        fifo = fifo_kernel.fifo_workspace(problem.n, problem.d)
        events = event_workspace(problem.n, problem.d, tensors, problem.graph.e, len(problem.input_bytes))

        def advance(steps: int, begin: float, end: float) -> None:
            _anneal(arrays, allowed, options, problem.serial_s, walker, steps, begin, end, fifo, events)

        return _cool(advance, walker, budget, len(walkers), stop, hot)

    with ThreadPoolExecutor(threads) as pool:
        walks = [pool.submit(walk, walker) for walker in walkers]
        try:
            return sum(item.result() for item in walks)
        except BaseException:
            stop.set()  # leaving the block waits for the threads
            raise


def _cool(
    advance: Callable[[int, float, float], None], walker: Chain, budget: Budget, walkers: int, stop: Event, hot: float
) -> int:
    """Run slices of the cooling schedule until the budget is spent or ``stop`` is set."""
    advance(0, 0.0, 0.0)  # scores the start; compiles on the first run ever, which no budget should pay for
    begin = time.perf_counter()
    scale = max(float(walker.score[0]), 1e-300)
    used, progress = 1, 0.0
    steps = min(max(budget.calls // walkers // SLICES, 1), LONGEST_SLICE) if budget.seconds is None else 200
    while progress < 1.0 and not stop.is_set():
        if budget.seconds is None:
            ahead = min(progress + steps / max(budget.calls // walkers, 1), 1.0)
        else:
            ahead = min(progress + 1 / SLICES, 1.0)
        tick = time.perf_counter()
        advance(steps, scale * _temperature(progress, hot), scale * _temperature(ahead, hot))
        used += steps
        if budget.seconds is None:
            progress = ahead
        else:
            now = time.perf_counter()
            progress = (now - begin) / budget.seconds
            steps = min(max(int(steps * budget.seconds / SLICES / max(now - tick, 1e-6)), 1), LONGEST_SLICE)
    return used


def _temperature(progress: float, hot: float) -> float:
    return float(hot * (COLD / hot) ** progress)


def _heuristic_starts(problem: PlacementProblem, rng: np.random.Generator, execution: Order) -> list[Placement]:
    """The portfolio's members, best first."""
    from .portfolio import members

    found = members(problem, rng, execution)
    return [placement for _, placement in sorted(found, key=lambda pair: pair[1].makespan)]


@njit(cache=True, nogil=True)
def _score(problem, options, serial_s, chain, limit, fifo, events):  # type: ignore[no-untyped-def]
    """Makespan of the current state; with its memory penalty too if it is not above ``limit`` already."""
    makespan = fifo_kernel.SAME_INSTANT
    loose = options
    if options.track_memory:
        loose = event_loop.Options(
            options.order, options.contention, options.channels, options.noise, options.seed, False, options.record
        )
    if options.order == event_loop.FIFO and options.contention == event_loop.NO_CONTENTION:
        makespan = fifo_kernel.fifo_makespan(problem, chain.assignment, fifo)
    if makespan == fifo_kernel.SAME_INSTANT:
        makespan = event_loop.simulate_events(problem, chain.assignment, chain.rank, loose, 0, events)
    if not options.track_memory or makespan > limit:
        return makespan
    event_loop.simulate_events(problem, chain.assignment, chain.rank, options, 0, events)
    return makespan + event_memory.memory_penalty(events.peak, problem.memory_bytes, serial_s)


@njit(cache=True, nogil=True)
def _neighbour(problem, v, random):  # type: ignore[no-untyped-def]
    """A random predecessor or successor of v, or v itself if it has none."""
    before = problem.in_ptr[v + 1] - problem.in_ptr[v]
    after = problem.out_ptr[v + 1] - problem.out_ptr[v]
    if before + after == 0:
        return v
    pick = int(draw(random, 0) * (before + after))
    if pick < before:
        return problem.edge_source[problem.in_edge[problem.in_ptr[v] + pick]]
    return problem.edge_target[problem.out_ptr[v] + pick - before]


@njit(cache=True, nogil=True)
def _propose(problem, allowed, assignment, random, moved, devices):  # type: ignore[no-untyped-def]
    """Write a move, operations and their new devices, and return how many; 0 for none or an illegal one."""
    n, d = allowed.shape
    v = int(draw(random, 0) * n)
    kind = draw(random, 0)
    count = 1
    moved[0] = v
    if kind < 0.35:  # any device
        devices[0] = int(draw(random, 0) * d)
    elif kind < 0.6:  # a neighbour's device
        devices[0] = assignment[_neighbour(problem, v, random)]
    elif kind < 0.8:  # swap two
        moved[1] = int(draw(random, 0) * n)
        devices[0], devices[1] = assignment[moved[1]], assignment[v]
        count = 2
    else:  # a cluster, found by a random walk, to one device
        device = int(draw(random, 0) * d) if kind < 0.9 else assignment[_neighbour(problem, v, random)]
        devices[0] = device
        length = 2 + int(draw(random, 0) * (len(moved) - 1))
        while count < length:
            v = _neighbour(problem, v, random)
            moved[count], devices[count] = v, device
            count += 1
    changed = False
    for i in range(count):
        if not allowed[moved[i], devices[i]]:
            return 0
        changed = changed or assignment[moved[i]] != devices[i]
    return count if changed else 0


@njit(cache=True, nogil=True)
def _anneal(problem, allowed, options, serial_s, chain, steps, hot, cold, fifo, events):  # type: ignore[no-untyped-def]
    """``steps`` Metropolis steps while the temperature falls from ``hot`` to ``cold``."""
    assignment, rank, random = chain.assignment, chain.rank, chain.random
    if steps == 0:
        chain.score[:] = _score(problem, options, serial_s, chain, np.inf, fifo, events)
        return
    moved, devices, before = np.empty(CLUSTER, np.int32), np.empty(CLUSTER, np.int32), np.empty(CLUSTER, np.int32)
    temperature = hot
    factor = (cold / hot) ** (1.0 / steps)
    for _ in range(steps):
        temperature *= factor
        count, v = 0, int(draw(random, 0) * len(rank))
        old_rank = rank[v]
        if options.order == event_loop.PRIORITY and draw(random, 0) < 0.3:
            rank[v] = rank[int(draw(random, 0) * len(rank))] + (draw(random, 0) - 0.5)
        else:
            count = _propose(problem, allowed, assignment, random, moved, devices)
            if count == 0:
                continue
        for i in range(count):
            before[i] = assignment[moved[i]]
            assignment[moved[i]] = devices[i]
        # Metropolis' rule, with the random number drawn first
        limit = chain.score[0] - temperature * np.log(1.0 - draw(random, 0))
        score = _score(problem, options, serial_s, chain, limit, fifo, events)
        if score <= limit:
            chain.score[0] = score
            if score < chain.score[1]:
                chain.score[1] = score
                chain.best_assignment[:] = assignment
                chain.best_rank[:] = rank
        else:
            for i in range(count - 1, -1, -1):  # an operation may have moved twice
                assignment[moved[i]] = before[i]
            rank[v] = old_rank
