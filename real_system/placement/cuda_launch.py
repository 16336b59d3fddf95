"""Puts the operations of a placed graph on streams: driven by what has ended, or all of them ahead.

Who waits for whom, on the GPU:

- An operation runs on its device's stream, after what was enqueued there before, and that stream waits for the arrival
  of every tensor that is sent to the operation.
- A copy is enqueued right behind its producer, on side streams: both wait for the event behind the producer. The
  target's stream is the one whose events say when the copy began and arrived, so that arrivals and the operations that
  wait for them are told by the clock of one GPU.
- One pair of devices has its own side streams, and copies are enqueued in the order in which a device's operations run:
  no copy stands behind another one that could start only later.

Nothing here makes the host wait for a GPU, except a kernel that does so itself (``nonzero``, ``item``), the first
launch of one, when its code is loaded, and a launch into a full queue (some 1,000 entries). Those cannot be interrupted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from heapq import heappop
from typing import Any, NamedTuple

from .cuda_streams import Clock, Streams
from .executor import ExecutionError, ExecutionTimeoutError, explain
from .run import Run

AT_ONCE = 2
"""Operations that may be in flight on a device when the host decides: one runs, the next is there when it ends."""


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
        """Raise if the time is up, else give way for a moment."""
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


class Driven(Launch):
    """The host looks what has ended, and gives every device the best ready operation as soon as it has room.

    A device holds two operations at most. The second may wait for the first, since a stream keeps order, but for
    nothing else that has not ended: so the device is never held up by one that waits while another one could run.

    Tensors are freed when the host has seen the end of their last reader and of the copies of them: no stream uses
    them then, and the allocator may give their memory to any of its streams' next requests.
    """

    def __init__(self, run: Run, phase: int, streams: Streams, clock: Clock, deadline: float) -> None:
        super().__init__(run, phase, streams, clock, deadline)
        self.launched = [False] * self.plan.problem.n
        self.ready = [run.resumed] * self.plan.problem.n

    def go(self) -> None:
        """Run the phase to its end."""
        self._enter()
        self._fill()
        while self.left:
            if self.look():
                self._fill()
            else:
                self.watch()

    def _enter(self) -> None:
        """Admit what waits for nothing, or only for this phase's inputs."""
        for v, device in enumerate(self.plan.assignment):
            late = self.phase == 1 and self.plan.tables.late[v]
            self.run.waiting[v] -= late
            if not self.run.waiting[v] and (late or self.phase == 0):
                self.run.admit(v, device, self.run.resumed)

    def _fill(self) -> None:
        """Give every device as many operations as it may hold."""
        for device, running in enumerate(self.running):
            while len(running) < AT_ONCE and (v := self._next(device)) is not None:
                self.launched[v] = True
                self.operation(v)

    def _next(self, device: int) -> int | None:
        """The best operation that is ready, or will be when the one in flight has ended."""
        heap, rank = self.run.heaps[device], self.run.rank
        following = self._following(device)
        if following is not None and (not heap or (rank is not None and rank[following] < heap[0][0])):
            return following
        return heappop(heap)[1] if heap else None

    def _following(self, device: int) -> int | None:
        """The best operation that waits only for the one in flight; by first in, first out those behind it wait
        longer than all that are ready. Levels have none: they end before the next one begins."""
        if not self.running[device] or self.run.barrier is not None:
            return None
        local = self.plan.local[self.running[device][0].number]
        only = [w for w in set(local) if self.run.waiting[w] == local.count(w) and not self.launched[w]]
        rank = self.run.rank
        return min(only, key=lambda w: w if rank is None else rank[w], default=None)

    def ended(self, item: InFlight) -> None:
        """Operations on the same device may have become ready; tensors may go."""
        v, run = item.number, self.run
        for w in self.plan.local[v]:
            self._arrived_at(w, self.plan.assignment[v], run.end[v])
        self.job.release(v)
        if run.barrier is not None:
            run.barrier.ended(v)
            self._advance()

    def arrived(self, item: InFlight) -> None:
        """Keep the copies; operations on the target may have become ready."""
        self.job.arrive(item.number, item.copies)
        transfer = self.plan.transfers[item.number]
        for w in transfer.consumers:
            self._arrived_at(w, transfer.target, self.run.arrived[item.number])
        if self.run.barrier is not None:
            self._advance()

    def _arrived_at(self, w: int, device: int, when: float) -> None:
        run = self.run
        run.waiting[w] -= 1
        self.ready[w] = max(self.ready[w], when)
        if not run.waiting[w] and not self.launched[w]:
            run.admit(w, device, self.ready[w])

    def _advance(self) -> None:
        """Begin the next level if this was the last thing that it waited for."""
        assert self.run.barrier is not None, "checked by the callers"
        if self.run.barrier.advance():
            for device in range(self.plan.problem.d):
                self.run.open(device)


class Ahead(Launch):
    """Everything is enqueued at once, in a fixed topological order; the GPUs do the waiting.

    The host lets go of a tensor when it has enqueued its last reader, long before that has run. That is safe on the
    stream that the tensor's memory came from: whoever gets the memory next is behind the reader in the same stream. Of
    the other streams that use it (the one that sends it; the one that computes with a copy) the allocator is told by
    ``record_stream``: it notes where they are when the tensor is freed, and waits until they have got so far.
    """

    def go(self, order: Sequence[int]) -> None:
        """Enqueue the phase's operations in an order, then wait for their end."""
        level = self.plan.problem.graph.depth
        if self.run.barrier is not None:
            order = sorted(order, key=lambda v: level[v])
        begun: list[InFlight] = []
        before = -1
        for v in order:
            if self.plan.tables.phase[v] != self.phase:
                continue
            if self.run.barrier is not None and level[v] != before:
                self._level(order, begun, int(level[v]))
                before, begun = level[v], []
            begun.append(self.operation(v))
            self.job.release(v)
            if self.calls.now() > self.deadline:
                self.watch()
        while self.left:
            if not self.look():
                self.watch()

    def transfer(self, number: int, produced: Any) -> InFlight:
        """Enqueue a copy; its tensors are kept by the streams that use them, and by no one else."""
        moved = super().transfer(number, produced)
        item = self.plan.transfers[number]
        side = self.streams.side(item.source, item.target)
        for tensor in moved.source:
            self.calls.keep_for(tensor, side.out)
        for tensor in moved.copies:
            self.calls.keep_for(tensor, self.streams.compute[item.target])
        self.job.arrive(number, moved.copies)
        light = moved._replace(source=(), copies=())
        self.moving[item.source, item.target][-1] = light
        return light

    def _level(self, order: Sequence[int], ended: Sequence[InFlight], level: int) -> None:
        """Let all devices wait for the operations of the level before, and for all that the next one is sent."""
        depth = self.plan.problem.graph.depth
        events = [item.end for item in ended]
        events += [event for v in order if depth[v] == level for event in self.arrivals[v]]
        for stream in self.streams.compute:
            for event in dict.fromkeys(events):
                self.calls.wait(stream, event)
