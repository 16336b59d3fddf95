"""A schedule as a picture and as a trace file that Perfetto and chrome://tracing open."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..pictures import COLOURS, save_figure, verbatim
from .problem import PlacementProblem
from .readers.files import write_text
from .simulator import Schedule

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HATCHES = ("", "///", "...", "\\\\\\", "xxx", "+++", "ooo", "---")  # tell kinds apart without colour
TRANSFER_COLOUR = "#444444"
HIGHEST, MOST_LABELS = 60.0, 80
"""Inches that a picture may be high, and device labels that it may bear: beyond them, rows get thinner."""


def gantt(problem: PlacementProblem, schedule: Schedule, *, title: str = "", until: float | None = None) -> Figure:
    """One row of operations per device, coloured by kind, with the incoming transfers below it.

    ``until`` fixes the end of the time axis, so that pictures compare.
    """
    from matplotlib.figure import Figure

    unit, label = time_axis(problem, until or schedule.makespan)
    figure = Figure(figsize=(11, min(1.4 + 0.75 * problem.d, HIGHEST)), layout="constrained")
    axes = figure.add_subplot()
    kinds = sorted(set(problem.graph.kind), key=_weight(problem), reverse=True)
    colour = {kind: COLOURS[min(i, len(COLOURS) - 1)] for i, kind in enumerate(kinds)}
    hatch = {kind: HATCHES[min(i, len(HATCHES) - 1)] for i, kind in enumerate(kinds)}
    kind_of = np.array(problem.graph.kind)
    for device in range(problem.d):
        on_device = schedule.assignment == device
        for kind in kinds:
            mine = on_device & (kind_of == kind) & ~np.isnan(schedule.start)
            spans = np.column_stack([schedule.start[mine], schedule.end[mine] - schedule.start[mine]]) / unit
            axes.broken_barh(
                [(a, b) for a, b in spans], (device - 0.35, 0.5),
                facecolors=colour[kind], hatch=hatch[kind], edgecolor="white", linewidth=0.3,
            )  # fmt: skip
        incoming = schedule.transfers.target == device
        spans = np.column_stack([schedule.transfers.start, schedule.transfers.end - schedule.transfers.start])
        axes.broken_barh([(a, b) for a, b in spans[incoming] / unit], (device + 0.2, 0.15), facecolors=TRANSFER_COLOUR)
    labelled = range(0, problem.d, -(-problem.d // MOST_LABELS))
    axes.set_yticks(labelled, [verbatim(f"{i}: {problem.topology.devices[i].kind}") for i in labelled])
    axes.invert_yaxis()
    axes.set_xlim(0, (until or schedule.makespan or unit) / unit)
    axes.set_xlabel(f"time [{label}]")
    axes.set_ylabel("device")
    axes.set_title(verbatim(title or problem.graph.summary()))
    _legend(axes, kinds, colour, hatch)
    return figure


def _weight(problem: PlacementProblem) -> Any:
    total: dict[str, float] = {}
    for kind, seconds in zip(problem.graph.kind, problem.best_s.tolist(), strict=True):
        total[kind] = total.get(kind, 0.0) + seconds
    return lambda kind: (total[kind], kind)


def _legend(axes: Any, kinds: list[str], colour: dict[str, str], hatch: dict[str, str]) -> None:
    from matplotlib.patches import Patch

    label = dict(zip(kinds, map(verbatim, kinds), strict=True))
    if len(kinds) > len(COLOURS):  # the rarest share the last colour
        label[kinds[len(COLOURS) - 1]] = f"{len(kinds) - len(COLOURS) + 1} other kinds"
    handles = [
        Patch(facecolor=colour[kind], hatch=hatch[kind], edgecolor="white", label=label[kind])
        for kind in kinds[: len(COLOURS)]
    ]
    handles.append(Patch(facecolor=TRANSFER_COLOUR, label="incoming transfer"))
    axes.legend(handles=handles, loc="upper left", bbox_to_anchor=(1.005, 1.0), frameon=False, fontsize="small")


def time_axis(problem: PlacementProblem, span: float) -> tuple[float, str]:
    """A divisor and its name so that ``span`` reads well: s, ms, microseconds, or the raw unit."""
    if problem.topology.name == "raw":
        return problem.time_unit, f"raw / {problem.time_unit:g}" if problem.time_unit != 1 else "raw"
    for unit, label in ((1.0, "s"), (1e-3, "ms")):
        if span >= unit:
            return unit, label
    return 1e-6, "µs"


def save_gantt(path: str | Path, problem: PlacementProblem, schedule: Schedule, *, title: str = "") -> None:
    """Write the picture as PNG, atomically."""
    save_figure(path, gantt(problem, schedule, title=title))


def write_trace(path: str | Path, problem: PlacementProblem, schedule: Schedule) -> None:
    """Write Chrome's trace event format: a process per device, with threads for operations and arrivals.

    Times are microseconds; in the raw cost model, units of ``time_unit`` / 1e6.
    """
    graph, micro = problem.graph, 1e6 / problem.time_unit
    events: list[dict[str, Any]] = []
    for device, item in enumerate(problem.topology.devices):
        events.append({"ph": "M", "name": "process_name", "pid": device, "args": {"name": f"{device}: {item.kind}"}})
        for thread, name in enumerate(("operations", "incoming transfers")):
            events.append({"ph": "M", "name": "thread_name", "pid": device, "tid": thread, "args": {"name": name}})
    for v in np.argsort(schedule.start, kind="stable").tolist():
        start, end = float(schedule.start[v]), float(schedule.end[v])
        events.append(
            {
                "ph": "X",
                "name": graph.names[v],
                "cat": graph.kind[v],
                "pid": int(schedule.assignment[v]),
                "tid": 0,
                "ts": start * micro,
                "dur": (end - start) * micro,
                "args": {"id": graph.ids[v], "flops": float(graph.flops[v]), "out_bytes": float(graph.out_bytes[v])},
            }
        )
    moved = schedule.transfers
    for k in range(len(moved.start)):
        events.append(
            {
                "ph": "X",
                "name": f"{graph.names[moved.operation[k]]} from {moved.source[k]}",
                "cat": "transfer",
                "pid": int(moved.target[k]),
                "tid": 1,
                "ts": float(moved.start[k]) * micro,
                "dur": float(moved.end[k] - moved.start[k]) * micro,
                "args": {
                    "bytes": float(moved.bytes[k]),
                    "waited_us": float(moved.start[k] - moved.produced[k]) * micro,
                },
            }
        )
    write_text(path, json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}))
