"""The table and the picture of methods and schedulers that were judged on several problems."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from hadoppler.scripts.report import Column, fallen_back, print_columns, say
from hadoppler.scripts.suite_runs import by, geometric_mean

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMNS = {
    "problems": "problems",
    "worlds": "worlds",
    "ratio_bound_mean": "/ bound, mean",
    "ratio_bound_worst": "worst",
    "mean_jct_s": "mean JCT [h]",
    "ftf": "FTF",
    "left_out": "jobs left out",
    "decision_s": "decided [s]",
}
"""Figure of a summary -> header, in order."""


def print_judgement(
    console: Console,
    who: str,
    count: int,
    rows: Sequence[Mapping[str, Any]],
    summary: Mapping[str, Mapping[str, float]],
    failures: Mapping[str, str],
) -> None:
    """A line per method or scheduler, the least mean ratio to the bound first; then why some have no result.

    Args:
        who: ``method`` or ``scheduler``.
        count: of problems or worlds; who has fewer is marked, for means over fewer do not compare.
        rows: one per problem and method, or world and scheduler.
    """
    found = next(iter(summary.values()))
    table = Table()
    table.add_column(who, no_wrap=True)
    for key in [key for key in COLUMNS if key in found]:
        table.add_column(escape(COLUMNS[key]), justify="right")
    for name, told in sorted(summary.items(), key=lambda pair: pair[1]["ratio_bound_mean"]):
        fewer = " *" * (told.get("problems", told.get("worlds")) != count)
        table.add_row(escape(name) + fewer, *(_cell(key, told[key]) for key in COLUMNS if key in told))
    console.print(table)
    what = "makespans to lower bounds" if who == "method" else "total times (TTD) to what none that does not fork beats"
    say(console, f"/ bound: geometric mean and worst of the ratios of {what}.")
    if who == "scheduler":
        say(console, "mean JCT: geometric mean over the worlds; FTF: mean over them.")
    for sentence in fallen_back(rows) if who == "method" else []:
        say(console, sentence)
    if failures:
        say(console, "* no result for some; means over the others do not compare.")
    for name, reason in failures.items():
        say(console, f"{name}: no result. {reason}")


def print_worlds(console: Console, rows: Sequence[Mapping[str, Any]]) -> None:
    """A line per world, with what each scheduler reached in it, in as many tables as the width asks for."""
    worlds, schedulers = by("world", rows), by("scheduler", rows)
    cells = {(row["scheduler"], str(row["world"])): row for row in rows}
    labels = [f"{number}: {mine[0]['workload']} on {mine[0]['cluster']}" for number, mine in worlds.items()]
    columns: list[Column] = [
        (f"{name}\n/ bound, JCT [h]", [_reached(cells.get((name, number))) for number in worlds]) for name in schedulers
    ]
    print_columns(console, labels, columns, corner="world")


def _reached(row: Mapping[str, Any] | None) -> str:
    """Ratio of the TTD to the bound and mean completion time; ``-`` without a result."""
    if row is None:
        return "-"
    return ", ".join(_cell(key, row[key]) for key in ("ratio_bound", "mean_jct_s"))


def say_suite(console: Console, suite: Mapping[str, Any] | None = None) -> None:
    """Which problems these were; nothing without a suite."""
    if suite is not None:
        say(console, f"suite {suite['name']}: {suite['count']} problems, SHA-256 {suite['sha256']}")


def _cell(key: str, value: float) -> str:
    if key in ("problems", "worlds", "left_out"):
        return str(value)
    if key == "mean_jct_s":
        return f"{value / 3600:.4g}"
    return f"{value:.3f}"


def draw_judgement(folder: Path, who: str, title: str, rows: Sequence[Mapping[str, Any]]) -> Path:
    """``judgement`` as ``evaluation.png``, atomically; returns the path."""
    from hadoppler.envs.pictures import save_figure

    path = folder / "evaluation.png"
    save_figure(path, judgement(who, title, rows))
    return path


def judgement(who: str, title: str, rows: Sequence[Mapping[str, Any]]) -> Figure:
    """A line per method or scheduler: its ratio to the bound on every problem, and their geometric mean."""
    from matplotlib.figure import Figure

    from hadoppler.envs.pictures import COLOURS, verbatim

    groups = {name: [row["ratio_bound"] for row in mine] for name, mine in by(who, rows).items()}
    means = {name: geometric_mean(values) for name, values in groups.items()}
    names = sorted(groups, key=lambda name: means[name])
    figure = Figure(figsize=(8, 1.8 + 0.35 * len(names)), layout="constrained")
    panel = figure.subplots()
    for place, name in enumerate(names):
        values = groups[name]
        (rings,) = panel.plot(values, [place] * len(values), "o", color=COLOURS[0], fillstyle="none", markersize=5)
        (middle,) = panel.plot(means[name], place, "D", color=COLOURS[5], markersize=7)
    panel.axvline(1.0, color="0.4", linewidth=1)
    panel.set_yticks(range(len(names)), [verbatim(name) for name in names])
    panel.set_ylim(len(names) - 0.5, -0.5)
    panel.set_xlabel("makespan / lower bound" if who == "method" else "total time (TTD) / lower bound")
    panel.grid(axis="x", alpha=0.3)
    figure.suptitle(verbatim(title))
    figure.legend([rings, middle], ["a problem", "geometric mean"], loc="outside lower center", ncols=2)
    return figure
