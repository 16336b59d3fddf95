"""Named methods on problems, named schedulers on worlds: rows, and figures that do not depend on who else was asked."""

from __future__ import annotations

import math
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from hadoppler.scripts.progress import PlainProgress
from hadoppler.scripts.report import say

if TYPE_CHECKING:
    from hadoppler.envs.cluster.suites import ClusterSuite, World
    from hadoppler.envs.placement import PlacementProblem

Row = dict[str, Any]
Failures = dict[str, str]


def judge_methods(
    config: DictConfig, problems: Sequence[PlacementProblem], console: Console
) -> tuple[list[Row], Failures]:
    """A row per problem and method of ``method=[...]``, and why others have none.

    Raises:
        HadopplerError: a method or an option does not exist.
    """
    from hadoppler.envs.placement import lower_bounds
    from hadoppler.scripts.place import chosen_methods, decide, result_row

    methods, folder = chosen_methods(config), Path(HydraConfig.get().runtime.output_dir)
    rows, failures = list[Row](), Failures()
    for number, problem in enumerate(problems):
        title = f"{number}: {problem.graph.title} on {problem.topology.name}"
        if not console.is_terminal:
            say(console, f"placing {title}")
        answers, reasons, _ = decide(config, problem, methods, folder, console)
        bound = lower_bounds(problem).best
        rows += [{"problem": number, **result_row(problem, answer, bound)} for answer in answers.values()]
        failures |= {f"{title}, {name}": reason for name, reason in reasons.items()}
    return rows, failures


def judge_schedulers(
    config: DictConfig, suite: ClusterSuite, worlds: Sequence[World], console: Console
) -> tuple[list[Row], Failures]:
    """A row per world and scheduler of ``scheduler=[...]``, and why others have none.

    Raises:
        HadopplerError: a scheduler or an option does not exist.
    """
    from hadoppler.envs.cluster import ttd_bounds
    from hadoppler.scripts.simulate import chosen_schedulers
    from hadoppler.scripts.simulation_runs import Task, run_one

    choices = chosen_schedulers(config)
    rules = {"round_s": suite.round_s, "restart_s": suite.restart_s}
    rows, failures = list[Row](), Failures()
    bar = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with (
        tempfile.TemporaryDirectory() as parts,
        Progress(*bar, console=console, transient=True, disable=not console.is_terminal) as progress,
        PlainProgress(console) as plain,
    ):
        shown = progress.add_task("", total=len(worlds) * len(choices))
        for number, world in enumerate(worlds):
            bound = ttd_bounds(world.workload, world.cluster, kinds=("mixing",))["mixing"]
            for choice in choices:
                title = f"{number}: {world.workload.name} on {world.cluster.name}, {choice.row}"
                progress.update(shown, description=title)
                plain.at(f"simulating {title}")
                task = Task(choice, world.seed, world.workload, world.cluster, (), rules, Path(parts), rounds=False)
                outcome = run_one(task)
                progress.advance(shown)
                if outcome.row:
                    world_of = {"world": number, "jobs": len(world.workload)}
                    rows.append({**world_of, **outcome.row, **bounded(outcome.row["ttd_s"], bound)})
                else:
                    failures[title] = outcome.failure
    return rows, failures


def bounded(ttd_s: float, bound: float) -> dict[str, Any]:
    """The keys of a row that tell of bounds, with the same one for all schedulers, so that their ratios compare."""
    return {"bound": "mixing", "ttd_bound_s": bound, "ratio_bound": ttd_s / bound if bound > 0 else math.nan}


def summarise_methods(rows: Sequence[Row]) -> dict[str, dict[str, float]]:
    """Of each method over its problems: geometric mean and worst of its ratios to the bound, mean seconds to decide."""
    return {
        name: {
            "problems": len(mine),
            "ratio_bound_mean": geometric_mean([row["ratio_bound"] for row in mine]),
            "ratio_bound_worst": max(row["ratio_bound"] for row in mine),
            "decision_s": statistics.fmean(row["decision_s"] for row in mine),
        }
        for name, mine in by("method", rows).items()
    }


def summarise_schedulers(rows: Sequence[Row]) -> dict[str, dict[str, float]]:
    """Of each scheduler over its worlds: ratios of the TTD to the bound, completion times [s], finish-time fairness.

    Completion times are geometric means over the worlds, which differ in size, of means over jobs.
    """
    left_out = ("cannot_fit", "refused", "unfinished")
    return {
        name: {
            "worlds": len(mine),
            "ratio_bound_mean": geometric_mean([row["ratio_bound"] for row in mine]),
            "ratio_bound_worst": max(row["ratio_bound"] for row in mine),
            "mean_jct_s": geometric_mean([row["mean_jct_s"] for row in mine]),
            "ftf": statistics.fmean(row["ftf"] for row in mine),
            "left_out": sum(row[key] for row in mine for key in left_out),
        }
        for name, mine in by("scheduler", rows).items()
    }


def by(key: str, rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """Rows by a value of theirs, in order of appearance."""
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault(str(row[key]), []).append(row)
    return groups


def geometric_mean(values: Sequence[float]) -> float:
    """Of positive numbers; NaN where one is not."""
    if not values or not all(value > 0 for value in values):
        return math.nan
    return statistics.geometric_mean(values)
