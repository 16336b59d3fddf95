"""A CSV of one's own jobs: as few columns as the user knows."""

from __future__ import annotations

from ..job import join_kind, split_kind
from ..workload import Workload
from .rows import Row, TraceRows, build_job, from_first, numbered_dicts, whole


def read_own(rows: TraceRows, lines: list[str]) -> Workload:
    """Columns, with a header: ``arrival`` (seconds, or a clock time), ``workers`` (GPUs), then
    ``model``, ``batch_size`` and ``steps``, or ``duration`` [s] on the table's first type; optional
    ``id``, ``weight``, ``slo``. With a duration and no model, one is drawn. Lines that start with #
    are comments. Clock times are counted from the first job's.
    """
    kept = [line if not line.lstrip().startswith("#") else "" for line in lines]
    clock = False
    for line, row in numbered_dicts(kept, rows.path, ("arrival", "workers")):
        rows.read += 1
        arrival, workers = rows.clock(row["arrival"]), whole(row["workers"])
        if arrival is None or workers is None:
            bad = "arrival" if arrival is None else "workers"
            rows.reject(line, f"its {bad} is {row[bad]!r}", row)
            continue
        clock = clock or ":" in row["arrival"] or "-" in row["arrival"][1:]
        name = row.get("id") or f"job{line}"
        numbers = _numbers(rows, line, row)
        if numbers is None:
            continue
        if "steps" in numbers:
            _add_counted(rows, line, row, name, arrival, workers, numbers)
        else:
            model, batch = _kind_of(row)
            kind = join_kind(model, batch) if model else None
            seconds, weight, slo = numbers["duration"], numbers.get("weight", 1.0), numbers.get("slo")
            rows.add_timed(name, line, arrival, seconds, workers, row, kind, weight, slo)
    return from_first(rows) if clock else rows.workload()


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
        rows.reject(line, "it has neither steps nor a duration in seconds", row)
        return None
    return numbers


def _kind_of(row: Row) -> tuple[str, int | None]:
    model, batch = split_kind(row.get("model", ""))
    return model, whole(row.get("batch_size")) or batch


def _add_counted(
    rows: TraceRows, line: int, row: Row, name: str, arrival: float, workers: int, numbers: dict[str, float]
) -> None:
    model, batch = _kind_of(row)
    if not model:
        rows.reject(line, "it has steps but no model; name one of the throughput table", row)
        return
    values = {"arrival": arrival, "workers": workers, "model": model, "batch_size": batch, **numbers}
    values.pop("duration", None)
    build_job(rows, line, row, id=rows.unique_id(name, line), **values)
