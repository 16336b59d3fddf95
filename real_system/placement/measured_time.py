"""The time that placements really take, as training wants it: robust, counted, and with what it says of the devices."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from ...envs.errors import PlacementError
from ...envs.placement import PlacementProblem
from ...envs.placement.graph import Floats, Integers
from . import settings
from .calibration import calibrated
from .executor import Execution, ExecutionTimeoutError, Executor, Mode, Order
from .interference import load

if TYPE_CHECKING:
    import torch

MOST_REPETITIONS = 4
"""A repetition that was disturbed is made again, that many times as many as were asked for at most (our choice)."""
FEWEST_RUNS = 3
"""Calibration waits for so many runs."""


@dataclass
class MeasuredTime:
    """A reward source over an executor.

    Attributes:
        executor: what runs placements.
        execution: ``fifo`` or ``priority``: whether a placement's order counts.
        mode: of execution, as of ``Executor.run``.
        repeats: clean repetitions of which ``times`` takes the median.
        warm_up: runs that do not count, of the first placement, and again of the last that ended by itself where the
            devices begin anew, since a run had to be ended.
        disturbed: a repetition is dropped if the executor's threads waited for processors longer than this share of
            its time; the worst are kept only if there are no others. Infinite to keep all.
        window: latest executions from which ``believed`` learns.
        inputs: of the graph; random ones by default.
        calls: runs so far, dropped ones and warm-up too.
        dropped: disturbed runs.
        seconds: sum of all runs.
        load: of the machine, when the last run began.
        watch: called before each run.
    """

    executor: Executor
    execution: Order = "fifo"
    mode: Mode = "work_conserving"
    repeats: int = 1
    warm_up: int = 1
    disturbed: float = 0.1
    window: int = 200
    inputs: Mapping[str, torch.Tensor] | None = None
    seed: int = 0
    calls: int = 0
    dropped: int = 0
    seconds: float = 0.0
    load: float = float("nan")
    recent: deque[Execution] = field(default_factory=deque)
    watch: Callable[[], None] = lambda: None
    _ready: bool = field(default=False, init=False, repr=False)
    """Whether the devices have the inputs and are warm; those that had to be ended have forgotten both."""
    _ended: tuple[Integers, Integers] | None = field(default=None, init=False, repr=False)
    """The last placement and order that ran to its end."""

    def __post_init__(self) -> None:
        if self.execution not in ("fifo", "priority"):
            raise PlacementError(f"execution is {self.execution!r}; expected fifo or priority.")
        if self.repeats < 1 or self.warm_up < 0 or self.window < 1:
            raise PlacementError(
                f"repeats is {self.repeats}, warm_up {self.warm_up} and window {self.window}; expected whole numbers, "
                "repeats and window from 1 up."
            )
        settings.seed(self.seed)
        self.recent = deque(self.recent, maxlen=self.window)

    def times(
        self, problem: PlacementProblem, assignments: Integers, orders: Integers, rng: np.random.Generator
    ) -> Floats:
        """[B] seconds of placements [B, N], medians of ``repeats`` runs."""
        rows = zip(assignments, orders, strict=True)
        return np.array([self.measure(assignment, order)[0] for assignment, order in rows])

    def run(self, problem: PlacementProblem, assignment: Integers, order: Integers, limit: float = np.inf) -> float:
        """Seconds of one run; one that is still under way after ``limit`` seconds is ended and took ``limit``."""
        self._warm(assignment, order)
        done = self._counted(assignment, order, limit)
        return limit if done is None else done.makespan

    def measure(self, assignment: Integers, order: Integers) -> tuple[float, Floats]:
        """Median seconds of a placement, and the clean repetitions behind it."""
        self._warm(assignment, order)
        clean, dirty = list[float](), list[float]()
        while len(clean) < self.repeats and len(clean) + len(dirty) < MOST_REPETITIONS * self.repeats:
            done = self._counted(assignment, order, np.inf)
            assert done is not None, "there is no limit"
            disturbed = done.interference > self.disturbed * done.makespan
            (dirty if disturbed else clean).append(done.makespan)
        self.dropped += len(dirty)
        kept = np.array(clean if clean else sorted(dirty)[: self.repeats])
        return float(np.median(kept)), kept

    def believed(self, problem: PlacementProblem) -> PlacementProblem | None:
        """The problem with the costs that the latest runs have shown, in seconds."""
        if len(self.recent) < FEWEST_RUNS:
            return None
        return calibrated(self.executor.problem, list(self.recent))

    def forget(self) -> None:
        """The system has changed: believe only the latest runs."""
        while len(self.recent) > FEWEST_RUNS:
            self.recent.popleft()

    def _warm(self, assignment: Integers, order: Integers) -> None:
        """Runs that do not count, if the devices begin anew; of a placement that is known to end, if there is one."""
        known = self._ended or (assignment, order)
        for _ in range(0 if self._ready else self.warm_up):
            self._execute(*known, np.inf)

    def _counted(self, assignment: Integers, order: Integers, limit: float) -> Execution | None:
        """One run of which something is learned; None if it was ended."""
        done = self._execute(assignment, order, limit)
        if done is not None:
            self.recent.append(replace(done, outputs={}))
        return done

    def _execute(self, assignment: Integers, order: Integers, limit: float) -> Execution | None:
        """One run; None if it was ended."""
        self.watch()
        self.load = load()
        self.calls += 1
        given, self._ready = None if self._ready else self.inputs, False
        try:
            done = self.executor.run(
                assignment,
                given,
                order=self.execution,
                mode=self.mode,
                priority=order if self.execution == "priority" else None,
                timeout=None if np.isinf(limit) else limit,
                seed=self.seed + self.calls,
            )
        except ExecutionTimeoutError:
            if np.isinf(limit):
                raise
            self.seconds += limit
            return None
        self.seconds += done.makespan
        self._ready, self._ended = True, (assignment, order)
        return done
