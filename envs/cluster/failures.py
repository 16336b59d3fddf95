"""Nodes that are lost, drained and given back at known moments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from ..arguments import is_number
from ..errors import ClusterError
from .cluster import Cluster

NodeAction = Literal["fail", "drain", "restore"]


@dataclass(frozen=True, slots=True)
class NodeEvent:
    """Something happens to a node.

    Attributes:
        time: seconds.
        node: the node's name.
        action: ``fail`` - its gangs stop at once and fall back to their last checkpoint, which is
            the last round's end; ``drain`` - it takes no gang from the next decision on, running
            ones stay until the round's end; ``restore`` - it may be used again.
    """

    time: float
    node: str
    action: NodeAction = "fail"


def check_events(events: Sequence[NodeEvent], cluster: Cluster) -> list[tuple[float, int, NodeAction]]:
    """Events by time (ties as given), nodes as numbers.

    Raises:
        ClusterError: an event names an unknown node or action, or no time from 0 up.
    """
    numbers = {node.name: number for number, node in enumerate(cluster.nodes)}
    for event in events:
        if event.node not in numbers:
            raise ClusterError(f"a failure names the node {event.node!r}; the cluster has {', '.join(numbers)}.")
        if event.action not in get_args(NodeAction) or not event.time >= 0:
            raise ClusterError(
                f"node {event.node}: {event.action!r} at {event.time}; expected fail, drain or restore at 0 s or later."
            )
    return [(event.time, numbers[event.node], event.action) for event in sorted(events, key=lambda e: e.time)]


def draw_failures(
    cluster: Cluster, *, until_s: float, mean_between_s: float, repair_s: float, rng: np.random.Generator
) -> list[NodeEvent]:
    """Random failures: each node fails after exponential times, and is back after ``repair_s`` seconds.

    Args:
        until_s: no failure begins after it.
        mean_between_s: mean seconds from a node's start or return to its next failure; each node has its own.

    Raises:
        ClusterError: a number is out of range; failures without a mean time between them would have no end.
    """
    if not (is_number(mean_between_s) and 0 < mean_between_s < np.inf):
        raise ClusterError(f"mean_between_s of failures is {mean_between_s!r}; expected seconds above 0.")
    for name, value in (("repair_s", repair_s), ("until_s", until_s)):
        if not (is_number(value) and 0 <= value < np.inf):
            raise ClusterError(f"{name} of failures is {value!r}; expected seconds from 0 up.")
    events: list[NodeEvent] = []
    for node in cluster.nodes:
        now = float(rng.exponential(mean_between_s))
        while now < until_s:
            events += [NodeEvent(now, node.name, "fail"), NodeEvent(now + repair_s, node.name, "restore")]
            now += repair_s + float(rng.exponential(mean_between_s))
    return sorted(events, key=lambda event: event.time)
