"""The few calls of ``torch.cuda`` that executing a placed graph needs, behind an interface that tests can replace.

What PyTorch promises about them, as read in its sources (2.13):

- ``torch.cuda.Stream`` takes one of 32 streams per GPU and priority, round robin (``c10/cuda/CUDAStream.h``); a 33rd is
  the first again, which only adds order. They are non-blocking streams: nothing orders them with the default stream,
  on which the user's tensors are made.
- ``set_stream`` makes a stream current on its GPU, and that GPU the current device; other GPUs keep their current
  streams. "Current" is a matter of the calling thread.
- An event belongs to the GPU of the stream that first records it and is recorded on that GPU only; streams of any GPU
  may wait for it, and any thread may query it. A wait refers to the record before it, and is nothing if there was none.
  ``elapsed_time`` wants two completed events with timing, of one GPU (``c10/cuda/CUDAEvent.h``). Destroying an event
  that is still awaited is allowed; CUDA lets go of it when it completes.
- ``target.copy_(source)`` between GPUs runs on the current stream of the source's GPU. That stream first waits for the
  current stream of the target's GPU, which afterwards waits for the copy (``ATen/native/cuda/Copy.cu``): were the
  streams that compute current, the copy would hold them up.
- The caching allocator hands out memory per stream. A freed block goes back to the stream that was current when it was
  allocated, at once, and the next allocation of that stream may take it, whatever other streams still do with it,
  unless ``record_stream`` has named them before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from time import perf_counter, sleep
from typing import TYPE_CHECKING, Any, Protocol

from ...envs.placement.interpreter import evaluate
from ...envs.placement.kernel import Kernel, Reference

if TYPE_CHECKING:
    import torch


class CudaCalls(Protocol):
    """GPUs, their streams and events. Streams and events are opaque; GPUs are numbered."""

    def count(self) -> int:
        """Number of GPUs."""

    def stream(self, gpu: int, *, copies: bool = False) -> Any:
        """A stream that computes, or one for copies."""

    def current(self, gpu: int) -> Any:
        """The stream that is current on a GPU."""

    def use(self, *streams: Any) -> None:
        """Make streams current, each on its GPU; the last one's GPU becomes the current device."""

    def restored(self, gpus: Iterable[int]) -> AbstractContextManager[None]:
        """What is within computes no gradients, and leaves the GPUs' current streams and the device as they were."""

    def event(self) -> Any:
        """An event that keeps the time."""

    def record(self, event: Any, stream: Any) -> None:
        """Let an event happen when a stream has got so far."""

    def wait(self, stream: Any, event: Any) -> None:
        """Let what a stream is given from now on wait for an event."""

    def done(self, event: Any) -> bool:
        """Whether a recorded event has happened; raises what went wrong on the GPU until then."""

    def seconds(self, begin: Any, end: Any) -> float:
        """Time between two events of one GPU that have happened."""

    def put(self, tensor: torch.Tensor, gpu: int) -> torch.Tensor:
        """The tensor on a GPU, on its current stream; itself if it is there already."""

    def empty_like(self, tensor: torch.Tensor, gpu: int) -> torch.Tensor:
        """Memory for a tensor like another one, from the current stream of a GPU."""

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Enqueue a copy on the current streams of both GPUs."""

    def keep_for(self, tensor: torch.Tensor, stream: Any) -> None:
        """Let nobody have the tensor's memory before a stream has done what it was given until the tensor is freed."""

    def evaluate(self, kernel: Kernel, fetch: Callable[[Reference], Any], gpu: int) -> tuple[Any, ...]:
        """Enqueue a kernel on the current stream of a GPU."""

    def now(self) -> float:
        """The host's clock, seconds."""

    def pause(self) -> None:
        """Nothing has happened since the last look: let others have the processor for a moment."""


class TorchCuda:
    """The calls as ``torch.cuda`` makes them."""

    def __init__(self) -> None:
        import torch

        self.torch = torch
        self.cuda: Any = torch.cuda

    def count(self) -> int:
        """As of ``CudaCalls``."""
        return self.cuda.device_count() if self.cuda.is_available() else 0

    def stream(self, gpu: int, *, copies: bool = False) -> Any:
        """As of ``CudaCalls``; copies have the high-priority streams, so that they share none with kernels."""
        return self.cuda.Stream(gpu, priority=-1 if copies else 0)

    def current(self, gpu: int) -> Any:
        """As of ``CudaCalls``."""
        return self.cuda.current_stream(gpu)

    def use(self, *streams: Any) -> None:
        """As of ``CudaCalls``."""
        for stream in streams:
            self.cuda.set_stream(stream)

    @contextmanager
    def restored(self, gpus: Iterable[int]) -> Iterator[None]:
        """As of ``CudaCalls``; other GPUs are left alone, since to make one current sets it up."""
        device = self.cuda.current_device()
        streams = [self.cuda.current_stream(gpu) for gpu in gpus]
        try:
            with self.torch.no_grad():
                yield
        finally:
            self.use(*streams)
            self.cuda.set_device(device)

    def event(self) -> Any:
        """As of ``CudaCalls``."""
        return self.cuda.Event(enable_timing=True)

    def record(self, event: Any, stream: Any) -> None:
        """As of ``CudaCalls``."""
        event.record(stream)

    def wait(self, stream: Any, event: Any) -> None:
        """As of ``CudaCalls``."""
        event.wait(stream)

    def done(self, event: Any) -> bool:
        """As of ``CudaCalls``."""
        return event.query()

    def seconds(self, begin: Any, end: Any) -> float:
        """As of ``CudaCalls``; to about half a microsecond."""
        return begin.elapsed_time(end) * 1e-3

    def put(self, tensor: torch.Tensor, gpu: int) -> torch.Tensor:
        """As of ``CudaCalls``; from memory that is not pinned it returns when the tensor has been read."""
        return tensor.detach().to(self.torch.device("cuda", gpu), non_blocking=True)

    def empty_like(self, tensor: torch.Tensor, gpu: int) -> torch.Tensor:
        """As of ``CudaCalls``; strides are kept where memory has no gaps, so that the copy is a plain one."""
        return self.torch.empty_like(tensor, device=self.torch.device("cuda", gpu))

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """As of ``CudaCalls``."""
        target.copy_(source, non_blocking=True)

    def keep_for(self, tensor: torch.Tensor, stream: Any) -> None:
        """As of ``CudaCalls``."""
        tensor.record_stream(stream)

    def evaluate(self, kernel: Kernel, fetch: Callable[[Reference], Any], gpu: int) -> tuple[Any, ...]:
        """As of ``CudaCalls``."""
        return evaluate(kernel, fetch, self.torch.device("cuda", gpu))

    def now(self) -> float:
        """As of ``CudaCalls``."""
        return perf_counter()

    def pause(self) -> None:
        """As of ``CudaCalls``; a longer sleep would add to every hop."""
        sleep(0)
