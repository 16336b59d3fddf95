"""Operations on GPUs as the host sees them become ready: work-conserving."""

from __future__ import annotations

from heapq import heappop

from .cuda_launch import InFlight, Launch
from .cuda_streams import Clock, Streams
from .run import Run

AT_ONCE = 2
"""Operations that may be in flight on a device: one runs, the next is there when it ends."""


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
        self.note_produced()

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
