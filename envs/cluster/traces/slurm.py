"""Slurm's accounting: ``sacct --parsable2 --format=JobID,Submit,Start,End,ElapsedRaw,AllocTRES,State``."""

from __future__ import annotations

import re

from ..workload import Workload
from .rows import TraceRows, from_first

_GPUS = re.compile(r"(?:gres/)?gpu(?P<type>:[^:=]+)?[:=](?P<count>\d+)")
"""One resource: the count comes last, behind a type that may begin with a digit, too (``gpu:2080ti:4``)."""
_PLACES = re.compile(r"\([^()]*\)")


def read_sacct(rows: TraceRows, lines: list[str]) -> Workload:
    """Needed: JobID, Submit, and ElapsedRaw [s] or Start and End; GPUs from AllocTRES, ReqTRES or
    AllocGRES (``gres/gpu=4``, ``gpu:v100:4``). Steps such as ``17.batch`` are rejected: their job's
    own row counts. Times are in the cluster's zone (``timezone``, by default UTC).
    """
    for line, row in rows.dicts(lines, ("JobID", "Submit"), delimiter="|"):
        if "." in row["JobID"]:
            rows.reject(line, f"it is a step of job {row['JobID'].split('.')[0]}, whose own row counts", row)
            continue
        arrival = rows.clock(row["Submit"])
        seconds = rows.seconds(row.get("ElapsedRaw"), row.get("Start"), row.get("End"))
        if arrival is None or seconds is None:
            bad = "Submit" if arrival is None else "ElapsedRaw"
            missing = "it has no elapsed time, start or end"
            rows.reject(line, f"its {bad} is {row[bad]!r}" if arrival is None or row.get(bad) else missing, row)
            continue
        rows.add_timed(row["JobID"], line, arrival, seconds, count_gpus(row), row)
    rows.note(f"clock times are taken as {rows.zone.key}")
    return from_first(rows)


def count_gpus(row: dict[str, str]) -> int:
    """GPUs of a job from its TRES or GRES columns; the untyped total where both stand there."""
    for name in ("AllocTRES", "ReqTRES", "AllocGRES", "ReqGRES"):
        found = [_GPUS.fullmatch(part.strip()) for part in _PLACES.sub("", row.get(name, "")).split(",")]
        gpus = [(match["type"] is None, int(match["count"])) for match in found if match]
        if gpus:
            total = [count for untyped, count in gpus if untyped]
            return total[0] if total else sum(count for _, count in gpus)
    return 0
