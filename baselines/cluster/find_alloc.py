"""FIND_ALLOC: the best gang of one job on the free GPUs, at given prices; compiled.

Candidates follow the spec: the placement that the job has, each single type, each mixed prefix of
types by decreasing speed; on one node where that is possible, else spread.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from ...envs.cluster import gang_rate
from .prices import NONE, total_price

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Free = NDArray[np.int32]


class Queue(NamedTuple):
    """The N jobs as the kernels see them.

    ``fast`` [N, R]: types by decreasing rate. ``knots``, ``worth`` [N, K]: rates and utilities there.
    ``most`` [N, R]: utility on each type in one node.
    ``held_*``: placements of this moment, as in ``ClusterView``.
    """

    workers: Integers
    remaining: Floats
    rates: Floats
    spread: Floats
    fast: Integers
    knots: Floats
    worth: Floats
    most: Floats
    held_gang: Integers
    held_ptr: Integers
    held_node: Integers
    held_type: Integers
    held_count: Integers


class Market(NamedTuple):
    """The cluster and the rules of a decision.

    ``nodes[first[r]:first[r + 1]]``: nodes that have GPUs of type r. ``blends``: nodes of several types.
    ``low``, ``high`` [R]: bounds of the prices. ``slowest``: whether the slowest type decides a gang's rate.
    """

    capacity: Integers
    first: Integers
    nodes: Integers
    blends: Integers
    low: Floats
    high: Floats
    price: int
    slowest: bool
    mixing: bool
    restart_s: float


@njit(cache=True, nogil=True)
def worth_at(queue: Queue, i: int, rate: float) -> float:
    """Utility of job i at a rate."""
    knots, worth = queue.knots[i], queue.worth[i]
    last = knots.shape[0] - 1
    if rate <= knots[0]:
        return worth[0]
    if rate >= knots[last]:
        return worth[last]
    k = np.searchsorted(knots, rate, side="right")
    return worth[k - 1] + (worth[k] - worth[k - 1]) * ((rate - knots[k - 1]) / (knots[k] - knots[k - 1]))


@njit(cache=True, nogil=True)
def rate_on(queue: Queue, market: Market, i: int, entries: Integers, size: int) -> float:
    """Steps/s of job i on entries (node, type, count)."""
    given = entries[:size]
    return gang_rate(queue.rates[i], queue.spread[i], given[:, 0], given[:, 1], given[:, 2], market.slowest)


@njit(cache=True, nogil=True)
def weigh(
    queue: Queue, market: Market, free: Free, i: int, entries: Integers, size: int, moved: bool
) -> tuple[float, float]:
    """(payoff, price) of giving job i the entries; payoff is -inf where it cannot run."""
    rate = rate_on(queue, market, i, entries, size)
    if rate <= 0.0:
        return -np.inf, 0.0
    if moved:
        rate = queue.remaining[i] * rate / (queue.remaining[i] + market.restart_s * rate)
    price = 0.0
    for e in range(size):
        h, r, count = entries[e, 0], entries[e, 1], entries[e, 2]
        all_of = market.capacity[h, r]
        price += total_price(market.price, all_of - free[h, r], count, all_of, market.low[r], market.high[r])
    return worth_at(queue, i, rate) - price, price


@njit(cache=True, nogil=True)
def put(entries: Integers, place: int, node: int, gpu_type: int, count: int) -> None:
    """Write one entry."""
    entries[place, 0], entries[place, 1], entries[place, 2] = node, gpu_type, count


@njit(cache=True, nogil=True)
def gather(market: Market, free: Free, gpu_type: int, wanted: int, entries: Integers, size: int) -> int:
    """Append up to ``wanted`` GPUs of a type, and lower ``free``: on one node, else on those with most to give.

    Of the nodes that can hold them all, the cheapest: the emptiest if prices rise with use, else the best fit.
    Returns the new number of entries.
    """
    flat = market.price == NONE or market.high[gpu_type] <= market.low[gpu_type]
    while wanted > 0:
        best, widest = -1, -1
        for k in range(market.first[gpu_type], market.first[gpu_type + 1]):
            h = market.nodes[k]
            here, all_of = free[h, gpu_type], market.capacity[h, gpu_type]
            if here >= wanted:
                if best < 0:
                    best = h
                elif flat:
                    best = h if here < free[best, gpu_type] else best
                elif here * market.capacity[best, gpu_type] > free[best, gpu_type] * all_of:
                    best = h
            if here > 0 and (widest < 0 or here > free[widest, gpu_type]):
                widest = h
        h = best if best >= 0 else widest
        if h < 0:
            break
        count = min(wanted, free[h, gpu_type])
        put(entries, size, h, gpu_type, count)
        free[h, gpu_type] -= count
        wanted -= count
        size += 1
    return size


@njit(cache=True, nogil=True)
def give_or_return(free: Free, totals: Integers, entries: Integers, size: int, sign: int) -> None:
    """Add the entries to what is free (sign 1), or take them (-1)."""
    for e in range(size):
        free[entries[e, 0], entries[e, 1]] += sign * entries[e, 2]
        totals[entries[e, 1]] += sign * entries[e, 2]


@njit(cache=True, nogil=True)
def held_entries(queue: Queue, free: Free, i: int, entries: Integers) -> int:
    """Write the GPUs that job i holds; 0 if it holds none or they are not free."""
    gang, size = queue.held_gang[i], 0
    if gang < 0:
        return 0
    for e in range(queue.held_ptr[gang], queue.held_ptr[gang + 1]):
        if free[queue.held_node[e], queue.held_type[e]] < queue.held_count[e]:
            return 0
        put(entries, size, queue.held_node[e], queue.held_type[e], queue.held_count[e])
        size += 1
    return size


@njit(cache=True, nogil=True)
def blend(queue: Queue, market: Market, free: Free, i: int, prefix: int, entries: Integers) -> int:
    """Job i on one node of several types, its fastest ``prefix`` types: the node with least to spare; 0 if none."""
    best, least, wanted = -1, 0, int(queue.workers[i])
    for h in market.blends:
        here = 0
        for k in range(prefix):
            here += free[h, queue.fast[i, k]]
        if here >= wanted and (best < 0 or here < least):
            best, least = h, here
    size = 0
    if best >= 0:
        for k in range(prefix):
            count = min(wanted, free[best, queue.fast[i, k]])
            if count > 0:
                put(entries, size, best, queue.fast[i, k], count)
                wanted -= count
                size += 1
    return size


@njit(cache=True, nogil=True)
def spread_mix(queue: Queue, market: Market, free: Free, totals: Integers, i: int, entries: Integers) -> int:
    """Job i on several types, the fastest first, each on its fewest nodes; 0 if there are too few GPUs."""
    reach = 0
    for r in range(totals.shape[0]):
        if queue.spread[i, r] > 0.0:
            reach += totals[r]
    if reach < queue.workers[i]:
        return 0
    left, size = queue.workers[i], 0
    for r in queue.fast[i]:
        if left > 0 and totals[r] > 0 and queue.spread[i, r] > 0.0:
            before = size
            size = gather(market, free, r, min(left, totals[r]), entries, size)
            for e in range(before, size):
                left -= entries[e, 2]
    for e in range(size):
        free[entries[e, 0], entries[e, 1]] += entries[e, 2]
    return size


@njit(cache=True, nogil=True)
def propose(queue: Queue, market: Market, free: Free, totals: Integers, i: int, number: int, entries: Integers) -> int:
    """Write candidate ``number`` for job i and return its entries, 0 for none, -1 after the last.

    0: where it is; 1 to R: each single type by decreasing rate; R + 1: several types over several nodes;
    R + 2 on: several types on one node, the fastest 2, 3, ...
    """
    types = totals.shape[0]
    if number == 0:
        return held_entries(queue, free, i, entries)
    if number <= types:
        r = queue.fast[i, number - 1]
        if queue.rates[i, r] <= 0.0 or totals[r] < queue.workers[i]:
            return 0
        size = gather(market, free, r, queue.workers[i], entries, 0)
        for e in range(size):
            free[entries[e, 0], r] += entries[e, 2]
        return size
    if not market.mixing or queue.workers[i] == 1:
        return -1
    if number == types + 1:
        return spread_mix(queue, market, free, totals, i, entries)
    prefix = number - types
    if prefix > types or market.blends.shape[0] == 0 or queue.rates[i, queue.fast[i, prefix - 1]] <= 0.0:
        return -1
    return blend(queue, market, free, i, prefix, entries)


@njit(cache=True, nogil=True)
def reachable(queue: Queue, totals: Integers, i: int) -> bool:
    """Whether job i finds enough free GPUs among the types that it runs on."""
    reach = 0
    for r in range(totals.shape[0]):
        if queue.rates[i, r] > 0.0:
            reach += totals[r]
    return reach >= queue.workers[i]


@njit(cache=True, nogil=True)
def cheapest(market: Market, free: Free, cheap: Floats) -> None:
    """Write the least price of one more GPU of each type, infinity where none is free.

    A further node can only be cheaper if a smaller part of it is given, or if it is larger.
    """
    for r in range(cheap.shape[0]):
        cheap[r], given, all_of = np.inf, 1, 0
        for k in range(market.first[r], market.first[r + 1]):
            h = market.nodes[k]
            here = market.capacity[h, r]
            used = here - free[h, r]
            if free[h, r] > 0 and (here > all_of or used * all_of < given * here):
                price = total_price(market.price, used, 1, here, market.low[r], market.high[r])
                if price < cheap[r]:
                    cheap[r], given, all_of = price, used, here


@njit(cache=True, nogil=True)
def hopeless(queue: Queue, totals: Integers, cheap: Floats, i: int, number: int, payoff: float) -> bool:
    """Whether candidate ``number`` cannot have more than this payoff, even at full speed and the lowest price."""
    if 0 < number <= totals.shape[0]:
        r = queue.fast[i, number - 1]
        if totals[r] < queue.workers[i]:
            return True
        return queue.most[i, r] - queue.workers[i] * cheap[r] <= payoff
    least = np.inf
    for r in range(totals.shape[0]):
        least = min(least, cheap[r])
    return queue.most[i, queue.fast[i, 0]] - queue.workers[i] * least <= payoff


@njit(cache=True, nogil=True)
def find_alloc(
    queue: Queue,
    market: Market,
    free: Free,
    totals: Integers,
    cheap: Floats,
    i: int,
    floor: float,
    best: Integers,
    trial: Integers,
) -> tuple[int, float, float]:
    """FIND_ALLOC: the candidate of largest payoff above ``floor`` for job i, the first among equals.

    A single type stands on one node if one can hold it. Several types come fastest first, also where a
    slower type alone would do (our choice: 3 V100 + 1 K80 may beat 4 K80 on one node).

    Args:
        free, totals, cheap: [H, R] free GPUs; [R] their number and least price (``cheapest``).
        best, trial: [most workers, 3] room for entries; ``best`` receives the answer.

    Returns:
        (number of entries, payoff, price); (0, floor, 0) if there is none.
    """
    most, payoff, price = 0, floor, 0.0
    types, size = totals.shape[0], 0
    if hopeless(queue, totals, cheap, i, 0, payoff):
        return most, payoff, price
    for number in range(2 * types + 1):
        if hopeless(queue, totals, cheap, i, number, payoff):
            continue
        size = propose(queue, market, free, totals, i, number, trial)
        if size < 0:
            break
        if size > 0:
            gain, cost = weigh(queue, market, free, i, trial, size, number > 0)
            if gain > payoff:
                most, payoff, price = size, gain, cost
                for e in range(size):
                    put(best, e, trial[e, 0], trial[e, 1], trial[e, 2])
    return most, payoff, price


SKIPPED, HOPELESS = 0, -1
"""Instead of a number of entries: the job gets nothing; the state can no longer overtake the best."""
