"""Learning curves: the figures of ``metrics.jsonl`` over the rounds, a panel for each family of figures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hadoppler.scripts.metrics import COUNTERS, figures, rank

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STATISTICS = frozenset(["best", "mean", "median", "min", "max", "std", "first", "last", "greedy", "sampled"])
"""Words in names that tell which value of one and the same figure is meant."""
COLUMNS = 3
FEW_POINTS = 40
"""A curve of so few points shows each of them."""


def draw_learning_curve(folder: str | Path, lines: Sequence[Mapping[str, Any]]) -> Path | None:
    """``learning_curve.png`` of a run, atomically; None if the lines hold no figures."""
    from hadoppler.envs.pictures import save_figure

    path = Path(folder) / "learning_curve.png"
    if not families(lines):
        return None
    save_figure(path, learning_curve(lines))
    return path


def learning_curve(lines: Sequence[Mapping[str, Any]]) -> Figure:
    """A panel per family, those that tell most first; every second stage is shaded, each is named on top."""
    from matplotlib.figure import Figure

    from hadoppler.envs.pictures import line_style

    found = families(lines)
    rows = math.ceil(len(found) / COLUMNS)
    columns = min(len(found), COLUMNS)
    figure = Figure(figsize=(4.5 * columns, 2.8 * rows + 0.4), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False, sharex=True).flat
    label, places = axis(lines)
    for panel, (family, names) in zip(panels, found.items(), strict=False):
        for number, name in enumerate(names):
            points = [(x, float(line[name])) for x, line in zip(places, lines, strict=True) if name in figures(line)]
            mark = "." if len(points) <= FEW_POINTS else ""
            panel.plot(*zip(*points, strict=True), marker=mark, label=name, **line_style(number))
        _mark_stages(panel, lines, places)
        panel.set_ylabel(family)
        panel.set_xlabel(label)
        panel.tick_params(labelbottom=True)
        if names != [family]:
            panel.legend(fontsize="small")
    for panel in list(panels):  # those that are left over
        panel.set_visible(False)
    return figure


def families(lines: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Family -> names of its figures: names that differ in words like ``best`` and ``mean`` only share a panel."""
    names = sorted(dict.fromkeys(name for line in lines for name in figures(line)), key=rank)
    found: dict[str, list[str]] = {}
    for name in names:
        family = "_".join(word for word in name.split("_") if word not in STATISTICS) or name
        found.setdefault(family, []).append(name)
    return found


def axis(lines: Sequence[Mapping[str, Any]]) -> tuple[str, list[float]]:
    """Name and values of the horizontal axis: the first counter, if it rises with every line, else their numbers."""
    for name in lines[0]:
        if name in COUNTERS - {"seconds", "done"} and all(name in line for line in lines):
            values = [float(line[name]) for line in lines]
            if all(before < after for before, after in pairwise(values)):
                return name, values
    return "line", [float(number) for number in range(1, len(lines) + 1)]


def _mark_stages(panel: Any, lines: Sequence[Mapping[str, Any]], places: Sequence[float]) -> None:
    """Shade every second stage and write the names of all above, if there are several."""
    stages = [str(line.get("stage", "")) for line in lines]
    begins = [number for number, stage in enumerate(stages) if number == 0 or stage != stages[number - 1]]
    if len(begins) < 2:
        return
    edges = [places[0], *((places[number - 1] + places[number]) / 2 for number in begins[1:]), places[-1]]
    for number, (begin, end) in enumerate(pairwise(edges)):
        if number % 2:
            panel.axvspan(begin, end, color="0.92", zorder=0)
        panel.annotate(
            stages[begins[number]], (begin, 1.0), xycoords=("data", "axes fraction"), xytext=(2, 2),
            textcoords="offset points", fontsize="x-small", color="0.4",
        )  # fmt: skip
