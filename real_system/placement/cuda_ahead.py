"""All operations on GPUs at once, in a fixed order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .cuda_launch import InFlight, Launch


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
        self.note_produced()

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
