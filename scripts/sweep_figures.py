"""The figures that a member of a sweep left in its folder: those of its command's table, line by line."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hadoppler.scripts.metrics import best_figures, read_metrics
from hadoppler.scripts.report import read_json

Figures = Callable[[Path], Iterable[tuple[str, Mapping[str, float]]]]
"""Of a member's folder: what a line of the table is called, and its figures; a name may come several times."""


def no_figures(folder: Path) -> list[tuple[str, dict[str, float]]]:
    """Of commands that have none."""
    return []


def row_figures(name: str, shown: Sequence[str]) -> Figures:
    """Figures of the rows of ``results.json``; ``name`` is the key of what a row is called."""

    def read(folder: Path) -> list[tuple[str, dict[str, float]]]:
        return [(str(row.get(name, "")), numbers(row, shown)) for row in read_results(folder).get("rows", [])]

    return read


def training_figures(folder: Path) -> list[tuple[str, dict[str, float]]]:
    """Figures of the policy that was kept: the best by validation."""
    return [("", best_figures(read_metrics(folder)))]


def read_results(folder: Path) -> dict[str, Any]:
    """``results.json`` of a folder; ``{}`` without one."""
    return read_json(folder / "results.json")


def numbers(values: Mapping[str, Any], keys: Iterable[str]) -> dict[str, float]:
    """Those of the keys whose values are numbers: infinite and undefined ones are texts in JSON."""
    found = {key: values.get(key) for key in keys}
    return {key: float(v) for key, v in found.items() if isinstance(v, int | float) and not isinstance(v, bool)}
