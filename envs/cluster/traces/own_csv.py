"""A CSV of one's own jobs: as few columns as the user knows."""

from __future__ import annotations

from collections.abc import Mapping

from ..csv_rows import header_hint, number, whole
from ..job import join_kind, split_kind
from ..workload import Workload
from .rows import Row, TraceRows, build_job, from_first

COLUMNS = ("arrival", "workers", "duration", "model", "batch_size", "steps", "id", "weight", "slo")
"""What a CSV of one's own may have."""
CLOCK = "seconds, or a clock time such as 2024-05-01 13:30:00 or 2024-05-01T13:30:00+02:00"


def read_own(rows: TraceRows, lines: list[str]) -> Workload:
    """Columns, with a header: ``arrival`` (seconds, or a clock time), ``workers`` (GPUs), then
    ``model``, ``batch_size`` and ``steps``, or ``duration`` [s] (on which type: ``measured_on``);
    optional ``id``, ``weight``, ``slo`` (a multiple of the duration). With a duration and no model, one
    is drawn. Lines that start with # are comments. Arrivals are all seconds or all clock times, as the
    first usable row's; the latter are counted from the first job's.
    """
    kept = [line if not line.lstrip().startswith("#") else "" for line in lines]
    first: tuple[int, bool] | None = None  # line of the first usable row, and whether its arrival is a clock time
    for line, row in rows.dicts(kept, ("arrival", "workers")):
        if others := [name for name in row if name not in COLUMNS]:
            rows.note(f"columns that are not read: {', '.join(others)}")
        arrival, workers = rows.clock(row["arrival"]), whole(row["workers"])
        if arrival is None or workers is None:
            bad = "arrival" if arrival is None else "workers"
            expected = CLOCK if arrival is None else "a whole number of GPUs"
            rows.reject(line, f"its {bad} is {row[bad]!r}; expected {expected}", row)
            continue
        clock = number(row["arrival"]) is None
        if first is not None and clock != first[1]:
            kinds = ("seconds", "a clock time")
            mixed = f"its arrival is {kinds[clock]}, that of line {first[0]} {kinds[not clock]}; write all in one way"
            rows.reject(line, mixed, row)
            continue
        name = row.get("id") or f"job{line}"
        numbers = _numbers(rows, line, row)
        if numbers is None:
            continue
        model, batch, wrong = _kind_of(row)
        if wrong:
            rows.reject(line, wrong, row)
            continue
        if "steps" in numbers:
            if "duration" in numbers:
                rows.note("durations beside steps are not read")
            values = {"arrival": arrival, "workers": workers, "model": model, "batch_size": batch}
            _add_counted(rows, line, row, name, values, numbers)
        else:
            if batch and not model:
                rows.note("batch sizes without a model are not read")
            kind = join_kind(model, batch) if model else None
            seconds, weight, slo = numbers["duration"], numbers.get("weight", 1.0), numbers.get("slo")
            rows.add_timed(name, line, arrival, seconds, workers, row, kind, weight, slo)
        if first is None and rows.jobs:
            first = line, clock
    return from_first(rows) if first is not None and first[1] else rows.workload()


def _numbers(rows: TraceRows, line: int, row: Row) -> dict[str, float] | None:
    """The numeric cells that are filled; None if the row was rejected."""
    numbers = {}
    for name in ("steps", "duration", "weight", "slo"):
        if row.get(name):
            try:
                numbers[name] = float(row[name])
            except ValueError:
                rows.reject(line, f"its {name} is {row[name]!r}; expected a number", row)
                return None
    if "steps" not in numbers and "duration" not in numbers:
        rows.reject(line, f"it has neither steps nor a duration in seconds{header_hint(list(row), COLUMNS)}", row)
        return None
    return numbers


def _kind_of(row: Row) -> tuple[str, int | None, str]:
    """Model and batch size, and what is wrong with the latter (or nothing)."""
    model, named = split_kind(row.get("model", ""))
    text = row.get("batch_size", "")
    batch = whole(text)
    if text and (batch is None or batch < 1):
        return model, None, f"its batch_size is {text!r}; expected a whole number from 1 up"
    if None not in (batch, named) and batch != named:
        return model, None, f"its batch_size is {text!r} beside the model {row['model']!r}; write it once"
    return model, batch or named, ""


def _add_counted(
    rows: TraceRows, line: int, row: Row, name: str, values: Mapping[str, object], numbers: Mapping[str, float]
) -> None:
    if not values["model"]:
        rows.reject(line, "it has steps but no model; name one of the throughput table", row)
        return
    counts = {key: value for key, value in numbers.items() if key != "duration"}
    build_job(rows, line, row, id=rows.unique_id(name, line), **values, **counts)
