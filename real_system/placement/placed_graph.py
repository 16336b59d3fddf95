"""A graph captured from a module, placed on the devices of an executor: forward and backward pass of one call."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, Protocol

import torch
from torch.utils._pytree import tree_unflatten

from ...envs.errors import GraphError
from ...envs.placement.graph import Integers
from ...envs.placement.interpreter import apply_views
from .executor import ExecutionError, ranks
from .module_tensors import ModuleTensors, apart, joined, position, whole_name
from .phased import DeviceJob, PhasedExecutor
from .run import Run
from .run_plan import GraphTables, RunPlan

FORWARD, BACKWARD = 0, 1


class Devices(Protocol):
    """What an executor knows of its devices."""

    def job_on(self, plan: RunPlan, given: list[Any]) -> DeviceJob:
        """What one execution does, with inputs that are cut; None for those that come in the second phase."""

    def home(self, device: int) -> torch.device:
        """Where an input that a device reads often should lie."""


class PlacedGraph:
    """What calls of a module need of its graph on devices.

    The first phase is all that does not depend on the gradients of the outputs, the second one the rest.

    Attributes:
        rank: [N] position of each operation in the priority order, or None.
        ended: how often the executor's threads have been ended; calls that were open then are lost.
    """

    def __init__(
        self, tensors: ModuleTensors, executor: PhasedExecutor, assignment: Integers, priority: Integers | None
    ) -> None:
        problem = executor.problem
        if not hasattr(executor.kind, "job_on"):
            raise ExecutionError(
                f"{tensors.title}: these devices compute no tensors; use an executor of CPU devices or of GPUs."
            )
        self.tensors, self.executor, self.assignment, self.ended = tensors, executor, assignment, 0
        self.kind: Devices = executor.kind
        self.rank = None if priority is None else ranks(problem, "priority", priority, "work_conserving")
        self._lock = threading.Lock()
        self.late = [number for number, entry in enumerate(problem.graph.inputs) if entry.role == "tangent"]
        self.both = RunPlan.of(GraphTables.of(problem, self.late), assignment)
        self._check_phases()
        self._settle()

    @cached_property
    def forward_only(self) -> RunPlan:
        """Only the operations that returned values and changed buffers need."""
        problem = self.executor.problem
        wanted, sources, targets = [False] * problem.n, problem.graph.edge_source, problem.graph.edge_target
        for name, reference in zip(problem.graph.output_names, problem.graph.outputs, strict=True):
            if reference.source == "op" and not _is_gradient(name):
                wanted[reference.number] = True
        before: list[list[int]] = [[] for _ in range(problem.n)]
        for source, target in zip(sources.tolist(), targets.tolist(), strict=True):
            before[target].append(source)
        for v in reversed(problem.graph.topological_order.tolist()):
            if wanted[v]:
                for source in before[v]:
                    wanted[source] = True
        return RunPlan.of(GraphTables.of(problem, self.late, wanted), self.assignment)

    @cached_property
    def read_late(self) -> set[str]:
        """Inputs that the second phase reads."""
        graph, phase = self.executor.problem.graph, self.both.tables.phase
        numbers = set[int]()
        for v in range(graph.n):
            if phase[v] == BACKWARD:
                numbers |= set(graph.input_index[graph.input_ptr[v] : graph.input_ptr[v + 1]].tolist())
        return self.tensors.names_of(numbers - set(self.late))

    @cached_property
    def returned_late(self) -> set[str]:
        """Returned values that the second phase reads."""
        graph, tables = self.executor.problem.graph, self.both.tables
        reads = {key for v, keys in enumerate(tables.reads) if tables.phase[v] == BACKWARD for key in keys}
        pairs = zip(graph.output_names, graph.outputs, strict=True)
        return {whole_name(name) for name, r in pairs if r.source == "op" and (r.number, r.output) in reads}

    @cached_property
    def passed_through(self) -> dict[str, Any]:
        """Tiles of returned values that are inputs, perhaps seen otherwise; autograd follows them by itself."""
        graph, tensors = self.executor.problem.graph, self.tensors
        other = {*tensors.changed, *tensors.differentiable}
        return {
            name: reference
            for name, reference in zip(graph.output_names, graph.outputs, strict=True)
            if reference.source == "input" and not _is_gradient(name) and whole_name(name) not in other
            if tensors.pieces[reference.number][0] not in tensors.changed
        }

    def carry_on(self, run: Run, phase: int) -> None:
        """One phase of one execution; others wait.

        Raises:
            ExecutionError: something failed; the threads have ended.
        """
        with self._lock:
            try:
                self.executor.carry_on(run, phase)
            except BaseException:
                self.ended += 1
                raise

    def close(self) -> None:
        """End the executor's threads, and the pass under way if there is one: without waiting for it."""
        self.ended += 1
        self.executor.close()

    def _check_phases(self) -> None:
        """Everything that a call returns or changes is there after its forward pass."""
        graph, phase = self.executor.problem.graph, self.both.tables.phase
        for name, reference in zip(graph.output_names, graph.outputs, strict=True):
            if not _is_gradient(name) and reference.source == "op" and phase[reference.number] == BACKWARD:
                raise GraphError(
                    f"{graph.title}: the call changes {whole_name(name)!r}, but its backward pass needs the old value; "
                    "compute with (value + 0) where the gradient passes, and change it afterwards."
                )

    def _settle(self) -> None:
        """Move parameters and buffers to where most of the operations run that read them.

        This decides where the module's own tensors lie: on CPU devices in the machine's memory, which all of them read
        in place; on GPUs each on one of them, and the others are sent it again when it has changed.
        """
        graph, readers = self.executor.problem.graph, dict[str, Counter[int]]()
        for v in range(graph.n):
            for number in graph.input_index[graph.input_ptr[v] : graph.input_ptr[v + 1]].tolist():
                readers.setdefault(self.tensors.pieces[number][0], Counter())[int(self.assignment[v])] += 1
        for name, (registry, key) in self.tensors.state.items():
            count = readers.get(name, Counter({0: 1}))
            home = self.kind.home(min(count, key=lambda device: (-count[device], device)))
            if registry[key].device != home:
                registry[key].data = registry[key].data.to(home)


class Call:
    """One call of the module: its forward pass, and its backward pass if there is one."""

    def __init__(self, placed: PlacedGraph, values: dict[str, torch.Tensor], note: Callable[[Run], None]) -> None:
        self.placed, self.tensors, self.values, self.note = placed, placed.tensors, values, note
        self.results: dict[str, torch.Tensor] = {}
        self._open: tuple[Run, DeviceJob, int] | None = None

    def forward(self, *, backward: bool) -> None:
        """Compute ``results`` and write to the buffers that the call changes; stay open for a backward pass."""
        placed, tensors, values = self.placed, self.tensors, self.values
        plan = placed.both if backward else placed.forward_only
        late, read = set(placed.late), dict(values)
        if backward:
            tensors.check_changed(values)
            read |= {name: values[name].clone() for name in tensors.changed & placed.read_late}
        cut = tensors.cut(read, (number for number in range(len(tensors.pieces)) if number not in late))
        given = [cut.get(number) for number in range(len(tensors.pieces))]
        job = placed.kind.job_on(plan, given)
        run = Run(plan, job, placed.rank, None)
        placed.carry_on(run, FORWARD)
        outputs = job.outputs(FORWARD)
        found = joined({n: t for n, t in outputs.items() if n not in placed.passed_through and not _is_gradient(n)})
        self.results = dict(zip(found, apart(list(found.values()), list(values.values())), strict=True))
        with torch.no_grad():
            for name in tensors.changed:
                values[name].copy_(self.results.pop(name))
        self.note(run)
        if backward:
            self._open = run, job, placed.ended

    def kept(self) -> list[torch.Tensor]:
        """What must not have changed when the backward pass begins."""
        inputs, outputs = self.placed.read_late - self.tensors.changed, self.placed.returned_late & self.results.keys()
        return [self.values[name] for name in sorted(inputs)] + [self.results[name] for name in sorted(outputs)]

    def backward(self, gradients: Sequence[torch.Tensor | None]) -> dict[str, torch.Tensor]:
        """Gradients of inputs, from those of the differentiable returned values; None stands for zeros.

        Raises:
            ExecutionError: it was done before, or the executor was closed or has failed since the forward pass.
        """
        placed, tensors = self.placed, self.tensors
        if self._open is None:
            raise ExecutionError(
                f"{tensors.title}: a call can go backward once, also with retain_graph; add up the losses first, or "
                "call the module again."
            )
        run, job, ended = self._open
        self._open = None
        if ended != placed.ended:
            raise ExecutionError(
                f"{tensors.title}: the executor was closed, or has failed, since this forward pass; call the "
                "module again."
            )
        tangents = {}
        for name, gradient in zip(tensors.tangents, gradients, strict=True):
            shape, dtype = tensors.types[name]
            tangents[name] = torch.zeros(shape, dtype=dtype) if gradient is None else gradient.contiguous()
        job.provide(tensors.cut(tangents, placed.late))
        placed.carry_on(run, BACKWARD)
        self.note(run)
        found = joined({n: t for n, t in job.outputs(BACKWARD).items() if _is_gradient(n)})
        own = apart(list(found.values()), [*tangents.values(), *self.values.values()])
        self.values = {}
        return {name.removeprefix("grad."): value for name, value in zip(found, own, strict=True)}

    def returned(self, differentiable: Sequence[torch.Tensor]) -> Any:
        """What the module returns, nested as it does."""
        through, tensors = self.placed.passed_through, self.tensors
        inputs = tensors.cut(self.values, {reference.number for reference in through.values()})
        seen = joined({name: apply_views(inputs[r.number], r.views).clone() for name, r in through.items()})
        found = self.results | seen | dict(zip(tensors.differentiable, differentiable, strict=False))
        self.results = {}
        for name, view in tensors.views.items() if differentiable else ():
            found[name] = found[view.whole].contiguous().as_strided(view.sizes, view.strides, view.offset).clone()
        leaves = list(tensors.returned.leaves)
        for name, value in found.items():
            leaves[position(name)] = value
        return tree_unflatten(leaves, tensors.returned.nesting)


def _is_gradient(name: str) -> bool:
    return name.startswith("grad.")
