"""Allocations as actions of fixed size, and back: GPUs per job of the window and slot of the cluster."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from gymnasium import spaces
from numba import njit
from numpy.typing import ArrayLike, NDArray

from ..arguments import check_whole
from ..errors import AllocationError
from .allocation_checks import forks_jobs, mixes_types
from .cluster import Cluster
from .scheduler import Allocation, ClusterView, Integers


@dataclass(frozen=True)
class ActionLayout:
    """How allocations are written as whole numbers [window, S], row by row.

    A slot is a (node, type) pair with GPUs, by node, then type; there are S. A job's row says how many GPUs
    it gets in each slot: its W workers in all for one gang, or, with ``forking``, W on each of several nodes
    for one copy per node.

    Attributes:
        cluster: nodes and types.
        window: jobs, in the order of the view.
        mixing: whether a gang may stand on several types.
        forking: whether a job may have several gangs.
    """

    cluster: Cluster
    window: int
    mixing: bool = True
    forking: bool = False

    def __post_init__(self) -> None:
        check_whole("window", self.window, AllocationError)

    @cached_property
    def slots(self) -> tuple[Integers, Integers]:
        """[S] node and [S] type of each slot."""
        node, gpu_type = np.nonzero(self.cluster.capacity)
        return node, gpu_type

    @cached_property
    def room(self) -> Integers:
        """[S] GPUs of each slot."""
        return self.cluster.capacity[self.slots]

    @cached_property
    def _slot_of(self) -> Integers:
        numbers = np.full(self.cluster.capacity.shape, -1)
        numbers[self.slots] = np.arange(len(self.room))
        return numbers

    @cached_property
    def _value(self) -> tuple[Integers, Integers]:
        """Slot and number of GPUs of each column of a job's mask."""
        slot = np.repeat(np.arange(len(self.room)), self.room + 1)
        return slot, np.concatenate([np.arange(room + 1) for room in self.room])

    def space(self) -> spaces.MultiDiscrete:
        """``MultiDiscrete`` of window x S numbers, each from 0 to the slot's GPUs."""
        return spaces.MultiDiscrete(np.tile(self.room + 1, self.window))

    @property
    def mask_size(self) -> int:
        """Length of ``mask``: the sum of the space's sizes."""
        return self.window * len(self._value[0])

    def nothing(self) -> Integers:
        """The action that gives nobody anything; always legal."""
        return np.zeros(self.window * len(self.room), np.int64)

    def mask(self, view: ClusterView | None) -> NDArray[np.int8]:
        """int8: for each number of an action, in order, 1 for each value that a legal action can have there.

        0 always can. A job's numbers must fit together besides, and all jobs' to the free GPUs.
        """
        slot, value = self._value
        mask = np.zeros((self.window, len(slot)), np.int8)
        mask[:, value == 0] = 1
        if view is not None:
            node, gpu_type = self.slots
            most = np.minimum(view.free[node, gpu_type], view.workers[:, None])
            most = np.where(view.rates[:, gpu_type] > 0, most, 0)
            mask[: len(view)] = value <= most[:, slot]
        return mask.reshape(-1)

    def decode(self, view: ClusterView, action: ArrayLike) -> tuple[Allocation, int]:
        """The allocation of an action, and the first row of the window that breaks a rule, or -1.

        Rows that break a rule, in order, get nothing: a wrong number of GPUs, a type that the job does not
        run on, more than is free, several types without ``mixing``, copies without ``forking``.

        Raises:
            AllocationError: the action has not the shape and type of the space.
        """
        numbers = np.asarray(action)
        if numbers.shape != (self.window * len(self.room),) or not np.issubdtype(numbers.dtype, np.integer):
            raise AllocationError(
                f"the action has shape {numbers.shape} and type {numbers.dtype}; expected {self.window} x "
                f"{len(self.room)} whole numbers in one dimension: GPUs per job of the window and slot."
            )
        matrix = np.array(numbers.reshape(self.window, -1), np.int64, order="C")
        free, (node, gpu_type) = view.free[self.slots], self.slots
        rules = self.mixing, self.forking
        wrong = _check(matrix, free, node, gpu_type, view.workers, view.rates, view.spread_rates, *rules)
        bad = np.flatnonzero(wrong)
        matrix[bad] = 0
        return self._allocation(view, matrix), int(bad[0]) if len(bad) else -1

    def _allocation(self, view: ClusterView, matrix: Integers) -> Allocation:
        row, slot = np.nonzero(matrix)
        node, gpu_type = self.slots[0][slot], self.slots[1][slot]
        total = matrix.sum(axis=1)[row]
        new_row = np.ones(len(row), np.bool_)
        new_row[1:] = row[1:] != row[:-1]
        new_gang = new_row.copy()
        new_gang[1:] |= (total > view.workers[np.minimum(row, len(view) - 1)])[1:] & (node[1:] != node[:-1])
        begin = np.flatnonzero(new_gang)
        first = np.maximum.accumulate(np.where(new_row[begin], np.arange(len(begin)), 0))
        ptr = np.append(begin, len(row)).astype(np.int64)
        count = matrix[row, slot]
        return Allocation(view.job[row[begin]], np.arange(len(begin)) - first, ptr, node, gpu_type, count)

    def check(self, view: ClusterView, allocation: Allocation) -> None:
        """Refuse an allocation that actions are not made for.

        Raises:
            AllocationError: it is to a job outside the view, or gives a job several gangs without ``forking``, or a
                gang several types without ``mixing``.
        """
        if not np.isin(allocation.job, view.job).all():
            raise AllocationError("the allocation gives GPUs to a job outside the window; decide on the view.")
        if not self.forking and forks_jobs(allocation):
            raise AllocationError(
                "a job has several gangs; that needs an environment with forking=True, or a scheduler that never forks."
            )
        if not self.mixing and mixes_types(allocation):
            raise AllocationError(
                "a gang stands on several GPU types; that needs an environment with mixing=True, or a scheduler that "
                "keeps gangs on one type."
            )

    def encode(self, view: ClusterView, allocation: Allocation) -> Integers:
        """The action of an allocation to jobs of the view.

        Raises:
            AllocationError: ``check`` refuses it, or it has what actions cannot tell: refused jobs, shares of steps,
                or copies of a job on several nodes each or on the same node.
        """
        if len(allocation.refused) or not (allocation.share is None or np.isnan(allocation.share).all()):
            raise AllocationError(
                "an action cannot tell refused jobs or shares of steps; give the allocation itself to step()."
            )
        self.check(view, allocation)
        matrix = np.zeros((self.window, len(self.room)), np.int64)
        position = np.searchsorted(view.job, allocation.job)
        row = np.repeat(position, np.diff(allocation.ptr))
        slot = self._slot_of[allocation.node, allocation.gpu_type]
        if (slot < 0).any():
            raise AllocationError("the allocation uses GPUs that the cluster does not have.")
        np.add.at(matrix, (row, slot), allocation.count)
        if forks_jobs(allocation):
            self._check_copies(allocation)
        return matrix.reshape(-1)

    def _check_copies(self, allocation: Allocation) -> None:
        """Copies must stand on one node each, all different."""
        gang = np.repeat(np.arange(len(allocation)), np.diff(allocation.ptr))
        spots = np.unique(np.stack((gang, allocation.node)), axis=1)
        per_job = np.bincount(np.unique(allocation.job, return_inverse=True)[1])
        forked = np.isin(allocation.job, np.unique(allocation.job)[per_job > 1])
        job, node = allocation.job[spots[0]], spots[1]
        chosen = forked[spots[0]]
        alone = len(np.unique(np.stack((job, node))[:, chosen], axis=1)[0]) == chosen.sum() == forked.sum()
        if not alone:
            raise AllocationError("a job has several gangs; an action needs a node for each copy alone.")


@njit(cache=True, nogil=True)
def _check(
    matrix: Integers,
    free: Integers,
    node: Integers,
    gpu_type: Integers,
    workers: Integers,
    rates: NDArray[np.float64],
    spread_rates: NDArray[np.float64],
    mixing: bool,
    forking: bool,
) -> NDArray[np.bool_]:
    """[window] rows that break a rule; ``free`` [S] is lowered by the others."""
    window, slots = matrix.shape
    wrong = np.zeros(window, np.bool_)
    for i in range(window):
        total, first, kind, nodes, types, negative = 0, -1, -1, 0, 1, False
        for e in range(slots):
            if matrix[i, e] == 0:
                continue
            negative = negative or matrix[i, e] < 0
            total += matrix[i, e]
            nodes += first != node[e]
            types += kind >= 0 and kind != gpu_type[e]
            first, kind = node[e], gpu_type[e]
        if nodes == 0:
            continue
        if i >= workers.shape[0] or negative:
            wrong[i] = True
            continue
        copies = forking and nodes > 1 and total == nodes * workers[i]
        wrong[i] = total != workers[i] and not copies
        for e in range(slots):
            if matrix[i, e] == 0 or wrong[i]:
                continue
            own = rates[i, gpu_type[e]] if nodes == 1 or copies else spread_rates[i, gpu_type[e]]
            wrong[i] = matrix[i, e] > free[e] or own <= 0.0
        wrong[i] = wrong[i] or (not mixing and types > 1 and not copies)
        if copies and not wrong[i]:
            wrong[i] = not _whole_copies(matrix[i], node, gpu_type, workers[i], mixing)
        if not wrong[i]:
            free -= matrix[i]
    return wrong


@njit(cache=True, nogil=True)
def _whole_copies(row: Integers, node: Integers, gpu_type: Integers, workers: int, mixing: bool) -> bool:
    """Whether every node of a forked job's row has all workers of one copy."""
    here, kind, before = 0, -1, -1
    for e in range(row.shape[0]):
        if row[e] == 0:
            continue
        if node[e] != before:
            if before >= 0 and here != workers:
                return False
            here, kind, before = 0, gpu_type[e], node[e]
        if kind != gpu_type[e] and not mixing:
            return False
        here += row[e]
    return here == workers
