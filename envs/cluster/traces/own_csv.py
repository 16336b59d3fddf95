"""A CSV of one's own jobs: as few columns as the user knows."""

from __future__ import annotations

from ..job import split_kind
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
        if row.get("steps"):
            _add_counted(rows, line, row, name, arrival, workers)
        else:
            _add_by_duration(rows, line, row, name, arrival, workers)
    return from_first(rows) if clock else rows.workload()


def _kind_of(row: Row) -> tuple[str, int | None]:
    model, batch = split_kind(row.get("model", ""))
    return model, whole(row.get("batch_size")) or batch


def _add_counted(rows: TraceRows, line: int, row: Row, name: str, arrival: float, workers: int) -> None:
    model, batch = _kind_of(row)
    try:
        steps = float(row["steps"])
        weight = float(row.get("weight") or 1.0)
        slo = float(row["slo"]) if row.get("slo") else None
    except ValueError as error:
        rows.reject(line, f"{error}; steps, weight and slo must be numbers", row)
        return
    if not model:
        rows.reject(line, "it has steps but no model; name one of the throughput table", row)
        return
    identity = rows.unique_id(name, line)
    values = {"arrival": arrival, "workers": workers, "steps": steps, "weight": weight, "slo": slo}
    build_job(rows, line, row, id=identity, model=model, batch_size=batch, **values)


def _add_by_duration(rows: TraceRows, line: int, row: Row, name: str, arrival: float, workers: int) -> None:
    try:
        seconds = float(row.get("duration") or "")
    except ValueError:
        rows.reject(line, f"it has neither steps nor a duration in seconds ({row.get('duration', '')!r})", row)
        return
    if not row.get("model"):
        rows.add_timed(name, line, arrival, seconds, workers, row)
        return
    model, batch = _kind_of(row)
    kind = model if batch is None else f"{model} (batch size {batch})"
    if not rows.table.knows(kind):
        rows.reject(line, f"the throughput table has no {kind!r}", row)
        return
    if workers < 1 or not (rows.table.job_rates(kind, workers)[0] > 0).any():
        rows.reject(line, f"no GPU type of the table runs {kind!r} with {workers} workers", row)
        return
    steps = seconds * rows.table.reference_rate(kind, workers)
    values = {"arrival": arrival, "workers": workers, "steps": steps, "model": model, "batch_size": batch}
    build_job(rows, line, row, id=rows.unique_id(name, line), weight=float(row.get("weight") or 1.0), **values)
