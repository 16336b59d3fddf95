"""Runs placed graphs on devices, work-conserving and measured: one interface, several kinds of devices."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Literal, NamedTuple, Self, get_args

import numpy as np
from numpy.typing import ArrayLike

from ...envs.errors import HadopplerError, PlacementError
from ...envs.placement import PlacementProblem, Schedule
from ...envs.placement.graph import Floats, Integers
from ...envs.placement.placement import is_topological
from . import settings

if TYPE_CHECKING:
    import torch

Mode = Literal["work_conserving", "bulk_synchronous"]
Order = Literal["fifo", "priority"]


class ExecutionError(HadopplerError):
    """A placed graph could not be executed to its end."""


class ExecutionTimeoutError(ExecutionError):
    """An execution took longer than it was given."""


class ExecutionClosedError(ExecutionError):
    """The executor was closed while it executed."""


@dataclass(frozen=True)
class Execution:
    """What one execution brought.

    Attributes:
        schedule: measured starts and ends of operations and transfers, seconds since the execution began.
        ready: [N] when each operation had all that it waits for.
        outputs: tensors that the graph returns, by name; empty where devices are emulated.
        priority: [N] the operations, most urgent first, if it ran by priority.
        interference: seconds that the executor's threads waited for a processor, summed; NaN where the system does
            not tell.
    """

    schedule: Schedule
    ready: Floats
    outputs: Mapping[str, torch.Tensor] = field(default_factory=dict)
    priority: Integers | None = None
    interference: float = float("nan")

    @property
    def makespan(self) -> float:
        """Seconds from the beginning to the end of the last operation."""
        return self.schedule.makespan


class Options(NamedTuple):
    """How a placement is executed; see ``Executor.run``."""

    order: Order
    priority: ArrayLike | None
    mode: Mode
    timeout: float
    seed: int


class Executor(ABC):
    """Executes placements of one problem; ``with`` closes it.

    An executor that is dropped without ``close`` ends its threads and processes when it is collected.

    Attributes:
        problem: graph and devices.
        timeout: seconds for one execution, unless it is given others.
    """

    problem: PlacementProblem
    timeout: float

    def run(
        self,
        assignment: ArrayLike,
        inputs: Mapping[str, torch.Tensor] | None = None,
        *,
        order: Order = "fifo",
        priority: ArrayLike | None = None,
        mode: Mode = "work_conserving",
        timeout: float | None = None,
        seed: int = 0,
    ) -> Execution:
        """Execute a placement once.

        Args:
            assignment: [N] device of each operation.
            inputs: the graph's inputs by name, as ``interpreter.run`` takes them; by default those of the call before,
                or random ones.
            order: which ready operation a free device takes, as in ``simulate``.
            priority: [N] the operations, most urgent first.
            mode: ``bulk_synchronous`` waits at the end of each level (longest path from an entry) for all operations
                and for all transfers into the next one.
            timeout: seconds; infinite for no limit.
            seed: of random jitter, where devices have any.

        Raises:
            PlacementError: assignment or priority do not fit the problem, or a number is not usable.
            ExecutionError: an operation failed; it and its device are named, and nothing of the run goes on.
        """
        limit = settings.time_out(self.timeout if timeout is None else timeout)
        return self._execute(assignment, inputs, Options(order, priority, mode, limit, settings.seed(seed)))

    @abstractmethod
    def _execute(self, assignment: ArrayLike, inputs: Mapping[str, torch.Tensor] | None, options: Options) -> Execution:
        """What ``run`` does."""

    @abstractmethod
    def close(self) -> None:
        """End all threads and processes, and the execution under way if there is one; another ``run`` starts anew."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def ranks(problem: PlacementProblem, order: str, priority: ArrayLike | None, mode: str) -> list[float] | None:
    """[N] position of each operation in the priority order; None under ``fifo``.

    Raises:
        PlacementError: order, mode or priority are not usable.
    """
    if mode not in get_args(Mode):
        raise PlacementError(f"mode is {mode!r}; expected {', '.join(get_args(Mode))}.")
    if order not in get_args(Order):
        raise PlacementError(f"order is {order!r}; an executor knows {', '.join(get_args(Order))}.")
    if order == "fifo":
        return None
    if priority is None or not is_topological(problem.graph, priority):
        raise PlacementError("order='priority' needs priority=: all operations once, producers before consumers.")
    rank = np.empty(problem.n)
    rank[np.asarray(priority)] = np.arange(problem.n)
    return rank.tolist()


def closed(problem: PlacementProblem) -> ExecutionClosedError:
    """The error of an execution during which somebody closed its executor."""
    return ExecutionClosedError(
        f"{problem.graph.title}: the executor was closed during this execution, which was ended; run it again to begin "
        "anew."
    )


def explain(doing: str, error: BaseException) -> ExecutionError:
    """The error of an execution that ended because something failed on a device."""
    text = str(error).strip().splitlines()
    told = text[0].rstrip(".") if text else "no message"
    if isinstance(error, MemoryError) or "out of memory" in told or "can't allocate memory" in told:
        return ExecutionError(
            f"{doing} ran out of memory ({told}); place it with less on that device, or use smaller tensors."
        )
    return ExecutionError(f"{doing} failed with {type(error).__name__}: {told}; the execution was ended.")
