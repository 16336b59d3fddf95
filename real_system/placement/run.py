"""One execution of a placed graph under way: what its threads share."""

from __future__ import annotations

import copy
import threading
from collections.abc import Sequence
from heapq import heappush
from queue import Queue, SimpleQueue
from time import perf_counter
from typing import Any, NamedTuple, Protocol

import numpy as np

from ...envs.placement import Schedule, Transfers
from ...envs.placement.graph import Floats
from .memory import peak_memory
from .run_plan import RunPlan

Arrival = tuple[int, Any]
"""Number of a transfer, and what it brought."""


class Job(Protocol):
    """What the operations and transfers of one execution do; each device's calls come from its own thread."""

    def compute(self, v: int) -> None:
        """Run operation v to its end."""

    def payload(self, transfer: int) -> Any:
        """What a transfer carries, once its operation has run."""

    def copy(self, transfer: int, payload: Any) -> Any:
        """Carry it to the other device; called by the thread of the link."""

    def arrive(self, transfer: int, payload: Any) -> None:
        """Keep on the target device what was carried there."""

    def release(self, v: int) -> None:
        """Drop what operation v was the last to read."""

    def stop(self) -> None:
        """The execution has been ended from outside: operations should return soon if they can."""


class Failure(NamedTuple):
    """Why an execution ended early: what was being done where, and the error."""

    doing: str
    error: BaseException


class Run:
    """The state of one execution.

    Everything about a device, also the counters of its operations, is touched by its own thread only; threads speak
    through ``inboxes``, so that nothing needs a lock.
    """

    def __init__(self, plan: RunPlan, job: Job, rank: Sequence[float] | None, barrier: LevelBarrier | None) -> None:
        devices, count = plan.problem.d, len(plan.transfers)
        self.plan, self.job, self.rank, self.barrier = plan, job, rank, barrier
        self.inboxes: list[SimpleQueue[Arrival | int | None]] = [SimpleQueue() for _ in range(devices)]
        self.heaps: list[list[tuple[float, int]]] = [[] for _ in range(devices)]
        self.reports: Queue[int | Failure] = Queue()
        self.waiting = list(plan.waiting)
        self.running = [-1] * devices
        self.failed = False
        nan = float("nan")
        self.start, self.end = [nan] * plan.problem.n, [nan] * plan.problem.n
        self.produced, self.sent, self.arrived = [nan] * count, [nan] * count, [nan] * count
        self.begun = self.resumed = perf_counter()

    def admit(self, v: int, device: int, now: float) -> None:
        """Operation v has all that it waits for: put it where its device looks for the next one."""
        if self.barrier is None or self.barrier.admits(v, device):
            heappush(self.heaps[device], (now if self.rank is None else self.rank[v], v))

    def open(self, device: int) -> None:
        """A level begins: its operations on this device may start."""
        assert self.barrier is not None, "only barriers send this"
        now = perf_counter()
        for v in self.barrier.opened(device):
            heappush(self.heaps[device], (now if self.rank is None else self.rank[v], v))

    def fail(self, doing: str, error: BaseException) -> None:
        """End the execution: every thread that waits is told."""
        self.reports.put(Failure(doing, error))
        self.stop()

    def stop(self) -> None:
        """Tell every device that nothing more is to be done."""
        self.failed = True
        self.job.stop()
        for inbox in self.inboxes:
            inbox.put(None)

    def trace(self) -> Run:
        """The times of this execution without its tensors, for ``schedule`` and ``ready_times`` later on."""
        times = copy.copy(self)
        del times.job, times.inboxes
        return times

    def schedule(self) -> Schedule:
        """What ran when, measured; times in seconds since the execution began."""
        problem, plan = self.plan.problem, self.plan
        assignment = np.array(plan.assignment, dtype=np.int32)
        start, end = self._times(self.start), self._times(self.end)
        sent = self._times(self.sent)
        order = np.argsort(sent, kind="stable")
        moved = [plan.transfers[k] for k in order]
        transfers = Transfers(
            operation=np.array([item.operation for item in moved], dtype=np.int32),
            tensor=np.array([item.tensor for item in moved], dtype=np.int32),
            source=np.array([item.source for item in moved], dtype=np.int32),
            target=np.array([item.target for item in moved], dtype=np.int32),
            bytes=np.array([item.bytes for item in moved], dtype=np.float64),
            produced=self._times(self.produced)[order],
            start=sent[order],
            end=self._times(self.arrived)[order],
        )
        peak = peak_memory(problem, assignment, start, end, transfers)
        return Schedule(assignment, start, end, transfers, peak, float(np.nanmax(end)))

    def ready_times(self) -> Floats:
        """[N] when the last thing that each operation waited for was on its device, whenever its thread noticed."""
        plan, graph = self.plan, self.plan.problem.graph
        placed, end, arrived = np.array(plan.assignment), self._times(self.end), self._times(self.arrived)
        ready = np.where(plan.tables.late, self.resumed - self.begun, 0.0)
        here = placed[graph.edge_source] == placed[graph.edge_target]
        np.fmax.at(ready, graph.edge_target[here], end[graph.edge_source[here]])
        for number, item in enumerate(plan.transfers):
            np.fmax.at(ready, list(item.consumers), arrived[number])
        return ready

    def _times(self, values: Sequence[float]) -> Floats:
        return np.array(values, dtype=np.float64) - self.begun


class LevelBarrier:
    """Bulk-synchronous execution: a level (longest path from an entry) begins when the one before has ended
    everywhere and all that it reads has arrived."""

    def __init__(self, plan: RunPlan) -> None:
        self.level = plan.problem.graph.depth.tolist()
        levels = max(self.level) + 1
        self._unready, self._unended = [0] * levels, [0] * levels
        for level in self.level:
            self._unready[level] += 1
            self._unended[level] += 1
        self._held: list[list[list[int]]] = [[[] for _ in range(plan.problem.d)] for _ in range(levels)]
        self._current, self._lock = 0, threading.Lock()

    def admits(self, v: int, device: int) -> bool:
        """Whether a ready operation may start; else it is held until its level begins."""
        with self._lock:
            level = self.level[v]
            self._unready[level] -= 1
            if level <= self._current:
                return True
            self._held[level][device].append(v)
            return False

    def ended(self, v: int) -> None:
        """An operation has ended."""
        with self._lock:
            self._unended[self.level[v]] -= 1

    def opened(self, device: int) -> list[int]:
        """Operations of the present level that were held for a device, once."""
        with self._lock:
            held, self._held[self._current][device] = self._held[self._current][device], []
            return held

    def advance(self) -> bool:
        """Begin the next level if that is due."""
        with self._lock:
            following = self._current + 1
            due = following < len(self._unready) and not self._unended[self._current] and not self._unready[following]
            self._current += due
            return due
