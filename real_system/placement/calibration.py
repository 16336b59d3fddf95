"""What the simulator should believe of real devices, learned from measured executions of the graph itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from ...envs.errors import PlacementError
from ...envs.placement import PlacementProblem, makespans
from ...envs.placement.graph import Floats, Integers
from ...envs.placement.topology import Contention
from .audit import audit
from .executor import Execution

OUTLIER = 3.0
"""Durations beyond so many times the median of their kind are left out (our choice): something else disturbed them."""
MOST_COMPARED = 64
"""Executions by which the rule of contention is chosen."""


class Samples(NamedTuple):
    """Measured durations of executions, one row per operation run."""

    operation: Integers
    device: Integers
    seconds: Floats


def calibrated(
    problem: PlacementProblem, executions: Sequence[Execution], contention: Contention | None = None
) -> PlacementProblem:
    """The same graph and devices with the costs that executions measured, in seconds.

    Operations that cost the same (kind, FLOPs, bytes, kernel) share their measurements. Where one was never run on a
    device, its time elsewhere is scaled by how the devices compare on operations that were run on both. Links get a
    common latency and a rate for each pair of devices, fitted to all transfers; what a thread
    takes to notice an arrival counts as latency, what it takes between two operations as part of the operation. The
    rule of contention is the one under which simulated makespans are nearest to the measured ones, unless it is given.

    Raises:
        PlacementError: there is no execution, or one of another graph.
    """
    if not executions:
        raise PlacementError(f"{problem.graph.title}: calibration needs at least one execution.")
    if any(len(done.schedule.start) != problem.n for done in executions):
        raise PlacementError(f"{problem.graph.title}: an execution is of another graph; give executions of this one.")
    seconds = _operation_seconds(problem, executions)
    latency, rate = _links(problem, executions)
    measured = problem.with_seconds(seconds)
    topology = replace(
        measured.topology,
        name=f"{problem.topology.name}, measured",
        bandwidth=1.0 / np.maximum(rate, 1e-30),
        latency=np.full((problem.d, problem.d), latency),
        source="measured executions",
    )
    believed = replace(measured, topology=topology, time_unit=1.0)
    return _with_contention(believed, executions, contention)


def _operation_seconds(problem: PlacementProblem, executions: Sequence[Execution]) -> Floats:
    """[N, D] seconds of each operation on each device."""
    cost, samples = cost_classes(problem), _samples(problem, executions)
    classes = int(cost.max()) + 1
    typical = _means(cost[samples.operation], samples.device, samples.seconds, classes, problem.d)
    prior = np.zeros((classes, problem.d))
    prior[cost] = problem.compute_s
    seen = ~np.isnan(typical)
    return _filled(typical, seen, prior)[cost]


def cost_classes(problem: PlacementProblem) -> Integers:
    """[N] number of the class of operations that cost the same."""
    graph, known = problem.graph, dict[tuple, int]()
    found = np.empty(graph.n, dtype=np.int32)
    for v in range(graph.n):
        kernel = graph.kernels[v] if graph.kernels is not None else None
        shape = (kernel.target, kernel.outputs) if kernel is not None else None
        costs = (*problem.compute_s[v].tolist(), float(graph.flops[v]), float(graph.bytes_moved[v]))
        found[v] = known.setdefault((graph.kind[v], *costs, float(graph.out_bytes[v]), shape), len(known))
    return found


def _samples(problem: PlacementProblem, executions: Sequence[Execution]) -> Samples:
    """All measured durations, each with the pause of its device before the next operation that was ready."""
    rows = [
        (np.arange(problem.n), done.schedule.assignment, done.schedule.end - done.schedule.start) for done in executions
    ]
    pause = _median([_pauses(done) for done in executions])
    return Samples(
        np.concatenate([row[0] for row in rows]),
        np.concatenate([row[1] for row in rows]),
        np.concatenate([row[2] for row in rows]) + pause,
    )


def _pauses(done: Execution) -> Floats:
    """Seconds between two operations of a device, where the second had been ready."""
    schedule, found = done.schedule, []
    for device in range(len(schedule.peak_memory)):
        mine = schedule.sequence(device)
        gap = schedule.start[mine][1:] - schedule.end[mine][:-1]
        found.append(gap[done.ready[mine][1:] < schedule.end[mine][:-1]])
    return np.concatenate(found) if found else np.zeros(0)


def _means(rows: Integers, columns: Integers, values: Floats, height: int, width: int) -> Floats:
    """[height, width] means of values without outliers; NaN where there are none."""
    found = np.full((height, width), np.nan)
    cell = rows * width + columns
    order = np.argsort(cell, kind="stable")
    borders = np.flatnonzero(np.diff(cell[order])) + 1
    for part in np.split(order, borders):
        if part.size:
            mine = values[part]
            found.flat[cell[part[0]]] = mine[mine <= OUTLIER * np.median(mine)].mean()
    return found


def _filled(typical: Floats, seen: NDArray[np.bool_], prior: Floats) -> Floats:
    """Fill what was not measured: by the same class elsewhere and the devices' ratio, else by the prior, scaled."""
    scale = typical[seen].sum() / max(prior[seen].sum(), 1e-300) if prior[seen].sum() > 0 else 1.0
    believed = prior * scale
    ratio = typical / np.maximum(believed, 1e-300)
    device = np.array([_median([column[~np.isnan(column)]], 1.0) for column in ratio.T])
    relative = ratio / device
    per_class = np.array([_median([row[~np.isnan(row)]], 1.0) for row in relative])
    guessed = believed * device * per_class[:, None]
    return np.where(seen, typical, guessed)


def _links(problem: PlacementProblem, executions: Sequence[Execution]) -> tuple[float, Floats]:
    """Latency of all links, and [D, D] seconds per byte."""
    moved = [done.schedule.transfers for done in executions]
    source, target = (np.concatenate([getattr(item, name) for item in moved]) for name in ("source", "target"))
    size, seconds = np.concatenate([m.bytes for m in moved]), np.concatenate([m.end - m.start for m in moved])
    noticed = _median([_notice(problem, done) for done in executions])
    noticed += _median([m.produced - done.schedule.end[m.operation] for m, done in zip(moved, executions, strict=True)])
    nominal = problem.seconds_per_byte
    if not size.size:
        return float(problem.latency.max()) + noticed, nominal.copy()
    link = source.astype(np.int64) * problem.d + target
    seen, number = np.unique(link, return_inverse=True)
    latency, rate = _latency_and_rates(number.astype(np.int32), size, seconds)
    told = nominal.reshape(-1)[seen].mean()
    rates = nominal.reshape(-1) * (rate.mean() / told if told > 0 else 0.0)
    rates[seen] = rate
    return latency + noticed, rates.reshape(problem.d, problem.d)


def _latency_and_rates(link: Integers, size: Floats, seconds: Floats) -> tuple[float, Floats]:
    """One latency, and seconds per byte of each link.

    Least squares without weights, once more without outliers: the large transfers decide, which a placement pays for;
    many small ones, whose times scatter by more than they last, do not. The latency then is the median of what the
    rates leave over, so that late arrivals of the small ones do not raise it.
    """
    count, unit = int(link.max()) + 1, max(float(size.max()), 1.0)  # columns of like size, for the solver
    columns = np.zeros((len(size), 1 + count))
    columns[:, 0] = 1.0
    columns[np.arange(len(size)), 1 + link] = size / unit
    explained = columns @ nnls(columns, seconds)[0]
    kept = seconds <= OUTLIER * explained
    kept |= np.bincount(link[kept], minlength=count)[link] == 0
    rate = nnls(columns[kept], seconds[kept])[0][1:] / unit
    return max(float(np.median(seconds - rate[link] * size)), 0.0), rate


def _notice(problem: PlacementProblem, done: Execution) -> Floats:
    """Seconds between an arrival that made an operation ready on an idle device and its start."""
    remote = np.zeros(problem.n, dtype=bool)
    placed = done.schedule.assignment
    edge_here = placed[problem.graph.edge_source] == placed[problem.graph.edge_target]
    remote[problem.graph.edge_target[~edge_here]] = True
    delays = audit(done).delays
    return delays[remote & (delays > 0)]


def _with_contention(
    believed: PlacementProblem, executions: Sequence[Execution], contention: Contention | None
) -> PlacementProblem:
    """Under the rule that explains the measured makespans best."""
    rules: tuple[Contention, ...] = get_args(Contention)
    if contention is None:
        some = executions[-MOST_COMPARED:]
        rows = np.stack([done.schedule.assignment for done in some])
        measured = np.array([done.makespan for done in some])

        def error(rule: Contention) -> float:
            simulated = makespans(believed, rows, contention=rule, memory="off", **_order(some))
            return float(np.abs(np.log(simulated / measured)).mean())

        rules = tuple(sorted(rules, key=error))
    chosen = contention or rules[0]
    return replace(believed, contention=chosen, topology=replace(believed.topology, contention=chosen))


def _order(executions: Sequence[Execution]) -> dict:
    """Options of ``makespans`` for the order rule under which executions ran."""
    if any(done.priority is None for done in executions):
        return {}
    return {"order": "priority", "priority": np.stack([np.asarray(done.priority) for done in executions])}


def _median(parts: Sequence[Floats], default: float = 0.0) -> float:
    values = np.concatenate(parts) if parts else np.zeros(0)
    return float(np.median(values)) if values.size else default
