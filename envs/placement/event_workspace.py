"""Scratch and results of the simulator's event loop, made once for many simulations."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray


class EventWorkspace(NamedTuple):
    """Scratch and results of ``simulate_events``; T tensors, D devices; transfer of tensor t to
    device k is number ``t << shift | k``, the link from h to k ``h << shift | k``; see ``pair_shift``."""

    waiting: NDArray[np.int32]
    ready: NDArray[np.float64]
    rank: NDArray[np.float64]
    event_time: NDArray[np.float64]
    event_code: NDArray[np.int64]
    queue: NDArray[np.int32]
    queue_start: NDArray[np.int32]
    queue_size: NDArray[np.int32]
    running: NDArray[np.int32]
    busy_until: NDArray[np.float64]
    marked: NDArray[np.bool_]
    head: NDArray[np.int64]
    tail: NDArray[np.int64]
    following: NDArray[np.int64]
    egress: NDArray[np.int32]
    ingress: NDArray[np.int32]
    lanes: NDArray[np.int32]
    start: NDArray[np.float64]
    end: NDArray[np.float64]
    produced: NDArray[np.float64]
    sent: NDArray[np.float64]
    arrived: NDArray[np.float64]
    holds: NDArray[np.int32]
    copy_holds: NDArray[np.int32]
    input_seen: NDArray[np.bool_]
    live: NDArray[np.float64]
    peak: NDArray[np.float64]


@njit(cache=True, nogil=True)
def pair_shift(d: int) -> int:
    """Bits of a device number: pairs are numbered by shifting, as divisions would take half of the time."""
    shift = 0
    while (1 << shift) < d:
        shift += 1
    return shift


@njit(cache=True, nogil=True)
def event_workspace(n: int, d: int, t: int, e: int, p: int) -> EventWorkspace:
    """Scratch for N operations, D devices, T tensors, E edges and P graph inputs."""
    shift = pair_shift(d)
    transfers, links = t << shift, d << shift
    events = n + min(transfers, e) + 1  # at most one per operation and one per transfer
    return EventWorkspace(
        np.empty(n, np.int32), np.empty(n), np.empty(n), np.empty(events), np.empty(events, np.int64),
        np.empty(n, np.int32), np.empty(d + 1, np.int32), np.empty(d, np.int32), np.empty(d, np.int32), np.empty(d),
        np.empty(d, np.bool_), np.empty(links, np.int64), np.empty(links, np.int64), np.empty(transfers, np.int64),
        np.empty(d, np.int32), np.empty(d, np.int32), np.empty(links, np.int32),
        np.empty(n), np.empty(n), np.empty(transfers), np.empty(transfers), np.empty(transfers),
        np.empty(n, np.int32), np.empty(transfers, np.int32), np.empty(p * d, np.bool_), np.empty(d), np.empty(d),
    )  # fmt: skip
