"""Pictures of clusters: completion times, use over time, measured beside simulated figures."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from omegaconf import OmegaConf

from hadoppler.scripts.reproduction.drawing import (
    Drawn,
    add_legend,
    label_axes,
    new_axes,
    scatter_points,
    settings_of,
    title_of,
)
from hadoppler.scripts.reproduction.evidence import Evidence
from hadoppler.scripts.reproduction.parts import Part
from hadoppler.scripts.reproduction.records import rows_of
from hadoppler.scripts.reproduction.tables import Picture, Table

if TYPE_CHECKING:
    from hadoppler.envs.cluster.timeline import Timeline


def completion_times(evidence: Evidence, table: Table, picture: Picture) -> Iterator[Drawn]:
    """Cumulative distributions over all seeds."""
    from hadoppler.envs.cluster.render import draw_completion_times

    for number, at in enumerate(settings_of(evidence, table, picture)):
        times: dict[str, list[float]] = {}
        for row in table.rows:
            for part in evidence.parts(table.name, row, at):
                times.setdefault(row, []).extend(_jct(evidence, part))
        if any(times.values()):
            figure = draw_completion_times(
                {row: found for row, found in times.items() if found}, title=title_of(table, at)
            )
            yield Drawn(f"jct_{number}", figure, f"Job completion times. {title_of(table, at)}")


def _jct(evidence: Evidence, part: Part) -> list[float]:
    rows = read_table_file(part.folder(evidence.root) / "jobs.csv") if evidence.results(part) else []
    told = rows or rows_of(evidence.results(part), "jobs")
    return [float(row["jct"]) for row in told if str(row.get("jct", "")) not in ("", "nan")]


def use(evidence: Evidence, table: Table, picture: Picture) -> Iterator[Drawn]:
    """GPUs in use over time, of the first seed."""
    from hadoppler.envs.cluster.render import draw_use

    for number, at in enumerate(settings_of(evidence, table, picture)):
        lines = {}
        for row in table.rows:
            parts = [part for part in evidence.parts(table.name, row, at) if part.drawn and evidence.results(part)]
            line = timeline_of(evidence.results(parts[0]), parts[0].folder(evidence.root)) if parts else None
            if line is not None:
                lines[row] = line
        if lines:
            yield Drawn(f"use_{number}", draw_use(lines, title=title_of(table, at)), f"Use. {title_of(table, at)}")


def timeline_of(results: Mapping[str, Any], folder: Path) -> Timeline | None:
    """What a simulated cluster did, from ``rounds.csv`` and ``jobs.csv``; None without them."""
    from hadoppler.envs.cluster.timeline import Timeline, mean_count
    from hadoppler.scripts.application import instantiate

    rounds, jobs = read_table_file(folder / "rounds.csv"), read_table_file(folder / "jobs.csv")
    if not rounds or not jobs:
        return None
    cluster: Any = instantiate(OmegaConf.create(results["config"]["cluster"]))
    finish = {job["id"]: float(job["finish"] or math.inf) for job in jobs}
    stays = _stays(rounds, finish, cluster)
    last = max((value for value in finish.values() if math.isfinite(value)), default=float(stays.end.max()))
    edges = np.linspace(0.0, max(last, 1.0), 401)
    busy = np.array([mean_count(stays, kind, edges) for kind in range(len(cluster.types))])
    nothing = np.zeros(0, dtype=np.int64)
    return Timeline(cluster, edges, busy, nothing, nothing, np.zeros((0, 400), np.int32))


def _stays(rounds: Sequence[Mapping[str, str]], finish: Mapping[str, float], cluster: Any) -> Any:
    """Every gang's stay on the GPUs of a node: until the next round, or the end of its job."""
    from hadoppler.envs.cluster.timeline import Stays

    nodes = {node.name: number for number, node in enumerate(cluster.nodes)}
    whole = np.unique([float(row["time"]) for row in rounds if row["mid_round"] == "False"])
    last = max((value for value in finish.values() if math.isfinite(value)), default=float(whole[-1]) + 1.0)
    ends = np.append(whole, last)
    rows: list[tuple[int, int, int, int, float, float]] = []
    for row in rounds:
        begin = float(row["time"])
        following = float(ends[min(int(np.searchsorted(ends, begin, side="right")), len(ends) - 1)])
        for held in row["gpus"].split():
            node, _, rest = held.partition(":")
            kind, _, count = rest.rpartition("x")
            end = max(begin, min(following, finish[row["job"]]))
            rows.append((0, nodes[node], cluster.types.index(kind), int(count), begin, end))
    columns = list(zip(*rows, strict=True))
    return Stays(*(np.array(column) for column in columns))


def predicted(evidence: Evidence, table: Table, picture: Picture) -> Iterator[Drawn]:
    """Measured figures against those that the simulator gives for the same jobs."""
    told = table.figures[picture.figure]
    divide = float(told.divide) if not isinstance(told.divide, str) else 1.0
    figure, axes = new_axes(f"{table.title}: {told.label}, measured and simulated")
    found = False
    for number, row in enumerate(table.rows):
        points = [
            (line[f"simulated_{told.keys[0]}"] / divide, line[told.keys[0]] / divide)
            for part in evidence.parts(table.name, row)
            for line in rows_of(evidence.results(part), told.inside)
            if isinstance(line.get(f"simulated_{told.keys[0]}"), int | float)
        ]
        if points:
            found = True
            scatter_points(axes, points, row, number)
    if found:
        axes.axline((0, 0), slope=1, color="0.4", linestyle="--", linewidth=1, label="equal")
        label_axes(axes, f"simulated [{told.unit}]", f"measured [{told.unit}]")
        add_legend(figure)
        yield Drawn(f"predicted_{told.keys[0]}", figure, f"{told.label}: measured against simulated.")


def read_table_file(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV; none if there is no file."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))
