"""Simulated time of placed graphs: one at a time with its whole schedule, or thousands at once."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import MemoryLimitError, PlacementError
from ..processors import processors
from . import event_loop, fifo_kernel
from .event_memory import memory_penalties
from .event_workspace import EventWorkspace, event_workspace
from .graph import Floats, Integers
from .problem import MemoryMode, PlacementProblem
from .topology import Contention

Order = Literal["fifo", "priority", "random"]
_ORDERS = {"fifo": event_loop.FIFO, "priority": event_loop.PRIORITY, "random": event_loop.RANDOM}
_CONTENTIONS = {"none": event_loop.NO_CONTENTION, "pair": event_loop.PAIR, "ports": event_loop.PORTS}


@dataclass(frozen=True)
class Transfers:
    """M transfers between devices, by start time. Times in seconds (or the problem's raw unit)."""

    operation: Integers
    """[M] operation that produced the tensor."""
    tensor: Integers
    """[M] number of the tensor among those of ``problem.tensor_ptr``."""
    source: Integers
    """[M] device that sends."""
    target: Integers
    """[M] device that receives."""
    bytes: Floats
    produced: Floats
    start: Floats
    end: Floats
    """[M] time of arrival."""


@dataclass(frozen=True)
class Schedule:
    """What ran when and where.

    Attributes:
        assignment: [N] device of each operation.
        start, end: [N] times in seconds (or the problem's raw unit).
        transfers: the tensors that were sent.
        peak_memory: [D] most bytes that were held at once, inputs and received copies included.
        makespan: end of the last operation, memory penalty included.
    """

    assignment: Integers
    start: Floats
    end: Floats
    transfers: Transfers
    peak_memory: Floats
    makespan: float

    @cached_property
    def busy(self) -> Floats:
        """[D] time that each device spends on operations."""
        spans = self.end - self.start
        return np.bincount(self.assignment, spans, minlength=len(self.peak_memory)).astype(np.float64)

    def sequence(self, device: int) -> Integers:
        """Operations of a device, in the order of their starts."""
        mine = np.flatnonzero(self.assignment == device)
        return mine[np.argsort(self.start[mine], kind="stable")].astype(np.int32)

    @property
    def bytes_moved(self) -> float:
        """Bytes sent between devices."""
        return float(self.transfers.bytes.sum())


def simulate(
    problem: PlacementProblem,
    assignment: ArrayLike,
    *,
    order: Order = "fifo",
    priority: ArrayLike | None = None,
    contention: Contention | None = None,
    noise: float = 0.0,
    seed: int = 0,
    memory: MemoryMode | None = None,
) -> Schedule:
    """Run a placed graph in simulated time, work-conserving: no device idles while it has a ready operation.

    Args:
        assignment: [N] device numbers.
        order: which ready operation a free device takes. ``fifo``: the one that became ready first,
            ties by number; ``priority``: the one that stands first in ``priority``; ``random``: the
            first in an order drawn from ``seed``.
        priority: [N] the operations, most urgent first, for ``order="priority"``.
        contention: how transfers wait for each other; by default the problem's.
        noise: deviation of the logarithm of a lognormal factor of mean 1 on every operation and
            transfer, drawn from ``seed``.
        memory: by default the problem's. ``error`` raises if a device overflows, ``penalty`` adds
            to the makespan more than any placement that fits can take, ``off`` ignores it.

    Raises:
        PlacementError: the assignment or the priority does not fit the problem.
        MemoryLimitError: a device overflows under ``memory="error"``; it is named.
    """
    placed = problem.check_assignment(assignment)
    if placed.ndim != 1:
        raise PlacementError(f"simulate takes one assignment, found shape {placed.shape}; use makespans for many.")
    contention = contention or problem.contention
    options = _options(problem, order, contention, noise, seed, track=True, record=True)
    ranks = _ranks(problem, order, priority)[0]
    arrays = problem.arrays
    tensors = len(problem.tensor_ptr) - 1
    work = event_workspace(problem.n, problem.d, tensors, problem.graph.e, len(problem.input_bytes))
    makespan = event_loop.simulate_events(arrays, placed, ranks, options, 0, work)
    return Schedule(
        assignment=placed,
        start=work.start,
        end=work.end,
        transfers=_collect_transfers(problem, placed, work),
        peak_memory=work.peak,
        makespan=float(makespan + _memory_penalty(problem, work.peak[None, :], memory or problem.memory)[0]),
    )


def makespans(
    problem: PlacementProblem,
    assignments: ArrayLike,
    *,
    order: Order = "fifo",
    priority: ArrayLike | None = None,
    contention: Contention | None = None,
    noise: float = 0.0,
    seed: int = 0,
    memory: MemoryMode | None = None,
    threads: int | None = None,
) -> Floats:
    """Makespans [B] of many assignments [B, N]; the options are those of ``simulate``.

    ``priority`` is [N] for all rows or [B, N]. Row b draws its noise and random order from
    ``(seed, b)``, so results do not depend on ``threads`` (by default one per free processor for
    large batches).

    Raises:
        PlacementError: an assignment or a priority does not fit the problem.
        MemoryLimitError: a row overflows a device under ``memory="error"``.
    """
    rows = problem.check_assignment(assignments)
    if rows.ndim == 1:
        rows = rows[None, :]
    contention = contention or problem.contention
    memory = memory or problem.memory
    track = memory != "off" and problem.may_overflow
    ranks = _ranks(problem, order, priority, len(rows))
    options = _options(problem, order, contention, noise, seed, track=track, record=False)
    result = np.full(len(rows), fifo_kernel.SAME_INSTANT)
    peaks = np.zeros((len(rows), problem.d))
    if order == "fifo" and contention == "none" and noise == 0 and not track:
        _in_chunks(lambda part: fifo_kernel.fifo_makespans(problem.arrays, rows[part], result[part]), rows, threads)
    (rest,) = np.nonzero(result == fifo_kernel.SAME_INSTANT)
    if len(rest) == len(rows):

        def run(part: slice) -> None:
            mine = ranks[part] if len(ranks) > 1 else ranks
            event_loop.event_makespans(problem.arrays, rows[part], mine, options, part.start, result[part], peaks[part])

        _in_chunks(run, rows, threads)
    else:
        for row in rest:
            part = slice(row, row + 1)
            event_loop.event_makespans(problem.arrays, rows[part], ranks, options, row, result[part], peaks[part])
    return result + _memory_penalty(problem, peaks, memory)


def simulation_options(problem: PlacementProblem, order: Order) -> event_loop.Options:
    """The kernels' options for exact times under the problem's own rules, for compiled searches."""
    track = problem.memory != "off" and problem.may_overflow
    return _options(problem, order, problem.contention, 0.0, 0, track=track, record=False)


def _in_chunks(run: Callable[[slice], None], rows: NDArray, threads: int | None) -> None:
    """Call ``run`` on slices that cover all rows; the kernels release the interpreter's lock."""
    count = threads or (processors() if rows.size >= 200_000 else 1)
    if count == 1 or len(rows) < 2:
        run(slice(0, len(rows)))
        return
    edges = np.linspace(0, len(rows), 4 * count + 1).astype(int)
    parts = [slice(a, b) for a, b in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True) if b > a]
    with ThreadPoolExecutor(count) as pool:
        list(pool.map(run, parts))


def _options(
    problem: PlacementProblem, order: str, contention: str | None, noise: float, seed: int, track: bool, record: bool
) -> event_loop.Options:
    if order not in _ORDERS:
        raise PlacementError(f"order is {order!r}; expected {', '.join(get_args(Order))}.")
    if contention not in _CONTENTIONS:
        raise PlacementError(f"contention is {contention!r}; expected {', '.join(get_args(Contention))}.")
    if not 0 <= noise < 10:
        raise PlacementError(f"noise is {noise}; expected a number from 0 to 10.")
    channels = problem.topology.channels
    return event_loop.Options(_ORDERS[order], _CONTENTIONS[contention], channels, float(noise), seed, track, record)


def _ranks(problem: PlacementProblem, order: str, priority: ArrayLike | None, rows: int = 1) -> Floats:
    """[1 or B, N] position of each operation in the priority order."""
    if order != "priority":
        return np.zeros((1, problem.n))
    if priority is None:
        raise PlacementError("order='priority' needs priority=: the operations, most urgent first.")
    orders = np.atleast_2d(np.asarray(priority))
    fits = orders.ndim == 2 and orders.shape[0] in (1, rows) and orders.shape[1] == problem.n
    if not fits or not (np.sort(orders, axis=1) == np.arange(problem.n)).all():
        raise PlacementError(
            f"{problem.graph.title}: priority must list each of the {problem.n} operation numbers once, in one row "
            f"or {rows}; found shape {orders.shape}."
        )
    ranks = np.empty(orders.shape)
    np.put_along_axis(ranks, orders, np.arange(problem.n, dtype=np.float64)[None, :], axis=1)
    return ranks


def _memory_penalty(problem: PlacementProblem, peaks: Floats, memory: MemoryMode) -> Floats:
    """[B] seconds to add: 0 where everything fits, else more than any schedule's length."""
    capacity = problem.topology.memory_bytes
    if memory == "off" or np.isinf(capacity).all():
        return np.zeros(len(peaks))
    over = peaks > capacity
    if memory == "error" and over.any():
        row, device = np.argwhere(over)[0]
        raise MemoryLimitError(
            f"{problem.graph.title}: the placement needs {peaks[row, device]:.4g} bytes on device {device}, which has "
            f"{capacity[device]:.4g}; place it with another method, use larger devices, or memory=off."
        )
    return memory_penalties(peaks, capacity, problem.serial_s)


def _collect_transfers(problem: PlacementProblem, placed: Integers, work: EventWorkspace) -> Transfers:
    (sent,) = np.nonzero(~np.isnan(work.sent))
    by_start = sent[np.lexsort((sent, work.sent[sent]))]
    stride = len(work.sent) // max(len(problem.tensor_ptr) - 1, 1)
    tensor = (by_start // max(stride, 1)).astype(np.int32)
    first = problem.tensor_ptr[tensor]
    operation = problem.graph.edge_source[first]
    return Transfers(
        operation=operation,
        tensor=tensor,
        source=placed[operation],
        target=(by_start % max(stride, 1)).astype(np.int32),
        bytes=problem.graph.edge_bytes[first],
        produced=work.produced[by_start],
        start=work.sent[by_start],
        end=work.arrived[by_start],
    )
