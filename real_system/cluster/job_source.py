"""Jobs that come while a run goes on: those of its workload at their time, and what is asked through its database."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ...envs.arguments import check_whole, is_number
from ...envs.cluster import Job
from ...envs.errors import HadopplerError
from .apart import TOLD_S, Inquiry
from .job_rates import JobRates
from .live_run import LiveRun
from .real_run import CANCELLED
from .store import Request, RunStore
from .training_job import JobSpec, make_training_job
from .wall_clock import system_seconds

KEYS = ("id", "task", "steps", "workers", "batch_size", "seed", "options", "weight")
"""What a submitted job may tell."""


class RequestError(HadopplerError):
    """A run cannot do what it is asked to."""


@dataclass
class AskedJob:
    """A submitted job whose code is being asked.

    Attributes:
        spec, weight: of the job.
        arrival: when it was submitted, on the run's clock.
        since: when its code was asked.
        inquiry: that asks it.
        told: whether it was told that this takes long.
    """

    spec: JobSpec
    weight: float
    arrival: float
    since: float
    inquiry: Inquiry
    told: bool = False


@dataclass
class JobSource:
    """``Outside`` of a live run.

    Attributes:
        store: of the run.
        rates: of its nodes; it gets to know new kinds of jobs.
        later: jobs of the workload that have not arrived, by arrival.
        linger_s: seconds for which a run without jobs waits for requests.
    """

    store: RunStore
    rates: JobRates
    later: list[tuple[Job, JobSpec]] = field(default_factory=list)
    linger_s: float = 0.0
    _idle_since: float | None = None
    _begun: float | None = None
    _asked: dict[int, AskedJob] = field(default_factory=dict)

    def look(self, run: LiveRun) -> bool:
        """As of ``Outside``. The code of a submitted job is asked beside the run, which takes it in when it knows."""
        now, changed = run.crew.clock(), False
        self._begun = now if self._begun is None else self._begun
        due = [pair for pair in self.later if pair[0].arrival <= now]
        if due:
            self.later = self.later[len(due) :]
            self.admit(run, due)
            changed = True
        for request in self.store.requests():
            try:
                if request.kind == "submit":
                    if not self._submitted(run, request, now):
                        continue
                else:
                    self._cancel(run, str(request.content["id"]))
                    self.store.answer(request.number, "taken")
                changed = True
            except HadopplerError as error:
                self.store.answer(request.number, f"refused: {error}")
                run.note("refused", None, f"{request.kind}: {error}")
        return changed

    def _submitted(self, run: LiveRun, request: Request, now: float) -> bool:
        """Whether a job was taken in; if not, its code is being asked what it needs."""
        if request.number not in self._asked:
            spec, weight = self._job(run, request)
            inquiry = Inquiry(self.rates.questions([spec]))
            self._asked[request.number] = AskedJob(spec, weight, self._moment(request, now), now, inquiry)
        asked = self._asked[request.number]
        spec, inquiry = asked.spec, asked.inquiry
        if not inquiry.done:
            if not asked.told and now >= asked.since + TOLD_S:
                asked.told = True
                told = f"is asked what it needs, and has not answered for {TOLD_S:g} s; it is taken in when it has"
                run.note("slow", None, f"submitted job {spec.id!r} (task {spec.task}): its code {told}")
            return False
        del self._asked[request.number]
        self.rates.learn([spec], inquiry.questions, inquiry.answers)
        last = run.workload.jobs[-1].arrival if len(run.workload) else 0.0  # rows ascend by arrival
        arrival = max(asked.arrival, last)
        job = Job(spec.id, arrival, spec.workers, float(spec.steps), spec.task, spec.batch_size, asked.weight)
        self.admit(run, [(job, spec)], request.number)
        return True

    def _moment(self, request: Request, now: float) -> float:
        """When a request was made, on the run's clock; not before the run began, or went on."""
        assert self._begun is not None, "somebody looks"
        return min(now, max(self._begun, now - (system_seconds() - request.asked)))

    def close(self) -> None:
        """As of ``Outside``."""
        for asked in self._asked.values():
            asked.inquiry.stop()

    def expecting(self, now: float) -> bool:
        """As of ``Outside``."""
        if self.later or self._asked:
            self._idle_since = None
            return True
        self._idle_since = now if self._idle_since is None else self._idle_since
        return now < self._idle_since + self.linger_s

    def admit(self, run: LiveRun, pairs: Sequence[tuple[Job, JobSpec]], request: int | None = None) -> None:
        """Take jobs into a run, whose rates know their kinds."""
        self._idle_since = None
        first = len(run.workload)
        jobs = (*run.workload.jobs, *(job for job, _ in pairs))
        workload = replace(run.workload, jobs=jobs, throughputs=self.rates.table(), rows_read=-1)
        estimator = self.rates.estimator(workload, run.rules.mixed_rate)
        if estimator is not None and run.estimator is not None and first:
            estimator.take_over(run.estimator)
        self.store.add_jobs(first, pairs, request)
        run.tracker.add([spec for _, spec in pairs])
        run.crew.pace = self.rates.pace
        run.admit(workload, estimator)
        for row in range(first, len(workload)):
            if row in run.state.reasons:
                self.store.set_status(row, run.state.reasons[row])
                run.note("left out", row, run.state.reasons[row])

    def _job(self, run: LiveRun, request: Request) -> tuple[JobSpec, float]:
        """A submitted job, checked, and its weight."""
        content, number = request.content, len(run.workload) + len(self._asked)
        spec = read_submitted(content, submitted_id(request.number, content), number)
        known = {job.id for job in run.workload.jobs} | {job.id for job, _ in self.later}
        known |= {asked.spec.id for asked in self._asked.values()}
        if spec.id in known:
            raise RequestError(f"there is a job {spec.id!r} already; give another id.")
        most = run.cluster.gpus if run.state.mixes else int(run.cluster.gpus_of_type.max())
        if spec.workers > most:
            raise RequestError(f"job {spec.id!r} asks {spec.workers} workers; the run can give it {most} at most.")
        return spec, float(content.get("weight", 1.0))

    def _cancel(self, run: LiveRun, name: str) -> None:
        for number, (job, _) in enumerate(self.later):
            if job.id == name:
                self.store.write_facts(cancelled=[*self.store.fact("cancelled", []), name])
                del self.later[number]
                return
        for number, asked in self._asked.items():
            if asked.spec.id == name:
                asked.inquiry.stop()
                self.store.answer(number, "refused: it was cancelled before it was taken in")
                del self._asked[number]
                return
        rows = [row for row, job in enumerate(run.workload.jobs) if job.id == name]
        if not rows or not run.state.jobs.active[rows[0]]:
            what = "is done or was left out" if rows else "is unknown"
            raise RequestError(f"job {name!r} {what}; jobs that go on are {_names(run)}.")
        run.give_up_job(rows[0], CANCELLED)


def _names(run: LiveRun) -> str:
    return ", ".join(repr(run.workload.jobs[row].id) for row in run.state.active.tolist()) or "none"


def submitted_id(number: int, content: Mapping[str, Any]) -> str:
    """Id of the job of a request: its own, or one by the request's number."""
    return str(content.get("id") or f"job-{number}")


def read_submitted(content: Mapping[str, Any], name: str, seed: int) -> JobSpec:
    """A job as somebody submits it.

    Args:
        content: values of ``KEYS``.
        name: its id.
        seed: where it tells none.

    Raises:
        RequestError: a value is missing, unknown or not usable; it is named.
        HadopplerError: the task cannot be made.
    """
    unknown = [key for key in content if key not in KEYS]
    if unknown:
        raise RequestError(f"a job has no {unknown[0]!r}; it may tell {', '.join(KEYS)}.")
    for key in ("task", "steps"):
        if content.get(key) is None:
            raise RequestError(f"the job has no {key}; give task=NAME and steps=NUMBER.")
    whole = {key: content[key] for key in ("steps", "workers", "batch_size") if content.get(key) is not None}
    for key, value in whole.items():
        check_whole(f"{key} of the job", value, RequestError)
    given, weight = content.get("seed"), content.get("weight", 1.0)
    if given is not None:
        check_whole("seed of the job", given, RequestError, least=0)
    if not (is_number(weight) and 0 <= weight < math.inf):
        raise RequestError(f"weight of the job is {weight!r}; expected a number from 0 up.")
    options = dict(content.get("options") or {})
    task = make_training_job(str(content["task"]), options)
    batch = whole.get("batch_size", task.batch_size)
    chosen = seed if given is None else given
    return JobSpec(name, str(content["task"]), whole["steps"], whole.get("workers", 1), batch, chosen, options)


def submit(folder: Path, job: Mapping[str, Any]) -> int:
    """Ask a run to take in a job (``KEYS``); number of the request, whose answer ``RunStore.answer_of`` tells.

    Raises:
        RequestError, StoreError: the folder is of no run that takes requests.
    """
    return _ask(folder, "submit", job)


def cancel(folder: Path, job: str) -> int:
    """Ask a run to take out the job of this id; as ``submit``."""
    return _ask(folder, "cancel", {"id": job})


def _ask(folder: Path, kind: str, content: Mapping[str, Any]) -> int:
    store = RunStore(folder)
    try:
        if store.fact("clock") != "wall":
            raise RequestError(f"{folder}: the run goes by the table's clock and takes no requests; use clock=wall.")
        if store.fact("ended", False):
            raise RequestError(f"{folder}: the run has ended; begin another one.")
        return store.ask(kind, content)
    finally:
        store.close()
