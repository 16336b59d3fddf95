"""Who held which GPUs when, from the log of a simulation: the data behind pictures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .cluster import Cluster
from .result import ClusterResult, RoundLog
from .scheduler import Floats, Integers


class Stays(NamedTuple):
    """S stays of a gang on the GPUs of one type of one node, from a decision to the next one at most.

    ``start`` ascends; times in seconds.
    """

    job: Integers
    node: Integers
    gpu_type: Integers
    gpus: Integers
    start: Floats
    end: Floats


@dataclass(frozen=True, eq=False)
class Timeline:
    """What a cluster did, in B bins of time.

    Attributes:
        cluster: its nodes.
        edges: [B + 1] seconds.
        busy: [R, B] GPUs of each type that were held, mean of the bin.
        lane_node, lane_type: [L] node and type of every GPU, by node, then type.
        lanes: [L, B] row of the job that held a GPU at the bin's middle, -1 for none. The simulator
            counts GPUs and does not number them: a job keeps its lane as long as it stays on the node.
    """

    cluster: Cluster
    edges: Floats
    busy: Floats
    lane_node: Integers
    lane_type: Integers
    lanes: NDArray[np.int32]


def timeline(result: ClusterResult, bins: int = 1000, lanes: bool = True) -> Timeline:
    """The timeline of a simulation whose log was kept; all is idle where it was not.

    A gang that is lost with its node counts until the end of its round.

    Args:
        result: of ``simulate``.
        bins: into how many parts its time is cut.
        lanes: whether to find out who held which GPU; otherwise there are no lanes.
    """
    log, cluster = result.rounds, result.cluster
    stays = find_stays(log)
    begin = log.time[0] if log.time else 0.0
    edges = np.linspace(begin, max(log.end, begin + 1.0), bins + 1)
    busy = np.array([mean_count(stays, gpu_type, edges) for gpu_type in range(len(cluster.types))])
    node, gpu_type = np.nonzero(cluster.capacity if lanes else np.zeros_like(cluster.capacity))
    repeats = cluster.capacity[node, gpu_type]
    drawn = _draw_lanes(stays, log, cluster, (edges[:-1] + edges[1:]) / 2) if lanes else np.zeros((0, bins), np.int32)
    return Timeline(cluster, edges, busy, np.repeat(node, repeats), np.repeat(gpu_type, repeats), drawn)


def find_stays(log: RoundLog) -> Stays:
    """All stays of a log."""
    whole_rounds = np.flatnonzero(~np.array(log.mid_round, dtype=np.bool_))
    following = np.searchsorted(whole_rounds, np.arange(len(log.placements)), side="right")
    moments = np.append(np.array(log.time)[whole_rounds], log.end)
    columns: list[tuple[np.ndarray, ...]] = []
    for number, (gangs, _) in enumerate(log.placements):
        sizes = np.diff(gangs.ptr)
        end = np.repeat(np.minimum(gangs.release, moments[following[number]]), sizes)
        start = np.full(len(end), log.time[number])
        columns.append((np.repeat(gangs.job, sizes), gangs.node, gangs.gpu_type, gangs.gpus, start, end))
    if not columns:
        none = np.zeros(0, dtype=np.int64)
        return Stays(none, none, none, none, np.zeros(0), np.zeros(0))
    return Stays(*(np.concatenate(column) for column in zip(*columns, strict=True)))


def mean_count(stays: Stays, gpu_type: int, edges: Floats) -> Floats:
    """[B] mean number of GPUs of a type that are held between two edges."""
    (mine,) = np.nonzero((stays.gpu_type == gpu_type) & (stays.end > stays.start))
    if not len(mine):
        return np.zeros(len(edges) - 1)
    moment = np.concatenate((stays.start[mine], stays.end[mine]))
    change = np.concatenate((stays.gpus[mine], -stays.gpus[mine]))
    order = np.argsort(moment, kind="stable")
    moment, held = moment[order], np.cumsum(change[order])
    gpu_s = np.concatenate(([0.0], np.cumsum(held[:-1] * np.diff(moment))))
    return np.diff(np.interp(edges, moment, gpu_s)) / np.diff(edges)


def _draw_lanes(stays: Stays, log: RoundLog, cluster: Cluster, moments: Floats) -> NDArray[np.int32]:
    """[L, B] who holds which GPU at each moment."""
    capacity = cluster.capacity
    first = (np.cumsum(capacity.ravel()) - capacity.ravel()).reshape(capacity.shape)
    lanes = np.full((int(capacity.sum()), len(moments)), -1, dtype=np.int32)
    rounds = np.array(log.time)[~np.array(log.mid_round, dtype=np.bool_)]
    current = np.full(len(lanes), -1, dtype=np.int32)
    for column, now in enumerate(moments.tolist()):
        latest = int(np.searchsorted(rounds, now, side="right")) - 1
        if latest < 0:
            continue
        since = int(np.searchsorted(stays.start, rounds[latest], side="left"))
        until = int(np.searchsorted(stays.start, now, side="right"))
        here = since + np.flatnonzero(stays.end[since:until] > now)
        before, current = current, np.full(len(lanes), -1, dtype=np.int32)
        _fill(current, before, stays, here, first, capacity)
        lanes[:, column] = current
    return lanes


def _fill(
    current: NDArray[np.int32],
    before: NDArray[np.int32],
    stays: Stays,
    here: Integers,
    first: Integers,
    capacity: Integers,
) -> None:
    """Give each stay its GPUs: those that its job had before, then free ones."""
    columns = zip(*(getattr(stays, name)[here].tolist() for name in ("job", "node", "gpu_type", "gpus")), strict=True)
    waiting = []
    for job, node, gpu_type, count in columns:
        begin = int(first[node, gpu_type])
        end = begin + int(capacity[node, gpu_type])
        kept = begin + np.flatnonzero(before[begin:end] == job)[:count]
        current[kept] = job
        if len(kept) < count:
            waiting.append((job, begin, end, count - len(kept)))
    for job, begin, end, count in waiting:
        free = begin + np.flatnonzero(current[begin:end] < 0)[:count]
        current[free] = job
