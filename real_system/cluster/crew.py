"""Gangs on workers: which worker serves which gang, and what became of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np

from ...envs.cluster import Cluster
from ...envs.cluster.scheduler import Integers
from .backend import Backend, WorkerError
from .meeting import GATHERING_S
from .messages import Answer, Ended, Failed, Lost, Prepare, Progress, Ready, Saved, Started, Stop, Train
from .shares import sample_shares
from .training_job import TASKS, JobSpec

Outcome = Literal["ended", "lost", "failed"]
Entry = tuple[int, int, int]
"""(node, GPU type, GPUs) of a gang."""
QUIET_S = 30.0
"""A worker that has said nothing for so long while it trains has stalled (our choice)."""
PATIENCE_S = 2.0
"""How long a gang that was told to stop may take beyond its step, before its workers are ended."""


class Pace(Protocol):
    """How long the steps of a job last on nodes, where that is emulated."""

    def seconds(self, spec: JobSpec, gpu_type: int, part: float) -> float:
        """Seconds of a step on a worker that takes ``part`` of one batch at least; 0: as fast as it can."""

    def speeds(self, spec: JobSpec) -> Sequence[float]:
        """[R] how fast a worker is on each GPU type, in any unit; a gang's samples are divided so."""


@dataclass(frozen=True)
class Order:
    """A gang that is to be started; ``Train`` tells the rest."""

    spec: JobSpec
    entries: tuple[Entry, ...]
    state: bytes | None
    first: int
    counted: int
    quota: int
    seconds: float | None = None
    save_every: int = 100
    stretch: float = 1.0


@dataclass(eq=False)
class Gang:
    """A gang that runs, or has just ended.

    Attributes:
        number: of its start.
        slots: its workers, by rank.
        ordered: when its workers were told to begin.
        steps: since its start, as far as was told.
        started: when its first step began; NaN before.
        outcome: ``ended``, ``failed`` (the job's own code) or ``lost`` (a worker is gone); None while it runs.
        reason: of the outcome, for people.
        state: the last that it sent.
        worked_s: seconds from its first step's begin to the end of ``steps``.
        overruns: steps that took longer than the pace, of all ranks.
    """

    number: int
    order: Order
    slots: tuple[int, ...]
    ordered: float
    steps: int = 0
    started: float = float("nan")
    outcome: Outcome | None = None
    reason: str = ""
    state: bytes | None = None
    worked_s: float = 0.0
    overruns: int = 0
    heard: float = 0.0
    stopping: float = float("inf")
    open: set[int] = field(default_factory=set)
    worst: int = 0


OUTCOMES: tuple[Outcome, ...] = ("ended", "lost", "failed")
"""Of a rank, the worst last; a gang's is that of its worst rank."""


@dataclass(frozen=True)
class News:
    """Something happened: ``started``, ``saved`` or ``over`` to a gang, ``gone`` or ``back`` to a worker."""

    kind: Literal["started", "saved", "over", "gone", "back"]
    gang: Gang | None = None
    slot: int = -1
    steps: int = 0
    state: bytes | None = None
    reason: str = ""


class Crew:
    """All workers of a cluster, and the gangs on them.

    Args:
        backend: where workers live; started and closed by whoever made it.
        cluster: nodes and types that its slots belong to.
        pace: emulated speed.
        clock: seconds since any moment.
        quiet_s: silence after which a training worker counts as stalled. Before its gang's first step a worker may
            have to read its data, and says nothing meanwhile: until then ``GATHERING_S`` counts, if that is longer;
            but not where ``quiet_s`` is below ``QUIET_S``, which asks for haste.
    """

    def __init__(
        self,
        backend: Backend,
        cluster: Cluster,
        pace: Pace,
        clock: Callable[[], float] = time.monotonic,
        quiet_s: float = QUIET_S,
    ) -> None:
        self.backend, self.cluster, self.pace, self.clock, self.quiet_s = backend, cluster, pace, clock, quiet_s
        self.gangs: dict[int, Gang] = {}
        self._idle: set[int] = set()
        self._gone: set[int] = set(range(len(backend.slots)))
        self._tasks: tuple[Any, ...] = ()
        self._preparing: set[int] = set()
        self._next = 0

    def prepare(self, specs: Iterable[JobSpec]) -> None:
        """Let all workers, and those that will take their places, get ready for jobs like these.

        Only for tasks of the package: a user's own may hang, and must keep nobody but its own jobs from training. The
        first start of such a job takes longer instead.
        """
        tasks = [(spec.task, tuple(sorted(spec.options.items()))) for spec in specs if spec.task in TASKS]
        self._tasks = tuple(dict.fromkeys((*self._tasks, *tasks)))
        for slot in sorted(self._idle):
            self._prepare(slot)

    def _prepare(self, slot: int) -> None:
        self._idle.discard(slot)
        self._gone.add(slot)
        self._preparing.add(slot)
        self.backend.send(slot, Prepare(self._tasks))

    def wait_for_all(self, timeout: float | None = None, told: Callable[[int, int], None] | None = None) -> None:
        """Wait until every worker is ready.

        Args:
            timeout: seconds; by default a minute, and ten for each worker.
            told: called with how many are ready, and how many there are.

        Raises:
            WorkerError: one did not become ready.
        """
        count = len(self.backend.slots)
        timeout = 60.0 + 10.0 * count if timeout is None else timeout
        until = self.clock() + timeout
        while self._gone:
            self.news(until)
            if told is not None:
                told(count - len(self._gone), count)
            if self.clock() >= until:
                raise WorkerError(
                    f"{len(self._gone)} of {len(self.backend.slots)} workers did not become ready within "
                    f"{timeout:g} s; see what they wrote above."
                )

    @property
    def capacity(self) -> Integers:
        """[H, R] workers that are there, busy ones too."""
        found = np.zeros_like(self.cluster.capacity)
        for number, slot in enumerate(self.backend.slots):
            found[slot.node, slot.gpu_type] += number not in self._gone
        return found

    def start(self, order: Order) -> Gang:
        """Start a gang on idle workers.

        Raises:
            WorkerError: there are not enough on one of its nodes.
        """
        slots = self._take_slots(order)
        types = [self.backend.slots[slot].gpu_type for slot in slots]
        speeds = self.pace.speeds(order.spec)
        batch = order.spec.batch_size
        shares = sample_shares(batch, len(slots), [speeds[kind] for kind in types])
        gang = Gang(self._next, order, slots, self.clock(), heard=self.clock(), open=set(range(len(slots))))
        self._next += 1
        self.gangs[gang.number] = gang
        for rank, slot in enumerate(slots):
            pace = self.pace.seconds(order.spec, types[rank], shares[rank] / batch)
            self.backend.send(slot, self._command(gang, rank, shares, pace))
        return gang

    def _command(self, gang: Gang, rank: int, shares: tuple[int, ...], pace: float) -> Train:
        order = gang.order
        return Train(
            gang=gang.number,
            spec=order.spec,
            state=order.state,
            first=order.first,
            counted=order.counted,
            quota=order.quota,
            seconds=order.seconds,
            shares=shares,
            rank=rank,
            meeting=self.backend.meeting if len(shares) > 1 else None,
            pace_s=pace,
            save_every=order.save_every,
            stretch=order.stretch,
            device=self.backend.slots[gang.slots[rank]].device,
        )

    def _take_slots(self, order: Order) -> tuple[int, ...]:
        chosen: list[int] = []
        for node, gpu_type, count in order.entries:
            free = [s for s in sorted(self._idle) if self._place(s) == (node, gpu_type) and s not in chosen]
            if len(free) < count:
                name = self.cluster.nodes[node].name
                raise WorkerError(
                    f"job {order.spec.id!r} was given {count} workers on node {name}, of which {len(free)} are idle."
                )
            chosen += free[:count]
        self._idle -= set(chosen)
        return tuple(chosen)

    def _place(self, slot: int) -> tuple[int, int]:
        return self.backend.slots[slot].node, self.backend.slots[slot].gpu_type

    def stop(self, gang: Gang) -> None:
        """Let a gang end after its step; news of it follows."""
        if gang.outcome is None and gang.stopping == float("inf"):
            gang.stopping = self.clock()
            for rank in gang.open:
                self.backend.send(gang.slots[rank], Stop(gang.number))

    def news(self, until: float) -> list[News]:
        """What happened; waits until the clock shows ``until`` for the first, and looks for stalled workers.

        Raises:
            WorkerError: a worker that is gone cannot be replaced.
        """
        found: list[News] = []
        answers = self.backend.receive(max(0.0, min(until - self.clock(), self._next_look())))
        for slot, answer in answers:
            found += self._hear(slot, answer)
        self._end_stalled()
        return found

    def _next_look(self) -> float:
        """Seconds until the next worker may have stalled."""
        times = [self._patience(gang) for gang in self.gangs.values() if gang.outcome is None]
        return max(0.05, min(times, default=float("inf")) - self.clock())

    def _patience(self, gang: Gang) -> float:
        """When the clock shows this, a gang that was not heard of any more has stalled."""
        return min(gang.heard + self._silence(gang), gang.stopping + PATIENCE_S + self._step_seconds(gang))

    def _silence(self, gang: Gang) -> float:
        """Seconds that a gang may say nothing."""
        if np.isnan(gang.started) and self.quiet_s >= QUIET_S:
            return max(self.quiet_s, GATHERING_S)
        return self.quiet_s

    def _step_seconds(self, gang: Gang) -> float:
        kinds = {self.backend.slots[slot].gpu_type for slot in gang.slots}
        return 2 * max(self.pace.seconds(gang.order.spec, kind, 1.0) for kind in kinds)

    def _end_stalled(self) -> None:
        now = self.clock()
        for gang in list(self.gangs.values()):
            if gang.outcome is None and now >= self._patience(gang):
                gang.heard, gang.stopping = now, float("inf")
                silence = self._silence(gang)
                gang.reason = gang.reason or f"it said nothing for {silence:g} s, or did not stop, and was ended"
                for rank in gang.open:
                    self.backend.end(gang.slots[rank])

    def _hear(self, slot: int, answer: Answer) -> list[News]:
        if isinstance(answer, Ready):
            if self._tasks and slot not in self._preparing:
                self._prepare(slot)
                return []
            self._preparing.discard(slot)
            self._gone.discard(slot)
            self._idle.add(slot)
            return [News("back", slot=slot)]
        if isinstance(answer, Lost):
            return self._lose(slot, answer.reason)
        gang = self.gangs.get(answer.gang)
        if gang is None:
            return []
        gang.heard = self.clock()
        if isinstance(answer, Started):
            if np.isnan(gang.started):
                gang.started = self.clock()
                return [News("started", gang)]
        elif isinstance(answer, Progress):
            gang.steps, gang.worked_s = answer.steps, answer.worked_s
        elif isinstance(answer, Saved):
            gang.steps = max(gang.steps, answer.steps)
            return [News("saved", gang, steps=answer.steps, state=answer.state)]
        elif isinstance(answer, Ended):
            return self._end_rank(gang, answer)
        elif isinstance(answer, Failed):
            return self._fail_rank(gang, answer)
        return []

    def _end_rank(self, gang: Gang, answer: Ended) -> list[News]:
        gang.overruns += answer.overruns
        if answer.rank == 0:
            gang.steps, gang.state, gang.worked_s = answer.steps, answer.state, answer.worked_s
        return self._close_rank(gang, answer.rank, "ended", answer.reason)

    def _fail_rank(self, gang: Gang, answer: Failed) -> list[News]:
        if answer.fault == "job":
            gang.reason = answer.sentence
            self.stop(gang)
        else:
            gang.reason = gang.reason or answer.sentence
        return self._close_rank(gang, answer.rank, "failed" if answer.fault == "job" else "lost", gang.reason)

    def _lose(self, slot: int, reason: str) -> list[News]:
        """A worker is gone: so is its gang, as soon as its other ranks have noticed."""
        self._idle.discard(slot)
        self._preparing.discard(slot)
        self._gone.add(slot)
        self.backend.restart(slot)
        found = [News("gone", slot=slot, reason=reason)]
        for gang in list(self.gangs.values()):
            for rank in sorted(gang.open):
                if gang.slots[rank] == slot:
                    node = self.cluster.nodes[self.backend.slots[slot].node].name
                    gang.reason = (
                        f"the worker on node {node} is gone ({reason}{'; ' if gang.reason else ''}{gang.reason})"
                    )
                    self.stop(gang)
                    found += self._close_rank(gang, rank, "lost", gang.reason)
        return found

    def _close_rank(self, gang: Gang, rank: int, outcome: Outcome, reason: str) -> list[News]:
        """One rank is through; the gang is when all are."""
        gang.open.discard(rank)
        if gang.slots[rank] not in self._gone:
            self._idle.add(gang.slots[rank])
        gang.worst = max(gang.worst, OUTCOMES.index(outcome))
        gang.reason = gang.reason or reason
        if gang.open:
            return []
        gang.outcome = OUTCOMES[gang.worst]
        del self.gangs[gang.number]
        return [News("over", gang)]
