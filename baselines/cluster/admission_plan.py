"""A job's cheapest whole life: which gang in which slot of the time that is left; compiled.

Dynamic programming over (slot, work done): in each slot the job rests or takes one of FIND_ALLOC's
candidates, at the prices of that slot. Work is counted in whole units, rounded against the job.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from .find_alloc import Floats, Integers, Market, Queue, propose, rate_on
from .prices import total_price

REST = -1
"""Choice of a slot in which the job does not run."""


class Offers(NamedTuple):
    """What a job may take in each of K slots: up to O gangs.

    ``size`` [K, O]: entries of the gang, 0 for none. ``rate``, ``cost`` [K, O]: steps/s and price.
    ``entries`` [K, O, E, 3]: nodes, types and counts.
    """

    size: Integers
    rate: Floats
    cost: Floats
    entries: Integers


@njit(cache=True, nogil=True)
def offers_of(
    queue: Queue, market: Market, free: NDArray[np.int32], gpus: Integers, low: Floats, high: Floats, first: int, i: int
) -> Offers:
    """Candidates of job i in the slots from ``first`` on, at the prices of each.

    Args:
        free: [K, H, R] GPUs that are not promised.
        gpus: [R] GPUs of each type.
        low, high: [R] bounds of the price of one.
    """
    slots, types, room = free.shape[0], free.shape[2], queue.workers[i]
    size, rate = np.zeros((slots, 2 * types), np.int64), np.zeros((slots, 2 * types))
    cost, entries = np.zeros((slots, 2 * types)), np.zeros((slots, 2 * types, room, 3), np.int64)
    totals, given = np.zeros(types, np.int64), np.zeros(types, np.int64)
    for t in range(first, slots):
        here = free[t]
        totals[:] = here.sum(axis=0)
        for number in range(1, 2 * types + 1):
            option = number - 1
            count = propose(queue, market, here, totals, i, number, entries[t, option])
            if count < 0:
                break
            if count > 0:
                rate[t, option] = rate_on(queue, market, i, entries[t, option], count)
            if rate[t, option] > 0.0:
                size[t, option] = count
                given[:] = gpus - totals
                for e in range(count):
                    _, r, taken = entries[t, option, e]
                    cost[t, option] += total_price(market.price, given[r], taken, gpus[r], low[r], high[r])
                    given[r] += taken
    return Offers(size, rate, cost, entries)


@njit(cache=True, nogil=True)
def cheapest_life(
    offers: Offers, first: int, seconds: Floats, unit: float, need: int, worth: Floats
) -> tuple[Integers, float, float]:
    """The choices of largest payoff: worth of the slot in which the job ends, less the price of its gangs.

    Args:
        first: first slot that it may use.
        seconds: [K] in which a gang works in each slot.
        unit: steps a unit.
        need: units to be done.
        worth: [K] utility of ending with each slot; it must not rise.

    Returns:
        ([K] option of each slot or REST, payoff, price); payoff -inf if the job cannot end in time.
    """
    slots, options = offers.size.shape
    least, before = np.full(need + 1, np.inf), np.full(need + 1, np.inf)
    least[0] = 0.0
    choice = np.full((slots, need + 1), REST, np.int8)
    end, best, price = -1, -np.inf, 0.0
    for t in range(first, slots):
        before[:] = least
        for o in range(options):
            if offers.size[t, o] == 0:
                continue
            units = int(offers.rate[t, o] * seconds[t] / unit * (1 + 1e-12))
            for done in range(1, need + 1):
                cost = before[max(0, done - units)] + offers.cost[t, o]
                if units > 0 and cost < least[done]:
                    least[done] = cost
                    choice[t, done] = o
        if worth[t] - least[need] > best:
            end, best, price = t, worth[t] - least[need], least[need]
    plan = np.full(slots, REST, np.int64)
    done = need
    for t in range(end, first - 1, -1):
        o = choice[t, done]
        if done > 0 and o != REST:
            plan[t] = o
            done = max(0, done - int(offers.rate[t, o] * seconds[t] / unit * (1 + 1e-12)))
    return plan, best, price
