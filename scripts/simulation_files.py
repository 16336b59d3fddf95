"""What a run of ``hadoppler simulate`` writes beside ``results.json``: tables, pictures, tracebacks."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hadoppler.envs.cluster import ClusterResult
    from hadoppler.envs.cluster.timeline import Timeline
    from hadoppler.scripts.simulation_runs import Outcome, Task

ROUND_COLUMNS = ("scheduler", "seed", "decision", "time", "mid_round", "job", "copy", "gpus", "rate", "kept")


def write_parts(task: Task, result: ClusterResult) -> None:
    """The run's rows of ``jobs.csv`` and ``rounds.csv``, each with the columns' names above."""
    who = {"scheduler": task.choice.row, "seed": task.seed}
    write_table(task.part("jobs"), ({**who, **row} for row in result.jobs.rows()))
    if task.rounds:
        write_table(task.part("rounds"), ({**who, **row} for row in result.rounds.rows(task.workload, task.cluster)))


def write_table(path: Path, rows: Iterator[dict[str, Any]], columns: Sequence[str] = ROUND_COLUMNS) -> None:
    """A CSV with the columns of its first row (reasons differ between schedulers only), or these if it has none."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        first = next(rows, None)
        writer.writerow(columns if first is None else first)
        if first is not None:
            writer.writerow(_cells(first))
            writer.writerows(map(_cells, rows))


def _cells(row: Mapping[str, Any]) -> list[Any]:
    """Values of a row; undefined numbers are empty."""
    return ["" if value != value else value for value in row.values()]


def join_parts(path: Path, parts: Sequence[Path]) -> None:
    """One table from several that lie on disk, with all of their columns; it appears whole or not at all."""
    headers = {}
    for part in parts:
        with part.open(newline="", encoding="utf-8") as file:
            headers[part] = next(csv.reader(file))
    columns = list(dict.fromkeys(name for header in headers.values() for name in header))
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with scratch.open("w", newline="", encoding="utf-8") as target:
            writer = csv.writer(target, lineterminator="\n")
            writer.writerow(columns)
            for part, header in headers.items():
                with part.open(newline="", encoding="utf-8") as source:
                    if header == columns:
                        source.readline()
                        target.writelines(source)
                        continue
                    where = [header.index(name) if name in header else len(header) for name in columns]
                    rows = csv.reader(source)
                    next(rows)
                    writer.writerows([(*row, "")[column] for column in where] for row in rows)
        scratch.replace(path)
    finally:
        scratch.unlink(missing_ok=True)


def write_tables(folder: Path, outcomes: Sequence[tuple[Task, Outcome]], *, rounds: bool) -> list[Path]:
    """``jobs.csv``, ``rounds.csv``, ``rejected.csv``; their paths."""
    done = [task for task, outcome in outcomes if outcome.row]
    written = [folder / "jobs.csv"]
    join_parts(written[0], [task.part("jobs") for task in done])
    if rounds:
        written.append(folder / "rounds.csv")
        join_parts(written[-1], [task.part("rounds") for task in done])
    if done[0].workload.rejected:
        part = done[0].folder / "rejected.csv"
        write_table(part, (asdict(row) for row in done[0].workload.rejected))
        written.append(folder / "rejected.csv")
        join_parts(written[-1], [part])
    return written


def draw_pictures(folder: Path, outcomes: Sequence[tuple[Task, Outcome]]) -> list[Path]:
    """Completion times over all seeds; of the first seed, use over time and who ran where; their paths."""
    done = [(task, outcome) for task, outcome in outcomes if outcome.row]
    jct: dict[str, list[float]] = {}
    for task, outcome in done:
        jct.setdefault(task.choice.row, []).extend(outcome.jct)
    workload, cluster = done[0][0].workload, done[0][0].cluster
    drawn = {task.choice.row: outcome.timeline for task, outcome in done if outcome.timeline}
    ids = [job.id for job in workload.jobs]
    return draw_world(folder, f"{workload.name} on {cluster.name}", jct, drawn, dict.fromkeys(drawn, ids))


def draw_world(
    folder: Path,
    world: str,
    jct: Mapping[str, Sequence[float]],
    drawn: Mapping[str, Timeline],
    names: Mapping[str, Sequence[str]],
) -> list[Path]:
    """The pictures of schedulers in one world; their paths.

    Args:
        world: for titles.
        jct: scheduler -> seconds to completion of its finished jobs.
        drawn: scheduler -> what the cluster did, where that is known.
        names: scheduler -> ids of its jobs, by row.
    """
    from hadoppler.envs.cluster.render import draw_completion_times, draw_nodes, draw_use
    from hadoppler.envs.pictures import save_figure

    figures = {"completion_times.png": draw_completion_times(jct, title=world)}
    if drawn:
        figures["use.png"] = draw_use(drawn, title=f"GPUs in use: {world}")
    for row, line in drawn.items():
        figures[f"nodes_{row}.png"] = draw_nodes(line, title=f"{row}: {world}", names=names[row])
    for name, figure in figures.items():
        save_figure(folder / name, figure)
    return [folder / name for name in figures]


def write_failures(folder: Path, outcomes: Sequence[tuple[Task, Outcome]]) -> tuple[dict[str, str], list[str]]:
    """Run -> why it failed, and the runs whose failure is a defect; its traceback is kept in a file."""
    failures, defects = {}, []
    for task, outcome in outcomes:
        if outcome.failure:
            name = f"{task.choice.row}, seed {task.seed}"
            failures[name] = outcome.failure
        if outcome.defect:
            path = folder / f"{task.choice.row}.{task.seed}.traceback.txt"
            path.write_text(outcome.defect, encoding="utf-8")
            failures[name] += f" The traceback is in {path}."
            defects.append(name)
    return failures, defects
