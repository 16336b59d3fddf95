"""What executors of CPU, emulated and CUDA devices share: plans of placements, and executions that may pause."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import ArrayLike

from ...envs.placement import PlacementProblem
from . import settings
from .executor import Execution, Executor, Options, ranks
from .run import Job, LevelBarrier, Run
from .run_plan import GraphTables, RunPlan

if TYPE_CHECKING:
    import torch


class DeviceJob(Job, Protocol):
    """A job that also tells what the graph returned."""

    def outputs(self, phase: int) -> dict[str, torch.Tensor]:
        """What the graph returns and has computed by the end of a phase."""

    def provide(self, inputs: Mapping[int, torch.Tensor]) -> None:
        """Inputs of the second phase, by number."""


class PhasedExecutor(Executor):
    """An executor that can stop between two phases of an execution.

    Attributes:
        kind: the devices; ``kind.job(plan, inputs, seed)`` is what one execution does.
        tables: of the problem's graph.
        under_way: the execution that goes on now.
    """

    def __init__(self, problem: PlacementProblem, kind: Any, timeout: float) -> None:
        self.problem, self.kind, self.timeout = problem, kind, settings.time_out(timeout)
        self.tables = GraphTables.of(problem)
        self.under_way: Run | None = None
        self._plans: dict[bytes, RunPlan] = {}

    def plan(self, assignment: ArrayLike) -> RunPlan:
        """Lists for an assignment; those of the last one are kept."""
        placed = self.problem.check_assignment(assignment)
        key = placed.tobytes()
        if key not in self._plans:
            self._plans = {key: RunPlan.of(self.tables, placed)}
        return self._plans[key]

    @abstractmethod
    def carry_on(self, run: Run, phase: int, timeout: float | None = None) -> None:
        """Do one phase of an execution and wait for its end.

        Raises:
            ExecutionError: something failed, or took too long; nothing of the execution goes on.
        """

    @abstractmethod
    def waited_s(self) -> float:
        """Seconds that the threads which execute have waited for a processor since they began."""

    def _execute(self, assignment: ArrayLike, inputs: Mapping[str, torch.Tensor] | None, options: Options) -> Execution:
        rank = ranks(self.problem, options.order, options.priority, options.mode)
        plan = self.plan(assignment)
        barrier = LevelBarrier(plan) if options.mode == "bulk_synchronous" else None
        job: DeviceJob = self.kind.job(plan, inputs, options.seed)
        run, waited = Run(plan, job, rank, barrier), self.waited_s()
        self.carry_on(run, 0, options.timeout)
        waited = self.waited_s() - waited
        told = None if rank is None else np.asarray(options.priority, dtype=np.int32)
        return Execution(run.schedule(), run.ready_times(), job.outputs(0), told, waited)
