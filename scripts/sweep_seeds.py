"""A sweep over seeds: every figure of a setting with its centre and how sure it is, as a table and as a picture."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from hadoppler.scripts.figure_headings import NEVER_NEGATIVE, Heading, headings
from hadoppler.scripts.intervals import ENOUGH, Estimate, estimate
from hadoppler.scripts.report import Column, first_width, pack_columns, print_columns, say
from hadoppler.scripts.sweep_figures import Figures, read_results

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from hadoppler.scripts.sweep import Member

SEED = re.compile(r"^\+?seeds?=")
PROBLEM = ("graph", "topology", "problems", "suite")
"""Settings that decide what is placed."""
MOST_PANELS = 4
"""Figures in the picture; the table and ``sweep.json`` have all."""


@dataclass
class Line:
    """What the members of one setting, which differ in their seeds only, say of one line of their tables.

    Attributes:
        setting: what tells it from other settings; empty where there is one only.
        name: what the line is called in the members' tables, such as a method; empty where they have one only.
        members: how many finished; of the others there are no figures.
        failed: how many did not.
        values: figure -> what each seed gave.
        one_problem: whether all of them placed the same: their settings may draw a graph from the seed.
    """

    setting: str
    name: str
    members: int
    failed: int
    values: dict[str, list[float]] = field(default_factory=dict)
    one_problem: bool = True

    @property
    def estimates(self) -> dict[str, Estimate]:
        """Figure -> centre and interval over the seeds."""
        least = {name: 0.0 if name in NEVER_NEGATIVE else -math.inf for name in self.values}
        return {name: estimate(values, least[name]) for name, values in self.values.items()}

    @property
    def label(self) -> str:
        """Setting and name."""
        return f"{self.setting} {self.name}".strip() or "all"

    def told(self) -> dict[str, Any]:
        """For ``sweep.json``."""
        figures = {name: {**vars(found), "values": self.values[name]} for name, found in self.estimates.items()}
        told = {"setting": self.setting, "name": self.name, "members": self.members, "failed": self.failed}
        return {**told, "figures": figures}


def over_seeds(members: Sequence[Member], figures: Figures) -> list[Line]:
    """A line per setting and name, in order of appearance; none if no two members differ in their seeds only."""
    settings: dict[str, list[Member]] = {}
    for member in members:
        settings.setdefault(" ".join(word for word in member.words if not SEED.match(word)), []).append(member)
    if not any(len({member.words for member in mine}) > 1 for mine in settings.values()):
        return []
    lines = []
    for setting, mine in settings.items():
        done = [member for member in mine if member.state == "finished"]
        alike = len({_problem(member.folder) for member in done}) < 2
        found: dict[str, Line] = {}
        for name, values in [pair for member in done for pair in figures(member.folder)]:
            line = found.setdefault(name, Line(setting, name, len(done), len(mine) - len(done), one_problem=alike))
            for key, value in values.items():
                line.values.setdefault(key, []).append(value)
        known = [line for line in found.values() if line.values]
        lines += known or [Line(setting, "", len(done), len(mine) - len(done))]
    return lines if any(line.values for line in lines) else []


def print_lines(console: Console, lines: Sequence[Line]) -> None:
    """The lines, in as many tables as the terminal's width asks for, and what their figures are.

    Where one table is not enough, intervals stand below their centres.
    """
    shown = _headings(lines)
    found = [line.estimates for line in lines]
    columns: list[Column] = [("seeds", [_count(line) for line in lines])]
    for name, heading in shown.items():
        columns.append((heading.text, [str(row[name] / heading.divisor) if name in row else "-" for row in found]))
    labels, corner = [line.label for line in lines], "over seeds"
    if len(pack_columns(columns, console.width - first_width(console, labels, corner) - 4)) > 1:
        columns = [(header, [cell.replace(" [", "\n[") for cell in cells]) for header, cells in columns]
    print_columns(console, labels, columns, corner=corner)
    most = max(len(values) for line in lines for values in line.values.values())
    say(console, "[low, high]: 95 % confidence interval; " + kind(most))
    if any(name in NEVER_NEGATIVE and item.low == 0 < item.centre for row in found for name, item in row.items()):
        say(console, "Intervals end at 0 where a figure cannot be less.")
    if any(line.failed for line in lines):
        say(console, "n of m: the other members did not finish and are in no figure.")
    mixed = list(dict.fromkeys(line.setting or "all" for line in lines if not line.one_problem))
    if mixed:
        say(console, f"Members placed different graphs, so intervals are over problems, too: {', '.join(mixed)}.")


def kind(seeds: int) -> str:
    """How centre and interval are found, in a sentence."""
    if seeds >= ENOUGH:
        return f"interquartile means and bootstrap (means and Student's t for fewer than {ENOUGH} values)."
    return f"means and Student's t; {ENOUGH} seeds or more give interquartile means and bootstrap."


def _headings(lines: Sequence[Line]) -> dict[str, Heading]:
    """Figure -> heading, in order of appearance, in the same units for all lines."""
    values: dict[str, list[float]] = {}
    for line in lines:
        for name, found in line.values.items():
            values.setdefault(name, []).extend(found)
    return headings(values)


def _problem(folder: Path) -> str:
    """What a member placed, as a text; the same for members without such settings."""
    settings = read_results(folder).get("config", {})
    return json.dumps([settings.get(key) for key in PROBLEM], sort_keys=True)


def _count(line: Line) -> str:
    return f"{line.members} of {line.members + line.failed}" if line.failed else str(line.members)


def draw_lines(path: Path, lines: Sequence[Line]) -> Path:
    """``over_seeds`` as PNG, atomically; returns the path."""
    from hadoppler.envs.pictures import save_figure

    save_figure(path, picture([line for line in lines if line.values]))
    return path


def picture(lines: Sequence[Line]) -> Figure:
    """A panel per figure: centre and interval of every line, each seed's value as a small ring."""
    from matplotlib.figure import Figure

    from hadoppler.envs.pictures import COLOURS, verbatim

    names = dict(list(_headings(lines).items())[:MOST_PANELS])
    size = (3.6 * len(names) + 0.08 * max(len(line.label) for line in lines), 1.6 + 0.35 * len(lines))
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(1, len(names), sharey=True, squeeze=False)[0]
    places: Mapping[int, Line] = dict(enumerate(lines))
    for panel, (name, heading) in zip(panels, names.items(), strict=True):
        for place, line in places.items():
            if name not in line.values:
                continue
            found = line.estimates[name] / heading.divisor
            values = [value / heading.divisor for value in line.values[name]]
            reach = [[found.centre - found.low], [found.high - found.centre]]
            rings = panel.plot(values, [place] * len(values), "o", color=COLOURS[0], fillstyle="none", markersize=4)
            bars = panel.errorbar(found.centre, place, xerr=reach, fmt="D", color=COLOURS[5], capsize=4, markersize=5)
        panel.set_xlabel(verbatim(heading.text))
        panel.locator_params(axis="x", nbins=5)
        panel.grid(axis="x", alpha=0.3)
    panels[0].set_yticks(list(places), [verbatim(line.label) for line in lines])
    panels[0].set_ylim(len(lines) - 0.5, -0.5)
    figure.suptitle("Over seeds")
    figure.legend([rings[0], bars], ["a seed", "centre and 95 % interval"], loc="outside lower center", ncols=2)
    return figure
