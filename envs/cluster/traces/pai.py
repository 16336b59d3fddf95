"""Alibaba's PAI trace of 2020: ``pai_task_table``, with or without a header row."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator

from ...errors import TraceError
from ..csv_rows import number
from ..workload import Workload
from .rows import Row, TraceRows, from_first

COLUMNS = (
    "job_name",
    "task_name",
    "inst_num",
    "status",
    "start_time",
    "end_time",
    "plan_cpu",
    "plan_mem",
    "plan_gpu",
    "gpu_type",
)
STATES = ("Terminated", "Failed", "Running", "Waiting")


def read_tasks(rows: TraceRows, lines: list[str]) -> Workload:
    """All tasks of one ``job_name`` make one job. ``plan_gpu`` is in percent of a GPU, so a task asks
    inst_num x plan_gpu / 100; the job's sum is rounded up to whole GPUs. The job arrives at its
    first start (the table tells no submission) and works until its last end. If a row of a job is
    not usable, the whole job is rejected, since its GPUs or its end would be wrong.
    """
    groups: dict[str, list[tuple[int, Row]]] = {}
    for line, cells in _numbered_cells(rows, lines):
        if not cells or cells[0].strip() == COLUMNS[0]:
            continue
        rows.read += 1
        row = dict(zip(COLUMNS, (cell.strip() for cell in cells), strict=False))
        if len(cells) != len(COLUMNS):
            rows.reject(line, f"it has {len(cells)} columns; expected {len(COLUMNS)}", cells)
        elif not row["job_name"]:
            rows.reject(line, "its job_name is empty", cells)
        else:
            groups.setdefault(row["job_name"], []).append((line, row))
    for name, tasks in groups.items():
        _add_job(rows, name, tasks)
    rows.note("GPU shares of a job are summed and rounded up to whole GPUs")
    return from_first(rows)


def _numbered_cells(rows: TraceRows, lines: list[str]) -> Iterator[tuple[int, list[str]]]:
    try:
        yield from enumerate(csv.reader(lines), 1)
    except csv.Error as error:
        raise TraceError(f"{rows.path}: cannot be read ({error}).") from error


def _add_job(rows: TraceRows, name: str, tasks: list[tuple[int, Row]]) -> None:
    wrong = [(line, problem) for line, row in tasks if (problem := _problem(row))]
    if wrong:
        reasons = dict(wrong)
        for line, row in tasks:
            other = f"line {wrong[0][0]} of the same job: {wrong[0][1]}"
            rows.reject(line, reasons.get(line, other), list(row.values()))
        return
    gpus = sum(float(row["inst_num"]) * float(row["plan_gpu"] or 0) / 100 for _, row in tasks)
    start = min(float(row["start_time"]) for _, row in tasks)
    end = max(float(row["end_time"]) for _, row in tasks)
    first = tasks[0][0]
    before = len(rows.rejected)
    rows.add_timed(name, first, start, end - start, math.ceil(gpus - 1e-9), list(tasks[0][1].values()))
    if len(rows.rejected) > before:
        reason = rows.rejected[-1].reason
        for line, row in tasks[1:]:
            rows.reject(line, reason, list(row.values()))


def _problem(row: Row) -> str:
    """What is wrong with a task, or nothing."""
    values = {}
    for name in ("inst_num", "start_time", "end_time", "plan_gpu"):
        text = row[name] or ("0" if name == "plan_gpu" else "")
        value = number(text)
        if value is None:
            return f"its {name} is {text!r}" + (" (it has not ended)" if name == "end_time" else "")
        values[name] = value
    if values["end_time"] <= 0:
        return f"its end_time is {row['end_time']}"
    if values["end_time"] < values["start_time"]:
        return f"its end_time {row['end_time']} lies before its start_time {row['start_time']}"
    if values["inst_num"] < 0 or values["plan_gpu"] < 0:
        return f"its inst_num is {row['inst_num']}, its plan_gpu {row['plan_gpu']}"
    return ""
