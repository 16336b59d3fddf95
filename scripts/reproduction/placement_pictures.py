"""Pictures of placements: Gantts, learning curves, predicted beside measured times."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import OmegaConf

from hadoppler.scripts.intervals import estimate
from hadoppler.scripts.metrics import read_metrics
from hadoppler.scripts.reproduction.drawing import (
    MARKERS,
    MOST,
    Drawn,
    add_legend,
    label_axes,
    new_axes,
    plain_name,
    settings_of,
    title_of,
)
from hadoppler.scripts.reproduction.evidence import Evidence
from hadoppler.scripts.reproduction.parts import Part
from hadoppler.scripts.reproduction.records import rows_of
from hadoppler.scripts.reproduction.tables import Picture, Table

MEANINGS = {"ratio": "makespan / lower bound", "seconds_best": "fastest placement by its runs [s]"}
"""Figures of ``metrics.jsonl`` for axes."""
POINTS = 60
"""Of a learning curve's grid."""
WIDE = 10
"""Where a curve is so many times as long as another one, episodes are shown logarithmically."""


def gantt(evidence: Evidence, table: Table, picture: Picture) -> Iterator[Drawn]:
    """The best placement at each of the settings."""
    from hadoppler.envs.placement import Placement
    from hadoppler.envs.placement.render import gantt as draw_gantt
    from hadoppler.scripts.place import build_problem

    for number, at in enumerate(settings_of(evidence, table, picture)):
        found = [
            (rows_of(evidence.results(part), "rows")[0]["makespan"], part.seed, row, part)
            for row in table.rows
            for part in evidence.parts(table.name, row, at)
            if part.command == "place" and evidence.results(part)
        ]
        if found:
            *_, row, part = min(found, key=lambda item: item[:2])
            problem = build_problem(OmegaConf.create(evidence.results(part)["config"]))
            placement = Placement.load(part.folder(evidence.root) / "placement.json", problem)
            shown = draw_gantt(problem, placement.simulate(problem), title=f"{title_of(table, at)}: {row}")
            yield Drawn(f"gantt_{number}", shown, f"The best placement, of {row}. {title_of(table, at)}")


def curves(evidence: Evidence, table: Table, picture: Picture) -> Iterator[Drawn]:
    """The best figure so far over episodes: centre and interval over seeds."""
    name = picture.figure or "ratio"
    counter = "real runs" if name.startswith("seconds") else "episodes"
    for number, at in enumerate(settings_of(evidence, table, picture)):
        curves_of = {row: list(_curves(evidence, table, row, at, name)) for row in table.rows}
        drawn = {row: lines for row, lines in curves_of.items() if lines}
        if drawn:
            figure, axes = new_axes(title_of(table, at))
            ends = [line[-1][0] for lines in drawn.values() for line in lines]
            wide = max(ends) > WIDE * max(min(ends), 1)
            for place, (row, lines) in enumerate(drawn.items()):
                _band(axes, lines, row, place, wide)
            if wide:
                axes.set_xscale("log")
            label_axes(axes, counter, f"{MEANINGS.get(name, name)}, best so far")
            add_legend(figure)
            yield Drawn(
                f"curves_{number}", figure, f"Learning curves, band: interval over seeds. {title_of(table, at)}"
            )


def _curves(
    evidence: Evidence, table: Table, row: str, at: Mapping[str, Any], name: str
) -> Iterator[list[tuple[float, float]]]:
    """``_best_so_far`` of the parts of a row that have any."""
    for part in evidence.parts(table.name, row, at):
        if evidence.results(part) and (points := _best_so_far(part, evidence.root, name)):
            yield points


def _best_so_far(part: Part, root: Path, name: str) -> list[tuple[float, float]]:
    """(episodes, best figure so far); of trainings that run placements, (real runs, ...) in that stage alone."""
    best, points, lines = math.inf, list[tuple[float, float]](), read_metrics(part.folder(root))
    counter = "runs" if any("runs" in line for line in lines) else "episodes"
    for line in lines:
        if isinstance(line.get(name), int | float) and counter in line:
            best = min(best, float(line[name]))
            points.append((float(line[counter]), best))
    return points


def _band(axes: Any, lines: Sequence[Sequence[tuple[float, float]]], label: str, number: int, wide: bool) -> None:
    """Centre and interval of lines on the range that all of them have; ``wide``: for a logarithmic axis."""
    from hadoppler.envs.pictures import line_style, verbatim

    first, last = max(line[0][0] for line in lines), min(line[-1][0] for line in lines)
    if wide:
        first = max(first, 1.0)  # a logarithmic axis has no 0
    spread = np.geomspace if wide else np.linspace
    grid = spread(first, max(first, last), POINTS)
    values = [_held(line, grid) for line in lines]
    found = [estimate([line[place] for line in values]) for place in range(len(grid))]
    style, marker = line_style(number), MARKERS[number % len(MARKERS)]
    shown = {"label": verbatim(label), "marker": marker, "markevery": (number % 8, 8), "markersize": 4}
    axes.plot(grid, [item.centre for item in found], **shown, **style)
    if len(lines) > 1:
        lowest, highest = min(map(min, values)), max(map(max, values))  # intervals of few seeds reach beyond all sense
        low, high = [max(item.low, lowest) for item in found], [min(item.high, highest) for item in found]
        axes.fill_between(grid, low, high, color=style["color"], alpha=0.2, linewidth=0)


def _held(line: Sequence[tuple[float, float]], grid: Any) -> list[float]:
    """The value of a line at each place of the grid: what was last known."""
    places, values = zip(*line, strict=True)
    rows = np.maximum(np.searchsorted(places, grid, side="right") - 1, 0)
    return [float(values[row]) for row in rows]


def calibration(evidence: Evidence, table: Table, picture: Picture) -> Iterator[Drawn]:
    """Simulated against measured times before and after calibration, of the first seed."""
    from hadoppler.scripts.calibration_report import Check, scatter

    for row in table.rows:
        parts = [part for part in evidence.parts(table.name, row) if evidence.results(part).get("checked")]
        for number, part in enumerate(parts[:MOST]):
            results = evidence.results(part)
            checked = results["checked"]
            before = next(line for line in results["rows"] if line["times"] == "before")
            columns = {
                name: np.array([line[name] for line in checked]) for name in ("before", "after", "measured", "again")
            }
            names = [line["assignment"] for line in checked]
            check = Check(names=names, comparable=before["median_error"] is not None, **columns)
            title = f"{row}: {title_of(table, part.at)}"
            yield Drawn(
                f"calibration_{plain_name(row)}_{number}", scatter(title, check), f"Predicted and measured. {title}"
            )
