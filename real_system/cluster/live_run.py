"""A run by the wall clock: rounds end when their time is over, and rates are what was measured."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from ...envs.cluster import Allocation, ClusterView, kernels
from ...envs.cluster.estimator import RateEstimator
from ...envs.cluster.forks import split_steps
from ...envs.cluster.scheduler import Floats
from .crew import News
from .real_run import Key, Post, RealRun

HALT_S = 10.0
"""How long a run that is stopped waits for its gangs."""
NEVER = 1e300
"""When a gang begins that has not begun; not infinite, since differences are taken."""
LOOK_S = 0.2
"""How often a run that only waits looks for requests, and shows itself."""
BOOKS_S = 1.0
"""How often the books are written while nothing is decided; a run that is killed loses no more of them."""


class Outside(Protocol):
    """Where jobs come from while a run goes on."""

    def look(self, run: LiveRun) -> bool:
        """Take in what has come; whether anything has."""

    def expecting(self, now: float) -> bool:
        """Whether the run shall wait although no job is left."""

    def close(self) -> None:
        """The run is over, however it ended: leave nothing behind."""


class LiveRun(RealRun):
    """Drives workers in real time; see ``RealRun`` for the arguments. The crew's clock is that of the run.

    Args:
        outside: where more jobs come from.

    A gang of one job that keeps its place just goes on. Copies of a forked job end ``consolidation_s`` before the
    round does, so that their weights are averaged when the next one begins; where they are through earlier, and nothing
    else runs, the next round begins at once.
    """

    def __init__(self, *args: Any, outside: Outside | None = None, **more: Any) -> None:
        super().__init__(*args, **more)
        self.outside = outside
        self._refilling = False
        self._wanted: Allocation = Allocation.empty()
        self._measured: Floats = np.zeros(0)
        self._booked = 0.0
        self.time = self._origin = 0.0

    def next_view(self) -> ClusterView | None:
        """As of ``Simulation``; who has come, and what was asked of the run from outside, is dealt with before."""
        self._look_outside()
        while not len(self.state.active) and self._expecting():
            self._hear(self.crew.clock() + LOOK_S)
            self.tell()
            self._look_outside()
        self._capacity = self.crew.capacity
        if self._refill is None:
            self._let_pass(self.crew.clock())
            while self.round_end <= self.time:
                self._number += 1
        self._write_books()
        return super().next_view()

    def close(self) -> None:
        """As of ``RealRun``."""
        super().close()
        if self.outside is not None:
            self.outside.close()

    def _write_books(self) -> None:
        self._booked = self.time
        self.store.write_facts(books=self.books())

    def _look_outside(self) -> bool:
        """Whether anything has changed by arrivals and requests."""
        return False if self.outside is None else self.outside.look(self)

    def _expecting(self) -> bool:
        """Whether jobs may still come."""
        return False if self.outside is None else self.outside.expecting(self.crew.clock())

    def apply(self, allocation: Allocation) -> None:
        """As of ``Simulation``."""
        self._refilling = self._refill is not None
        self._wanted = allocation
        super().apply(allocation)

    def pass_time(self) -> None:
        """Carry the decision out; until a refill, the end of the round, or of all that runs."""
        idle, there = not self._gangs.alive.any(), self._capacity.sum()
        self._measured = np.full(len(self._gangs.job), np.nan)
        self._carry_out()
        while True:
            ended = self._hear(self._next_moment())
            self.tell()
            self._let_pass(self.crew.clock())
            if self.time >= self._booked + BOOKS_S:
                self._write_books()
            if self.time >= self.round_end:
                self._stop_copies()
            forked = any(post.forked for post in self.posts.values())
            nothing = not self.posts and (not idle or self._capacity.sum() > there or self._look_outside())
            if nothing or (self.time >= self.round_end and not forked):
                self._measure()
                self._end_round(self.time)
                return
            if self.rules.early_refill and ended.any() and self._offer(ended):
                self._measure()
                return

    def _end_round(self, now: float) -> None:
        """As of ``Simulation``, but the next decision is made when it is made."""
        super()._end_round(now)
        self.time = now

    def _next_moment(self) -> float:
        """Until when there is nothing to do but to listen."""
        now = self.crew.clock()
        return min(self.round_end if self.round_end > now else now + LOOK_S / 2, now + LOOK_S)

    def _let_pass(self, now: float) -> None:
        """Book the time until now, and the ends in it."""
        now = max(now, self.time)
        kernels.advance(self.state.jobs, self._gangs, self.state.use, self.time, now, 0.0)
        self.time = now
        self.state.drop_finished()

    def _carry_out(self) -> None:
        """Stop what shall not go on, then start what is new."""
        gangs = self._gangs
        for name, value in (("end", np.inf), ("release", np.inf), ("final", False)):
            getattr(gangs, name)[gangs.alive] = value
        stay = {key for key, post in self.posts.items() if self._stays(key, post)}
        leaving = [key for key in self.posts if key not in stay]
        for key in leaving:
            self.posts[key].leaving = True
            self.crew.stop(self.posts[key].gang)
        while any(key in self.posts for key in leaving):
            self._hear(self.crew.clock() + LOOK_S)
        keys = [(int(job), int(copy)) for job, copy in zip(gangs.job, gangs.copy, strict=True)]
        fresh = [key for key in keys if key not in stay and self.find(key) >= 0]
        for row in dict.fromkeys(row for row, _ in fresh):
            self._start(row, [key for key in fresh if key[0] == row])

    def _stays(self, key: Key, post: Post) -> bool:
        a = self.find(key)
        if a < 0 or self._refilling:
            return a >= 0
        return bool(self._gangs.kept[a] and not self._gangs.forked[a] and not post.forked)

    def _start(self, row: int, keys: list[Key]) -> None:
        """Start the gang of a job, or its copies."""
        job, gangs = self.tracker.jobs[row], self._gangs
        where = [self.find(key) for key in keys]
        gangs.work_start[where] = NEVER
        if not gangs.forked[where[0]]:
            if not self.begin_gang(keys[0], where[0], job.left, first=job.issued, forked=False):
                self._lose(keys[0])
            return
        seconds = max(0.0, self.round_end - self.rules.consolidation_s - self.crew.clock())
        shares = self._shares(row, where, seconds)
        first = self.tracker.fork(row, {key[1]: share for key, share in zip(keys, shares, strict=True) if share})
        stretch = sum(shares)
        for key, a, share in zip(keys, where, shares, strict=True):
            more = {"seconds": seconds, "stretch": stretch / max(share, 1)}
            if share and not self.begin_gang(key, a, share, first=first[key[1]], forked=True, **more):
                self._lose(key)

    def _shares(self, row: int, where: list[int], seconds: float) -> list[int]:
        """Whole steps of each copy in this round, by the scheduler's wish or by the rates that are believed."""
        left, wish = self.tracker.jobs[row].left, self._wanted.share
        if wish is not None:
            mine = wish[self._wanted.job == row]
            if not np.isnan(mine).any():
                return [int(share) for share in mine]
        rates = (self._gangs.rate if self.estimator is None else self.estimator.gang_rates(self._held))[where]
        starts = [0.0 if self._gangs.kept[a] else self.rules.restart_s for a in where]
        budget = [max(0.0, seconds - start) for start in starts]
        if self.estimator is not None and not self.estimator.measured[:, row].any():
            budget = [left / rates.sum()] * len(where)  # nobody knows what they can do: the round's end is the limit
        shares = split_steps(float(left), rates.tolist(), budget)
        whole = [int(share) for share in shares]
        if not any(whole) and left:  # less than one step can be done in this round: one copy does one all the same
            whole[int(np.argmax(rates))] = 1
        return whole

    def _hear(self, until: float) -> np.ndarray:
        """Take in what the workers tell; [A] which gangs of the books have ended."""
        before = self._gangs.alive.copy()
        for news in self.crew.news(until):
            self._take(news)
        for (row, _), post in self.posts.items():
            if not post.forked:
                self.tracker.note(row, post.base + post.gang.steps - self.tracker.jobs[row].done)
        return before & ~self._gangs.alive

    def _take(self, news: News) -> None:
        self._let_pass(self.crew.clock())
        if news.kind in ("gone", "back"):
            self._capacity = self.crew.capacity
            node = self.cluster.nodes[self.crew.backend.slots[news.slot].node].name
            if news.kind == "gone":
                self.note("worker lost", None, f"the worker on node {node} is gone: {news.reason}")
            elif self.time > 0:
                self.note("worker back", None, f"a new worker on node {node} is ready")
            return
        assert news.gang is not None, "the other news are of gangs"
        key = self.key_of(news.gang)
        if key is None:
            if news.kind == "over" and news.gang.steps:
                self.note("late", None, f"a report of job {news.gang.order.spec.id!r} came late and is ignored")
            return
        if news.kind == "started":
            if not self.posts[key].leaving:
                self._gangs.work_start[self.find(key)] = self.time
            self.overheads.restarts_s.append(self.time - news.gang.ordered)
        elif news.kind == "saved":
            self.take_saved(news)
        else:
            self._close(key)

    def _close(self, key: Key) -> None:
        """A gang is over."""
        row, post = key[0], self.posts[key]
        if post.gang.outcome != "ended":
            self._lose(key)
            return
        if not post.leaving:
            self._gangs.end[self.find(key)] = self.time
        if post.forked:
            self.overruns += post.gang.overruns
            if sentence := self.tracker.report(row, key[1], post.gang.steps, post.gang.state):
                self.note("left out", row, sentence)
            self._release(key)
            return
        self.take_over(row, post)
        self._measure_gang(key, post)
        del self.posts[key]
        if self.tracker.jobs[row].finished:
            self._finish(row)

    def _release(self, key: Key) -> None:
        """A copy is through; when all of the job are, their weights become one."""
        row = key[0]
        self._measure_gang(key, self.posts[key])
        del self.posts[key]
        job = self.tracker.jobs[row]
        if any(other[0] == row for other in self.posts) or job.ledger is None:
            return
        begin = self.crew.clock()
        if not self.average_copies(row):
            return
        self.overheads.consolidations_s.append(self.crew.clock() - begin)
        if job.finished:
            self._finish(row)

    def _finish(self, row: int) -> None:
        """All steps of a job are done and saved."""
        gangs = self._gangs
        mine = (gangs.job == row) & gangs.alive
        now = self.crew.clock()
        gangs.release[mine], gangs.end[mine], gangs.final[mine] = now, np.minimum(gangs.end[mine], now), True
        self._let_pass(now)

    def _lose(self, key: Key) -> None:
        """A gang is gone: what it did since the last state is lost."""
        row, a, post = key[0], self.find(key), self.posts.get(key)
        if a >= 0 and not (post is not None and post.leaving):
            self._gangs.end[a] = self.time
            self._gangs.alive[a] = False
            others = np.flatnonzero((self._gangs.job == row) & self._gangs.alive)
            self.state.jobs.gang[row] = int(others[0]) if len(others) else -1
        if post is None:
            return
        if not post.forked:
            self.tracker.note(row, post.base + post.gang.steps - self.tracker.jobs[row].done)
        self.state.jobs.lost[row] += post.gang.steps if post.forked else self.tracker.fall_back(row)
        if not self.count_lost_gang(row, post.gang):
            if post.forked:
                self._release(key)
            else:
                del self.posts[key]

    def _stop_copies(self) -> None:
        """The round is over: copies that still work end after their step, or with their worker."""
        for post in self.posts.values():
            if post.forked:
                self.crew.stop(post.gang)

    def _measure(self) -> None:
        """Take the rates of gangs that go on."""
        for key, post in self.posts.items():
            self._measure_gang(key, post)

    def _measure_gang(self, key: Key, post: Post) -> None:
        """Put a measured rate in the place of the expected one."""
        a, steps, worked = self.find(key), post.gang.steps - post.seen[0], post.gang.worked_s - post.seen[1]
        if a >= 0 and not post.leaving and steps > 0 and worked > 0:
            self._gangs.rate[a] = self._measured[a] = steps / worked
            post.seen = post.gang.steps, post.gang.worked_s

    def _tell(self, estimator: RateEstimator, begin: float) -> None:
        """As of ``Simulation``, with measured rates, which are written down, too."""
        estimator.observe(self._held, self._measured)
        self.decisions.add_measured(self._held, self._measured)

    def halt(self) -> None:
        """Stop everything before its time; what was done is saved."""
        for post in self.posts.values():
            self.crew.stop(post.gang)
        until = self.crew.clock() + HALT_S
        while self.posts and self.crew.clock() < until:
            self._hear(self.crew.clock() + LOOK_S)
        self._write_books()
