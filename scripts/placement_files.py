"""Placements as files: the best, every method's, a trace, and pictures."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hadoppler.envs.placement import Placement, PlacementProblem


def write_placements(
    folder: Path, problem: PlacementProblem, answers: Mapping[str, Placement], *, pictures: bool, each: bool = False
) -> list[Path]:
    """``placement.json`` of the best, every one in ``placements``, a trace and a Gantt picture; returns paths.

    Args:
        each: draw a picture of every placement, beside its file.
    """
    from hadoppler.envs.placement.render import save_gantt, write_trace

    (folder / "placements").mkdir(parents=True, exist_ok=True)
    where = f"{problem.graph.title} on {problem.topology.name}"
    for name, placement in answers.items():
        placement.save(folder / "placements" / f"{name}.json", problem)
        if pictures and each:
            path = folder / "placements" / f"{name}.png"
            save_gantt(path, problem, placement.simulate(problem), title=f"{where}: {name}")
    name, best = min(answers.items(), key=lambda pair: pair[1].makespan)
    written = [folder / "placement.json", folder / "trace.json"]
    best.save(written[0], problem)
    schedule = best.simulate(problem)
    write_trace(written[1], problem, schedule)
    if pictures:
        written.append(folder / "gantt.png")
        save_gantt(written[-1], problem, schedule, title=f"{where}: {name}")
    return written
