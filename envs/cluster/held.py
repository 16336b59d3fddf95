"""What the jobs of a view hold at this moment, summed up per job."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .gang_speed import gang_rates
from .scheduler import ClusterView, Floats, Integers


class Held(NamedTuple):
    """What N jobs hold.

    Attributes:
        owner: [A] position in the view of each held gang's job, -1 where it is not in the view.
        counts: [N, R] GPUs of each type, over all gangs.
        gangs: [N] gangs: 0 waits, 2 or more is forked.
        nodes: [N] nodes that the most spread of its gangs stands on.
        rate: [N] steps/s of all its gangs together.
        available: [N] whether it runs, and all its GPUs may be given in this decision.
    """

    owner: Integers
    counts: Integers
    gangs: Integers
    nodes: Integers
    rate: Floats
    available: NDArray[np.bool_]


def what_is_held(view: ClusterView) -> Held:
    """Sum the view's held gangs up per job."""
    held, n = view.held, len(view)
    counts = np.zeros((n, view.free.shape[1]), np.int64)
    gangs, nodes, rate = np.zeros(n, np.int64), np.zeros(n, np.int64), np.zeros(n)
    available = view.held_gang >= 0
    if not len(held) or not available.any():
        return Held(np.full(len(held), -1), counts, gangs, nodes, rate, np.zeros(n, np.bool_))
    position = np.minimum(np.searchsorted(view.job, held.job), n - 1)
    first = view.held_gang[position]
    mine = (view.job[position] == held.job) & (first >= 0) & (np.arange(len(held)) >= first)
    owner = np.where(mine, position, -1)
    sizes, begin = np.diff(held.ptr), held.ptr[:-1]
    gang = np.repeat(np.arange(len(held)), sizes)
    new_node = np.ones(len(held.node), np.int64)
    new_node[1:] = (np.diff(held.node) != 0) | (np.diff(gang) != 0)
    on_nodes = np.add.reduceat(new_node, begin)
    who = position[gang]
    where = held.ptr, held.node, held.gpu_type, held.count
    of_gang = gang_rates(view.rates, view.spread_rates, position, *where, view.mixed_rate == "min")
    entry = mine[gang]
    np.add.at(counts, (who[entry], held.gpu_type[entry]), held.count[entry])
    np.add.at(gangs, position[mine], 1)
    np.maximum.at(nodes, position[mine], on_nodes[mine])
    np.add.at(rate, position[mine], of_gang[mine])
    gone = entry & (held.count > view.free[held.node, held.gpu_type])
    available[who[gone]] = False
    return Held(owner, counts, gangs, nodes, rate, available)
