"""How well simulated times predict measured ones, as a table and as a picture."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from hadoppler.envs.placement import PlacementProblem
    from hadoppler.envs.placement.graph import Floats
    from hadoppler.real_system.placement.measured_time import MeasuredTime


FEW = 10
"""Checked assignments below which a reader is warned (our choice): of 5, one order in 24 correlates by 0.9 or more."""


@dataclass(frozen=True)
class Check:
    """Times of B assignments that were not used for calibration.

    Attributes:
        names: [B] ``random``, or the method that placed.
        before: [B] simulated on the costs that were given: seconds, or units of a file if not ``comparable``.
        comparable: whether ``before`` are seconds.
        after: [B] seconds, simulated on the measured costs.
        measured: [B] seconds, a median each.
        again: [B] the same, measured once more.
    """

    names: list[str]
    before: Floats
    comparable: bool
    after: Floats
    measured: Floats
    again: Floats

    def as_rows(self) -> list[dict[str, Any]]:
        """A row for each assignment."""
        names = ("before", "after", "measured", "again")
        return [
            {"assignment": name, **{key: float(getattr(self, key)[number]) for key in names}}
            for number, name in enumerate(self.names)
        ]


def rows_of(check: Check) -> list[dict[str, Any]]:
    """Rank correlation and median error before and after calibration, and of measuring twice: the ceiling."""
    from hadoppler.real_system.placement.prediction import agreement

    found = []
    for name, times in (("before", check.before), ("after", check.after), ("repeatability", check.again)):
        told = agreement(times, check.measured)
        error = told.median_error if name != "before" or check.comparable else None
        found.append({"times": name, "rank_correlation": told.rank_correlation, "median_error": error})
    return found


LABELS = {
    "before": "simulated on the given costs",
    "after": "simulated on the measured costs",
    "repeatability": "measured once more (the ceiling)",
}


def print_calibration(console: Console, problem: PlacementProblem, check: Check, told: Sequence[str]) -> None:
    """The table of agreement, and sentences below it."""
    table = Table(title=escape(f"{problem.graph.summary()}; {problem.topology.name}"))
    for name in ("against measured times", "rank correlation", "median error"):
        table.add_column(name, justify="left" if name == "against measured times" else "right")
    for row in rows_of(check):
        error = row["median_error"]
        table.add_row(
            LABELS[row["times"]],
            _correlation(row),
            "-" if error is None else f"{100 * error:.1f} %",
            style="bold" if row["times"] == "after" else None,
        )
    console.print(table)
    for line in told:
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _correlation(row: Mapping[str, Any]) -> str:
    return "-" if math.isnan(row["rank_correlation"]) else f"{row['rank_correlation']:.3f}"


def sentences(
    measured: PlacementProblem, check: Check, executions: int, time: MeasuredTime, remarks: Sequence[str]
) -> list[str]:
    """What the figures are made of, and what they cannot tell."""
    random = check.names.count("random")
    told = [
        f"Calibrated by {executions} executions; checked on {len(check.names)} other assignments: {random} random ones "
        f"with loads spread on purpose, {len(check.names) - random} of methods on the measured costs."
    ]
    if len(check.names) < FEW and measured.d > 1:
        told.append(f"Rank correlations of {len(check.names)} assignments tell little: give checked={FEW} or more.")
    if time.dropped:
        told.append(
            f"Other work on this machine disturbed {time.dropped} of {time.calls} executions (load {time.load:.1f}); "
            "they count only where there are no others. Close other programs if the ceiling is low."
        )
    if measured.d == 1:
        told.append("With one device nothing is sent and all assignments are the same: links stay nominal.")
    else:
        told.append(f"The rule of contention that explains the measured times best: {measured.contention}.")
    if not check.comparable:
        told.append("The given costs are in the file's units, so that they have a rank correlation, but no error.")
    return told + list(remarks)


def save_scatter(path: Path, title: str, check: Check) -> Path:
    """``scatter`` as PNG, atomically; returns the path."""
    from hadoppler.envs.pictures import save_figure

    save_figure(path, scatter(title, check))
    return path


def scatter(title: str, check: Check) -> Figure:
    """Simulated against measured times, before and after calibration; on the dashed line they are equal."""
    from matplotlib.figure import Figure

    from hadoppler.envs.pictures import verbatim
    from hadoppler.envs.placement.render import seconds_axis

    figure = Figure(figsize=(10, 4.8), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    unit, label = seconds_axis(float(check.measured.max()))
    for axes, row, times in zip(panels, rows_of(check), (check.before, check.after), strict=False):
        seconds = row["times"] == "after" or check.comparable
        _points(axes, check, times / (unit if seconds else 1.0), check.measured / unit)
        error = "" if row["median_error"] is None else f", median error {100 * row['median_error']:.1f} %"
        axes.set_title(f"{LABELS[row['times']]}\nrank correlation {_correlation(row)}{error}", fontsize="medium")
        axes.set_xlabel(f"simulated [{label}]" if seconds else "simulated [units of the file]")
        if seconds:
            axes.axline((0, 0), slope=1, color="0.4", linestyle="--", linewidth=1)
    panels[0].set_ylabel(f"measured [{label}]")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, fontsize="small")
    figure.suptitle(verbatim(title))
    return figure


def _points(axes: Any, check: Check, simulated: Floats, measured: Floats) -> None:
    """Random assignments and those of methods, told apart by their marks."""
    from hadoppler.envs.pictures import COLOURS

    for of_methods, label, mark, colour in ((False, "random", "o", COLOURS[0]), (True, "of methods", "^", COLOURS[5])):
        mine = [number for number, name in enumerate(check.names) if (name != "random") == of_methods]
        axes.scatter(simulated[mine], measured[mine], marker=mark, color=colour, label=label, alpha=0.8)
