"""One round as a sequence of choices: which job gets GPUs of which type next, until the round is closed."""

from __future__ import annotations

from copy import copy
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from .held import what_is_held
from .packing import pack
from .scheduler import Allocation, ClusterView, Floats, Integers

KEEP = 0
OPEN, DONE, MORE = 0, 1, 2
"""Of a job: nothing chosen yet; chosen or skipped; chosen, and another copy may follow."""


def option_names(types: tuple[str, ...], mixing: bool) -> tuple[str, ...]:
    """What a job may get: ``keep``, one of the types, ``mixed`` (if gangs may be), ``skip``."""
    return ("keep", *types, *(("mixed",) if mixing else ()), "skip")


class _Jobs(NamedTuple):
    """What does not change within a round, for the kernels; N jobs, R types.

    ``usable``: [N, R] types that a gang runs on; ``first``: without those where choosing is keeping;
    ``available``: [N] may be kept; ``held``: [N, R] GPUs held; ``fast``: [N, R] types, fastest first;
    ``nodes``: [N, R] nodes that can hold a whole gang.
    """

    workers: Integers
    usable: NDArray[np.bool_]
    first: NDArray[np.bool_]
    available: NDArray[np.bool_]
    held: Integers
    fast: Integers
    spread_rates: Floats
    best: Floats
    nodes: Integers


class RoundChoices:
    """What was chosen in a round so far, and what may be chosen next.

    Until the round is closed only the GPUs of each type are counted; then nodes are found for all gangs at
    once (``allocation``). So the order of the choices decides who gets which type, not who is torn apart.

    Attributes:
        view: the jobs.
        left: [R] GPUs of each type that may still be given.
        status: [N] ``OPEN``, ``DONE`` or ``MORE``.
        mask: int8 [window * O + 1] legal choices: ``position * O + option``, and the last one, to close the round.
        mixed_rate: float32 [N] rate of a mixed gang chosen now / fastest, 0 where it is not legal.
        open: whether a gang can still be given anything.
    """

    def __init__(self, view: ClusterView, window: int, mixing: bool, forking: bool) -> None:
        self.view, self.window, self.mixing, self.forking = view, window, mixing, forking
        self.options = len(option_names(view.cluster.types, mixing))
        self.held = held = what_is_held(view)
        self.left = view.free.sum(axis=0)
        self.status = np.zeros(len(view), np.int64)
        self.copies = np.zeros(view.rates.shape, np.int64)
        self._kept: list[int] = []
        self._gangs: list[tuple[int, Integers]] = []
        usable = view.gang_rates > 0
        torn = (held.nodes[:, None] > 1) & (view.workers[:, None] <= view.cluster.capacity.max(axis=0))
        there = (held.counts == view.workers[:, None]) & (held.gangs == 1)[:, None]
        self._jobs = _Jobs(
            workers=view.workers,
            usable=usable,
            first=usable & ~(there & held.available[:, None] & ~torn),
            available=held.available,
            held=held.counts,
            fast=np.argsort(-view.spread_rates, axis=1, kind="stable"),
            spread_rates=view.spread_rates,
            best=view.best_rate,
            nodes=(view.free[None] >= view.workers[:, None, None]).sum(axis=1)
            if forking
            else np.zeros_like(usable, int),
        )
        self._refresh()

    def _refresh(self) -> None:
        self.mask = np.zeros(self.window * self.options + 1, np.int8)
        self.mixed_rate = np.zeros(len(self.view), np.float32)
        slowest = self.view.mixed_rate == "min"
        state = self.status, self.left, self.copies
        self.open = _mark_legal(self.mask, self.mixed_rate, *state, self._jobs, self.options, self.mixing, slowest)

    def copy(self) -> RoundChoices:
        """A copy that can be chosen on without a change to this one."""
        other = copy(self)
        other.left, other.status, other.copies = self.left.copy(), self.status.copy(), self.copies.copy()
        other._kept, other._gangs = self._kept.copy(), self._gangs.copy()
        return other

    def choose(self, position: int, option: int) -> None:
        """Take a legal choice for the job at a position of the view."""
        workers, types = int(self.view.workers[position]), len(self.left)
        self.status[position] = DONE
        if option == KEEP:
            self._kept.append(position)
            self.left -= self.held.counts[position]
            self.copies[position] += self.held.counts[position] // workers
        elif option < self.options - 1:
            parts = np.zeros(types, np.int64)
            if option <= types:
                parts[option - 1] = workers
                self.copies[position, option - 1] += 1
            else:
                _mix(self.left, self._jobs.fast[position], self._jobs.spread_rates[position], workers, parts)
            self._gangs.append((position, parts))
            self.left -= parts
        if self.forking and self._may_fork(position, option):
            self.status[position] = MORE
        self._refresh()

    def _may_fork(self, position: int, option: int) -> bool:
        """Whether another copy may follow: all so far stand, or can stand, on one node each."""
        if option == KEEP:
            return bool(self.held.nodes[position] == 1)
        return option <= len(self.left) and bool(self._jobs.nodes[position, option - 1] > 0)

    def allocation(self) -> tuple[Allocation, int]:
        """The gangs on nodes, and how many chosen ones found no place, so that their jobs wait.

        Gangs that are kept stay. The others follow, largest first, each in the node with least to spare, else
        spread over the fewest. No place find: further copies of a job without a node of their own, and
        gangs that would have to be spread although the job does not run so.
        """
        view, held = self.view, self.held
        kept = np.flatnonzero(np.isin(held.owner, self._kept)) if self._kept else np.zeros(0, np.int64)
        stay = view.held.gpus(view.cluster)[kept] if len(kept) else np.zeros((0, *view.free.shape), np.int64)
        owner = np.array([*held.owner[kept], *(position for position, _ in self._gangs)], np.int64)
        forked = np.bincount(owner, minlength=len(view)) > 1
        used = np.zeros((len(view), len(view.free)), np.bool_)
        np.logical_or.at(used, owner[: len(kept)], stay.any(axis=2))
        places = np.concatenate((stay, np.zeros((len(self._gangs), *view.free.shape), np.int64)))
        if self._gangs:
            gang, gpu_type = np.nonzero(parts := np.array([parts for _, parts in self._gangs]))
            who = owner[len(kept) + gang]
            free = view.free - stay.sum(axis=0)
            counts = pack(free, gpu_type, parts[gang, gpu_type], who, forked[who], used)
            places[len(kept) + gang, :, gpu_type] = counts
        standing = places.any(axis=(1, 2)) & self._runs(owner, places)
        return self._collect(owner[standing], places[standing]), int((~standing).sum())

    def _runs(self, owner: Integers, places: Integers) -> NDArray[np.bool_]:
        """[A] whether no gang is spread over nodes that does not run so."""
        spread = places.any(axis=2).sum(axis=1) > 1
        stuck = (places.any(axis=1) & (self.view.spread_rates[owner] <= 0)).any(axis=1)
        return ~(spread & stuck)

    def _collect(self, owner: Integers, places: Integers) -> Allocation:
        """As an allocation, by job; copies by node."""
        order = np.lexsort((places.any(axis=2).argmax(axis=1), owner))
        owner, places = owner[order], places[order]
        gang, node, gpu_type = np.nonzero(places)
        ptr = np.concatenate(([0], np.cumsum(np.bincount(gang, minlength=len(owner))))).astype(np.int64)
        new = np.ones(len(owner), np.bool_)
        new[1:] = owner[1:] != owner[:-1]
        number = np.arange(len(owner))
        first = np.maximum.accumulate(np.where(new, number, 0)) if len(owner) else number
        return Allocation(self.view.job[owner], number - first, ptr, node, gpu_type, places[gang, node, gpu_type])


@njit(cache=True, nogil=True)
def _mix(left: Integers, fast: Integers, rates: Floats, workers: int, parts: Integers) -> int:
    """Fill ``parts`` [R] from the fastest types on that are left; how many types, 0 if there are not enough GPUs."""
    need, types = workers, 0
    for r in fast:
        if need == 0 or rates[r] <= 0.0:
            break
        if left[r] > 0:
            parts[r] = min(left[r], need)
            need -= parts[r]
            types += 1
    return types if need == 0 else 0


@njit(cache=True, nogil=True)
def _rate_of_mix(parts: Integers, rates: Floats, slowest: bool) -> float:
    """Steps/s of a gang on several types."""
    total, least = 0.0, np.inf
    for r in range(parts.shape[0]):
        if parts[r] > 0:
            total += parts[r] * rates[r]
            least = min(least, rates[r])
    return least if slowest else total / parts.sum()


@njit(cache=True, nogil=True)
def _mark_legal(
    mask: NDArray[np.int8],
    mixed_rate: NDArray[np.float32],
    status: Integers,
    left: Integers,
    copies: Integers,
    jobs: _Jobs,
    options: int,
    mixing: bool,
    slowest: bool,
) -> bool:
    """Fill the mask (all 0 before) and the rates of mixed gangs; whether any gang can be given something."""
    types, anything = left.shape[0], False
    parts = np.zeros(types, np.int64)
    for i in range(status.shape[0]):
        if status[i] == DONE:
            continue
        base, workers, some = i * options, jobs.workers[i], False
        usable = jobs.usable[i] if status[i] == MORE else jobs.first[i]
        for r in range(types):
            if usable[r] and left[r] >= workers and (status[i] == OPEN or jobs.nodes[i, r] > copies[i, r]):
                mask[base + 1 + r] = 1
                some = True
        if status[i] == OPEN:
            if jobs.available[i] and (jobs.held[i] <= left).all():
                mask[base + KEEP] = 1
                some = True
            if mixing and workers > 1:
                parts[:] = 0
                if _mix(left, jobs.fast[i], jobs.spread_rates[i], workers, parts) > 1:
                    mask[base + options - 2] = 1
                    mixed_rate[i] = _rate_of_mix(parts, jobs.spread_rates[i], slowest) / jobs.best[i]
                    some = True
            if some:
                mask[base + options - 1] = 1
        anything = anything or some
    mask[-1] = 1
    return anything
