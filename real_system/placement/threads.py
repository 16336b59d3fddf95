"""The executor of CPU and emulated devices: a thread for each device, and what carries tensors between them."""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Mapping, Sequence
from heapq import heappop
from math import isinf
from queue import Empty, SimpleQueue
from time import perf_counter
from typing import Any, Protocol

from ...envs.placement import PlacementProblem
from .executor import ExecutionError, ExecutionTimeoutError, closed, explain
from .interference import waited_seconds
from .links import Links
from .phased import DeviceJob, PhasedExecutor
from .run import Failure, Run
from .run_plan import RunPlan

OPEN = -1
"""Message to a device: the next level begins."""
PATIENCE_S = 1.0
"""How long threads get to return when an execution is ended."""
SWITCH_S = 5e-5
"""Longest time that one thread keeps the interpreter while others wait (our choice; Python's default is 5 ms)."""


class QuickSwitching:
    """While any thread is in this context, threads keep the interpreter for ``SWITCH_S`` at most.

    The interval belongs to the process: executors that work at once share it, and the last one to end restores it.
    """

    def __init__(self) -> None:
        self._lock, self._inside, self._usual = threading.Lock(), 0, 0.0

    def __enter__(self) -> None:
        with self._lock:
            if self._inside == 0:
                self._usual = sys.getswitchinterval()
                sys.setswitchinterval(min(SWITCH_S, self._usual))
            self._inside += 1

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                sys.setswitchinterval(self._usual)


SWITCHING_QUICKLY = QuickSwitching()


class DeviceKind(Protocol):
    """CPU or emulated devices: what threads do for them."""

    def job(self, plan: RunPlan, inputs: Mapping[str, Any] | None, seed: int) -> DeviceJob:
        """What one execution does."""

    def links(self) -> Links:
        """New links between the devices."""

    def enter_thread(self) -> None:
        """Prepare the calling thread for work."""


class ThreadExecutor(PhasedExecutor):
    """A thread per device takes the best ready operation as soon as it has ended the last one.

    Threads begin with the first execution and live until ``close``, until an execution fails, or until nobody holds
    the executor any more; the next execution begins new ones. One execution goes on at a time. Times are measured in
    the threads.
    """

    def __init__(self, problem: PlacementProblem, kind: DeviceKind, timeout: float = 60.0) -> None:
        super().__init__(problem, kind, timeout)
        self._workers: list[_Worker] = []
        self._stuck: list[_Worker] = []
        self._links: Links | None = None
        self._lock = threading.RLock()

    def carry_on(self, run: Run, phase: int, timeout: float | None = None) -> None:
        """As of ``PhasedExecutor``; when something failed, the threads have ended."""
        with self._lock:
            workers, self.under_way = self._start_threads(), run
        with SWITCHING_QUICKLY:
            run.resumed = perf_counter()
            if phase == 0:
                run.begun = run.resumed
            for worker in workers:
                worker.tasks.put((run, phase))
            try:
                self._wait(run, len(workers), self.timeout if timeout is None else timeout)
            except BaseException:
                run.stop()
                self._end_threads()
                raise
            finally:
                self.under_way = None

    def _wait(self, run: Run, devices: int, timeout: float) -> None:
        """Until every device has done its part."""
        deadline = perf_counter() + timeout
        for _ in range(devices):
            try:
                report = run.reports.get(timeout=None if isinf(timeout) else max(deadline - perf_counter(), 0.0))
            except Empty:
                names = self.problem.graph.names
                under_way = [f"{names[v]!r} on device {d}" for d, v in enumerate(run.running) if v >= 0]
                raise ExecutionTimeoutError(
                    f"{self.problem.graph.title}: the execution did not end within {timeout:g} s; under way: "
                    f"{', '.join(under_way) or 'transfers only'}; give more time with timeout=."
                ) from None
            if isinstance(report, Failure) and isinstance(report.error, ExecutionError):
                raise report.error
            if isinstance(report, Failure):
                raise explain(report.doing, report.error) from report.error

    def close(self) -> None:
        """End all threads; one inside an operation that does not return ends with it.

        Also from another thread: an execution under way ends with ``ExecutionClosedError``.
        """
        with self._lock:
            if self.under_way is not None:
                self.under_way.fail(self.problem.graph.title, closed(self.problem))
            self._end_threads()

    @property
    def stuck(self) -> list[str]:
        """Threads of ended executions that are still inside an operation."""
        self._stuck = [worker for worker in self._stuck if worker.thread.is_alive()]
        return [worker.thread.name for worker in self._stuck]

    def _start_threads(self) -> list[_Worker]:
        if not self._workers:
            links = self._links = self.kind.links()
            self._workers = [_Worker(device, links, self.kind) for device in range(self.problem.d)]
            weakref.finalize(self, _tell_to_end, self._workers, links)
        return self._workers

    def _end_threads(self) -> None:
        workers, self._workers = self._workers, []
        links, self._links = self._links, None
        for worker in workers:
            worker.tasks.put(None)
        deadline = perf_counter() + PATIENCE_S
        for worker in workers:
            worker.thread.join(max(deadline - perf_counter(), 0.0))
        self._stuck = [worker for worker in [*self._stuck, *workers] if worker.thread.is_alive()]
        if links is not None:
            links.close()

    def waited_s(self) -> float:
        """As of ``PhasedExecutor``; 0 where there are no threads."""
        return waited_seconds(worker.thread.native_id for worker in list(self._workers))


def _tell_to_end(workers: Sequence[_Worker], links: Links) -> None:
    """Let the threads of an executor end that nobody holds any more; the collector may run in one of them."""
    for worker in workers:
        worker.tasks.put(None)
    links.end()


class _Worker:
    """The thread of one device."""

    def __init__(self, device: int, links: Links, kind: DeviceKind) -> None:
        self.device, self.links, self.kind = device, links, kind
        self.tasks: SimpleQueue[tuple[Run, int] | None] = SimpleQueue()
        self.thread = threading.Thread(target=self._serve, name=f"device-{device}", daemon=True)
        self.thread.start()

    def _serve(self) -> None:
        self.kind.enter_thread()
        while (task := self.tasks.get()) is not None:
            run, phase = task
            try:
                self._work(run, phase)
            except BaseException as error:  # also what would end the thread: the execution must hear of it
                run.fail(self._doing(run), error)
            finally:
                run.running[self.device] = -1
            run.reports.put(self.device)

    def _doing(self, run: Run) -> str:
        v = run.running[self.device]
        what = f"operation {run.plan.problem.graph.names[v]!r}" if v >= 0 else "the thread"
        return f"{run.plan.problem.graph.title}: {what} on device {self.device}"

    def _work(self, run: Run, phase: int) -> None:
        """All operations of one phase; the loop that decides what a hop costs."""
        device, plan, job, barrier, post = self.device, run.plan, run.job, run.barrier, self.links.post
        inbox, heap, waiting, running = run.inboxes[device], run.heaps[device], run.waiting, run.running
        local, sends, release = plan.local, plan.sends, job.release
        admit, compute, start, end = run.admit, job.compute, run.start, run.end
        self._enter_phase(run, phase)
        for _ in range(plan.count[phase][device]):
            while not heap or not inbox.empty():
                if not self._receive(run, inbox.get()):
                    return
            v = heappop(heap)[1]
            running[device] = v
            start[v] = perf_counter()
            compute(v)
            now = end[v] = perf_counter()
            running[device] = -1
            for w in local[v]:
                waiting[w] -= 1
                if not waiting[w]:
                    admit(w, device, now)
            for transfer in sends[v]:
                post(run, transfer, job.payload(transfer))
            release(v)
            if barrier is not None:
                barrier.ended(v)
                self._advance(run)

    def _enter_phase(self, run: Run, phase: int) -> None:
        """Admit what may start at the beginning of a phase."""
        tables, now = run.plan.tables, perf_counter()
        if phase == 0:
            for v in run.plan.entries[self.device]:
                if not tables.late[v]:
                    run.admit(v, self.device, now)
            return
        for v, late in enumerate(tables.late):
            if late and run.plan.assignment[v] == self.device:
                run.waiting[v] -= 1
                if not run.waiting[v]:
                    run.admit(v, self.device, now)

    def _receive(self, run: Run, message: tuple[int, Any] | int | None) -> bool:
        """Take one message; False if the execution has ended."""
        if message is None:
            return False
        if isinstance(message, int):
            run.open(self.device)
            return True
        transfer, payload = message
        now = perf_counter()
        run.job.arrive(transfer, payload)
        for w in run.plan.transfers[transfer].consumers:
            run.waiting[w] -= 1
            if not run.waiting[w]:
                run.admit(w, self.device, now)
        if run.barrier is not None:
            self._advance(run)
        return True

    @staticmethod
    def _advance(run: Run) -> None:
        """Begin the next level everywhere if this was the last thing that it waited for."""
        assert run.barrier is not None, "checked by the callers"
        if run.barrier.advance():
            for inbox in run.inboxes:
                inbox.put(OPEN)
