"""The linear programs behind Gavel's policies, solved by HiGHS and re-solved from the last basis."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...envs.errors import ClusterError, MissingExtraError

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


class ShareLP:
    """Parts of the time x_ij of jobs i on GPU types j, kept in HiGHS from one solve to the next:

        max  z + sum_ij c_ij x_ij
        s.t. sum_j a_ij x_ij >= b_i z  for every job (only if ``fair``)
             sum_j x_ij <= 1;  sum_i W_i x_ij <= N_j;  x >= 0, and 0 where a job does not fit

    Jobs that are gone stay in the program with their columns fixed at 0 and their rows free: deleting
    them would drop the basis. When too many have gathered, the program is built anew.

    Args:
        gpus: [R] N_j.
        fair: whether there is a z; else the sum is maximised.
    """

    def __init__(self, gpus: Floats, fair: bool) -> None:
        self._highspy = _import_highspy()
        self.gpus, self.fair, self.types = np.asarray(gpus, dtype=np.float64), fair, len(gpus)
        self._clear()

    def _clear(self) -> None:
        model = quiet_highs(self._highspy)
        for option, value in (("output_flag", False), ("threads", 1), ("presolve", "off")):
            model.setOptionValue(option, value)
        model.changeObjectiveSense(self._highspy.ObjSense.kMaximize)
        none = np.zeros(0, dtype=np.int32)
        model.addCol(1.0 if self.fair else 0.0, 0.0, np.inf if self.fair else 0.0, 0, none, np.zeros(0))
        for limit in self.gpus:
            model.addRow(-np.inf, limit, 0, none, np.zeros(0))
        self._model = model
        self._slots: dict[int, int] = {}
        self._count = 0

    def solve(
        self,
        job: Integers,
        workers: Integers,
        gain: Floats,
        usable: NDArray[np.bool_],
        need: Floats,
        cost: Floats | None = None,
    ) -> tuple[Floats, float]:
        """Solve for the jobs that are here now.

        Args:
            job: [N] numbers that stay with the jobs from call to call.
            workers: [N] W_i.
            gain: [N, R] a_ij; must not change for a job.
            usable: [N, R] whether the job fits the type; must not change for a job.
            need: [N] b_i.
            cost: [N, R] c_ij, must not change for a job; by default 0.

        Returns:
            [N, R] x and z.

        Raises:
            ClusterError: HiGHS found no optimum.
        """
        if self._count > 3 * len(job) + 300:
            self._clear()
        gone = set(self._slots).difference(job.tolist())
        if gone:
            self._remove(gone)
        fresh = [i for i, number in enumerate(job.tolist()) if number not in self._slots]
        if fresh:
            rows = np.array(fresh)
            self._add(job[rows], workers[rows], gain[rows], usable[rows], None if cost is None else cost[rows])
        slots = np.array([self._slots[number] for number in job.tolist()])
        if self.fair:
            self._set_needs(slots, need)
        self._model.run()
        if self._model.getModelStatus() != self._highspy.HighsModelStatus.kOptimal:
            self._retry()
        values = np.array(self._model.getSolution().col_value)
        shares = values[1:].reshape(self._count, self.types)[slots]
        return np.clip(shares, 0.0, 1.0), float(values[0])

    def fair_duals(self, job: Integers) -> Floats:
        """[N] duals y_i >= 0 of the jobs' fairness rows at the last solve; sum_i b_i y_i = 1."""
        rows = np.array([self.types + 2 * self._slots[number] + 1 for number in job.tolist()])
        return np.abs(np.array(self._model.getSolution().row_dual)[rows])

    def set_gpus(self, gpus: Floats) -> None:
        """Change N_j."""
        if not np.array_equal(gpus, self.gpus):
            self.gpus = np.asarray(gpus, dtype=np.float64)
            for gpu_type, limit in enumerate(self.gpus):
                self._model.changeRowBounds(gpu_type, -np.inf, float(limit))

    def _retry(self) -> None:
        """Solve once more without the basis, for numerical trouble."""
        self._model.clearSolver()
        self._model.run()
        status = self._model.getModelStatus()
        if status != self._highspy.HighsModelStatus.kOptimal:
            raise ClusterError(f"HiGHS ended with {status} on {len(self._slots)} jobs; expected an optimum.")

    def _columns(self, slots: Integers) -> NDArray[np.int32]:
        return (1 + slots[:, None] * self.types + np.arange(self.types)).ravel().astype(np.int32)

    def _remove(self, gone: set[int]) -> None:
        slots = np.array(sorted(self._slots.pop(number) for number in gone), dtype=np.int64)
        columns = self._columns(slots)
        zeros = np.zeros(len(columns))
        self._model.changeColsBounds(len(columns), columns, zeros, zeros)
        if self.fair:
            for slot in slots.tolist():
                self._model.changeRowBounds(self.types + 2 * slot + 1, -np.inf, np.inf)

    def _add(
        self, job: Integers, workers: Integers, gain: Floats, usable: NDArray[np.bool_], cost: Floats | None
    ) -> None:
        """Columns x_ij with their places in the types' rows, then each job's own rows."""
        model, types, count = self._model, self.types, len(job)
        first = self._count
        for offset, number in enumerate(job.tolist()):
            self._slots[number] = first + offset
        self._count += count
        starts = np.arange(count * types, dtype=np.int32)
        model.addCols(
            count * types,
            np.zeros(count * types) if cost is None else cost.ravel().astype(np.float64),
            np.zeros(count * types),
            np.where(usable, 1.0, 0.0).ravel(),
            count * types,
            starts,
            np.tile(np.arange(types, dtype=np.int32), count),
            np.repeat(workers.astype(np.float64), types),
        )
        columns = self._columns(np.arange(first, first + count)).reshape(count, types)
        ones, width = np.ones((count, types)), types + 1
        zs = np.zeros((count, 1), dtype=np.int32)
        index = np.stack((np.concatenate((columns, zs), axis=1), np.concatenate((columns, zs), axis=1)), axis=1)
        budget = np.concatenate((ones, np.zeros((count, 1))), axis=1)
        fairness = np.concatenate((np.where(usable, gain, 0.0), -np.ones((count, 1))), axis=1)
        values = np.stack((budget, fairness if self.fair else 0 * fairness), axis=1)
        lower = np.tile([-np.inf, 0.0 if self.fair else -np.inf], count)
        upper = np.tile([1.0, np.inf], count)
        model.addRows(
            2 * count,
            lower,
            upper,
            2 * count * width,
            np.arange(0, 2 * count * width, width, dtype=np.int32),
            index.ravel().astype(np.int32),
            values.ravel(),
        )
        self._needs = np.concatenate((getattr(self, "_needs", np.zeros(0))[:first], np.ones(count)))

    def _set_needs(self, slots: Integers, need: Floats) -> None:
        changed = np.flatnonzero(self._needs[slots] != need)
        for position in changed.tolist():
            slot = int(slots[position])
            self._model.changeCoeff(self.types + 2 * slot + 1, 0, -float(need[position]))
        self._needs[slots] = need


def _import_highspy() -> Any:
    try:
        import highspy
    except ModuleNotFoundError as error:
        raise MissingExtraError("Gavel's policies need the package 'highspy'; pip install highspy.") from error
    return highspy


def quiet_highs(highspy: Any) -> Any:
    """A HiGHS model that prints nothing, not even its banner."""

    class Quiet(highspy.Highs):
        """Silent before callbacks are enabled, which is where the banner is printed."""

        def enableCallbacks(self) -> Any:
            """As in HiGHS."""
            self.setOptionValue("output_flag", False)
            return super().enableCallbacks()

    return Quiet()
