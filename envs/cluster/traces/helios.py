"""SenseTime's Helios trace: ``cluster_log.csv``."""

from __future__ import annotations

from ..csv_rows import whole
from ..workload import Workload
from .rows import TraceRows, from_first


def read_helios(rows: TraceRows, lines: list[str]) -> Workload:
    """Columns job_id, user, vc, gpu_num, cpu_num, node_num, state, submit_time, start_time,
    end_time, duration [s], queue [s]. A job arrives at submit_time and works for ``duration``, or
    from start to end where that is empty; CPU-only jobs are rejected; all states count.
    """
    for line, row in rows.dicts(lines, ("job_id", "gpu_num", "submit_time", "duration")):
        workers, arrival = whole(row["gpu_num"]), rows.clock(row["submit_time"])
        seconds = rows.seconds(row["duration"], row.get("start_time"), row.get("end_time"))
        if workers is None or arrival is None or seconds is None:
            bad = "gpu_num" if workers is None else "submit_time" if arrival is None else "duration"
            rows.reject(line, f"its {bad} is {row[bad]!r}", row)
            continue
        rows.add_timed(row["job_id"], line, arrival, seconds, workers, row)
    rows.note(f"clock times are taken as {rows.zone.key}")
    return from_first(rows)
