"""Pictures of a table's parts, drawn from the files that they left; each can be read without colour."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from omegaconf import OmegaConf

from hadoppler.scripts.intervals import Estimate, estimate
from hadoppler.scripts.metrics import read_metrics
from hadoppler.scripts.reproduction.evidence import Evidence, estimated
from hadoppler.scripts.reproduction.parts import Part, short
from hadoppler.scripts.reproduction.records import rows_of
from hadoppler.scripts.reproduction.tables import At, Picture, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from hadoppler.envs.cluster.timeline import Timeline

MARKERS = "os^Dv<>PX*"
MEANINGS = {"ratio": "makespan / lower bound", "makespan": "makespan [s]"}
"""Figures of ``metrics.jsonl`` for axes."""
POINTS = 60
"""Of a learning curve's grid."""
COLUMNS = 2
MOST = 4
"""Pictures of one kind that a table shows at most (our choice)."""


class Drawn(NamedTuple):
    """A figure, the end of its file's name, and what it shows."""

    name: str
    figure: Figure
    caption: str


def draw(evidence: Evidence, table: Table) -> Iterator[Drawn]:
    """All pictures of a table for which there are results."""
    for number, picture in enumerate(table.pictures):
        for drawn in DRAWERS[picture.kind](evidence, table, picture):
            yield Drawn(f"{table.name}_{number}_{drawn.name}.png", drawn.figure, drawn.caption)


def settings_of(evidence: Evidence, table: Table, picture: Picture) -> list[dict[str, Any]]:
    """Settings at which a picture is drawn, evenly chosen where there are many."""
    found: list[dict[str, Any]] = []
    for part in evidence.plan.rows[table.name]:
        if dict(part.at) not in found:
            found.append(dict(part.at))
    if len(found) <= MOST:
        return found
    return [found[int(place)] for place in np.linspace(0, len(found) - 1, MOST)]


def title_of(table: Table, at: At) -> str:
    """Of a picture at some settings."""
    told = ", ".join(f"{name.rpartition('.')[2]} {short(value)}" for name, value in at.items())
    return f"{table.title}: {told}" if told else table.title


def read_table_file(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV; none if there is no file."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


# --- clusters -----------------------------------------------------------------------------------------


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
    ends, rows = np.append(whole, last), []
    for row in rounds:
        begin = float(row["time"])
        following = ends[min(np.searchsorted(ends, begin, side="right"), len(ends) - 1)]
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
    figure, axes = _axes(f"{table.title}: {told.label}, measured and simulated")
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
            _scatter(axes, points, row, number)
    if found:
        axes.axline((0, 0), slope=1, color="0.4", linestyle="--", linewidth=1, label="equal")
        _label(axes, f"simulated [{told.unit}]", f"measured [{told.unit}]")
        yield Drawn(f"predicted_{told.keys[0]}", figure, f"{told.label}: measured against simulated.")


# --- placements ---------------------------------------------------------------------------------------


def gantt(evidence: Evidence, table: Table, picture: Picture) -> Iterator[Drawn]:
    """The best placement at each of the settings."""
    from hadoppler.envs.placement import Placement
    from hadoppler.envs.placement.render import gantt as draw_gantt
    from hadoppler.scripts.place import build_problem

    for number, at in enumerate(settings_of(evidence, table, picture)):
        found = [
            (rows_of(evidence.results(part), "rows")[0]["makespan"], part.seed, row, part)
            for row in table.rows
            for part in evidence.parts(table.name, row, at)
            if part.command == "place" and evidence.results(part)
        ]
        if found:
            *_, row, part = min(found, key=lambda item: item[:2])
            problem = build_problem(OmegaConf.create(evidence.results(part)["config"]))
            placement = Placement.load(part.folder(evidence.root) / "placement.json", problem)
            shown = draw_gantt(problem, placement.simulate(problem), title=f"{title_of(table, at)}: {row}")
            yield Drawn(f"gantt_{number}", shown, f"The best placement, of {row}. {title_of(table, at)}")


def curves(evidence: Evidence, table: Table, picture: Picture) -> Iterator[Drawn]:
    """The best figure so far over episodes: centre and interval over seeds."""
    name = picture.figure or "ratio"
    for number, at in enumerate(settings_of(evidence, table, picture)):
        figure, axes = _axes(title_of(table, at))
        drawn = 0
        for row in table.rows:
            parts = [part for part in evidence.parts(table.name, row, at) if evidence.results(part)]
            lines = [
                points for points in (_best_so_far(part, evidence.root, name) for part in parts) if len(points) > 1
            ]
            if lines:
                _band(axes, lines, row, drawn)
                drawn += 1
        if drawn:
            _label(axes, "episodes (of stage III: real runs)", f"{MEANINGS.get(name, name)}, best so far")
            yield Drawn(
                f"curves_{number}", figure, f"Learning curves, band: interval over seeds. {title_of(table, at)}"
            )


def _best_so_far(part: Part, root: Path, name: str) -> list[tuple[float, float]]:
    best, points = math.inf, []
    for line in read_metrics(part.folder(root)):
        place = line.get("runs", line.get("episodes"))
        if isinstance(line.get(name), int | float) and place is not None:
            best = min(best, float(line[name]))
            points.append((float(place), best))
    return points


def _band(axes: Any, lines: Sequence[Sequence[tuple[float, float]]], label: str, number: int) -> None:
    """Centre and interval of lines on the range that all of them have."""
    from hadoppler.envs.pictures import line_style, verbatim

    first, last = max(line[0][0] for line in lines), min(line[-1][0] for line in lines)
    grid = np.linspace(first, max(first, last), POINTS)
    values = [_held(line, grid) for line in lines]
    found = [estimate([line[place] for line in values]) for place in range(len(grid))]
    style, marker = line_style(number), MARKERS[number % len(MARKERS)]
    shown = {"label": verbatim(label), "marker": marker, "markevery": (number % 8, 8), "markersize": 4}
    axes.plot(grid, [item.centre for item in found], **shown, **style)
    if len(lines) > 1:
        lowest, highest = min(map(min, values)), max(map(max, values))  # intervals of few seeds reach beyond all sense
        low, high = [max(item.low, lowest) for item in found], [min(item.high, highest) for item in found]
        axes.fill_between(grid, low, high, color=style["color"], alpha=0.2, linewidth=0)


def _held(line: Sequence[tuple[float, float]], grid: Any) -> list[float]:
    """The value of a line at each place of the grid: what was last known."""
    places, values = zip(*line, strict=True)
    rows = np.maximum(np.searchsorted(places, grid, side="right") - 1, 0)
    return [float(values[row]) for row in rows]


def calibration(evidence: Evidence, table: Table, picture: Picture) -> Iterator[Drawn]:
    """Simulated against measured times before and after calibration, of the first seed."""
    from hadoppler.scripts.calibration_report import Check, scatter

    for row in table.rows:
        parts = [part for part in evidence.parts(table.name, row) if evidence.results(part).get("checked")]
        for number, part in enumerate(parts[:MOST]):
            results = evidence.results(part)
            checked = results["checked"]
            before = next(line for line in results["rows"] if line["times"] == "before")
            columns = {
                name: np.array([line[name] for line in checked]) for name in ("before", "after", "measured", "again")
            }
            names = [line["assignment"] for line in checked]
            check = Check(names=names, comparable=before["median_error"] is not None, **columns)
            title = f"{row}: {title_of(table, part.at)}"
            yield Drawn(
                f"calibration_{_plain(row)}_{number}", scatter(title, check), f"Predicted and measured. {title}"
            )


# --- both ---------------------------------------------------------------------------------------------


def lines(evidence: Evidence, table: Table, picture: Picture) -> Iterator[Drawn]:
    """A figure over a setting, a panel for each value of the others."""
    from matplotlib.figure import Figure

    told = table.figures[picture.figure]
    groups: dict[str, list[dict[str, Any]]] = {}
    for part in evidence.plan.rows[table.name]:
        rest = ", ".join(f"{key.rpartition('.')[2]} {short(v)}" for key, v in part.at.items() if key != picture.over)
        if dict(part.at) not in groups.setdefault(rest, []):
            groups[rest].append(dict(part.at))
    rows = math.ceil(len(groups) / COLUMNS)
    figure = Figure(figsize=(5.5 * min(len(groups), COLUMNS), 3.6 * rows + 0.4), layout="constrained")
    panels = list(figure.subplots(rows, min(len(groups), COLUMNS), squeeze=False).flat)
    drawn = False
    for axes, (rest, settings) in zip(panels, groups.items(), strict=False):
        for number, row in enumerate(table.rows):
            points = [(at[picture.over], estimated(evidence.values(table, picture.figure, row, at))) for at in settings]
            drawn |= _line(axes, [(x, found) for x, found in points if found is not None], row, number)
        axes.set_title(rest, fontsize="medium")
        _label(axes, picture.over.rpartition(".")[2], f"{told.label} [{told.unit}]" if told.unit else told.label)
    for axes in panels[len(groups) :]:
        axes.set_visible(False)
    figure.suptitle(f"{table.title}: {told.label}")
    if drawn:
        yield Drawn(f"lines_{picture.figure}", figure, f"{told.label} over {picture.over.rpartition('.')[2]}.")


def _line(axes: Any, points: Sequence[tuple[Any, Estimate]], label: str, number: int) -> bool:
    from hadoppler.envs.pictures import line_style, verbatim

    if not points:
        return False
    places, found = zip(*points, strict=True)
    centres = [item.centre for item in found]
    errors = [[item.centre - item.low for item in found], [item.high - item.centre for item in found]]
    axes.errorbar(
        places, centres, yerr=np.maximum(errors, 0.0),
        label=verbatim(label), marker=MARKERS[number % len(MARKERS)], markersize=4, capsize=2, **line_style(number),
    )  # fmt: skip
    return True


def _axes(title: str) -> tuple[Figure, Any]:
    from matplotlib.figure import Figure

    from hadoppler.envs.pictures import verbatim

    figure = Figure(figsize=(9, 5.5), layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(verbatim(title))
    return figure, axes


def _label(axes: Any, horizontal: str, vertical: str) -> None:
    axes.set_xlabel(horizontal)
    axes.set_ylabel(vertical)
    axes.grid(alpha=0.3)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, fontsize="small")


def _scatter(axes: Any, points: Sequence[tuple[float, float]], label: str, number: int) -> None:
    from hadoppler.envs.pictures import COLOURS, verbatim

    horizontal, vertical = zip(*points, strict=True)
    mark, colour = MARKERS[number % len(MARKERS)], COLOURS[number % len(COLOURS)]
    axes.scatter(horizontal, vertical, marker=mark, color=colour, label=verbatim(label), alpha=0.8)


def _plain(text: str) -> str:
    return "".join(sign if sign.isalnum() else "_" for sign in text.lower())


DRAWERS: dict[str, Callable[[Evidence, Table, Picture], Iterator[Drawn]]] = {
    "completion_times": completion_times,
    "use": use,
    "gantt": gantt,
    "curves": curves,
    "calibration": calibration,
    "predicted": predicted,
    "lines": lines,
}
