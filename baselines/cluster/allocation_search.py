"""Dynamic programming over (job, free GPUs): which jobs of the queue get a gang; compiled."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from .find_alloc import (
    HOPELESS,
    SKIPPED,
    Floats,
    Free,
    Integers,
    Market,
    Queue,
    cheapest,
    find_alloc,
    give_or_return,
    reachable,
)


class Decision(NamedTuple):
    """Gangs in the order in which they were given: positions in the view, entries, price and payoff."""

    position: Integers
    ptr: Integers
    entries: Integers
    price: Floats
    payoff: Floats


class States(NamedTuple):
    """Up to B states of the dynamic programming, best first: free GPUs [B, H, R], per type their
    number and least price [B, R], sum of payoffs [B]."""

    free: NDArray[np.int32]
    totals: Integers
    cheap: Floats
    value: Floats


@njit(cache=True, nogil=True)
def new_states(width: int, nodes: int, types: int) -> States:
    """Room for states."""
    free, totals = np.zeros((width, nodes, types), np.int32), np.zeros((width, types), np.int64)
    return States(free, totals, np.zeros((width, types)), np.zeros(width))


@njit(cache=True, nogil=True)
def known(states: States, count: int) -> bool:
    """Whether state number ``count`` leaves the same GPUs free as one before it."""
    for m in range(count):
        same = True
        for r in range(states.totals.shape[1]):
            same = same and states.totals[m, r] == states.totals[count, r]
        for h in range(states.free.shape[1]):
            if not same:
                break
            for r in range(states.free.shape[2]):
                same = same and states.free[m, h, r] == states.free[count, h, r]
        if same:
            return True
    return False


@njit(cache=True, nogil=True)
def branch(
    market: Market,
    old: States,
    count: int,
    new: States,
    gain: Floats,
    entries: Integers,
    size: Integers,
    parent: Integers,
) -> int:
    """From each state take the job or skip it; keep the best that differ. Returns how many.

    Args:
        gain, entries, size: [B], [B, E, 3], [B] payoff and GPUs of the job in each old state; or SKIPPED, HOPELESS.
        parent: [B] receives 2 x old state, + 1 where the job is taken.
    """
    score = np.full(2 * count, -np.inf)
    for s in range(count):
        if size[s] != HOPELESS:
            score[2 * s + 1] = old.value[s]
        if size[s] > 0:
            score[2 * s] = old.value[s] + gain[s]
    made = 0
    for c in np.argsort(-score, kind="mergesort"):
        if made == new.value.shape[0] or score[c] == -np.inf:
            break
        s, take = c // 2, c % 2 == 0
        new.free[made] = old.free[s]
        new.totals[made] = old.totals[s]
        new.cheap[made] = old.cheap[s]
        new.value[made] = score[c]
        if take:
            give_or_return(new.free[made], new.totals[made], entries[s], size[s], -1)
        if not known(new, made):
            if take:
                cheapest(market, new.free[made], new.cheap[made])
            parent[made] = 2 * s + take
            made += 1
    return made


@njit(cache=True, nogil=True)
def search(queue: Queue, market: Market, free: Free, order: Integers, width: int) -> tuple[NDArray[np.bool_], float]:
    """Dynamic programming over (job, free GPUs), forward: at most ``width`` states a job, equal ones merged.

    With width >= 2 ** jobs nothing is dropped, and the sum of payoffs is the largest that skipping and
    FIND_ALLOC can reach in this order. A state is dropped once its free GPUs, each at the most that a
    later job pays, cannot make it the best.

    Returns:
        ([N] whether the job at each place of the order is given its choice, sum of payoffs).
    """
    n, room = order.shape[0], queue.workers.max()
    now, later = new_states(width, *free.shape), new_states(width, *free.shape)
    now.free[0] = free
    now.totals[0] = free.sum(axis=0)
    cheapest(market, free, now.cheap[0])
    parent, most = np.full((n, width), -1, np.int64), most_per_gpu(queue, order)
    entries, trial = np.zeros((width, room, 3), np.int64), np.zeros((room, 3), np.int64)
    gain, size = np.zeros(width), np.zeros(width, np.int64)
    count = 1
    for step in range(n):
        some, open_states = False, 0
        for s in range(count):
            size[s] = SKIPPED
            left = now.totals[s].sum()
            if s > 0 and now.value[s] + left * most[step] <= now.value[0]:
                size[s] = HOPELESS
            elif left > 0 and most[step] > now.cheap[s].min():
                open_states += 1
                if reachable(queue, now.totals[s], order[step]):
                    size[s], gain[s], _ = find_alloc(
                        queue,
                        market,
                        now.free[s],
                        now.totals[s],
                        now.cheap[s],
                        order[step],
                        0.0,
                        entries[s],
                        trial,
                    )
                    some = some or size[s] > 0
        if open_states == 0:
            break
        if some:
            count = branch(market, now, count, later, gain, entries, size, parent[step])
            now, later = later, now
    return trace(parent), now.value[0]


@njit(cache=True, nogil=True)
def most_per_gpu(queue: Queue, order: Integers) -> Floats:
    """[N] most that a free GPU can still earn from the job at each place of the order on."""
    most, last = np.zeros(order.shape[0]), 0.0
    for step in range(order.shape[0] - 1, -1, -1):
        i = order[step]
        last = max(last, queue.most[i].max() / queue.workers[i])
        most[step] = last
    return most


@njit(cache=True, nogil=True)
def trace(parent: Integers) -> NDArray[np.bool_]:
    """[N] who was taken on the way to the best last state; rows of -1 changed no state."""
    taken, s = np.zeros(parent.shape[0], np.bool_), 0
    for step in range(parent.shape[0] - 1, -1, -1):
        if parent[step, 0] >= 0:
            taken[step] = parent[step, s] % 2 == 1
            s = parent[step, s] // 2
    return taken


@njit(cache=True, nogil=True)
def sort_entries(entries: Integers, size: int) -> None:
    """Bring a gang's entries into ascending order of node, then type."""
    for e in range(1, size):
        for f in range(e, 0, -1):
            if (entries[f, 0], entries[f, 1]) >= (entries[f - 1, 0], entries[f - 1, 1]):
                break
            for k in range(3):
                entries[f, k], entries[f - 1, k] = entries[f - 1, k], entries[f, k]


@njit(cache=True, nogil=True)
def realise(
    queue: Queue, market: Market, free: Free, order: Integers, taken: NDArray[np.bool_], backfill: bool
) -> Decision:
    """Give the taken jobs their GPUs, in order; then, if ``backfill``, the others what is left, at any price."""
    n, room = order.shape[0], queue.workers.max()
    left, totals, cheap = free.copy(), free.sum(axis=0).astype(np.int64), np.zeros(free.shape[1])
    cheapest(market, left, cheap)
    best, trial = np.zeros((room, 3), np.int64), np.zeros((room, 3), np.int64)
    position, ptr = np.zeros(n, np.int64), np.zeros(n + 1, np.int64)
    price, payoff = np.zeros(n), np.zeros(n)
    entries = np.zeros((totals.sum(), 3), np.int64)
    gangs = 0
    for wanted in (True, False):
        for step in range(n):
            if totals.sum() == 0 or not (wanted or backfill):
                break
            if taken[step] != wanted or not reachable(queue, totals, order[step]):
                continue
            floor = 0.0 if wanted else -np.inf
            size, gain, cost = find_alloc(queue, market, left, totals, cheap, order[step], floor, best, trial)
            if size > 0:
                give_or_return(left, totals, best, size, -1)
                cheapest(market, left, cheap)
                sort_entries(best, size)
                ptr[gangs + 1] = ptr[gangs] + size
                entries[ptr[gangs] : ptr[gangs + 1]] = best[:size]
                position[gangs], price[gangs], payoff[gangs] = order[step], cost, gain
                gangs += 1
    return Decision(position[:gangs], ptr[: gangs + 1], entries[: ptr[gangs]], price[:gangs], payoff[:gangs])
