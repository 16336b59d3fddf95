"""A schedule as a picture and as a trace file that Perfetto and chrome://tracing open."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..pictures import COLOURS, HATCHES, save_figure, verbatim
from .problem import PlacementProblem
from .readers.files import write_text
from .simulator import Schedule

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TRANSFER_COLOUR = "#444444"
HIGHEST, MOST_LABELS = 60.0, 80
"""Inches that a picture may be high, and device labels that it may bear: beyond them, rows get thinner."""


class Style(NamedTuple):
    """Colour and hatch of each kind of operation, the heaviest kind first."""

    kinds: list[str]
    colour: dict[str, str]
    hatch: dict[str, str]


def gantt(problem: PlacementProblem, schedule: Schedule, *, title: str = "", until: float | None = None) -> Figure:
    """One row of operations per device, coloured by kind, with the incoming transfers below it.

    ``until`` fixes the end of the time axis, so that pictures compare.
    """
    from matplotlib.figure import Figure

    unit, label = time_axis(problem, until or schedule.makespan)
    figure = Figure(figsize=(11, min(1.4 + 0.75 * problem.d, HIGHEST)), layout="constrained")
    axes, style = figure.add_subplot(), _style(problem)
    _draw(axes, problem, schedule, unit, style)
    axes.set_xlim(0, (until or schedule.makespan or unit) / unit)
    axes.set_xlabel(f"time [{label}]")
    axes.set_title(verbatim(title or problem.graph.summary()))
    _legend(axes, style)
    return figure


def gantt_pair(
    problem: PlacementProblem,
    simulated: Schedule,
    measured: Schedule,
    *,
    title: str = "",
    unit_s: float | None = 1.0,
) -> Figure:
    """The simulated schedule above the measured one on one axis of seconds, as ``gantt`` draws them.

    Args:
        unit_s: seconds that a unit of the simulated time stands for; None if that is unknown: the simulated schedule
            is then stretched to the measured makespan, and its heading says so.
    """
    from matplotlib.figure import Figure

    stretched = measured.makespan / simulated.makespan if simulated.makespan > 0 else 1.0
    shown = scaled(simulated, stretched if unit_s is None else unit_s)
    until = max(shown.makespan, measured.makespan)
    unit, label = seconds_axis(until)
    figure = Figure(figsize=(11, min(1.8 + 1.5 * problem.d, HIGHEST)), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    style = _style(problem)
    headings = (f"simulated{', stretched to the measured time' * (unit_s is None)}", "measured")
    for axes, schedule, heading in zip((above, below), (shown, measured), headings, strict=True):
        _draw(axes, problem, schedule, unit, style)
        axes.axvline(schedule.makespan / unit, color="black", linestyle="--", linewidth=0.8)
        axes.set_title(f"{heading}: {schedule.makespan / unit:.4g} {label}", loc="left", fontsize="medium")
    below.set_xlim(0, 1.02 * (until or unit) / unit)
    below.set_xlabel(f"time [{label}]")
    figure.suptitle(verbatim(title or problem.graph.summary()))
    _legend(above, style)
    return figure


def scaled(schedule: Schedule, factor: float) -> Schedule:
    """The same schedule with all times multiplied."""
    moved = schedule.transfers
    times = {name: getattr(moved, name) * factor for name in ("produced", "start", "end")}
    return replace(
        schedule,
        start=schedule.start * factor,
        end=schedule.end * factor,
        transfers=replace(moved, **times),
        makespan=schedule.makespan * factor,
    )


def _style(problem: PlacementProblem) -> Style:
    kinds = sorted(set(problem.graph.kind), key=_weight(problem), reverse=True)
    colour = {kind: COLOURS[min(i, len(COLOURS) - 1)] for i, kind in enumerate(kinds)}
    hatch = {kind: HATCHES[min(i, len(HATCHES) - 1)] for i, kind in enumerate(kinds)}
    return Style(kinds, colour, hatch)


def _draw(axes: Any, problem: PlacementProblem, schedule: Schedule, unit: float, style: Style) -> None:
    """Bars of operations and transfers, a row for each device, device 0 on top."""
    kind_of = np.array(problem.graph.kind)
    for device in range(problem.d):
        on_device = schedule.assignment == device
        for kind in style.kinds:
            mine = on_device & (kind_of == kind) & ~np.isnan(schedule.start)
            spans = np.column_stack([schedule.start[mine], schedule.end[mine] - schedule.start[mine]]) / unit
            axes.broken_barh(
                [(a, b) for a, b in spans], (device - 0.35, 0.5),
                facecolors=style.colour[kind], hatch=style.hatch[kind], edgecolor="white", linewidth=0.3,
            )  # fmt: skip
        incoming = schedule.transfers.target == device
        spans = np.column_stack([schedule.transfers.start, schedule.transfers.end - schedule.transfers.start])
        axes.broken_barh([(a, b) for a, b in spans[incoming] / unit], (device + 0.2, 0.15), facecolors=TRANSFER_COLOUR)
    labelled = range(0, problem.d, -(-problem.d // MOST_LABELS))
    axes.set_yticks(labelled, [verbatim(f"{i}: {problem.topology.devices[i].kind}") for i in labelled])
    axes.invert_yaxis()
    axes.set_ylabel("device")


def _weight(problem: PlacementProblem) -> Any:
    total: dict[str, float] = {}
    for kind, seconds in zip(problem.graph.kind, problem.best_s.tolist(), strict=True):
        total[kind] = total.get(kind, 0.0) + seconds
    return lambda kind: (total[kind], kind)


def _legend(axes: Any, style: Style) -> None:
    from matplotlib.patches import Patch

    kinds, colour, hatch = style
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
    return seconds_axis(span)


def seconds_axis(span: float) -> tuple[float, str]:
    """A divisor and its name so that ``span`` seconds read well."""
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
