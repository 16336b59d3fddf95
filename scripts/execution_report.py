"""What was measured when placements were executed: rows, a table, a trace, and both schedules in one picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from hadoppler.scripts.execution import LATE_S, Devices, Measured

if TYPE_CHECKING:
    from hadoppler.envs.placement import Placement, PlacementProblem


def measured_row(devices: Devices, simulated: float, found: Measured | None) -> dict[str, Any]:
    """What a row of ``results.json`` tells of a placement's execution; ``found`` is None if it failed.

    A single repetition has no deviation: ``measured_std`` is None.
    """
    if found is None:
        return dict.fromkeys(("measured_s", "measured_std", "measured_ratio", "late")) | {
            "measured_runs": 0,
            "dropped": 0,
            "clean": False,
            "verified": False,
        }
    seconds = float(np.median(found.seconds))
    known = devices.unit_s is not None and simulated > 0
    return {
        "measured_s": seconds,
        "measured_std": float(found.seconds.std()) if len(found.seconds) > 1 else None,
        "measured_runs": len(found.seconds),
        "measured_ratio": seconds / (simulated * (devices.unit_s or 1.0)) if known else None,
        "dropped": found.dropped,
        "clean": found.clean,
        "late": found.late,
        "verified": devices.executor.compared,
    }


def print_executions(console: Console, devices: Devices, rows: Sequence[Mapping[str, Any]]) -> None:
    """The table of measured times, fastest first, and what a reader must know of it."""
    from hadoppler.envs.placement.render import seconds_axis

    executed = sorted((row for row in rows if row["measured_s"] is not None), key=lambda row: row["measured_s"])
    if not executed:
        return
    unit, label = seconds_axis(executed[-1]["measured_s"])
    table = Table(title="Executed: medians and deviations of undisturbed repetitions")
    for name in ("method", f"measured [{label}]", "/ simulated", "runs", "dropped", "late"):
        table.add_column(escape(name), justify="left" if name == "method" else "right", no_wrap=True)
    for row in executed:
        table.add_row(
            escape(row["method"]) + " #" * (not row["clean"]),
            f"{row['measured_s'] / unit:.4g} ± {_deviation(row, unit)}",
            "" if row["measured_ratio"] is None else f"{row['measured_ratio']:.3f}",
            str(row["measured_runs"]),
            str(row["dropped"]),
            str(row["late"]),
        )
    console.print(table)
    for line in [*_explained(devices, executed), *disagreement(rows)]:
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _deviation(row: Mapping[str, Any], unit: float) -> str:
    return "-" if row["measured_std"] is None else f"{row['measured_std'] / unit:.2g}"


def disagreement(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """A sentence if another method than the one that is kept, the best simulated, was measured to be faster.

    By more than both deviations together, and with another simulated time: methods often find the same placement.
    """
    from hadoppler.envs.placement.render import seconds_axis

    kept = min(rows, key=lambda row: row["makespan"])
    fastest = min(rows, key=lambda row: np.inf if row["measured_s"] is None else row["measured_s"])
    if kept["measured_s"] is None or fastest["makespan"] == kept["makespan"]:
        return []
    if kept["measured_s"] - fastest["measured_s"] <= sum(row["measured_std"] or 0.0 for row in (kept, fastest)):
        return []
    unit, label = seconds_axis(kept["measured_s"])
    mine, other = (f"{row['measured_s'] / unit:.4g} {label}" for row in (kept, fastest))
    name = fastest["method"]
    return [
        f"placement.json holds the best simulated placement, {kept['method']}'s, measured {mine}; {name}'s, in "
        f"placements/{name}.json, took {other}. hadoppler calibrate makes the simulator believe what is measured."
    ]


def _explained(devices: Devices, executed: Sequence[Mapping[str, Any]]) -> list[str]:
    """Sentences below the table."""
    told = [
        f"late: operations before which a device idled for more than {1e3 * LATE_S:g} ms with work at hand, in the "
        "repetition nearest to the median."
    ]
    if not all(row["clean"] for row in executed):
        told.append("# other work disturbed every repetition; these are the shortest ones.")
    told += devices.executor.remarks()
    if devices.unit_s is None:
        told.append("The simulated times are in the file's units of cost, to which seconds do not compare.")
    elif devices.unit_s != 1.0:
        told.append(f"A unit of simulated time takes {devices.unit_s:.4g} s here; / simulated counts that in.")
    return told


def write_measured(
    folder: Path,
    problem: PlacementProblem,
    answers: Mapping[str, Placement],
    devices: Devices,
    measured: Mapping[str, Measured],
    *,
    pictures: bool,
) -> list[Path]:
    """``trace_measured.json`` of the best simulated placement that was executed, and ``gantt.png`` with both schedules.

    Returns the paths.
    """
    from hadoppler.envs.pictures import save_figure
    from hadoppler.envs.placement.render import gantt_pair, write_trace

    if not measured:
        return []
    name = min(measured, key=lambda name: answers[name].makespan)
    real, written = measured[name].schedule, [folder / "trace_measured.json"]
    write_trace(written[0], replace(problem, time_unit=1.0), real)
    if pictures:
        written.append(folder / "gantt.png")
        title = f"{problem.graph.title} on {problem.topology.name}: {name}"
        simulated = answers[name].simulate(problem)
        save_figure(written[-1], gantt_pair(problem, simulated, real, title=title, unit_s=devices.unit_s))
    return written
