"""``hadoppler calibrate``: a graph executed on devices -> its measured costs, and how well they predict."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from omegaconf import MISSING, DictConfig
from rich.console import Console

from hadoppler import place
from hadoppler.scripts.application import CommandError, launch
from hadoppler.scripts.calibration_report import Check, print_calibration, rows_of, save_scatter, sentences
from hadoppler.scripts.execution import execution_bar, expect_outputs, open_devices, say
from hadoppler.scripts.place import build_problem
from hadoppler.scripts.report import write_results, write_run_record
from hadoppler.scripts.settings import setting
from hadoppler.scripts.sweep_figures import row_figures
from hadoppler.scripts.tracking import tracked_job

if TYPE_CHECKING:
    from hadoppler.envs.placement import PlacementProblem
    from hadoppler.real_system.placement import Execution
    from hadoppler.real_system.placement.measured_time import MeasuredTime

FIRST: dict[str, dict[str, Any]] = {"round_robin": {}, "critical_path": {"runs": 1}, "heft": {}}
"""Methods whose placements are executed to calibrate, beside random assignments (our choice)."""
CHECKED: dict[str, dict[str, Any]] = {"heft": {}, "etf": {}, "peft": {}, "annealing": {"calls": 2000}}
"""Methods that place on the measured costs, to check them: an error that a method can exploit shows here."""


@dataclass
class CalibrateConfig:
    """Schema of ``hadoppler calibrate``."""

    graph: dict[str, Any] = MISSING
    topology: dict[str, Any] = MISSING
    tracking: dict[str, Any] = MISSING
    executor: dict[str, Any] = MISSING
    model: str | None = None
    seed: int = 0
    runs: int = 12
    checked: int = 20
    repeats: int = 5
    contention: str | None = None
    memory: str = "error"
    pictures: bool = True


SHOWN = ("rank_correlation", "median_error")
"""Figures of a row that are looked at over seeds."""

ConfigStore.instance().store(name="calibrate_schema", node=CalibrateConfig, provider="hadoppler")
Step = Callable[[str], None]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    words = sys.argv[1:] if arguments is None else arguments
    return launch("calibrate", tracked_job(run), words, figures=row_figures("times", SHOWN))


def run(config: DictConfig) -> list[dict[str, Any]]:
    """Execute, calibrate, check; returns the rows of the table."""
    from hadoppler.envs.placement import save_problem
    from hadoppler.real_system.placement.calibration import calibrated
    from hadoppler.real_system.placement.measured_time import MeasuredTime

    folder, console = Path(HydraConfig.get().runtime.output_dir), Console()
    check_numbers(config)
    problem = build_problem(config)
    with open_devices(config, problem) as devices, execution_bar(console) as bar:
        write_run_record(folder, config)
        expect_outputs(devices, console, bar)
        say(console, f"executing about {config.runs + len(FIRST) + 2 * config.checked * config.repeats} times")
        task = bar.add_task("", total=config.runs + len(FIRST) + 2 * config.checked)

        def step(doing: str) -> None:
            bar.update(task, advance=1, description=doing)
            bar.refresh()

        time = MeasuredTime(devices.executor, repeats=1, window=config.runs + len(FIRST), seed=config.seed)
        executions = execute(problem, time, config, step)
        measured = calibrated(problem, executions)
        time.repeats = config.repeats
        check = checked(problem, measured, time, devices.unit_s, config, step)
    paths = list(save_problem(folder, measured))
    rows = rows_of(check)
    figures = {"executions": len(executions), "all_executions": time.calls, "dropped": time.dropped, "load": time.load}
    write_results(folder, config, rows, {}, **figures, checked=check.as_rows())
    told = sentences(measured, check, len(executions), time, devices.executor.remarks())
    print_calibration(console, problem, check, told)
    if config.pictures:
        paths.append(
            save_scatter(folder / "calibration.png", f"{problem.graph.title} on {problem.topology.name}", check)
        )
    for path in paths:
        console.print(f"  {path}", highlight=False, markup=False, soft_wrap=True)
    console.print("To place on the measured costs:", highlight=False)
    console.print(f"  {command_line(*paths[:2])}", highlight=False, markup=False, soft_wrap=True)
    return rows


def check_numbers(config: DictConfig) -> None:
    """Refuse numbers that nothing can be learned from."""
    for name, least in (("runs", 1), ("checked", 3), ("repeats", 1)):
        if config[name] < least:
            raise CommandError(f"{name} is {config[name]}; expected a whole number from {least} up.")


def execute(problem: PlacementProblem, time: MeasuredTime, config: DictConfig, step: Step) -> list[Execution]:
    """Run random assignments and some methods' placements once each; where other work disturbed it, again.

    Disturbed runs of an assignment are given back only if there are no others.

    Raises:
        ExecutionError: an operation failed, or the outputs are wrong.
    """
    from hadoppler.real_system.placement.prediction import spread_assignments

    rng = np.random.default_rng([config.seed, 0])
    rows = [*placed(problem, FIRST, config.seed).values(), *spread_assignments(problem, config.runs, rng)]
    executions: list[Execution] = []
    for number, row in enumerate(rows, 1):
        time.measure(row, problem.graph.topological_order)
        clean = [done for done in time.recent if not done.interference > time.disturbed * done.makespan]
        executions.extend(clean or time.recent)
        time.recent.clear()
        step(f"calibrating, {number} of {len(rows)}")
    return executions


def placed(problem: PlacementProblem, methods: dict[str, dict[str, Any]], seed: int) -> dict[str, Any]:
    """Method -> its assignment [N]."""
    relaxed = replace(problem, memory="off")
    return {name: place(name, relaxed, seed=seed, **options).assignment for name, options in methods.items()}


def checked(
    problem: PlacementProblem,
    measured: PlacementProblem,
    time: MeasuredTime,
    unit_s: float | None,
    config: DictConfig,
    step: Step,
) -> Check:
    """Execute other assignments, all of them twice in turn, and simulate them before and after calibration."""
    from hadoppler.envs.placement import makespans
    from hadoppler.real_system.placement.prediction import spread_assignments

    rng = np.random.default_rng([config.seed, 1])
    chosen = list(CHECKED)[: config.checked // 4]
    good = placed(measured, {name: CHECKED[name] for name in chosen}, config.seed)
    random = spread_assignments(problem, config.checked - len(good), rng)
    rows = np.stack([*random, *good.values()])
    medians = np.empty((2, len(rows)))
    for again in range(2):
        for number, row in enumerate(rows):
            medians[again, number] = time.measure(row, problem.graph.topological_order)[0]
            step(f"checking, {again * len(rows) + number + 1} of {2 * len(rows)}")
    return Check(
        names=["random"] * len(random) + list(good),
        before=makespans(problem, rows, memory="off") * (unit_s or 1.0),
        comparable=unit_s is not None,
        after=makespans(measured, rows, memory="off"),
        measured=medians[0],
        again=medians[1],
    )


def command_line(graph: Path, topology: Path) -> str:
    """How to place on the problem that was written, quoted for the shell."""
    words = ["graph=file", setting("graph.path", graph), "topology=file", setting("topology.path", topology)]
    return " ".join(["hadoppler place", *map(shlex.quote, words)])


if __name__ == "__main__":
    sys.exit(main())
