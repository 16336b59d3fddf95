"""Puts the operations of a placed graph on streams; ``cuda_driven`` and ``cuda_ahead`` say when.

Who waits for whom, on the GPU:

- An operation runs on its device's stream, after what was enqueued there before, and that stream waits for the arrival
  of every tensor that is sent to the operation.
- A copy is enqueued right behind its producer, on side streams: both wait for the event behind the producer. The
  target's stream is the one whose events say when the copy began and arrived, so that arrivals and the operations that
  wait for them are told by the clock of one GPU.
- One pair of devices has its own side streams, and copies are enqueued in the order in which a device's operations run:
  no copy stands behind another one that could start only later.

Nothing here makes the host wait for a GPU, except a kernel that does so itself (``nonzero``, ``item``), the first
launch of one, when its code is loaded, and a launch into a full queue (some 1,000 entries): these none can interrupt.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from .cuda_streams import Clock, Streams
from .executor import ExecutionError, ExecutionTimeoutError, closed, explain
from .run import Run


class InFlight(NamedTuple):
    """An operation or a transfer that was enqueued, and what must not be freed before it has ended."""

    number: int
    start: Any
    end: Any
    source: tuple[Any, ...] = ()
    copies: tuple[Any, ...] = ()


class Launch:
    """One phase of an execution on streams."""

    def __init__(self, run: Run, phase: int, streams: Streams, clock: Clock, deadline: float) -> None:
        plan = run.plan
        self.run, self.phase, self.plan, self.job = run, phase, plan, run.job
        self.streams, self.clock, self.calls, self.deadline = streams, clock, streams.calls, deadline
        self.running: list[deque[InFlight]] = [deque() for _ in range(plan.problem.d)]
        self.moving: dict[tuple[int, int], deque[InFlight]] = {}
        self.arrivals: list[list[Any]] = [[] for _ in range(plan.problem.n)]
        mine = [v for v, number in enumerate(plan.tables.phase) if number == phase]
        self.left = len(mine) + sum(len(plan.sends[v]) for v in mine)

    def operation(self, v: int) -> InFlight:
        """Enqueue an operation and what it sends."""
        device = self.plan.assignment[v]
        stream, item = self.streams.compute[device], InFlight(v, self.calls.event(), self.calls.event())
        try:
            for event in self.arrivals[v]:
                self.calls.wait(stream, event)
            self.calls.use(stream)
            self.calls.record(item.start, stream)
            self.job.compute(v)
            self.calls.record(item.end, stream)
        except Exception as error:
            raise self._failed(self._operation(v), error) from error
        self.running[device].append(item)
        for transfer in self.plan.sends[v]:
            try:
                self.transfer(transfer, item.end)
            except Exception as error:
                raise self._failed(self._transfer(transfer), error) from error
        return item

    def transfer(self, number: int, produced: Any) -> InFlight:
        """Enqueue a copy behind the event of its producer."""
        item = self.plan.transfers[number]
        side = self.streams.side(item.source, item.target)
        for stream in dict.fromkeys(side):
            self.calls.wait(stream, produced)
        self.calls.use(*side)
        start, end, source = self.calls.event(), self.calls.event(), self.job.payload(number)
        self.calls.record(start, side.into)
        copies = self.job.copy(number, source)
        self.calls.record(end, side.into)
        for w in dict.fromkeys(item.consumers):
            self.arrivals[w].append(end)
        moved = InFlight(number, start, end, source, copies)
        self.moving.setdefault((item.source, item.target), deque()).append(moved)
        return moved

    def look(self) -> bool:
        """Take note of all that has ended since the last look; whether anything has."""
        before, run, time = self.left, self.run, self.clock.time
        for device, running in enumerate(self.running):
            while running and self._done(running[0], self._operation):
                item, gpu = running.popleft(), self.streams.gpus[device]
                run.start[item.number], run.end[item.number] = time(gpu, item.start), time(gpu, item.end)
                self.left -= 1
                self.ended(item)
        for (_, target), moving in self.moving.items():
            while moving and self._done(moving[0], self._transfer):
                item, gpu = moving.popleft(), self.streams.gpus[target]
                run.sent[item.number], run.arrived[item.number] = time(gpu, item.start), time(gpu, item.end)
                self.left -= 1
                self.arrived(item)
        return self.left < before

    def ended(self, item: InFlight) -> None:
        """An operation has ended."""

    def arrived(self, item: InFlight) -> None:
        """A transfer has ended."""

    def watch(self) -> None:
        """Raise if the time is up or the executor was closed, else give way for a moment."""
        if self.run.failed:
            raise closed(self.plan.problem)
        if self.calls.now() > self.deadline:
            under_way = [self._operation(running[0].number) for running in self.running if running]
            raise ExecutionTimeoutError(
                f"{self.plan.problem.graph.title}: the execution did not end in time; under way: "
                f"{', '.join(under_way) or 'transfers only'}; give more time with timeout=."
            )
        self.calls.pause()

    def note_produced(self) -> None:
        """Once all has ended: when what was sent had been made. Clocks of two GPUs may differ by microseconds."""
        for number, item in enumerate(self.plan.transfers):
            if self.plan.tables.phase[item.operation] == self.phase:
                self.run.produced[number] = min(self.run.end[item.operation], self.run.sent[number])

    def _done(self, item: InFlight, name: Callable[[int], str]) -> bool:
        """Errors on a GPU come to light here, later than they happened: the oldest thing in flight is the nearest."""
        try:
            return self.calls.done(item.end)
        except Exception as error:
            raise self._failed(name(item.number), error) from error

    def _failed(self, doing: str, error: Exception) -> ExecutionError:
        return explain(f"{self.plan.problem.graph.title}: {doing}", error)

    def _operation(self, v: int) -> str:
        return f"operation {self.plan.problem.graph.names[v]!r} on device {self.plan.assignment[v]}"

    def _transfer(self, number: int) -> str:
        item = self.plan.transfers[number]
        name = self.plan.problem.graph.names[item.operation]
        return f"the transfer of {name!r} from device {item.source} to {item.target}"
