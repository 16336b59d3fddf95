"""Gavel's traces: ten columns between tabs, or the older seven."""

from __future__ import annotations

from ..csv_rows import number
from ..job import split_kind
from ..workload import Workload
from .rows import TraceRows, build_job

_TEN = {"kind": 0, "steps": 5, "workers": 6, "weight": 7, "slo": 8, "arrival": 9}
_SEVEN = {"kind": 0, "steps": 4, "arrival": 5, "workers": 6}


def read_gavel(rows: TraceRows, lines: list[str]) -> Workload:
    """One job a line. Ten columns: job_type, command, working_directory, num_steps_arg,
    needs_data_dir, total_steps, scale_factor, priority_weight, SLO (a multiple of the duration;
    negative: none), arrival_time [s]. Seven: job_type, command, num_steps_arg, needs_data_dir,
    total_steps, arrival_time [s], scale_factor. The job's id is its position, counted from 0.
    """
    for line, text in enumerate(lines, 1):
        if not text.strip():
            continue
        rows.read += 1
        cells = text.split("\t")
        columns = {10: _TEN, 7: _SEVEN}.get(len(cells))
        if columns is None:
            rows.reject(line, f"it has {len(cells)} columns between tabs; expected 10 or 7", text)
            continue
        values = {name: number(cells[column]) for name, column in columns.items() if name != "kind"}
        if bad := [name for name, value in values.items() if value is None]:
            rows.reject(line, f"its {bad[0]} is {cells[columns[bad[0]]].strip()!r}; expected a number", text)
            continue
        told = {name: value for name, value in values.items() if value is not None}
        model, batch = split_kind(cells[0])
        slo, workers = told.get("slo", -1.0), told["workers"]
        if workers != int(workers):
            rows.reject(line, f"it asks {workers} GPUs; expected a whole number", text)
            continue
        build_job(
            rows,
            line,
            text,
            id=str(rows.read - 1),
            arrival=told["arrival"],
            workers=int(workers),
            steps=told["steps"],
            model=model,
            batch_size=batch,
            weight=told.get("weight", 1.0),
            slo=None if slo < 0 else slo,
        )
    return rows.workload()
