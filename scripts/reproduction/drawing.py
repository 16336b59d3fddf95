"""What pictures of tables share: which settings they show, titles, axes and marks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from hadoppler.scripts.reproduction.evidence import Evidence
from hadoppler.scripts.reproduction.parts import short
from hadoppler.scripts.reproduction.tables import At, Picture, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MARKERS = "os^Dv<>PX*"
MOST = 4
"""Pictures of one kind that a table shows at most (our choice)."""


class Drawn(NamedTuple):
    """A figure, the end of its file's name, and what it shows."""

    name: str
    figure: Figure
    caption: str


def settings_of(evidence: Evidence, table: Table, picture: Picture) -> list[dict[str, Any]]:
    """Settings at which a picture is drawn, evenly chosen where there are many."""
    found: list[dict[str, Any]] = []
    for part in evidence.plan.rows[table.name]:
        if dict(part.at) not in found:
            found.append(dict(part.at))
    if len(found) <= MOST:
        return found
    return [found[int(place)] for place in np.linspace(0, len(found) - 1, MOST)]


def title_of(table: Table, at: At) -> str:
    """Of a picture at some settings."""
    told = ", ".join(f"{name.rpartition('.')[2]} {short(value)}" for name, value in at.items())
    return f"{table.title}: {told}" if told else table.title


def new_axes(title: str) -> tuple[Figure, Any]:
    """A picture of one panel."""
    from matplotlib.figure import Figure

    from hadoppler.envs.pictures import verbatim

    figure = Figure(figsize=(10.5, 5.5), layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(verbatim(title))
    return figure, axes


def label_axes(axes: Any, horizontal: str, vertical: str) -> None:
    """Names of both axes, and a grid."""
    axes.set_xlabel(horizontal)
    axes.set_ylabel(vertical)
    axes.grid(alpha=0.3)


def add_legend(figure: Figure) -> None:
    """One legend of all panels, beside them, so that it hides nothing."""
    found: dict[str, Any] = {}
    for axes in figure.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    if found:
        figure.legend(list(found.values()), list(found), loc="outside right upper", frameon=False, fontsize="small")


def scatter_points(axes: Any, points: Sequence[tuple[float, float]], label: str, number: int) -> None:
    """Points that a mark tells apart."""
    from hadoppler.envs.pictures import COLOURS, verbatim

    horizontal, vertical = zip(*points, strict=True)
    mark, colour = MARKERS[number % len(MARKERS)], COLOURS[number % len(COLOURS)]
    axes.scatter(horizontal, vertical, marker=mark, color=colour, label=verbatim(label), alpha=0.8)


def plain_name(text: str) -> str:
    """A label as part of a file\'s name."""
    return "".join(sign if sign.isalnum() else "_" for sign in text.lower())
