"""One run from its first job to its last: begun anew, or taken up where it was interrupted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Literal

import numpy as np

from ...envs.cluster import Cluster, ClusterResult, Job, Scheduler, SimulationRules, Workload, simulate
from ...envs.cluster.estimator import RateEstimator
from ...envs.cluster.scheduler import begin
from ...envs.cluster.simulator import drive
from ...envs.errors import HadopplerError
from .apart import SlowAnswers, Waiting, ask_apart
from .checkpoints import Checkpoints
from .crew import Crew
from .decisions import FILE as DECISIONS, Decision, DecisionLog, read_decisions, replay
from .job_rates import JobRates
from .job_source import JobSource
from .live_run import LiveRun
from .nominal_run import NominalRun
from .real_run import CANCELLED, RealRun, RunParts, RunSettings
from .store import FINISHED, RunStore, StoreError
from .tracker import JobTracker
from .training_job import JobSpec
from .wall_clock import WallClock

Clock = Literal["wall", "nominal"]
Pairs = Sequence[tuple[Job, JobSpec]]


@dataclass
class RunOutcome:
    """What a run tells at its end.

    Attributes:
        result: tables and metrics, as of a simulation.
        quality: job id -> figures on held-out samples, of finished jobs.
        restarts_s, consolidations_s: what they really took.
        overruns: steps that took longer than the emulated speed allows.
        events: what happened to workers and jobs.
        problems: sentences about what was found broken at the begin.
        unjudged: id -> why the model of a finished job has no quality.
    """

    result: ClusterResult
    quality: dict[str, dict[str, float]]
    restarts_s: list[float]
    consolidations_s: list[float]
    overruns: int
    events: list[dict]
    problems: list[str] = field(default_factory=list)
    unjudged: dict[str, str] = field(default_factory=dict)

    @property
    def failed(self) -> dict[str, str]:
        """Id -> reason of jobs that failed, found no place, or could not be judged; not of cancelled ones."""
        return {job: why for job, why in self.result.left_out.items() if why != CANCELLED} | self.unjudged


@dataclass
class Session:
    """A run in a folder.

    Attributes:
        folder: of the run; its database, checkpoints and decisions go there.
        cluster, scheduler, crew: nodes, who decides, and the workers; their clock and pace are the session's.
        rates: of jobs on the nodes.
        rules: of rounds; ``restart_s`` and ``consolidation_s`` are what is allowed for them.
        settings: how jobs are run.
        clock: ``wall``, or ``nominal``: by the table.
        seed: of the scheduler's draws.
        linger_s: seconds for which a run without jobs waits for more.
        watch: called whenever something happened.
        tell: told in a sentence which job keeps the run waiting, before it begins and after it ended.
    """

    folder: Path
    cluster: Cluster
    scheduler: Scheduler
    crew: Crew
    rates: JobRates
    rules: SimulationRules
    settings: RunSettings = field(default_factory=RunSettings)
    clock: Clock = "wall"
    seed: int = 0
    linger_s: float = 0.0
    watch: Callable[[RealRun], None] | None = None
    tell: Callable[[str], None] | None = None

    def run(self, pairs: Pairs) -> RunOutcome:
        """Run these jobs.

        Raises:
            HadopplerError: something cannot be used, written or read; what was saved is kept.
        """
        store = RunStore(self.folder, create=True)
        try:
            initial = [[asdict(job), asdict(spec)] for job, spec in pairs]
            store.write_facts(clock=self.clock, initial=initial, ended=False)
            return self._drive(store, pairs, resumed=False)
        finally:
            store.close()

    def resume(self) -> RunOutcome:
        """Go on with the run of the folder; what has ended is told again.

        Raises:
            StoreError: there is none, or it was run by another clock.
        """
        store = RunStore(self.folder)
        try:
            if store.fact("clock") != self.clock:
                raise StoreError(
                    f"{store.path}: the run was begun with clock={store.fact('clock')}; go on with the same."
                )
            pairs = [(Job(**job), JobSpec(**spec)) for job, spec in store.fact("initial", [])]
            return self._drive(store, pairs, resumed=True)
        finally:
            store.close()

    def _drive(self, store: RunStore, pairs: Pairs, resumed: bool) -> RunOutcome:
        waiting = None if self.tell is None else SlowAnswers(self.tell)
        self.rates.prepare((spec for _, spec in pairs), waiting)
        self.crew.pace = self.rates.pace
        self.crew.prepare(spec for _, spec in pairs)
        self.crew.wait_for_all()
        tracker = JobTracker(Checkpoints(self.folder / "checkpoints"), store)
        if resumed and self.clock == "nominal":
            (self.folder / DECISIONS).unlink(missing_ok=True)
        decisions = DecisionLog(self.folder)
        parts = RunParts(self.crew, tracker, store, decisions, self.settings, self.watch)
        make = self._live if self.clock == "wall" else self._nominal
        run, problems = make(parts, pairs, resumed)
        for sentence in problems:
            run.note("broken checkpoint", None, sentence)
        self._compile(run.workload if len(run.workload) else self._workload(job for job, _ in pairs))
        if self.clock == "wall":
            self.crew.clock = WallClock(run.time)  # only now: nothing but the run shall take of its time
        try:
            seconds = drive(run, self.scheduler, None)
        except BaseException:
            if isinstance(run, LiveRun):
                with suppress(HadopplerError):  # the disk may be full; the first error is the one to tell
                    run.halt()
            raise
        finally:
            run.close()
        quality, unjudged = evaluate_jobs(store, tracker.checkpoints, waiting)
        problems = [*self.rates.problems, *problems]
        seconds += store.fact("decision_s", 0.0)
        store.write_facts(ended=True, decision_s=seconds)
        result = run.result(self.scheduler.name, seconds)
        took = run.overheads
        return RunOutcome(
            result, quality, took.restarts_s, took.consolidations_s, run.overruns, store.events(), problems, unjudged
        )

    def _nominal(self, parts: RunParts, pairs: Pairs, resumed: bool) -> tuple[RealRun, list[str]]:
        """The whole workload from the beginning; saved steps are not made again."""
        if not resumed:
            parts.store.add_jobs(0, pairs)
        workload = self._workload(job for job, _ in pairs)
        parts.tracker.add([spec for _, spec in pairs])
        problems = parts.tracker.recover() if resumed else []
        self._begin(workload)
        run = NominalRun(workload, self.cluster, self.rules, parts, mixes=self.scheduler.mixes)
        return run, problems

    def _live(self, parts: RunParts, pairs: Pairs, resumed: bool) -> tuple[RealRun, list[str]]:
        """Who has arrived so far; the others come at their time."""
        books, known = parts.store.fact("books") if resumed else None, parts.store.jobs()
        here = [(stored.job, stored.spec) for stored in known]
        self.rates.prepare(spec for _, spec in here)
        workload = self._workload(job for job, _ in here)
        parts.tracker.add([spec for _, spec in here])
        problems = parts.tracker.recover()
        self._begin(self._workload(job for job, _ in pairs))
        names = {job.id for job, _ in here} | set(parts.store.fact("cancelled", []))
        later = [pair for pair in pairs if pair[0].id not in names]
        linger_s = 0.0 if parts.store.fact("ended") else self.linger_s
        source = JobSource(parts.store, self.rates, later, linger_s)
        estimator = self.rates.estimator(workload, self.rules.mixed_rate)
        run = LiveRun(
            workload,
            self.cluster,
            self.rules,
            parts,
            mixes=self.scheduler.mixes,
            estimator=estimator,
            outside=source,
        )
        if books is not None:
            seen = list(read_decisions(self.folder, self.cluster))
            self._remember(seen, estimator)
            run.restore(books, [stored.status for stored in known], seen)
        return run, problems

    def _remember(self, seen: Sequence[Decision], estimator: RateEstimator | None) -> None:
        """Let scheduler and estimator go through all that they saw before."""
        replay(self.scheduler, seen)
        for decision in seen if estimator is not None else ():
            if decision.gangs is not None and decision.measured is not None and estimator is not None:
                estimator.observe(decision.gangs, decision.measured)

    def _compile(self, workload: Workload) -> None:
        """Let a copy of the scheduler decide once in a simulation, so that no decision waits for a compiler."""
        jobs = (replace(workload.jobs[0], arrival=0.0, steps=1.0),)
        with suppress(Exception):  # the true run tells what is wrong
            simulate(replace(workload, jobs=jobs), self.cluster, deepcopy(self.scheduler), log=False, max_rounds=3)

    def _workload(self, jobs: Iterable[Job]) -> Workload:
        return Workload(tuple(jobs), self.rates.table(), name=self.folder.name)

    def _begin(self, workload: Workload) -> None:
        begin(self.scheduler, workload, self.cluster, self.rules.round_s, np.random.default_rng(self.seed))


def evaluate_jobs(
    store: RunStore, checkpoints: Checkpoints, waiting: Waiting | None = None
) -> tuple[dict[str, dict[str, float]], dict[str, str]]:
    """Quality of all finished jobs on held-out samples, by id, and why others have none; asked once of each job."""
    jobs = store.jobs()
    asked = [row for row, stored in enumerate(jobs) if stored.status == FINISHED and stored.quality is None]
    files = [str(checkpoints.folder / store.checkpoints(row)[0].file) for row in asked]
    questions = [("quality", jobs[row].spec, file) for row, file in zip(asked, files, strict=True)]
    answers = ask_apart(questions, waiting=waiting)
    for row, answer in zip(asked, answers, strict=True):
        if isinstance(answer, dict):
            store.set_quality(row, answer)
    found = {stored.job.id: dict(stored.quality) for stored in store.jobs() if stored.quality is not None}
    unjudged = {jobs[row].job.id: why for row, why in zip(asked, answers, strict=True) if isinstance(why, str)}
    for name, figures in found.items():
        broken = [key for key, value in figures.items() if not np.isfinite(value)]
        if broken:
            unjudged[name] = f"job {name!r}: {broken[0]} of its quality is {figures[broken[0]]}; expected a number."
    return found, unjudged
