"""A part of a trace, and arrivals that come more densely than they did."""

from __future__ import annotations

import math
from dataclasses import replace

from ...errors import TraceError
from ..workload import Workload


def cut_window(workload: Workload, start_s: float = 0.0, end_s: float | None = None, load: float = 1.0) -> Workload:
    """The jobs that arrive from ``start_s`` on and before ``end_s``, seconds after the first arrival.

    Arrivals are then divided by ``load``: 2 makes them twice as dense. In a window they are counted from its
    first job's. Jobs outside are no rejected rows; a note of the workload tells how many there are.

    Raises:
        TraceError: no job is in the window, or a number is out of range.
    """
    end = math.inf if end_s is None else end_s
    for name, value in (("start_s", start_s), ("end_s", end), ("load", load)):
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise TraceError(f"{name} is {value!r}; expected a number.")
    if not 0 <= start_s < end:
        raise TraceError(f"start_s is {start_s} and end_s {end}; expected seconds with 0 <= start_s < end_s.")
    if not 0 < load < math.inf:
        raise TraceError(f"load is {load}; expected a number above 0, such as 2 for arrivals twice as dense.")
    if (start_s, end, load) == (0.0, math.inf, 1.0):
        return workload
    first = workload.jobs[0].arrival
    kept = [job for job in workload.jobs if start_s <= job.arrival - first < end]
    if not kept:
        span = workload.jobs[-1].arrival - first
        raise TraceError(
            f"{workload.name}: no job arrives from {start_s:g} s on and before {end:g} s; all arrive within {span:g} s."
        )
    notes = list(workload.notes)
    if len(kept) < len(workload):
        until = "the end" if end_s is None else f"{end_s:g} s"
        outside = len(workload) - len(kept)
        notes.append(f"window from {start_s:g} s to {until}: {outside} of {len(workload)} jobs left out")
        first = kept[0].arrival
    else:
        first = 0.0
    if load != 1.0:
        notes.append(f"arrivals are {load:g} times as dense (workload.load)")
    jobs = tuple(replace(job, arrival=(job.arrival - first) / load) for job in kept)
    return replace(workload, jobs=jobs, notes=tuple(notes))
