"""The linear program of Hadar's horizon mode: what should run now, so that everything can end in time.

Our choice, after the bound on TTD: what is left of every job, now or later, must fit between now and
the due date. Its duals are the prices of GPUs now, and the worth of doing a job's work now.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .job_program import Block, JobProgram

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

LATE = (0.02, 0.05, np.inf)
"""A job's lateness is counted in steps of these parts of the whole time, each dearer than the one before;"""
LATE_COST = (1 / 6, 1.0, 50.0)
"""so much a period: a job that is a little late is as urgent as one with six periods of work left."""


class Worth(NamedTuple):
    """The program's duals, per period.

    Attributes:
        work: [N] worth of a period of each job's work on its fastest type, because of the due date.
        price: [R] of one GPU of each type now.
    """

    work: Floats
    price: Floats


class HorizonProgram(JobProgram):
    """Parts x_jr of the coming period, and periods y_jr after it, of jobs j on GPU types r:

        max  sum_jr v_j s_jr x_jr - sum_jk m_k l_jk - M d
        s.t. sum_r s_jr (x_jr + y_jr) >= t_j         the work is done
             sum_r x_jr <= 1;  sum_r y_jr <= H + sum_k l_jk       by one gang, l_jk too late
             sum_j W_j x_jr <= c_r;  sum_j W_j y_jr <= c_r (H + d)     on the GPUs that there are

    with s_jr the rate over the job's fastest, t_j its work in periods on the fastest type, v_j its value
    and H the periods that are left after this one. Times are in periods, so the matrix never changes.

    Args:
        gpus: [R] c_r.
    """

    height = 3

    def __init__(self, gpus: Floats) -> None:
        self.gpus, self._types = np.asarray(gpus, dtype=np.float64), len(gpus)
        self.width = 2 * self._types + len(LATE)
        super().__init__()

    def share(self, model: Any) -> None:
        """The column d; rows of the GPUs now, then of the GPUs later."""
        none = np.zeros(0, dtype=np.int32)
        model.addCol(-self.gpus.sum() * LATE_COST[-1], 0.0, np.inf, 0, none, np.zeros(0))
        for limit in self.gpus:
            model.addRow(-np.inf, limit, 0, none, np.zeros(0))
        for limit in self.gpus:
            model.addRow(-np.inf, np.inf, 1, np.zeros(1, dtype=np.int32), np.array([-limit]))

    def block(self, rates: Floats, workers: Integers) -> Block:
        """Columns x, y and l of each job; rows of its work, its time now and its time later."""
        count, types, late = *rates.shape, len(LATE)
        gang = np.eye(types) * workers[:, None, None].astype(np.float64)
        shared = np.zeros((count, 2 * types, self.width))
        shared[:, :types, :types] = gang
        shared[:, types:, types : 2 * types] = gang
        own = np.zeros((count, 3, 1 + self.width))
        own[:, 0, 1 : 1 + 2 * types] = np.tile(rates, 2)
        own[:, 1, 1 : 1 + types] = 1.0
        own[:, 2, 1 + types : 1 + 2 * types] = 1.0
        own[:, 2, 1 + 2 * types :] = -1.0
        cost = np.zeros((count, self.width))
        cost[:, -late:] = -np.array(LATE_COST) * workers[:, None]
        upper = np.where(np.tile(rates, 2) > 0, np.inf, 0.0)
        return Block(
            cost=cost,
            upper=np.concatenate((upper, np.full((count, late), np.inf)), axis=1),
            shared=shared,
            own=own,
            low=np.tile([0.0, -np.inf, -np.inf], (count, 1)),
            high=np.tile([np.inf, 1.0, np.inf], (count, 1)),
        )

    def solve(
        self,
        job: Integers,
        workers: Integers,
        rates: Floats,
        work: Floats,
        value: Floats,
        horizon: float,
        whole: float,
        now: Floats,
    ) -> Worth:
        """Solve for the jobs that are here now.

        Args:
            job: [N] numbers that stay with the jobs from call to call.
            workers: [N] W_j.
            rates: [N, R] s_jr, 1 on the fastest type, 0 where the job does not fit.
            work, value: [N] t_j and v_j.
            horizon: H.
            whole: periods to which the steps of lateness refer.
            now: [R] GPUs that can be used now; later, all of them.

        Raises:
            ClusterError: HiGHS found no optimum.
        """
        slots, types = self.sync(job, workers, rates), self._types
        columns, rows = self.columns(slots), self.rows(slots)
        count, model = len(job), self._model
        model.changeColsCost(count * types, columns[:, :types].ravel(), (value[:, None] * rates).ravel())
        late = columns[:, 2 * types :].ravel()
        steps = np.tile(whole * np.array(LATE), count)
        model.changeColsBounds(len(late), late, np.zeros(len(late)), steps)
        self._limit(rows[:, 0].copy(), work, np.full(count, np.inf))
        self._limit(rows[:, 2].copy(), np.full(count, -np.inf), np.full(count, horizon))
        shared = np.arange(2 * types, dtype=np.int32)
        self._limit(shared, np.full(2 * types, -np.inf), np.concatenate((now, horizon * self.gpus)))
        self.run()
        dual = np.abs(np.array(model.getSolution().row_dual))
        return Worth(dual[rows[:, 0]], dual[:types])

    def _limit(self, rows: NDArray[np.int32], low: Floats, high: Floats) -> None:
        self._model.changeRowsBounds(len(rows), rows, low, high)
