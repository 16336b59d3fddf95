"""Microsoft's Philly trace: the job log, and the CSV that others derived from it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ...errors import TraceError
from ..csv_rows import number, whole
from ..workload import Workload
from .rows import TraceRows, from_first


def read_job_log(rows: TraceRows, lines: list[str]) -> Workload:
    """``cluster_job_log``: a JSON list; a rejected row's line is its position in it, from 1.

    A job arrives at ``submitted_time``, asks the most GPUs that one of its attempts had, and works
    for as long as its attempts took together (our choice; intervals in UTC, so a clock change does
    not lengthen them). Jobs without attempts, or with an attempt that has no start, end or GPU, are
    rejected.
    """
    try:
        entries = json.loads("\n".join(lines))
    except (ValueError, RecursionError) as error:
        raise TraceError(f"{rows.path}: is not JSON ({error}); expected Philly's cluster_job_log.") from error
    if not isinstance(entries, list):
        raise TraceError(f"{rows.path}: is no JSON list of jobs; expected Philly's cluster_job_log.")
    for line, entry in enumerate(entries, 1):
        rows.read += 1
        if not isinstance(entry, Mapping):
            rows.reject(line, "it is no JSON object", entry)
            continue
        arrival = rows.clock(_text(entry.get("submitted_time")))
        reason, seconds, workers = _measure_attempts(rows, entry)
        if arrival is None:
            reason = reason or f"its submitted_time is {entry.get('submitted_time')!r}"
        if reason or arrival is None:
            rows.reject(line, reason, entry.get("jobid", ""))
            continue
        rows.add_timed(str(entry.get("jobid") or ""), line, arrival, seconds, workers, entry.get("jobid", ""))
    rows.note(f"clock times are taken as {rows.zone.key}")
    return from_first(rows)


def _measure_attempts(rows: TraceRows, entry: Mapping[str, Any]) -> tuple[str, float, int]:
    """What is wrong (or nothing), seconds over all attempts, most GPUs of one."""
    attempts = entry.get("attempts")
    if not attempts or not isinstance(attempts, list):
        return "it has no attempts: it never ran", 0.0, 0
    total, workers = 0.0, 0
    for position, attempt in enumerate(attempts, 1):
        gpus = _count_gpus(attempt)
        if gpus is None:
            return f"its attempt {position} is no JSON object with a list of servers and their GPUs as detail", 0.0, 0
        seconds = rows.interval(_text(attempt.get("start_time")), _text(attempt.get("end_time")))
        if seconds is None:
            return f"its attempt {position} has no start or no end", 0.0, 0
        if seconds < 0:
            return f"its attempt {position} ends before it starts", 0.0, 0
        total += seconds
        workers = max(workers, gpus)
    return "", total, workers


def _text(value: Any) -> str | None:
    """A clock time, which is a text; anything else is none."""
    return value if isinstance(value, str) else None


def _count_gpus(attempt: Any) -> int | None:
    """GPUs of an attempt; None if it is not made as one."""
    servers = (attempt.get("detail") or []) if isinstance(attempt, Mapping) else None
    if not isinstance(servers, list) or not all(isinstance(server or {}, Mapping) for server in servers):
        return None
    gpus = [server.get("gpus") or [] for server in servers if server]
    return sum(map(len, gpus)) if all(isinstance(names, list) for names in gpus) else None


def read_derived(rows: TraceRows, lines: list[str]) -> Workload:
    """The derived CSV: ``timestamp`` (seconds or clock time), ``duration`` [s], ``num_gpus``, and
    optionally ``gpu_time`` [GPU s], ``cluster`` and ``job_id``.
    """
    for line, row in rows.dicts(lines, ("timestamp", "duration", "num_gpus")):
        arrival, workers = rows.clock(row["timestamp"]), whole(row["num_gpus"])
        seconds = number(row["duration"])
        if seconds is None:
            rows.reject(line, f"its duration is {row['duration']!r}", row)
            continue
        if arrival is None or workers is None:
            rows.reject(line, f"its timestamp is {row['timestamp']!r}, its num_gpus {row['num_gpus']!r}", row)
            continue
        rows.add_timed(row.get("job_id") or f"row{line}", line, arrival, seconds, workers, row)
    rows.note(f"clock times are taken as {rows.zone.key}")
    return from_first(rows)
