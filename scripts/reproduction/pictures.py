"""Pictures of a table's parts, drawn from the files that they left; each can be read without colour."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from hadoppler.scripts.intervals import Estimate
from hadoppler.scripts.reproduction import cluster_pictures as cluster, placement_pictures as placement
from hadoppler.scripts.reproduction.drawing import MARKERS, Drawn, add_legend, label_axes
from hadoppler.scripts.reproduction.evidence import Evidence, estimated
from hadoppler.scripts.reproduction.parts import short
from hadoppler.scripts.reproduction.tables import Picture, Table

COLUMNS = 2


def draw(evidence: Evidence, table: Table) -> Iterator[Drawn]:
    """All pictures of a table for which there are results."""
    for number, picture in enumerate(table.pictures):
        for drawn in DRAWERS[picture.kind](evidence, table, picture):
            yield Drawn(f"{table.name}_{number}_{drawn.name}.png", drawn.figure, drawn.caption)


def lines(evidence: Evidence, table: Table, picture: Picture) -> Iterator[Drawn]:
    """A figure over a setting, a panel for each value of the others."""
    from matplotlib.figure import Figure

    told = table.figures[picture.figure]
    groups: dict[str, list[dict[str, Any]]] = {}
    for part in evidence.plan.rows[table.name]:
        rest = ", ".join(f"{key.rpartition('.')[2]} {short(v)}" for key, v in part.at.items() if key != picture.over)
        if dict(part.at) not in groups.setdefault(rest, []):
            groups[rest].append(dict(part.at))
    rows = math.ceil(len(groups) / COLUMNS)
    figure = Figure(figsize=(max(5.5 * min(len(groups), COLUMNS) + 1.5, 10.0), 3.6 * rows + 0.4), layout="constrained")
    panels = list(figure.subplots(rows, min(len(groups), COLUMNS), squeeze=False).flat)
    drawn = False
    for axes, (rest, settings) in zip(panels, groups.items(), strict=False):
        for number, row in enumerate(table.rows):
            points = [(at[picture.over], estimated(evidence.values(table, picture.figure, row, at))) for at in settings]
            drawn |= _line(axes, [(x, found) for x, found in points if found is not None], row, number)
        axes.set_title(rest, fontsize="medium")
        axes.set_xticks(sorted({at[picture.over] for at in settings}))
        label_axes(axes, picture.over.rpartition(".")[2], f"{told.label} [{told.unit}]" if told.unit else told.label)
    for axes in panels[len(groups) :]:
        axes.set_visible(False)
    figure.suptitle(f"{table.title}: {told.label}")
    if drawn:
        add_legend(figure)
        yield Drawn(f"lines_{picture.figure}", figure, f"{told.label} over {picture.over.rpartition('.')[2]}.")


def _line(axes: Any, points: Sequence[tuple[Any, Estimate]], label: str, number: int) -> bool:
    from hadoppler.envs.pictures import line_style, verbatim

    if not points:
        return False
    places, found = zip(*points, strict=True)
    centres = [item.centre for item in found]
    errors = [[item.centre - item.low for item in found], [item.high - item.centre for item in found]]
    axes.errorbar(
        places, centres, yerr=np.maximum(errors, 0.0),
        label=verbatim(label), marker=MARKERS[number % len(MARKERS)], markersize=4, capsize=2, **line_style(number),
    )  # fmt: skip
    return True


DRAWERS: dict[str, Callable[[Evidence, Table, Picture], Iterator[Drawn]]] = {
    "completion_times": cluster.completion_times,
    "use": cluster.use,
    "gantt": placement.gantt,
    "curves": placement.curves,
    "calibration": placement.calibration,
    "predicted": cluster.predicted,
    "lines": lines,
}
