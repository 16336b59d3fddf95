"""A run by the table's clock: the simulator says who does how many steps in a round, and workers really do them.

Two runs of this kind make the same steps in the same places with the same weights, whatever the machine is doing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...envs.cluster.fork_rounds import steps_done
from ...envs.cluster.scheduler import Floats, Integers
from ...envs.cluster.simulation import Simulation
from .backend import WorkerError
from .crew import News
from .real_run import Key, Post, RealRun

RETURN_S = 120.0
"""How long a run waits for a worker that is gone (our choice); nominal time stands still meanwhile."""


@dataclass(eq=False)
class Part:
    """What one gang has to do in the time that has passed.

    Attributes:
        a: number of the gang in the books.
        target: steps of the whole job after it; of a copy: its own steps.
        forked: whether it is a copy.
    """

    a: int
    target: int
    forked: bool


class NominalRun(RealRun):
    """Drives workers in nominal time; see ``RealRun`` for the arguments.

    Gangs that a worker's death cuts short are made again from their last state, and so are copies that cannot be
    averaged; either only as often as a job may fail. A run that was interrupted is begun again: the simulator decides
    the same, and steps that are in a saved state already are not made twice.
    """

    def steps_left(self, rows: Integers) -> Floats:
        """As of ``Simulation``: by the table."""
        return Simulation.steps_left(self, rows)

    def pass_time(self) -> None:
        """Let nominal time pass, then have the steps made that fall into it."""
        given = self._gangs.budget.copy()
        Simulation.pass_time(self)
        rows = np.unique(self._gangs.job)
        parts = dict[Key, Part]()
        for row, left in zip(rows.tolist(), self.steps_left(rows).tolist(), strict=True):
            parts |= self._parts(row, left, given)
        self._first: dict[Key, int] = {}
        self._copies: dict[int, dict[Key, Part]] = {}
        for row in dict.fromkeys(key[0] for key, part in parts.items() if part.forked):
            self._copies[row] = {key: part for key, part in parts.items() if key[0] == row}
            self._fork(row)
        self._make(parts)
        self.tell()

    def _fork(self, row: int) -> None:
        """Give the copies of a job their batches, from its state as it is."""
        shares = {key[1]: part.target for key, part in self._copies[row].items()}
        self._first |= {(row, copy): first for copy, first in self.tracker.fork(row, shares).items()}

    def _parts(self, row: int, left: float, given: Floats) -> dict[Key, Part]:
        """What the gangs of a job did in the time that has passed, as far as no saved state has it."""
        job, gangs = self.tracker.jobs[row], self._gangs
        finished = bool(np.isfinite(self.state.jobs.finish[row]))
        total = job.spec.steps if finished else int(np.floor(job.spec.steps - left + 1e-6))
        if job.done >= total:
            return {}
        mine = np.flatnonzero(gangs.job == row).tolist()
        if not gangs.forked[mine[0]]:
            return {(row, 0): Part(mine[0], total, False)}
        steps = {a: given[a] if finished else steps_done(gangs, a, float(given[a]), self.time) for a in mine}
        return {(row, int(gangs.copy[a])): Part(a, round(value), True) for a, value in steps.items() if round(value)}

    def _make(self, parts: dict[Key, Part]) -> None:
        """Have all parts made; as many at once as there are workers for."""
        open_, until = dict(parts), self.crew.clock() + RETURN_S
        while open_:
            for key, part in open_.items():
                if key not in self.posts:
                    self._begin(key, part)
            for news in self.crew.news(self.crew.clock() + 0.2):
                until = self.crew.clock() + RETURN_S
                self._take(news, open_)
            self.tell()
            if self.crew.clock() > until and not self.posts:
                row = next(iter(open_))[0]
                raise WorkerError(
                    f"job {self.workload.jobs[row].id!r} found no worker on its nodes for {RETURN_S:g} s; bring them "
                    "back, and go on with resume=."
                )

    def _begin(self, key: Key, part: Part) -> None:
        job = self.tracker.jobs[key[0]]
        if part.forked:
            self.begin_gang(key, part.a, part.target, first=self._first[key], forked=True)
        else:
            self.begin_gang(key, part.a, part.target - job.done, first=job.issued, forked=False)

    def _take(self, news: News, open_: dict[Key, Part]) -> None:
        if news.kind == "gone":
            self.note("worker lost", None, f"a worker is gone: {news.reason}")
        key = None if news.gang is None else self.key_of(news.gang)
        if key is None:
            return
        if news.kind == "saved":
            self.take_saved(news)
        elif news.kind == "over":
            self._close(key, self.posts.pop(key), open_)

    def _close(self, key: Key, post: Post, open_: dict[Key, Part]) -> None:
        """A gang is over; one that was cut short stays open, and is made again."""
        row, gang = key[0], post.gang
        if gang.outcome != "ended":
            self.state.jobs.lost[row] += (
                gang.steps if post.forked else post.base + gang.steps - self.tracker.jobs[row].done
            )
            if self.count_lost_gang(row, gang):
                for other in [other for other in open_ if other[0] == row]:
                    del open_[other]
            return
        del open_[key]
        if not post.forked:
            self.take_over(row, post)
            return
        self.overruns += gang.overruns
        if sentence := self.tracker.report(row, key[1], gang.steps, gang.state):
            self.note("left out", row, sentence)
        if all(other[0] != row for other in open_) and not self.average_copies(row) and row not in self.state.reasons:
            self._fork(row)
            open_ |= self._copies[row]
