"""Exact scheduling with the constraint solver CP-SAT of OR-tools, up to a few hundred operations."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from ortools.sat.python import cp_model

from ...envs.errors import PlacementError
from ...envs.placement import Placement, PlacementProblem, Plan, lower_bounds
from ...envs.placement.graph import Floats
from ...envs.placement.placement import order_by_start
from ...envs.placement.simulator import Order
from ...envs.processors import processors
from .annealing import Budget, close_chain, open_chain, run_chains
from .portfolio import members

RESOLUTION = 1_000_000
"""Time units in the best known makespan; durations are rounded down, so that bounds stay valid."""
DETERMINISTIC_SHARE = 0.1
"""Units of the solver's deterministic time in a second, as measured on graphs of this size."""


@dataclass(frozen=True)
class _Model:
    solver_model: cp_model.CpModel
    starts: list[Any]
    presence: list[list[Any]]
    makespan: Any
    unit: float


def cp_sat(
    problem: PlacementProblem,
    *,
    rng: np.random.Generator,
    execution: Order,
    seconds: float = 60.0,
    workers: int | None = None,
    polish: float = 0.25,
) -> Placement:
    """Plan starts and devices together; then polish the plan in the work-conserving simulator.

    The plan assumes that transfers never wait and ignores memory limits. It is executed with its
    own order as priorities under ``order=priority``; as work-conserving execution may leave the
    plan, a share of the budget goes to a local search from it.

    Args:
        seconds: budget of solver and polish together.
        workers: solver threads; with 1 the solver's deterministic time is the limit and its answer
            is repeatable. By default one per processor.
        polish: share of ``seconds`` for the local search; 0 for none.

    ``notes`` holds ``plan`` (the plan's makespan), ``bound`` (the best lower bound, the solver's or
    ours), ``optimal`` (no plan is better by more than the rounding of the model's time, 1e-6 of the
    makespan per operation) and ``executed`` (the plan in the simulator, before
    the polish).
    """
    if not 0 < seconds < np.inf or not 0 <= polish < 1:
        raise PlacementError(f"cp_sat: seconds={seconds}, polish={polish}; expected seconds above 0, polish in [0, 1).")
    found = sorted((placement for _, placement in members(problem, rng, execution)), key=lambda item: item.makespan)
    planned = [placement for placement in found if placement.planned is not None]
    hint = min(planned, key=lambda item: item.planned.makespan if item.planned else np.inf)
    model = _build(problem, hint)
    known = lower_bounds(problem).best
    model.solver_model.add(model.makespan >= int(known / model.unit * (1 - 1e-9)))
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = workers or processors()
    solver.parameters.random_seed = int(rng.integers(0, 2**31 - 1))
    budget = seconds * (1 - polish)
    if workers == 1:
        solver.parameters.cp_model_probing_level = 0  # probing takes long and counts little
        solver.parameters.max_deterministic_time = budget * DETERMINISTIC_SHARE
    else:
        solver.parameters.max_time_in_seconds = budget
    status = solver.solve(model.solver_model)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        plan, bound, optimal = hint, 0.0, False
    else:
        plan, optimal = _read(problem, model, solver), status == cp_model.OPTIMAL
        bound = solver.best_objective_bound * model.unit
    bound = max(bound, known)
    return _polish(problem, plan, bound, optimal, execution, rng, seconds * polish, workers)


def _build(problem: PlacementProblem, hint: Placement) -> _Model:
    """Optional intervals, no overlap per device; a tensor delays its consumer unless they share a device."""
    graph = problem.graph
    horizon_s = min(hint.planned.makespan if hint.planned else np.inf, problem.serial_s)
    unit = _time_unit(problem, horizon_s)
    duration = np.floor(problem.compute_s / unit).astype(np.int64)
    model = cp_model.CpModel()
    horizon = int(np.ceil(horizon_s / unit)) + graph.n + 1
    starts = [model.new_int_var(0, horizon, f"start_{v}") for v in range(graph.n)]
    ends = [model.new_int_var(0, horizon, f"end_{v}") for v in range(graph.n)]
    presence: list[list[Any]] = [[None] * problem.d for _ in range(graph.n)]
    for device in range(problem.d):
        intervals = []
        for v in np.flatnonzero(problem.allowed[:, device]).tolist():
            here = model.new_bool_var(f"on_{v}_{device}")
            presence[v][device] = here
            size = int(duration[v, device])
            intervals.append(model.new_optional_interval_var(starts[v], size, ends[v], here, f"run_{v}_{device}"))
        model.add_no_overlap(intervals)
    for v in range(graph.n):
        model.add_exactly_one([here for here in presence[v] if here is not None])
    _add_edges(model, problem, starts, ends, presence, unit, horizon)
    makespan = model.new_int_var(0, horizon, "makespan")
    model.add_max_equality(makespan, ends)
    model.minimize(makespan)
    _break_symmetry(model, problem, presence, hint)
    for v in range(graph.n):
        if hint.planned is not None:
            model.add_hint(starts[v], int(hint.planned.start[v] / unit))
        for device, here in enumerate(presence[v]):
            if here is not None:
                model.add_hint(here, int(hint.assignment[v] == device))
    return _Model(model, starts, presence, makespan, unit)


def _time_unit(problem: PlacementProblem, horizon_s: float) -> float:
    """1 where every cost is a whole number of moderate size, so that nothing is rounded."""
    apart = ~np.eye(problem.d, dtype=bool)
    delay = problem.latency[apart, None] + problem.seconds_per_byte[apart, None] * problem.graph.edge_bytes
    whole = all(np.array_equal(values, np.floor(values)) for values in (problem.compute_s, delay))
    return 1.0 if whole and horizon_s <= 10 * RESOLUTION else max(horizon_s / RESOLUTION, 1e-300)


def _add_edges(
    model: cp_model.CpModel,
    problem: PlacementProblem,
    starts: list[Any],
    ends: list[Any],
    presence: list[list[Any]],
    unit: float,
    horizon: int,
) -> None:
    graph, d = problem.graph, problem.d
    apart = ~np.eye(d, dtype=bool)
    uniform = d == 1 or (np.ptp(problem.seconds_per_byte[apart]) == 0 and np.ptp(problem.latency[apart]) == 0)
    for edge in range(graph.e):
        u, w = int(graph.edge_source[edge]), int(graph.edge_target[edge])
        model.add(starts[w] >= ends[u])
        if d == 1:
            continue
        seconds = problem.latency + graph.edge_bytes[edge] * problem.seconds_per_byte
        delay = np.floor(np.minimum(seconds / unit, horizon)).astype(np.int64)  # more would be as good as never
        if uniform:
            wait = int(delay[0, 1])
            together = model.new_bool_var(f"together_{edge}")
            for device in range(d):
                a, b = presence[u][device], presence[w][device]
                for here, there in ((a, b), (b, a)):
                    if here is not None:
                        model.add_bool_or([here.negated(), together.negated(), *([there] if there is not None else [])])
            model.add(starts[w] >= ends[u] + wait).only_enforce_if(together.negated())
            continue
        for a in range(d):
            for b in range(d):
                here, there = presence[u][a], presence[w][b]
                if a != b and here is not None and there is not None and delay[a, b] > 0:
                    model.add(starts[w] >= ends[u] + int(delay[a, b])).only_enforce_if([here, there])


def _break_symmetry(
    model: cp_model.CpModel, problem: PlacementProblem, presence: list[list[Any]], hint: Placement
) -> None:
    """Equal devices are interchangeable: fix the first operation of the hint to its device."""
    same_links = problem.d > 1 and all(
        np.ptp(matrix[~np.eye(problem.d, dtype=bool)]) == 0 for matrix in (problem.seconds_per_byte, problem.latency)
    )
    if same_links and np.ptp(problem.compute_s, axis=1).max() == 0 and problem.allowed.all():
        first = int(hint.order[0])
        model.add(presence[first][int(hint.assignment[first])] == 1)


def _read(problem: PlacementProblem, model: _Model, solver: cp_model.CpSolver) -> Placement:
    """The solver's devices and order, re-timed with exact durations."""
    rough = np.array([solver.value(start) for start in model.starts], dtype=np.float64)
    assignment = np.array(
        [
            next(device for device, here in enumerate(row) if here is not None and solver.value(here))
            for row in model.presence
        ],
        dtype=np.int32,
    )
    order = order_by_start(problem.graph, rough)
    return Placement(assignment, order, planned=follow_plan(problem, assignment, order))


def follow_plan(problem: PlacementProblem, assignment: Any, order: Any) -> Plan:
    """Exact times if every device runs its operations in exactly this order, waiting where it must."""
    graph = problem.graph
    start, end = np.zeros(graph.n), np.zeros(graph.n)
    free: Floats = np.zeros(problem.d)
    for v in order:
        device = assignment[v]
        edges = graph.in_edge[graph.in_ptr[v] : graph.in_ptr[v + 1]]
        source = graph.edge_source[edges]
        here = assignment[source]
        delay = problem.latency[here, device] + graph.edge_bytes[edges] * problem.seconds_per_byte[here, device]
        start[v] = max(free[device], (end[source] + delay).max(initial=0.0))
        end[v] = free[device] = start[v] + problem.compute_s[v, device]
    return Plan(start, end)


def _polish(
    problem: PlacementProblem,
    plan: Placement,
    bound: float,
    optimal: bool,
    execution: Order,
    rng: np.random.Generator,
    seconds: float,
    workers: int | None,
) -> Placement:
    """The plan in the simulator, then the best that a local search finds from it."""
    relaxed = problem.with_options(memory="penalty") if problem.memory == "error" else problem
    plan = replace(plan, execution=execution)
    executed = plan.simulate(relaxed).makespan
    planned = plan.planned.makespan if plan.planned else np.nan
    notes = {"plan": planned, "bound": min(bound, planned), "optimal": optimal, "executed": executed}
    if seconds == 0 or executed <= bound * (1 + 1e-9):
        return replace(plan, calls=1, repeatable=workers == 1, notes=notes)
    budget = Budget(int(20_000 * seconds), None) if workers == 1 else Budget(1, seconds)
    seeds = rng.integers(1, 2**63, size=2, dtype=np.uint64)
    walkers = [open_chain(relaxed, plan, int(seed)) for seed in seeds]
    calls = run_chains(relaxed, walkers, execution, budget)
    best = min(walkers, key=lambda walker: walker.score[1])
    if best.score[1] >= executed:
        return replace(plan, calls=calls, repeatable=workers == 1, notes=notes)
    polished = close_chain(relaxed, best, execution, calls=calls, repeatable=workers == 1)
    return replace(polished, planned=plan.planned, notes=notes)
