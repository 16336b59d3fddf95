"""Pictures of simulations: completion times, use of the cluster over time, who ran where."""

from __future__ import annotations

import colorsys
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..pictures import COLOURS, HATCHES, line_style, verbatim
from .timeline import Timeline

if TYPE_CHECKING:
    from matplotlib.figure import Figure

IDLE = (0.93, 0.93, 0.93)
MOST_INSIDE = 8
"""Lines whose legend still stands among them."""
HIGHEST, MOST_LABELS = 40.0, 80
"""Inches that a picture may be high, and node labels that it may bear: beyond them, rows get thinner."""


def draw_completion_times(jct: Mapping[str, ArrayLike], *, title: str = "") -> Figure:
    """Cumulative distribution of job completion times, one line per scheduler.

    Args:
        jct: scheduler -> seconds of its finished jobs, over all seeds.
    """
    from matplotlib.figure import Figure

    values = {name: np.sort(np.asarray(seconds, dtype=np.float64)) for name, seconds in jct.items()}
    longest = max((float(seconds[-1]) for seconds in values.values() if len(seconds)), default=1.0)
    unit, label = time_unit(longest)
    figure = Figure(figsize=(9, 5.5), layout="constrained")
    axes = figure.add_subplot()
    for number, (name, seconds) in enumerate(values.items()):
        reached = np.concatenate((seconds[:1], seconds)) / unit
        axes.step(
            reached, np.arange(len(reached)) / max(1, len(seconds)), where="post",
            label=verbatim(name), **line_style(number),
        )  # fmt: skip
    shortest = min((float(seconds[0]) for seconds in values.values() if len(seconds)), default=1.0)
    if 0 < shortest * 30 < longest:
        axes.set_xscale("log")
    axes.set_ylim(0, 1)
    axes.set_xlabel(f"job completion time [{label}]")
    axes.set_ylabel("share of the jobs")
    axes.set_title(verbatim(title))
    axes.grid(alpha=0.3)
    beside: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (1.005, 1.0)} if len(values) > MOST_INSIDE else {}
    axes.legend(frameon=False, fontsize="small", handlelength=3.0, **beside)
    return figure


def draw_use(timelines: Mapping[str, Timeline], *, title: str = "") -> Figure:
    """GPUs in use over time, stacked by type, one panel per scheduler on the same axes."""
    from matplotlib.figure import Figure

    last = max(float(line.edges[-1]) for line in timelines.values())
    first = min(float(line.edges[0]) for line in timelines.values())
    unit, label = time_unit(last)
    figure = Figure(figsize=(11, min(1.2 + 1.5 * len(timelines), HIGHEST)), layout="constrained")
    panels = figure.subplots(len(timelines), sharex=True, sharey=True, squeeze=False)[:, 0]
    for axes, (name, line) in zip(panels, timelines.items(), strict=True):
        floor = np.zeros(line.busy.shape[1])
        for gpu_type, busy in enumerate(line.busy):
            colour = COLOURS[gpu_type % len(COLOURS)]
            axes.stairs(
                floor + busy, line.edges / unit, baseline=floor, fill=True, facecolor=colour,
                edgecolor="white", hatch=HATCHES[gpu_type % len(HATCHES)], linewidth=0.0,
                label=verbatim(line.cluster.types[gpu_type]),
            )  # fmt: skip
            floor = floor + busy
        axes.axhline(line.cluster.gpus, color="#444444", linewidth=0.8, linestyle="--")
        axes.set_ylim(0, 1.05 * line.cluster.gpus)
        axes.set_ylabel("GPUs")
        axes.set_title(verbatim(name), loc="left", fontsize="small")
    panels[-1].set_xlim(first / unit, last / unit)
    panels[-1].set_xlabel(f"time [{label}]")
    figure.suptitle(verbatim(title))
    panels[0].legend(loc="upper left", bbox_to_anchor=(1.005, 1.0), frameon=False, fontsize="small")
    return figure


def draw_nodes(line: Timeline, *, title: str = "", names: Sequence[str] = ()) -> Figure:
    """Who ran where: a row of pixels per GPU, a colour per job, grey where idle, thin lines between nodes.

    Each column of pixels shows the moment in the middle of its bin, so any number of rounds stays
    readable; for a closer look make the timeline of fewer rounds (``max_rounds``).

    Args:
        line: a timeline with lanes.
        names: ids of the workload's jobs; up to 12 jobs are then named in a legend, and where they stay long.
    """
    from matplotlib.figure import Figure

    unit, label = time_unit(float(line.edges[-1]))
    rows = len(line.lanes)
    figure = Figure(figsize=(12, min(max(2.5, 1.2 + 0.12 * rows), HIGHEST)), layout="constrained")
    axes = figure.add_subplot()
    begin, end = line.edges[[0, -1]] / unit
    axes.imshow(paint(line.lanes), aspect="auto", interpolation="nearest", extent=(begin, end, rows - 0.5, -0.5))
    starts = np.flatnonzero(np.diff(line.lane_node, prepend=-1))
    for row in starts[1:]:
        axes.axhline(row - 0.5, color="white", linewidth=1.0)
    labels = [_node_label(line, int(row)) for row in starts]
    middles = (starts + np.append(starts[1:], rows) - 1) / 2
    shown = slice(None, None, -(-len(starts) // MOST_LABELS))
    axes.set_yticks(middles[shown], labels[shown], fontsize="small")
    axes.set_xlabel(f"time [{label}]")
    axes.set_title(verbatim(title))
    if 0 < len(names) <= 12:
        _name_jobs(axes, names)
        _name_stays(axes, line, names, unit)
    return figure


def paint(lanes: NDArray[np.int32]) -> NDArray[np.float64]:
    """[L, B, 3] colours of jobs; the first pixel of a longer stay is darker, so that neighbours stay apart."""
    jobs = int(lanes.max(initial=-1)) + 1
    colours = np.array([*(job_colour(job) for job in range(jobs)), IDLE])
    image = colours[lanes]
    fresh = np.diff(lanes, axis=1, prepend=-1) != 0
    stays = np.diff(lanes, axis=1, append=-1) == 0
    image[fresh & stays & (lanes >= 0)] *= 0.6
    return image


def job_colour(job: int) -> tuple[float, float, float]:
    """A colour per row of the workload: hues by the golden ratio, so that rows close by differ."""
    return colorsys.hsv_to_rgb((job * 0.618033988749895) % 1.0, (0.5, 0.7, 0.9)[job % 3], (0.9, 0.75)[job % 2])


def _node_label(line: Timeline, row: int) -> str:
    """Name and GPU types of the node whose lanes begin at a row."""
    node = int(line.lane_node[row])
    types = [kind for kind, count in zip(line.cluster.types, line.cluster.capacity[node], strict=True) if count]
    return verbatim(f"{line.cluster.nodes[node].name} {'+'.join(types)}")


def _name_jobs(axes: Any, names: Sequence[str]) -> None:
    from matplotlib.patches import Patch

    handles = [Patch(facecolor=job_colour(job), label=verbatim(name)) for job, name in enumerate(names)]
    axes.legend(handles=handles, loc="upper left", bbox_to_anchor=(1.005, 1.0), frameon=False, fontsize="small")


def _name_stays(axes: Any, line: Timeline, names: Sequence[str], unit: float) -> None:
    """Write a job's name where it stays for a twentieth of the time, once per node: colours are not all that tells."""
    lanes, bins = line.lanes, line.lanes.shape[1]
    for row, lane in enumerate(lanes):
        edges = np.flatnonzero(np.diff(lane, prepend=-2, append=-2))
        for first, end in pairwise(edges.tolist()):
            job, middle = int(lane[first]), (first + end) // 2
            above = row > 0 and line.lane_node[row - 1] == line.lane_node[row] and lanes[row - 1, middle] == job
            if job < 0 or end - first < bins / 20 or above:
                continue
            red, green, blue = job_colour(job)
            ink = "black" if 0.3 * red + 0.6 * green + 0.1 * blue > 0.5 else "white"
            place = (line.edges[first] + line.edges[end]) / 2 / unit
            look: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": "x-small", "color": ink}
            axes.text(place, row, verbatim(names[job]), clip_on=True, **look)


def time_unit(span: float) -> tuple[float, str]:
    """A divisor in seconds and its name so that a span reads well."""
    return next((pair for pair in ((3600.0, "h"), (60.0, "min")) if span >= 2 * pair[0]), (1.0, "s"))
