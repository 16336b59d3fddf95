"""``figures.csv``: every figure of every part as a row, for other tools and for keeping."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path

from hadoppler.scripts.reproduction.evidence import Evidence
from hadoppler.scripts.settings import setting

COLUMNS = ("table", "row", "settings", "seed", "figure", "unit", "value", "part")
"""Where a figure stands (settings as on a command line), the figure, and the name of its part's folder."""


def write_figures(evidence: Evidence, folder: Path) -> Path:
    """Write ``figures.csv``, atomically, with all figures that parts have; returns its path.

    Raises:
        GraphError: the folder is not writable.
    """
    from hadoppler.envs.placement.readers.files import write_text

    target = io.StringIO()
    writer = csv.writer(target, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(_rows(evidence))
    path = folder / "figures.csv"
    write_text(path, target.getvalue())
    return path


def _rows(evidence: Evidence) -> Iterator[tuple[str | int | float, ...]]:
    for name, parts in evidence.plan.rows.items():
        table = evidence.plan.tables[name]
        for part in parts:
            settings = " ".join(setting(*item) for item in part.at.items())
            for label, figure in table.figures.items():
                value = evidence.values(table, label, part.row, part.at).get(part.seed)
                if value is not None:
                    yield name, part.row, settings, part.seed, label, figure.unit, float(f"{value:.9g}"), part.key
