"""Sia for rigid jobs: an integer program a round over jobs and GPU types (Subramanya et al., SOSP 2023).

Sia chooses a configuration (GPU type and number) per job; for rigid jobs the number is given. The
parameters are those of the paper: p = -0.5, penalty 1.1 for a job that waits.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...envs.cluster import Allocation, Cluster, ClusterView
from ...envs.errors import SchedulerError
from .allocate import place_on_types, placed_types
from .job_program import Block, JobProgram

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


class SiaProgram(JobProgram):
    """max sum_jr profit_jr a_jr; sum_r a_jr <= 1 per job; sum_j W_j a_jr <= free_r; a whole, 0 where it brings nothing.

    Args:
        types: GPU types.
        gap: relative distance to the optimum at which it may stop.
    """

    height = 1
    whole = True

    def __init__(self, types: int, gap: float) -> None:
        self.width, self.gap = types, gap
        super().__init__()

    def share(self, model: Any) -> None:
        """A row per GPU type."""
        model.setOptionValue("mip_rel_gap", self.gap)
        for _ in range(self.width):
            model.addRow(-np.inf, 0.0, 0, np.zeros(0, dtype=np.int32), np.zeros(0))

    def block(self, rates: Floats, workers: Integers) -> Block:
        """Columns a_jr; a row for one type a job."""
        count, types = len(workers), self.width
        ones = np.ones((count, 1, types))
        gang = np.eye(types) * workers[:, None, None].astype(np.float64)
        low, high = np.full((count, 1), -np.inf), np.ones((count, 1))
        return Block(np.zeros((count, types)), np.ones((count, types)), gang, ones, low, high)

    def solve(self, job: Integers, workers: Integers, profit: Floats, free: Integers) -> NDArray[np.bool_]:
        """[N, R] what is taken, at these profits [N, R].

        Raises:
            ClusterError: HiGHS found no optimum.
        """
        columns = self.columns(self.sync(job, workers, workers[:, None].astype(np.float64)))
        nothing, model = np.zeros(columns.size), self._model
        model.changeColsCost(columns.size, columns.ravel(), profit.ravel())
        model.changeColsBounds(columns.size, columns.ravel(), nothing, (profit > 0).ravel().astype(np.float64))
        shared = np.arange(self.width, dtype=np.int32)
        model.changeRowsBounds(self.width, shared, np.full(self.width, -np.inf), free.astype(np.float64))
        self.run()
        return np.array(model.getSolution().col_value)[columns] > 0.5


class Sia:
    """Minimises sum_jr a_jr (f_jr g_jr)^p + wait sum_j (1 - sum_r a_jr), a_jr whole, with the GPUs that there are.

    g_jr is the rate over the job's slowest. f_jr is 1 where a running job stays on its type or a waiting
    one starts; else (age - restarts x S) / (age + S), S seconds a restart: who moved often stays.

    Args:
        power: p; below 0 favours jobs that gain much less than others.
        wait: penalty of a waiting job.
        gap: relative distance to the optimum at which the integer program may stop.
    """

    name = "sia"
    mixes = False
    forks = False

    def __init__(self, power: float = -0.5, wait: float = 1.1, gap: float = 0.01) -> None:
        if not power < 0 or not wait > 0 or not gap >= 0:
            raise SchedulerError(
                f"power is {power}, wait {wait} and gap {gap}; expected power below 0, wait above 0, gap from 0 up."
            )
        self.power, self.wait, self.gap = power, wait, gap

    def reset(self, cluster: Cluster, round_s: float, rng: np.random.Generator) -> None:
        """Forget everything; a new run begins."""
        self._restarts = np.zeros(0, dtype=np.int64)
        self._program = SiaProgram(len(cluster.types), self.gap)

    def schedule(self, view: ClusterView) -> Allocation:
        """Solve the program; the GPUs of a job that keeps its type stay as they are."""
        if len(view) == 0:
            return Allocation.empty()
        missing = int(view.job[-1]) + 1 - len(self._restarts)
        if missing > 0:
            self._restarts = np.concatenate((self._restarts, np.zeros(missing, dtype=np.int64)))
        chosen = self._choose(view)
        allocation = place_on_types(view, chosen)
        chosen = placed_types(view, chosen, allocation)
        self._restarts[view.job[(chosen >= 0) & (chosen != view.held_type)]] += 1
        return allocation

    def _choose(self, view: ClusterView) -> Integers:
        """[N] type of each job, -1 for none."""
        rates, free = view.gang_rates, view.free.sum(axis=0)
        usable = view.runnable & (view.workers[:, None] <= free)
        slowest = np.where(rates > 0, rates, np.inf).min(axis=1, keepdims=True)
        gain = np.where(usable, rates / slowest, 1.0) * self._restart_factor(view)
        profit = np.where(usable, self.wait - gain**self.power, 0.0)
        taken = self._program.solve(view.job, view.workers, profit, free)
        return np.where(taken.any(axis=1), taken.argmax(axis=1), -1)

    def _restart_factor(self, view: ClusterView) -> Floats:
        """[N, R] how much of a job's gain a change of type leaves."""
        age = view.time - view.arrival
        spent = self._restarts[view.job] * view.restart_s
        move = np.maximum(age - spent, 0.0) / np.maximum(age + view.restart_s, 1e-300)
        held = view.held_type
        stays = np.arange(view.rates.shape[1])[None, :] == held[:, None]
        return np.where((view.held_gang >= 0)[:, None] & ~stays, np.maximum(move, 1e-6)[:, None], 1.0)
