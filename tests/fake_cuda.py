"""GPUs that are not there: a clock of their own, streams in order, and tensors whose every use is checked.

Kernels and copies are computed at once, on the CPU; what takes time is only the clock. A stream's work begins when the
host has enqueued it, the stream is through with what it had before, and the events that it was told to wait for have
happened. Since the host can only wait for what it has enqueued, all times are known when work is enqueued.

Faults in the use of streams are noted in ``faults``: what is read before it was written, and memory that is freed while
another stream than its own still uses it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from hadoppler.envs.placement.interpreter import evaluate
from hadoppler.envs.placement.kernel import Kernel

NEVER = float("inf")


@dataclass(eq=False)
class FakeStream:
    gpu: int
    copies: bool = False
    free: float = 0.0  # when it is through with all that it has


@dataclass(eq=False)
class FakeEvent:
    at: float | None = None
    gpu: int = -1
    error: Exception | None = None


@dataclass(eq=False)
class Memory:
    """A tensor on a GPU: whose stream's memory it is, when it was written, and until when streams use it."""

    stream: FakeStream
    written: float
    uses: dict[FakeStream, float] = field(default_factory=dict)
    kept_for: set[FakeStream] = field(default_factory=set)


@dataclass(eq=False)
class Work:
    """A kernel: who ran it, when the host gave it to its stream, when it ran."""

    kernel: Kernel
    stream: FakeStream
    given: float
    start: float
    end: float


class FakeCuda:
    """Fills ``CudaCalls``.

    Attributes:
        seconds_of: how long a kernel takes.
        bytes_per_s: of copies.
        launch_s: what enqueuing a kernel costs the host.
        watch: called whenever the host has nothing to do.
    """

    def __init__(
        self,
        gpus: int = 1,
        seconds_of: Callable[[Kernel], float] = lambda kernel: 1.0,
        bytes_per_s: float = 100.0,
        launch_s: float = 0.0,
    ) -> None:
        self.gpus, self.seconds_of, self.bytes_per_s, self.launch_s = gpus, seconds_of, bytes_per_s, launch_s
        self.default = [FakeStream(gpu) for gpu in range(gpus)]
        self.streams: list[FakeStream] = []
        self.is_current = list(self.default)
        self.clock = 0.0
        self.coming: list[float] = []
        self.memory: dict[int, Memory] = {}
        self.faults: list[str] = []
        self.work: list[Work] = []
        self.copies = self.puts = self.events = 0
        self.watch: Callable[[], None] = lambda: None
        self.broken: Exception | None = None

    def count(self) -> int:
        return self.gpus

    def stream(self, gpu: int, *, copies: bool = False) -> FakeStream:
        self.streams.append(FakeStream(gpu, copies))
        return self.streams[-1]

    def current(self, gpu: int) -> FakeStream:
        return self.is_current[gpu]

    def use(self, *streams: FakeStream) -> None:
        for stream in streams:
            self.is_current[stream.gpu] = stream

    @contextmanager
    def restored(self, gpus: Iterable[int]) -> Iterator[None]:
        before = list(self.is_current)
        try:
            with torch.no_grad():
                yield
        finally:
            self.is_current = before

    def event(self) -> FakeEvent:
        self.events += 1
        return FakeEvent()

    def record(self, event: FakeEvent, stream: FakeStream) -> None:
        assert event.gpu in (-1, stream.gpu), "an event is recorded on one GPU only"
        event.at, event.gpu = max(stream.free, self.clock), stream.gpu
        event.error = self.broken
        self.coming.append(event.at)

    def wait(self, stream: FakeStream, event: FakeEvent) -> None:
        if event.at is not None:
            stream.free = max(stream.free, event.at)

    def done(self, event: FakeEvent) -> bool:
        if event.error is not None:
            raise event.error
        return event.at is None or event.at <= self.clock

    def seconds(self, begin: FakeEvent, end: FakeEvent) -> float:
        assert begin.gpu == end.gpu, "events of two GPUs have no common clock"
        assert begin.at is not None, "recorded"
        assert end.at is not None, "recorded"
        assert self.done(begin)
        assert self.done(end)
        return end.at - begin.at

    def put(self, tensor: torch.Tensor, gpu: int) -> torch.Tensor:
        self.puts += 1
        stream = self.is_current[gpu]
        stream.free = max(stream.free, self.clock) + 0.5
        return self._allocate(tensor.detach().clone(), stream, stream.free)

    def empty_like(self, tensor: torch.Tensor, gpu: int) -> torch.Tensor:
        return self._allocate(torch.empty_like(tensor), self.is_current[gpu], NEVER)

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """On the source's stream; between GPUs both current streams wait for each other, before and after."""
        self.copies += 1
        into, out = self._of(target), self._of(source)
        here, there = self.is_current[out.stream.gpu], self.is_current[into.stream.gpu]
        here.free = max(here.free, there.free, self.clock)
        begin = here.free
        here.free += source.numel() * source.element_size() / self.bytes_per_s
        self._read(source, here, begin, here.free)
        there.free = max(there.free, here.free)
        into.written = here.free
        self._read(target, there, here.free, here.free)  # also the target's stream is behind the copy now
        target.copy_(source)

    def keep_for(self, tensor: torch.Tensor, stream: FakeStream) -> None:
        memory = self._of(tensor)
        assert memory.stream.gpu == stream.gpu
        memory.kept_for.add(stream)

    def evaluate(self, kernel: Kernel, fetch: Any, gpu: int) -> tuple[Any, ...]:
        self.clock += self.launch_s
        stream, given = self.is_current[gpu], self.clock
        begin = max(stream.free, given)
        end = begin + self.seconds_of(kernel)

        def noted(reference: Any) -> torch.Tensor:
            tensor = fetch(reference)
            assert self._of(tensor).stream.gpu == gpu, "a tensor of another GPU"
            self._read(tensor, stream, begin, end)
            return tensor

        results = evaluate(kernel, noted, torch.device("cpu"))
        stream.free = end
        self.work.append(Work(kernel, stream, given, begin, end))
        return tuple(self._allocate(result.clone(), stream, end) for result in results)

    def now(self) -> float:
        return self.clock

    def pause(self) -> None:
        """The clock goes on to the next event, or half a second where that is further away."""
        self.watch()
        self.coming = [at for at in self.coming if at > self.clock]
        self.clock = min([*self.coming, self.clock + 0.5])

    def alive(self) -> int:
        """Tensors on GPUs."""
        return len(self.memory)

    def _allocate(self, tensor: torch.Tensor, stream: FakeStream, written: float) -> torch.Tensor:
        key = id(tensor)
        assert key not in self.memory
        self.memory[key] = Memory(stream, written)
        weakref.finalize(tensor, self._free, key).atexit = False
        return tensor

    def _of(self, tensor: torch.Tensor) -> Memory:
        return self.memory[id(tensor if tensor._base is None else tensor._base)]

    def _read(self, tensor: torch.Tensor, stream: FakeStream, begin: float, end: float) -> None:
        memory = self._of(tensor)
        if begin < memory.written:
            self.faults.append(f"read at {begin} what is written at {memory.written}")
        memory.uses[stream] = max(memory.uses.get(stream, 0.0), end)

    def _free(self, key: int) -> None:
        memory = self.memory.pop(key)
        for stream, until in memory.uses.items():
            if stream not in (memory.stream, *memory.kept_for) and until > self.clock:
                self.faults.append(f"freed at {self.clock} what another stream uses until {until}")
