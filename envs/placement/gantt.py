"""Pictures of schedules without a plotting library: pixels for videos, text for terminals."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .graph import Floats, Integers
from .problem import PlacementProblem

WIDTH, LANE, GAP = 640, 24, 6
PALETTE = np.array(
    [
        (78, 121, 167),
        (242, 142, 43),
        (89, 161, 79),
        (176, 122, 161),
        (237, 201, 72),
        (118, 183, 178),
        (255, 157, 167),
        (156, 117, 95),
    ],
    np.uint8,
)
BACKGROUND, LANE_COLOUR, BOUND_COLOUR = (255, 255, 255), (240, 240, 240), (225, 87, 89)


def draw_gantt(
    problem: PlacementProblem, assignment: Integers, start: Floats, end: Floats, bound: float
) -> NDArray[np.uint8]:
    """uint8 [H, 640, 3]: one lane per device, one bar per placed operation, coloured by its kind.

    Time runs from 0 to the larger of the last end and ``bound``, which is marked by a red line. Operations
    with device -1 are left out.
    """
    image = np.full((problem.d * (LANE + GAP) + GAP, WIDTH, 3), BACKGROUND, np.uint8)
    for device in range(problem.d):
        top = GAP + device * (LANE + GAP)
        image[top : top + LANE] = LANE_COLOUR
    kinds = {kind: number for number, kind in enumerate(dict.fromkeys(problem.graph.kind))}
    length = max(float(end.max()), bound)
    for v in np.flatnonzero(assignment >= 0):
        top = GAP + int(assignment[v]) * (LANE + GAP)
        left = int(start[v] / length * (WIDTH - 1))
        right = max(int(end[v] / length * (WIDTH - 1)), left + 1)
        colour = PALETTE[kinds[problem.graph.kind[v]] % len(PALETTE)]
        image[top : top + LANE, left:right] = colour
        image[top : top + LANE, left] = colour // 2
    image[:, int(bound / length * (WIDTH - 1))] = BOUND_COLOUR
    return image


def write_gantt(
    problem: PlacementProblem, assignment: Integers, start: Floats, end: Floats, bound: float, width: int = 60
) -> str:
    """One line per device: ``#`` while it runs an operation, ``.`` while it does not, and its busy share."""
    length = max(float(end.max()), bound)
    placed = int((assignment >= 0).sum())
    lines = [f"{problem.graph.title}: {placed} of {problem.n} placed, end {end.max():.4g}, bound {bound:.4g}"]
    for device in range(problem.d):
        row = np.full(width, ".")
        (mine,) = np.nonzero(assignment == device)
        for v in mine:
            left = int(start[v] / length * (width - 1))
            row[left : max(int(end[v] / length * (width - 1)), left + 1)] = "#"
        share = (end[mine] - start[mine]).sum() / length
        lines.append(f"{device:3d} |{''.join(row)}| {share:4.0%} {problem.topology.devices[device].kind}")
    return "\n".join(lines)
