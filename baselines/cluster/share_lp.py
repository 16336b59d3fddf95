"""The linear program behind Gavel's policies."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .job_program import Block, JobProgram

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


class ShareLP(JobProgram):
    """Parts of the time x_ij of jobs i on GPU types j:

        max  z + sum_ij c_ij x_ij
        s.t. sum_j a_ij x_ij >= b_i z  for every job (only if ``fair``)
             sum_j x_ij <= 1;  sum_i W_i x_ij <= N_j;  x >= 0, and 0 where a_ij is 0

    Args:
        gpus: [R] N_j.
        fair: whether there is a z; else the sum is maximised.
    """

    height = 2

    def __init__(self, gpus: Floats, fair: bool) -> None:
        self.gpus, self.fair, self.width = np.asarray(gpus, dtype=np.float64), fair, len(gpus)
        super().__init__()

    def share(self, model: Any) -> None:
        """The column z, and a row per GPU type."""
        none = np.zeros(0, dtype=np.int32)
        model.addCol(1.0 if self.fair else 0.0, 0.0, np.inf if self.fair else 0.0, 0, none, np.zeros(0))
        for limit in self.gpus:
            model.addRow(-np.inf, limit, 0, none, np.zeros(0))
        self._needs = np.zeros(0)

    def block(self, rates: Floats, workers: Integers) -> Block:
        """Columns x_ij with their places in the types' rows; rows of the job's time and of its fairness."""
        count, types = rates.shape
        own = np.zeros((count, 2, 1 + types))
        own[:, 0, 1:] = 1.0
        if self.fair:
            own[:, 1, 0], own[:, 1, 1:] = -1.0, rates
        self._needs = np.concatenate((self._needs, np.ones(count)))
        return Block(
            cost=np.zeros((count, types)),
            upper=(rates > 0).astype(np.float64),
            shared=np.eye(types) * workers[:, None, None].astype(np.float64),
            own=own,
            low=np.tile([-np.inf, 0.0 if self.fair else -np.inf], (count, 1)),
            high=np.tile([1.0, np.inf], (count, 1)),
        )

    def solve(
        self, job: Integers, workers: Integers, gain: Floats, need: Floats, cost: Floats | None = None
    ) -> tuple[Floats, float]:
        """Solve for the jobs that are here now.

        Args:
            job: [N] numbers that stay with the jobs from call to call.
            workers: [N] W_i.
            gain: [N, R] a_ij, 0 where the job does not fit.
            need: [N] b_i.
            cost: [N, R] c_ij; by default 0.

        Returns:
            [N, R] x and z.

        Raises:
            ClusterError: HiGHS found no optimum.
        """
        slots = self.sync(job, workers, gain)
        columns = self.columns(slots)
        if self.fair:
            self._set_needs(slots, need)
        if cost is not None:
            self._model.changeColsCost(columns.size, columns.ravel(), cost.ravel().astype(np.float64))
        self.run()
        values = np.array(self._model.getSolution().col_value)
        return np.clip(values[columns], 0.0, 1.0), float(values[0])

    def fair_duals(self, job: Integers) -> Floats:
        """[N] duals y_i >= 0 of the jobs' fairness rows at the last solve; sum_i b_i y_i = 1."""
        slots = np.array([self._slots[number] for number in job.tolist()])
        return np.abs(np.array(self._model.getSolution().row_dual)[self.rows(slots)[:, 1]])

    def set_gpus(self, gpus: Floats) -> None:
        """Change N_j."""
        if not np.array_equal(gpus, self.gpus):
            self.gpus = np.asarray(gpus, dtype=np.float64)
            for gpu_type, limit in enumerate(self.gpus):
                self._model.changeRowBounds(gpu_type, -np.inf, float(limit))

    def _set_needs(self, slots: Integers, need: Floats) -> None:
        rows = self.rows(slots)[:, 1]
        for position in np.flatnonzero(self._needs[slots] != need).tolist():
            self._model.changeCoeff(int(rows[position]), 0, -float(need[position]))
        self._needs[slots] = need
