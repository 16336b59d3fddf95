"""CSV files with a header: numbered rows, and numbers in their cells."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from ..errors import HadopplerError, TraceError

_REST = "cells beyond the header"


def numbered_dicts(
    lines: Sequence[str],
    where: str | Path,
    needed: Sequence[str],
    delimiter: str = ",",
    error: type[HadopplerError] = TraceError,
) -> Iterator[tuple[int, dict[str, str]]]:
    """Line numbers and rows of a CSV with a header; empty lines are skipped. Of too many cells ``surplus`` tells.

    Raises:
        error: a needed column is missing, a column stands there twice, or a cell is too long to be one.
    """
    skipped = next((number for number, line in enumerate(lines) if line.strip()), 0)
    reader = csv.DictReader(lines[skipped:], delimiter=delimiter, restkey=_REST)
    try:
        _check_columns([name.strip() for name in reader.fieldnames or ()], where, needed, error)
        for row in reader:
            told = {name.strip(): (cell or "").strip() for name, cell in row.items() if name != _REST}
            beyond = {_REST: delimiter.join(row[_REST])} if _REST in row else {}
            yield skipped + reader.line_num, told | beyond
    except csv.Error as fault:
        raise error(f"{where}, line {skipped + reader.line_num + 1}: cannot be read ({fault}).") from fault


def surplus(row: Mapping[str, str]) -> str:
    """What is wrong with a row of ``numbered_dicts`` that has too many cells; an empty text for others."""
    return f"it has more cells than the header: {row[_REST]!r} stands beyond" if _REST in row else ""


def _check_columns(
    columns: Sequence[str], where: str | Path, needed: Sequence[str], error: type[HadopplerError]
) -> None:
    for name in needed:
        if name not in columns:
            raise error(
                f"{where}: the column {name!r} is missing; found {', '.join(columns)}{header_hint(columns, needed)}."
            )
    for name in columns:
        if name and columns.count(name) > 1:
            raise error(f"{where}: the column {name!r} stands there twice; keep one of the two.")


def header_hint(columns: Sequence[str], needed: Sequence[str]) -> str:
    """Why a header does not hold the needed columns, where semicolons or capitals are the cause; else nothing."""
    cells = [cell.strip() for column in columns for cell in column.split(";")]
    if len(cells) > len(columns) and {cell.lower() for cell in cells} & set(needed):
        return "; semicolons stand between the columns: write commas"
    wrong = [cell for cell in cells if cell.lower() in needed and cell not in needed]
    return f"; write {', '.join(wrong)} in small letters" if wrong else ""


def number(text: str | None) -> float | None:
    """A finite number from a cell; None if it is none."""
    try:
        value = float((text or "").strip())
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def whole(text: str | None) -> int | None:
    """A whole number from a cell such as ``4`` or ``4.0``; None if it is none."""
    value = number(text)
    return int(value) if value is not None and value == int(value) else None
