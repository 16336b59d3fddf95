"""A workload on real workers: views, checks, and books of the simulator, steps and times as they really were."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from ...envs.cluster import Allocation, Cluster, ClusterView, SimulationRules, Workload
from ...envs.cluster.estimator import RateEstimator
from ...envs.cluster.scheduler import Floats, Integers
from ...envs.cluster.simulation import Simulation
from .averaging import AveragingError
from .backend import WorkerError
from .crew import Crew, Gang, News, Order
from .decisions import Decision, DecisionLog
from .past_rounds import restore_rounds
from .store import RunStore
from .tracker import JobTracker

Key = tuple[int, int]
"""(row of the job, number of the copy)."""
CANCELLED = "cancelled"
"""Why a job is not finished that somebody took out."""


@dataclass(frozen=True)
class RunSettings:
    """How jobs are run.

    Attributes:
        save_every: steps between two checkpoints of a gang, beside those at its end.
        tries: a job whose gangs were lost or failed, or whose copies could not be averaged, so many times without a new
            checkpoint between is given up.
    """

    save_every: int = 100
    tries: int = 3


@dataclass(eq=False)
class Post:
    """A gang of a decision on its workers.

    Attributes:
        gang: on the workers.
        first: number of its first batch.
        base: steps of the job that were done and saved at its start.
        forked: whether it is one of several copies.
        leaving: whether it was stopped for another decision; the books know it no more.
        seen: (steps, worked seconds) at the last decision, for measured rates.
    """

    gang: Gang
    first: int
    base: int
    forked: bool
    leaving: bool = False
    seen: tuple[int, float] = (0, 0.0)


@dataclass(eq=False)
class Overheads:
    """Seconds that restarts and consolidations really took."""

    restarts_s: list[float] = field(default_factory=list)
    consolidations_s: list[float] = field(default_factory=list)


@dataclass(frozen=True, eq=False)
class RunParts:
    """What a run works with.

    Attributes:
        crew: the workers, all ready.
        tracker: the jobs' steps and states.
        store: of the run.
        decisions: where each is written before it is carried out.
        settings: how jobs are run.
        watch: called whenever something happened, with the run.
    """

    crew: Crew
    tracker: JobTracker
    store: RunStore
    decisions: DecisionLog
    settings: RunSettings = field(default_factory=RunSettings)
    watch: Callable[[RealRun], None] | None = None


class RealRun(Simulation):
    """What both clocks share: gangs are started and stopped as decided, and their steps are booked as they were done.

    Args:
        parts: workers, and where everything is kept.
    """

    def __init__(
        self,
        workload: Workload,
        cluster: Cluster,
        rules: SimulationRules,
        parts: RunParts,
        *,
        mixes: bool = True,
        estimator: RateEstimator | None = None,
    ) -> None:
        super().__init__(workload, cluster, rules, mixes=mixes, estimator=estimator)
        self.crew, self.tracker, self.store, self.decisions = parts.crew, parts.tracker, parts.store, parts.decisions
        self.settings, self.watch = parts.settings, parts.watch
        self.posts: dict[Key, Post] = {}
        self.overheads = Overheads()
        self.overruns = 0
        self.notes: list[str] = []
        self._view_shown: ClusterView | None = None

    def next_view(self) -> ClusterView | None:
        """As of ``Simulation``."""
        self._view_shown = super().next_view()
        return self._view_shown

    def apply(self, allocation: Allocation) -> None:
        """As of ``Simulation``; the decision is on the disk before."""
        assert self._view_shown is not None, "a view comes before a decision"
        self.decisions.add(self._view_shown, allocation)
        super().apply(allocation)

    def steps_left(self, rows: Integers) -> Floats:
        """As of ``Simulation``, by the tracker."""
        for row in rows.tolist():
            self.state.left[row] = self.state.jobs.remaining[row] = self.tracker.jobs[row].left
        return self.state.left[rows]

    def note(self, kind: str, row: int | None, text: str) -> None:
        """Something happened that people should know; of a job the same is told once, and kept each time."""
        told = text if row is None else f"job {self.workload.jobs[row].id!r}: {text}"
        if row is None or told not in self.notes:
            self.notes.append(told)
        self.store.add_event(self.time, kind, "" if row is None else self.workload.jobs[row].id, text)

    def tell(self) -> None:
        """Let the watcher see the run."""
        if self.watch is not None:
            self.watch(self)

    def find(self, key: Key) -> int:
        """Number of a gang of the books that runs; -1 if it does not."""
        gangs = self._gangs
        found = np.flatnonzero((gangs.job == key[0]) & (gangs.copy == key[1]) & gangs.alive)
        return int(found[0]) if len(found) else -1

    def key_of(self, gang: Gang) -> Key | None:
        """Which gang of the books a gang on workers is; None if it is not one any more."""
        return next((key for key, post in self.posts.items() if post.gang is gang), None)

    def begin_gang(self, key: Key, a: int, quota: int, *, first: int, forked: bool, **more: Any) -> bool:
        """Start gang ``a`` of the books on workers; False if they are not all there."""
        job, gangs = self.tracker.jobs[key[0]], self._gangs
        entries = range(gangs.ptr[a], gangs.ptr[a + 1])
        order = Order(
            spec=job.spec,
            entries=tuple((int(gangs.node[e]), int(gangs.gpu_type[e]), int(gangs.gpus[e])) for e in entries),
            state=job.state,
            first=first,
            counted=job.done,
            quota=quota,
            save_every=0 if forked else self.settings.save_every,
            **more,
        )
        try:
            gang = self.crew.start(order)
        except WorkerError:
            return False
        self.posts[key] = Post(gang, first, job.done, forked)
        return True

    def take_over(self, row: int, post: Post) -> None:
        """Book the end of a gang that was not forked: its state counts."""
        self.overruns += post.gang.overruns
        if post.gang.state is not None and post.gang.steps:
            self.tracker.save(row, post.base + post.gang.steps, post.first + post.gang.steps, post.gang.state)

    def take_saved(self, news: News) -> None:
        """A running gang's state counts, unless it is one copy of several."""
        key = None if news.gang is None else self.key_of(news.gang)
        if key is not None and not self.posts[key].forked and news.state is not None:
            post = self.posts[key]
            self.tracker.save(key[0], post.base + news.steps, post.first + news.steps, news.state)

    def count_lost_gang(self, row: int, gang: Gang) -> bool:
        """A gang of a job was lost or failed: note it; whether the job is given up now."""
        what = "failed" if gang.outcome == "failed" else "was lost"
        return self._count_failure(row, gang.outcome or "lost", f"a gang {what}", gang.reason)

    def average_copies(self, row: int) -> bool:
        """One state of those of a job's copies, which have all ended.

        Returns:
            False if they do not go together: what they did is lost, the state before stays, and the job has failed
            once more, perhaps for the last time.

        Raises:
            CheckpointError, StoreError: the state cannot be written.
        """
        ledger = self.tracker.jobs[row].ledger
        reported = 0 if ledger is None else int(ledger.reported)
        try:
            self.tracker.consolidate(row)
        except AveragingError as error:
            self.state.jobs.lost[row] += reported
            self._count_failure(row, "failed", "its copies cannot be averaged", str(error))
            return False
        return True

    def _count_failure(self, row: int, kind: str, what: str, reason: str) -> bool:
        """A job has failed once more: note it; whether it is given up now."""
        job = self.tracker.jobs[row]
        job.failures += 1
        self.note(kind, row, f"{what}: {reason}")
        if job.failures < self.settings.tries:
            return False
        tries = f"failed: {job.failures} times without a new checkpoint"
        self.give_up_job(row, f"{tries}; the last time: {reason}", f"{tries}, and is given up")
        return True

    def give_up_job(self, row: int, reason: str, told: str | None = None) -> None:
        """A job will never be finished: it is reported and left out; ``told``: said instead of the reason."""
        self.store.set_status(row, reason)
        self.note("given up", row, told or reason)
        self.state.reasons[row] = reason
        self.state.jobs.active[row] = False
        self.state.jobs.gang[row] = -1
        self._gangs.alive[self._gangs.job == row] = False
        for key in [key for key in self.posts if key[0] == row]:
            self.crew.stop(self.posts.pop(key).gang)
        self.state.drop_finished()

    def close(self) -> None:
        """The run is over, however it ended."""
        self.decisions.close()

    def told_steps(self, row: int) -> int:
        """Steps of a job that workers have told of, saved or not, those of its copies included."""
        job = self.tracker.jobs[row]
        copies = sum(post.gang.steps for key, post in self.posts.items() if key[0] == row and post.forked)
        return job.done + job.at_risk + copies + (0 if job.ledger is None else int(job.ledger.reported))

    def books(self) -> dict[str, Any]:
        """What the simulator's books hold, for the store."""
        jobs, use = self.state.jobs, self.state.use
        kept = {name: getattr(jobs, name).tolist() for name in BOOKED}
        took = {"overruns": self.overruns, **asdict(self.overheads)}
        told = [self.told_steps(row) for row in range(len(self.tracker.jobs))]
        used = {name: getattr(use, name).tolist() for name in use._fields}
        return kept | took | {"time": self.time, "used": used, "told": told}

    def restore(self, books: dict[str, Any], statuses: Sequence[str], decisions: Iterable[Decision]) -> None:
        """Take up the books of a run that was interrupted, and its decisions; nothing runs.

        Steps that workers had told of, and that are in no saved state, count as lost.
        """
        count = len(books[BOOKED[0]])
        for name in BOOKED:
            getattr(self.state.jobs, name)[:count] = books[name]
        for name, values in books["used"].items():
            getattr(self.state.use, name)[:] = values
        self.overruns, self.overheads = books["overruns"], Overheads(books["restarts_s"], books["consolidations_s"])
        self.time = self._origin = float(books["time"])
        self._number = 0.0
        self.state.arrive(self.time)
        for row, status in enumerate(statuses):
            if status not in ("waiting", "finished"):
                self.state.reasons[row] = status
            if status == "waiting" and row < count:
                self.state.jobs.lost[row] += max(0, books["told"][row] - self.tracker.jobs[row].done)
            if status != "waiting":
                self.state.jobs.active[row] = False
                if status == "finished" and np.isnan(self.state.jobs.finish[row]):
                    self.state.jobs.finish[row] = self.time  # it died between the last state and the books
        self.state.drop_finished()
        restore_rounds(self.log, decisions, self.state.jobs.finish)


BOOKED = ("start", "finish", "held_s", "overhead_s", "running_s", "restarts", "lost")
"""Arrays of ``kernels.Jobs`` that a run counts."""
