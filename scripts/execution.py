"""Placements on real or emulated devices, as commands execute them: checked, repeated and timed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from omegaconf import DictConfig
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from hadoppler.scripts.application import CommandError

if TYPE_CHECKING:
    from hadoppler.envs.placement import Placement, PlacementProblem, Schedule
    from hadoppler.real_system.placement.verified import VerifiedExecutor

LATE_S = 1e-3
"""A device that idled for longer with work at hand was late (our choice: 12 times the usual hop between threads)."""

MODES = ("work_conserving", "bulk_synchronous")
"""How placements are executed, with the names of ``Executor.run``."""


@dataclass(frozen=True)
class Devices:
    """What executes placements.

    Attributes:
        executor: every execution of it is checked, as far as that is possible.
        unit_s: seconds that a unit of the problem's simulated time stands for; None where that is unknown.
    """

    executor: VerifiedExecutor
    unit_s: float | None


@dataclass(frozen=True)
class Measured:
    """What the repeated execution of one placement brought.

    Attributes:
        seconds: [R] clean repetitions; if none was clean, the shortest disturbed ones.
        dropped: disturbed repetitions.
        clean: whether any repetition was.
        schedule: of the repetition nearest to the median.
        late: dispatches in it before which a device idled for more than ``LATE_S`` with work at hand.
    """

    seconds: np.ndarray
    dropped: int
    clean: bool
    schedule: Schedule
    late: int


@contextmanager
def open_devices(config: DictConfig, problem: PlacementProblem) -> Iterator[Devices]:
    """The devices of ``executor=...``, closed afterwards.

    Raises:
        HadopplerError: they cannot be made, or the graph's tensors do not fit this machine's memory.
    """
    from hadoppler.real_system.placement.cpu import random_inputs
    from hadoppler.real_system.placement.emulated import seconds_per_unit
    from hadoppler.real_system.placement.verified import VerifiedExecutor
    from hadoppler.scripts.executors import is_emulated, make_executor

    settings = config.executor
    with make_executor(settings, problem, config.graph) as executor:
        if is_emulated(settings):
            unit_s = seconds_per_unit(problem, settings.get("unit_s"), settings.get("bound_s"))
            yield Devices(VerifiedExecutor(executor), unit_s)
            return
        inputs = random_inputs(problem, config.seed)
        unit = None if problem.topology.name == "raw" else 1.0
        yield Devices(VerifiedExecutor(executor, inputs), unit)


def measure(
    devices: Devices, placement: Placement, config: DictConfig, watch: Callable[[], None] = lambda: None
) -> Measured:
    """Execute a placement until ``config.runs`` repetitions after a warm-up were clean, or too many were not.

    Args:
        watch: called before each repetition.

    Raises:
        ExecutionError: an operation failed or took too long, or the outputs are wrong.
    """
    from hadoppler.real_system.placement.audit import audit
    from hadoppler.real_system.placement.measured_time import MOST_REPETITIONS, MeasuredTime

    order: Any = placement.execution
    window = MOST_REPETITIONS * config.runs
    time = MeasuredTime(
        devices.executor, order, config.mode, repeats=config.runs, window=window, seed=config.seed, watch=watch
    )
    median, kept = time.measure(placement.assignment, placement.order)
    shown = min(time.recent, key=lambda done: abs(done.makespan - median))
    clean = time.dropped < time.calls - time.warm_up
    return Measured(kept, time.dropped, clean, shown.schedule, audit(shown).late(LATE_S))


def execute_all(
    devices: Devices, answers: Mapping[str, Placement], console: Console, config: DictConfig
) -> tuple[dict[str, Measured], dict[str, str]]:
    """Execute every method's placement; those that succeeded, and why the others did not."""
    from hadoppler.real_system.placement import ExecutionError

    measured, failures, runs = dict[str, Measured](), dict[str, str](), config.runs
    with execution_bar(console) as bar:
        expect_outputs(devices, console, bar)
        task = bar.add_task("", total=len(answers) * (runs + 1))
        for number, (name, placement) in enumerate(answers.items()):
            say(console, f"executing {name}: {runs} times and a warm-up ({number + 1} of {len(answers)})")
            steps = iter(range(number * (runs + 1), (number + 1) * (runs + 1)))

            def watch(steps: Iterator[int] = steps, doing: str = f"executing {name}") -> None:
                """Where it is; repetitions that are made again because they were disturbed do not move the bar."""
                bar.update(task, completed=next(steps, None), description=doing)
                bar.refresh()

            try:
                measured[name] = measure(devices, placement, config, watch)
            except ExecutionError as error:
                failures[name] = str(error)
    return measured, failures


def expect_outputs(devices: Devices, console: Console, bar: Progress) -> None:
    """Compute on one device what outputs are compared with; no time-out ends that, so it is told."""
    if devices.executor.compared == "outputs":
        doing = "computing on one device what the outputs are compared with (no time-out)"
        say(console, doing)
        task = bar.add_task(doing, total=1)
        bar.refresh()
        devices.executor.expect()
        bar.remove_task(task)


def say(console: Console, doing: str) -> None:
    """A line of progress where there is no terminal that shows a bar."""
    if not console.is_terminal:
        console.print(doing, highlight=False, markup=False, soft_wrap=True)


def execution_bar(console: Console) -> Progress:
    """A bar with the time that is left; call ``refresh``, for a thread of its own would disturb the executions."""
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        auto_refresh=False,
        disable=not console.is_terminal,
        speed_estimate_period=3600.0,  # an execution may take a minute
    )


def check_execution(config: DictConfig) -> None:
    """Refuse settings of executions that nothing else would refuse with the user's own names.

    Raises:
        CommandError: there are no runs, or the order or the mode is one that executors do not know.
    """
    if config.runs < 1:
        raise CommandError(f"runs is {config.runs}; expected a whole number from 1 up.")
    if config.executor and config.order not in ("fifo", "priority"):
        raise CommandError(f"order is {config.order!r}; with an executor it is fifo or priority.")
    if config.mode not in MODES:
        raise CommandError(f"mode is {config.mode!r}; expected {' or '.join(MODES)}.")
