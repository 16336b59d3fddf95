"""Slurm's accounting: ``sacct --parsable2 --format=JobID,Submit,Start,End,ElapsedRaw,AllocTRES,State``."""

from __future__ import annotations

import re

from ..workload import Workload
from .rows import TraceRows, from_first, numbered_dicts

_GPUS = re.compile(r"gres/gpu(?::[^=,]+)?=(\d+)")
_TOTAL = re.compile(r"gres/gpu=(\d+)")
_PLAIN = re.compile(r"gpu(?::[A-Za-z][^:,=]*)?[:=](\d+)")


def read_sacct(rows: TraceRows, lines: list[str]) -> Workload:
    """Needed: JobID, Submit, and ElapsedRaw [s] or Start and End; GPUs from AllocTRES, ReqTRES or
    AllocGRES (``gres/gpu=4``, ``gpu:v100:4``). Steps such as ``17.batch`` are rejected: their job's
    own row counts. Times are in the cluster's zone (``timezone``, by default UTC).
    """
    for line, row in numbered_dicts(lines, rows.path, ("JobID", "Submit"), delimiter="|"):
        rows.read += 1
        if "." in row["JobID"]:
            rows.reject(line, f"it is a step of job {row['JobID'].split('.')[0]}, whose own row counts", row)
            continue
        arrival = rows.clock(row["Submit"])
        try:
            seconds: float | None = float(row.get("ElapsedRaw") or "")
        except ValueError:
            seconds = rows.interval(row.get("Start"), row.get("End"))
        if arrival is None or seconds is None:
            reason = f"its Submit is {row['Submit']!r}" if arrival is None else "it has no elapsed time, start or end"
            rows.reject(line, reason, row)
            continue
        rows.add_timed(row["JobID"], line, arrival, seconds, count_gpus(row), row)
    rows.note(f"clock times are taken as {rows.zone.key}")
    return from_first(rows)


def count_gpus(row: dict[str, str]) -> int:
    """GPUs of a job from its TRES or GRES columns; the untyped total where both stand there."""
    for name in ("AllocTRES", "ReqTRES", "AllocGRES", "ReqGRES"):
        text = row.get(name, "")
        total = _TOTAL.search(text)
        if total:
            return int(total[1])
        typed = _GPUS.findall(text) or _PLAIN.findall(text)
        if typed:
            return sum(int(count) for count in typed)
    return 0
