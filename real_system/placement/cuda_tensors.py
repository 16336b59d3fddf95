"""The tensors of a placed graph on GPUs: inputs, which stay there between executions, and the values of one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from ...envs.placement.kernel import Reference
from .cpu import CpuJob, TensorDevices
from .cuda_calls import CudaCalls
from .executor import explain
from .run_plan import RunPlan

if TYPE_CHECKING:
    import torch


class Sent(NamedTuple):
    """An input on a GPU, and what was sent. Holding that keeps its memory from becoming another tensor's."""

    state: tuple[Any, ...] | None
    given: torch.Tensor
    there: torch.Tensor


@dataclass(eq=False)
class CudaDevices(TensorDevices):
    """Devices that are streams of GPUs.

    Attributes:
        calls: how GPUs are spoken to.
        gpus: [D] GPU of each device.
        sent: (GPU, input) -> the tensor there. Devices on one GPU share it: nobody writes to it.
    """

    calls: CudaCalls
    gpus: Sequence[int]
    sent: dict[tuple[int, int], Sent] = field(default_factory=dict, repr=False)

    def job_on(self, plan: RunPlan, given: list[Any]) -> CudaJob:
        """As of ``TensorDevices``."""
        return CudaJob(plan, given, self)

    def home(self, device: int) -> torch.device:
        """Where an input that a device reads often should lie."""
        import torch

        return torch.device("cuda", self.gpus[device])

    def send(self, plan: RunPlan, given: Sequence[torch.Tensor | None]) -> None:
        """Bring every GPU what its operations read, unless it has it; forget what they read no longer.

        Inputs that are None come in a later phase. What is replaced here is free at once: all streams have come to
        rest when an execution begins.
        """
        graph, wanted = self.problem.graph, dict[tuple[int, int], int]()
        for v, device in enumerate(plan.assignment):
            if not plan.tables.wanted[v]:
                continue
            for number in graph.input_index[graph.input_ptr[v] : graph.input_ptr[v + 1]].tolist():
                wanted.setdefault((self.gpus[device], number), device)
        self.sent = {key: entry for key, entry in self.sent.items() if key in wanted}
        for (gpu, number), device in wanted.items():
            tensor = given[number]
            if tensor is None:
                continue
            state, known = _state(tensor), self.sent.get((gpu, number))
            if known is not None and state is not None and known.state == state:
                continue
            self.sent.pop((gpu, number), None)  # its memory may be needed for what replaces it
            try:
                there = self.calls.put(tensor, gpu)
            except Exception as error:
                name = graph.inputs[number].name
                raise explain(f"{graph.title}: sending the input {name!r} to device {device}", error) from error
            self.sent[gpu, number] = Sent(state, tensor, there)

    def clear(self) -> None:
        """Forget all inputs."""
        self.given, self.sent = None, {}


class CudaJob(CpuJob):
    """The tensors of one execution, on GPUs. Everything is enqueued on the streams that are current."""

    def __init__(self, plan: RunPlan, given: list[torch.Tensor], devices: CudaDevices) -> None:
        super().__init__(plan, given)
        self.devices = devices

    def send_inputs(self) -> None:
        """Bring every GPU the inputs that its operations read."""
        self.devices.send(self.plan, self.given)

    def compute(self, v: int) -> None:
        """Enqueue a kernel; its results stay until the last reader on this device has run."""
        plan, values, sent = self.plan, self.values, self.devices.sent
        gpu = self.devices.gpus[plan.assignment[v]]

        def fetch(reference: Reference) -> Any:
            if reference.source == "input":
                return sent[gpu, reference.number].there
            return values[plan.slot(v, (reference.number, reference.output))]

        results = self.devices.calls.evaluate(self.kernels[v], fetch, gpu)
        for slot, result in zip(range(*plan.tables.first_slot[v : v + 2]), results, strict=False):
            values[slot] = result

    def copy(self, transfer: int, payload: tuple[Any, ...]) -> tuple[Any, ...]:
        """Enqueue copies to the target's GPU, also if it is the source's: devices share no memory."""
        calls, gpu = self.devices.calls, self.devices.gpus[self.plan.transfers[transfer].target]
        copies = tuple(calls.empty_like(tensor, gpu) for tensor in payload)
        for target, source in zip(copies, payload, strict=True):
            calls.copy(target, source)
        return copies

    def arrive(self, transfer: int, payload: tuple[Any, ...]) -> None:
        """Keep the copies until their last reader has run, and not at all what nobody reads there."""
        for slot, tensor in zip(self.plan.transfers[transfer].slots, payload, strict=True):
            self.values[slot] = tensor if self.holds[slot] else None

    def outputs(self, phase: int) -> dict[str, torch.Tensor]:
        """What the graph returns and has computed by the end of a phase, each where it was computed.

        The memory is an executor's stream's. The user's stream uses it from now on, and the allocator is told, so that
        nobody gets it while that stream still reads what the user has let go of.
        """
        found, graph, calls = super().outputs(phase), self.plan.problem.graph, self.devices.calls
        for name, reference in zip(graph.output_names, graph.outputs, strict=True):
            if reference.source == "op" and name in found:
                gpu = self.devices.gpus[self.plan.assignment[reference.number]]
                calls.keep_for(found[name], calls.current(gpu))
        return found

    def stop(self) -> None:
        """Let go of all values."""
        self.values[:] = [None] * len(self.values)


def _state(tensor: torch.Tensor) -> tuple[Any, ...] | None:
    """What tells whether a tensor has changed: where it lies, how it is read, and how often it was written to.

    Tiles are cut anew for each execution, so that the object itself says nothing. None, which nothing equals, for
    inference tensors, whose writes are not counted. Writing through ``tensor.data`` is not counted either.
    """
    if tensor.is_inference():
        return None
    place = (tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
    return (*place, tensor.is_conj(), tensor.is_neg(), tensor._version)
