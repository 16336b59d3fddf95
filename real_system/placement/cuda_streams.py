"""The streams of an executor on GPUs, and the clock that their events are read with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from .cuda_calls import CudaCalls


class Side(NamedTuple):
    """Where copies between two devices are enqueued: a stream of the source's GPU and one of the target's.

    The copy runs on ``out``, and memory for it is taken from ``into``. On one GPU they are the same stream.
    """

    out: Any
    into: Any


class Streams:
    """A stream that computes for every device, and side streams for every ordered pair that something is sent over.

    They are made once: what the allocator keeps for a stream can be used again by the next execution.
    """

    def __init__(self, calls: CudaCalls, gpus: Sequence[int]) -> None:
        self.calls, self.gpus = calls, gpus
        self.compute = [calls.stream(gpu) for gpu in gpus]
        self._sides: dict[tuple[int, int], Side] = {}

    def side(self, source: int, target: int) -> Side:
        """The side streams from one device to another."""
        if (source, target) not in self._sides:
            into = self.calls.stream(self.gpus[target], copies=True)
            same = self.gpus[source] == self.gpus[target]
            out = into if same else self.calls.stream(self.gpus[source], copies=True)
            self._sides[source, target] = Side(out, into)
        return self._sides[source, target]

    def marks(self) -> list[Any]:
        """Events behind everything that was enqueued, also by the user on the streams that are current."""
        current = [self.calls.current(gpu) for gpu in sorted(set(self.gpus))]
        sides = [stream for side in self._sides.values() for stream in dict.fromkeys(side)]
        events = []
        for stream in [*self.compute, *sides, *current]:
            events.append(self.calls.event())
            self.calls.record(events[-1], stream)
        return events


class Clock:
    """Reads events in the host's time.

    Every GPU has a base event, which happens while its streams rest, and which the host sees at once. Times of one GPU
    are exact to half a microsecond. They are late by what the host took to see the event, some microseconds, so that
    nothing seems to begin before the host has asked for it; two GPUs' times differ by as much.
    """

    def __init__(self, calls: CudaCalls, bases: Mapping[int, Any]) -> None:
        """Start the clock; ``bases`` maps GPUs to a stream of theirs, which is at rest."""
        self._calls = calls
        self._bases: dict[int, tuple[Any, float]] = {}
        for gpu, stream in bases.items():
            base = calls.event()
            calls.record(base, stream)
            while not calls.done(base):
                calls.pause()
            self._bases[gpu] = base, calls.now()

    def time(self, gpu: int, event: Any) -> float:
        """When an event of a GPU happened."""
        base, at = self._bases[gpu]
        return at + self._calls.seconds(base, event)
