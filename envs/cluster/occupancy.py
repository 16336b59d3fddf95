"""Who holds which GPU, without a plotting library: pixels for videos, text for terminals."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .cluster import Cluster
from .scheduler import Allocation

CELL, GAP = 14, 4
IDLE, BACKGROUND = (235, 235, 235), (255, 255, 255)


def _owners(cluster: Cluster, allocation: Allocation) -> list[list[tuple[str, list[int]]]]:
    """Per node and type with GPUs: the rows of the jobs that hold them, -1 for idle ones."""
    job = np.repeat(allocation.job, np.diff(allocation.ptr))
    table = []
    for h, counts in enumerate(cluster.capacity):
        line = []
        for r in np.flatnonzero(counts):
            here = (allocation.node == h) & (allocation.gpu_type == r)
            holders = np.repeat(job[here], allocation.count[here]).tolist()
            line.append((cluster.types[r], holders + [-1] * (int(counts[r]) - len(holders))))
        table.append(line)
    return table


def draw_occupancy(cluster: Cluster, allocation: Allocation) -> NDArray[np.uint8]:
    """uint8 [H, W, 3]: a row of squares per node, one per GPU, in the colour of the job that holds it."""
    widest = int(cluster.capacity.sum(axis=1).max())
    size = len(cluster.nodes) * (CELL + GAP) + GAP, widest * (CELL + GAP) + GAP
    image = np.full((*size, 3), BACKGROUND, np.uint8)
    for h, line in enumerate(_owners(cluster, allocation)):
        top = GAP + h * (CELL + GAP)
        for position, job in enumerate(job for _, holders in line for job in holders):
            left = GAP + position * (CELL + GAP)
            # Multiples of the golden angle: neighbours in the workload get colours far apart.
            hue = job * 2.399963
            colour = IDLE if job < 0 else [int(127 + 90 * np.cos(hue + shift)) for shift in (0.0, 2.094, 4.189)]
            image[top : top + CELL, left : left + CELL] = colour
    return image


def write_occupancy(cluster: Cluster, allocation: Allocation, time: float, queue: int) -> str:
    """One line per node: its types, each with the rows of the jobs on its GPUs, ``.`` for idle ones."""
    gpus = int(allocation.count.sum())
    lines = [f"{time:.0f} s: {gpus} of {cluster.gpus} GPUs held, {queue} jobs outside the window"]
    for node, line in zip(cluster.nodes, _owners(cluster, allocation), strict=True):
        parts = [f"{kind}[{' '.join('.' if job < 0 else str(job) for job in holders)}]" for kind, holders in line]
        lines.append(f"{node.name:>8} {' '.join(parts)}")
    return "\n".join(lines)
