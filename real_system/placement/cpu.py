"""CPU devices: a thread with one intra-op thread each, real tensors, real copies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any

from ...envs.errors import GraphError
from ...envs.placement import PlacementProblem
from ...envs.placement.interpreter import apply_views, evaluate
from ...envs.placement.kernel import Reference
from ...envs.placement.whole_tensors import cut_inputs
from . import settings
from .links import Couriers, Links
from .run_plan import RunPlan
from .threads import ThreadExecutor

if TYPE_CHECKING:
    import torch


@dataclass(eq=False)
class TensorDevices:
    """Devices that really compute: what those of processors and of GPUs share.

    Attributes:
        problem: graph with kernels.
        given: the graph's inputs of the last execution, where the user has them.
    """

    problem: PlacementProblem
    given: list[torch.Tensor] | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.problem.graph.kernels is None:
            raise GraphError(
                f"{self.problem.graph.title}: the graph has no kernels and cannot be executed; capture or build one, "
                "or emulate its devices."
            )

    def job(self, plan: RunPlan, inputs: Mapping[str, torch.Tensor] | None, seed: int) -> CpuJob:
        """The tensors of one execution; without ``inputs`` those of the last one, or random ones."""
        if inputs is not None:
            self.given = cut_inputs(self.problem.graph, inputs)
        if self.given is None:
            self.given = cut_inputs(self.problem.graph, random_inputs(self.problem, seed))
        return self.job_on(plan, list(self.given))

    def job_on(self, plan: RunPlan, given: list[Any]) -> CpuJob:
        """What one execution does with inputs [P] that are cut already; None for those that a later phase brings."""
        raise NotImplementedError


@dataclass(eq=False)
class CpuDevices(TensorDevices):
    """Devices that are processors of this machine.

    Inputs lie in the machine's memory, where every device reads them; they are not copied.

    Attributes:
        bytes_per_s: a limit on each link, which makes transfers wait; infinite for memory's own speed.
    """

    bytes_per_s: float = float("inf")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.bytes_per_s = settings.rate("bytes_per_s", self.bytes_per_s)

    def job_on(self, plan: RunPlan, given: list[Any]) -> CpuJob:
        """As of ``TensorDevices``."""
        return CpuJob(plan, given)

    def home(self, device: int) -> torch.device:
        """Where an input that a device reads often should lie."""
        import torch

        return torch.device("cpu")

    def links(self) -> Links:
        """As of ``DeviceKind``."""
        return Couriers(self.problem.d, self.bytes_per_s)

    def enter_thread(self) -> None:
        """As of ``DeviceKind``: operations run in this thread alone."""
        import torch

        torch.set_num_threads(1)


class CpuJob:
    """The tensors of one execution."""

    def __init__(self, plan: RunPlan, given: list[torch.Tensor]) -> None:
        import torch

        kernels = plan.problem.graph.kernels
        assert kernels is not None, "checked by CpuDevices"
        self.plan, self.given, self.kernels = plan, given, kernels
        self.values: list[Any] = [None] * plan.slots
        self.holds = list(plan.holds)
        self.cpu, self.no_grad = torch.device("cpu"), torch.no_grad

    def compute(self, v: int) -> None:
        """Evaluate a kernel; its results stay until the last reader on this device has run."""
        slot, values, given = self.plan.slot, self.values, self.given

        def fetch(reference: Reference) -> Any:
            if reference.source == "input":
                return given[reference.number]
            return values[slot(v, (reference.number, reference.output))]

        with self.no_grad():
            results = evaluate(self.kernels[v], fetch, self.cpu)
        first = self.plan.tables.first_slot[v]
        for position in range(self.plan.tables.first_slot[v + 1] - first):
            values[first + position] = results[position]

    def payload(self, transfer: int) -> tuple[Any, ...]:
        """The tensors themselves; whoever copies holds them."""
        item = self.plan.transfers[transfer]
        first = self.plan.tables.first_slot[item.operation]
        return tuple(self.values[first + output] for output in item.outputs)

    def copy(self, transfer: int, payload: tuple[Any, ...]) -> tuple[Any, ...]:
        """New tensors with the same contents."""
        return tuple(tensor.clone() for tensor in payload)

    def arrive(self, transfer: int, payload: tuple[Any, ...]) -> None:
        """Keep the copies until their last reader has run."""
        for slot, tensor in zip(self.plan.transfers[transfer].slots, payload, strict=True):
            self.values[slot] = tensor

    def release(self, v: int) -> None:
        """Drop what nobody on this device reads any more, also of v's own results."""
        for slot in self.plan.releases[v]:
            self.holds[slot] -= 1
            if not self.holds[slot]:
                self.values[slot] = None
        for slot in range(self.plan.tables.first_slot[v], self.plan.tables.first_slot[v + 1]):
            if not self.holds[slot]:
                self.values[slot] = None

    def stop(self) -> None:
        """Operations of torch cannot be interrupted; each device ends after the one it is in."""

    def outputs(self, phase: int) -> dict[str, torch.Tensor]:
        """What the graph returns and has computed by the end of a phase."""
        graph, tables = self.plan.problem.graph, self.plan.tables
        found = {}
        for name, reference in zip(graph.output_names, graph.outputs, strict=True):
            if reference.source == "input":
                found[name] = apply_views(self.given[reference.number], reference.views)
            elif tables.phase[reference.number] <= phase:
                stored = self.values[tables.first_slot[reference.number] + reference.output]
                found[name] = apply_views(stored, reference.views)
        return found

    def provide(self, inputs: Mapping[int, torch.Tensor]) -> None:
        """Inputs of the second phase, by number."""
        for number, tensor in inputs.items():
            self.given[number] = tensor


def random_inputs(problem: PlacementProblem, seed: int) -> dict[str, torch.Tensor]:
    """A tensor for every graph input, of its type: normal numbers, or zeros for integers.

    Tensors of two and more dimensions are divided by the root of ``fan_in``, so that long chains of products stay
    finite, and buffers are 1 and more, as among them are variances by which is divided (our choice).

    Raises:
        GraphError: an input has no type.
    """
    import torch

    generator = torch.Generator().manual_seed(seed)
    values = {}
    for entry in problem.graph.inputs:
        if entry.type is None:
            raise GraphError(f"{problem.graph.title}: the input {entry.name!r} has no type; give inputs=.")
        dtype = getattr(torch, entry.type.dtype)
        if dtype.is_floating_point or dtype.is_complex:
            drawn = torch.complex64 if dtype.is_complex else torch.float32
            scaled = torch.randn(entry.type.shape, generator=generator, dtype=drawn) / fan_in(entry.type.shape) ** 0.5
            values[entry.name] = (1.0 + scaled.abs() if entry.role == "buffer" else scaled).to(dtype)
        else:
            values[entry.name] = torch.zeros(entry.type.shape, dtype=dtype)
    return values


def fan_in(shape: Sequence[int]) -> int:
    """Terms of the sums that a tensor of weights takes part in.

    The longer side of a matrix, also of several, for weights stand either way up; of a convolution's weights all but
    the first dimension; 1 of vectors.
    """
    if len(shape) < 2:
        return 1
    return max(1, *shape[-2:]) if len(shape) < 4 else max(1, prod(shape[1:]))


def cpu_executor(
    problem: PlacementProblem, *, bytes_per_s: float = float("inf"), timeout: float = 60.0
) -> ThreadExecutor:
    """An executor of CPU devices, one thread each.

    Raises:
        GraphError: the graph has no kernels.
        PlacementError: a number is not usable.
    """
    return ThreadExecutor(problem, CpuDevices(problem, bytes_per_s), timeout)
