"""Linear programs over jobs that come and go, kept in HiGHS so that each is solved from the last basis."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...envs.errors import ClusterError, MissingExtraError

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


class Block(NamedTuple):
    """What n new jobs bring: k columns and m rows each, beside S shared rows and C shared columns.

    Attributes:
        cost, upper: [n, k] of the columns, which start at 0.
        shared: [n, S, k] entries of the columns in the shared rows.
        own: [n, m, C + k] entries of the job's rows, in the shared columns and then in its own.
        low, high: [n, m] limits of the rows.
    """

    cost: Floats
    upper: Floats
    shared: Floats
    own: Floats
    low: Floats
    high: Floats


class JobProgram:
    """A maximisation with shared columns and rows, and a block of ``width`` columns and ``height`` rows per job.

    Jobs that are gone stay in the program with their columns fixed at 0 and their rows free: deleting
    them would drop the basis. When too many have gathered, the program is built anew.
    """

    width = 0
    height = 0
    whole = False
    """Whether the jobs' columns are whole numbers."""

    def __init__(self) -> None:
        self._highspy = _import_highspy()
        self._clear()

    def share(self, model: Any) -> None:
        """Add the shared columns, then the shared rows, to an empty model."""
        raise NotImplementedError

    def block(self, rates: Floats, workers: Integers) -> Block:
        """What jobs with these rates [n, R] and workers [n] bring."""
        raise NotImplementedError

    def _clear(self) -> None:
        model = quiet_highs(self._highspy)
        for option, value in (("output_flag", False), ("threads", 1), ("presolve", "off")):
            model.setOptionValue(option, value)
        model.changeObjectiveSense(self._highspy.ObjSense.kMaximize)
        self.share(model)
        self._model = model
        self._shared_columns, self._shared_rows = model.getNumCol(), model.getNumRow()
        self._slots: dict[int, int] = {}
        self._count = 0
        self._rates: Floats | None = None

    def sync(self, job: Integers, workers: Integers, rates: Floats) -> Integers:
        """Make these N jobs, and no others, the program's; those whose rates changed are put in anew.

        Returns:
            [N] slots, for ``columns`` and ``rows``.
        """
        if self._count > 3 * len(job) + 300:
            self._clear()
        here = {number: position for position, number in enumerate(job.tolist())}
        gone = [number for number in self._slots if number not in here]
        known = np.array([self._slots.get(number, -1) for number in here], dtype=np.int64)
        if self._rates is not None:
            changed = (known >= 0) & (self._rates[known] != rates).any(axis=1)
            gone += job[changed].tolist()
        if gone:
            self._retire(np.array([self._slots.pop(number) for number in gone], dtype=np.int64))
        fresh = np.array([here[number] for number in here if number not in self._slots], dtype=np.int64)
        if len(fresh):
            self._add(job[fresh], workers[fresh], rates[fresh])
        return np.array([self._slots[number] for number in here], dtype=np.int64)

    def columns(self, slots: Integers) -> NDArray[np.int32]:
        """[N, k] numbers of the jobs' columns."""
        return (self._shared_columns + slots[:, None] * self.width + np.arange(self.width)).astype(np.int32)

    def rows(self, slots: Integers) -> NDArray[np.int32]:
        """[N, m] numbers of the jobs' rows."""
        return (self._shared_rows + slots[:, None] * self.height + np.arange(self.height)).astype(np.int32)

    def run(self) -> None:
        """Solve; once more without the basis, where numerical trouble prevents an optimum.

        Raises:
            ClusterError: HiGHS found none.
        """
        optimal = self._highspy.HighsModelStatus.kOptimal
        self._model.run()
        if self._model.getModelStatus() != optimal:
            self._model.clearSolver()
            self._model.run()
        status = self._model.getModelStatus()
        if status != optimal:
            raise ClusterError(f"HiGHS ended with {status} on {len(self._slots)} jobs; expected an optimum.")

    @property
    def objective(self) -> float:
        """Value of the last solution."""
        return float(self._model.getObjectiveValue())

    def _retire(self, slots: Integers) -> None:
        columns, rows = self.columns(slots).ravel(), self.rows(slots).ravel()
        nothing, limit = np.zeros(len(columns)), np.full(len(rows), np.inf)
        self._model.changeColsBounds(len(columns), columns, nothing, nothing)
        self._model.changeRowsBounds(len(rows), rows, -limit, limit)

    def _add(self, job: Integers, workers: Integers, rates: Floats) -> None:
        block, first, count = self.block(rates, workers), self._count, len(job)
        slots = np.arange(first, first + count)
        self._slots.update(zip(job.tolist(), slots.tolist(), strict=True))
        self._count += count
        stored = np.zeros((0, rates.shape[1])) if self._rates is None else self._rates
        self._rates = np.concatenate((stored, rates))
        columns, rows = self.columns(slots), self.rows(slots)
        starts, index, values = _compressed(block.shared.transpose(0, 2, 1).reshape(columns.size, -1))
        lower = np.zeros(columns.size)
        self._model.addCols(
            columns.size, block.cost.ravel(), lower, block.upper.ravel(), len(values), starts, index, values
        )
        if self.whole:
            kinds = np.full(columns.size, self._highspy.HighsVarType.kInteger, dtype=object)
            self._model.changeColsIntegrality(columns.size, columns.ravel(), kinds)
        starts, entry, values = _compressed(block.own.reshape(rows.size, -1))
        shared = np.broadcast_to(np.arange(self._shared_columns, dtype=np.int32), (count, self._shared_columns))
        reach = np.repeat(np.concatenate((shared, columns), axis=1), self.height, axis=0)
        owner = np.repeat(np.arange(rows.size), np.diff(np.append(starts, len(values))))
        index = reach[owner, entry]
        self._model.addRows(
            rows.size, block.low.ravel(), block.high.ravel(), len(values), starts, index.astype(np.int32), values
        )


def _compressed(dense: Floats) -> tuple[NDArray[np.int32], NDArray[np.int32], Floats]:
    """A matrix by rows: starts, columns and values of what is not 0."""
    row, column = np.nonzero(dense)
    starts = np.searchsorted(row, np.arange(len(dense)))
    return starts.astype(np.int32), column.astype(np.int32), np.ascontiguousarray(dense[row, column])


def _import_highspy() -> Any:
    try:
        import highspy
    except ModuleNotFoundError as error:
        raise MissingExtraError("linear programs need the package 'highspy'; pip install highspy.") from error
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
