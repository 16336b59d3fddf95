"""The Job Tracker: which steps of a job are done and saved, and one set of weights from those of its copies.

That a tracker follows all copies, adds up their steps and averages their weights at a round's end is stated by the
paper (arXiv 2503.10918); what is counted and saved when is our choice:

- Batches are numbered. Each start of a gang is given the next ones, each copy of a fork its own, so that no batch is
  trained twice, and what a copy did not do of its share is left out.
- A job's steps count when they are in a state that is saved: at a checkpoint, at the end of a gang, after averaging.
  Whatever happens, a job falls back to the last one that can be read.
- A copy that dies, or whose weights cannot be read or are not finite, counts nothing and is left out of the average. If
  all are, or if the others' weights do not go together, the job keeps the state with which they began.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ...envs.cluster.forks import ForkLedger
from ...envs.errors import CheckpointError
from .averaging import average, is_finite
from .checkpoints import Checkpoints
from .learner import State, pack, unpack
from .store import RunStore
from .training_job import JobSpec


@dataclass(eq=False)
class TrackedJob:
    """One job's account.

    Attributes:
        spec: the job.
        done: steps in the last state that was saved.
        issued: batches given out until that state.
        state: it; None before the first.
        at_risk: steps that were done since, as far as was told.
        ledger: of the copies of this round; None while the job is not forked.
        copies: copy -> state that it ended with.
        granted: batches that the copies of this round were given together.
        failures: times that a gang of the job was lost or failed, or its copies could not be averaged, since its last
            new state.
    """

    spec: JobSpec
    done: int = 0
    issued: int = 0
    state: bytes | None = None
    at_risk: int = 0
    ledger: ForkLedger | None = None
    copies: dict[int, State] = field(default_factory=dict)
    granted: int = 0
    failures: int = 0

    @property
    def left(self) -> int:
        """Steps still to do, if what was done since the last state is not lost."""
        return max(0, self.spec.steps - self.done - self.at_risk)

    @property
    def finished(self) -> bool:
        """Whether all steps are done and saved."""
        return self.done >= self.spec.steps


class JobTracker:
    """All jobs of a run.

    Args:
        checkpoints, store: where states and their list are kept.
        specs: jobs by row.
    """

    def __init__(self, checkpoints: Checkpoints, store: RunStore, specs: Sequence[JobSpec] = ()) -> None:
        self.checkpoints, self.store = checkpoints, store
        self.jobs = [TrackedJob(spec) for spec in specs]

    def add(self, specs: Sequence[JobSpec]) -> None:
        """More jobs have come."""
        self.jobs += [TrackedJob(spec) for spec in specs]

    def recover(self) -> list[str]:
        """Take up each job at its last state that can be read; sentences about those that cannot."""
        found = []
        for row, job in enumerate(self.jobs):
            for saved in self.store.checkpoints(row):
                try:
                    job.state = self.checkpoints.read(saved)
                except CheckpointError as error:
                    found.append(f"job {job.spec.id!r}: {error} The one before it is taken.")
                    self.store.forget_checkpoint(saved)
                    continue
                job.done, job.issued = saved.done, saved.issued
                break
        return found

    def note(self, row: int, steps: int) -> None:
        """A gang of the job has done so many steps since its last state."""
        self.jobs[row].at_risk = max(0, steps)

    def save(self, row: int, done: int, issued: int, state: bytes) -> None:
        """A new state of a job counts.

        Raises:
            CheckpointError, StoreError: it cannot be written; nothing has changed.
        """
        job = self.jobs[row]
        if done > job.spec.steps or done < job.done:
            raise CheckpointError(
                f"job {job.spec.id!r}: a state after {done} steps was reported; expected {job.done} to "
                f"{job.spec.steps}."
            )
        if job.state is not None and (done, issued) == (job.done, job.issued):
            return
        saved = self.checkpoints.write(row, job.spec.id, done, issued, state)
        old = self.store.add_checkpoint(saved, finished=done >= job.spec.steps)
        for other in old:
            self.checkpoints.remove(other)
        if done > job.done:
            job.failures = 0
        job.done, job.issued, job.state, job.at_risk = done, issued, state, 0

    def fall_back(self, row: int) -> int:
        """Steps since the last state are lost; how many."""
        job = self.jobs[row]
        lost, job.at_risk = job.at_risk, 0
        return lost

    def fork(self, row: int, shares: Mapping[int, int]) -> dict[int, int]:
        """Begin a round of copies: copy -> steps; copy -> number of its first batch."""
        job = self.jobs[row]
        job.ledger = ForkLedger(float(job.spec.steps), float(job.done))
        job.ledger.begin({copy: float(steps) for copy, steps in shares.items()})
        job.copies, job.granted = {}, sum(shares.values())
        first, begin = {}, job.issued
        for copy, steps in shares.items():
            first[copy] = begin
            begin += steps
        return first

    def report(self, row: int, copy: int, steps: int, state: bytes | None) -> str:
        """A copy has ended; a sentence about it if it does not count."""
        job = self.jobs[row]
        if job.ledger is None or state is None or not steps:
            return ""
        try:
            weights = unpack(state)
        except CheckpointError as error:
            return f"copy {copy} of job {job.spec.id!r} is left out: {error}"
        if not is_finite(weights):
            return f"copy {copy} of job {job.spec.id!r} has weights that are not finite, and is left out"
        if job.ledger.report(copy, float(steps), job.ledger.round):
            job.copies[copy] = weights
        return ""

    def consolidate(self, row: int) -> None:
        """End a round of copies: one state for all, weighted by the steps that each has done.

        Raises:
            AveragingError: the copies' states do not go together; their steps count nothing, the state before stays.
            CheckpointError, StoreError: the state cannot be written.
        """
        job = self.jobs[row]
        assert job.ledger is not None, "the job is forked"
        ledger, copies = job.ledger, job.copies
        weights = ledger.close()
        job.ledger, job.copies = None, {}
        if weights:
            merged = average([copies[copy] for copy in weights], list(weights.values()))
            self.save(row, round(ledger.done), job.issued + job.granted, pack(merged))
