"""Executions that are checked: the outputs against one-device execution, or the order where nothing is computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import ArrayLike

from ...envs.errors import HadopplerError
from ...envs.placement import PlacementProblem, interpreter
from .comparison import VerificationError, check_outputs, conditioning
from .executor import Execution, ExecutionError, Executor, Options, explain
from .random_operations import random_operations

if TYPE_CHECKING:
    import torch


class VerifiedExecutor(Executor):
    """An executor each of whose executions is checked before it is handed on, without its outputs.

    The outputs of a graph that draws random numbers are not compared.

    Args:
        executor: closed with this one.
        inputs: of the graph, for every execution; the outputs must then be those of ``interpreter.run``. None for
            devices that compute nothing: every operation must have begun after all that it reads had arrived.

    Attributes:
        random: names of the operations that draw random numbers.
        not_finite: names of the outputs in which one device gives NaN or infinite values, once ``expect`` has run.
    """

    def __init__(self, executor: Executor, inputs: Mapping[str, torch.Tensor] | None = None) -> None:
        self.executor, self.inputs = executor, inputs
        self.problem, self.timeout = executor.problem, executor.timeout
        self.random = [] if inputs is None else random_operations(self.problem.graph)
        self.not_finite: list[str] = []
        self._expected: dict[str, torch.Tensor] | None = None
        self._knows_inputs = False

    def expect(self) -> None:
        """Compute on one device what is compared; the first execution does it otherwise, outside of its time-out.

        Raises:
            ExecutionError: an operation fails with these inputs.
        """
        import torch

        if self.inputs is None or self.random or self._expected is not None:
            return
        try:
            self._expected = interpreter.run(self.problem.graph, self.inputs)
        except HadopplerError:
            raise
        except Exception as error:
            raise explain(f"{self.problem.graph.title}: computing the outputs on one device", error) from error
        self.not_finite = [name for name, value in self._expected.items() if not torch.isfinite(value).all()]

    @property
    def compared(self) -> Literal["outputs", "some outputs", "order", "nothing"]:
        """What of every execution is verified."""
        if self.inputs is None:
            return "order"
        if self.random or (self.not_finite and len(self.not_finite) == len(self._expected or {})):
            return "nothing"
        return "some outputs" if self.not_finite else "outputs"

    def remarks(self) -> list[str]:
        """Sentences for people on what was verified, and what was not."""
        if self.inputs is None:
            return ["Emulated devices compute nothing: verified is the order of the operations, not their outputs."]
        if self.random:
            return [
                f"Random numbers are drawn by {_some(self.random)}: the outputs are others each time and were not "
                "compared with those of one device; for dropout, model.eval() makes them comparable. Times are right."
            ]
        told = []
        if self.not_finite:
            told.append(
                f"Nothing was verified of {_some(self.not_finite)}: with the random inputs of this check, one device "
                "gives NaN or infinite values there."
            )
        if self.compared != "nothing":
            other = "other " if self.not_finite else ""
            told.append(f"The {other}outputs of every repetition equal those of one-device execution, up to rounding.")
        return told

    def _execute(self, assignment: ArrayLike, inputs: Mapping[str, torch.Tensor] | None, options: Options) -> Execution:
        """As of ``Executor``; other ``inputs`` are not taken.

        Raises:
            VerificationError: the outputs or the order are wrong.
        """
        if inputs is not None:
            raise ExecutionError("a verified executor has its inputs already; leave inputs out.")
        self.expect()
        given = None if self._knows_inputs else self.inputs
        self._knows_inputs = False  # a process that had to be ended has forgotten them
        done = self.executor.run(assignment, given, **options._asdict())
        self._knows_inputs = True
        if self.inputs is None:
            check_order(self.problem, done)
        elif self._expected is not None:
            check_outputs(self.problem.graph, done.outputs, self._expected, lambda: self._moved)
        return replace(done, outputs={})

    @cached_property
    def _moved(self) -> dict[str, float]:
        """How far a unit of rounding in the inputs moves each output."""
        return conditioning(self.problem.graph, self.inputs or {}, self._expected or {})

    def close(self) -> None:
        """Close the executor behind."""
        self.executor.close()


def _some(names: Sequence[str]) -> str:
    """The first names."""
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def check_order(problem: PlacementProblem, done: Execution) -> None:
    """Whether every operation began after all that it reads was on its device, and no two overlapped there.

    Raises:
        VerificationError: one did not; it is named.
    """
    graph, schedule = problem.graph, done.schedule
    placed, moved = schedule.assignment, schedule.transfers
    arrived = np.full((max(len(problem.tensor_ptr) - 1, 1), problem.d), np.nan)
    arrived[moved.tensor, moved.target] = moved.end
    here = placed[graph.edge_source] == placed[graph.edge_target]
    there = arrived[problem.arrays.edge_tensor, placed[graph.edge_target]]
    given = np.where(here, schedule.end[graph.edge_source], there)
    early = ~(schedule.start[graph.edge_target] >= given)
    if early.any():
        v = int(graph.edge_target[np.argmax(early)])
        raise VerificationError(f"{graph.title}: operation {graph.ids[v]!r} began before all that it reads was there.")
    for device in range(problem.d):
        mine = schedule.sequence(device)
        overlaps = ~(schedule.start[mine][1:] >= schedule.end[mine][:-1])
        if overlaps.any():
            v = int(mine[1:][np.argmax(overlaps)])
            raise VerificationError(
                f"{graph.title}: operation {graph.ids[v]!r} began on device {device} while another one ran there."
            )
