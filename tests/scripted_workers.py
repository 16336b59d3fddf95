"""Workers in virtual time: they answer as real ones do, without processes, and can be killed, stalled or slowed."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from hadoppler.envs.cluster import Cluster
from hadoppler.real_system.cluster.backend import Slot
from hadoppler.real_system.cluster.learner import pack, unpack
from hadoppler.real_system.cluster.messages import (
    Answer,
    Command,
    Ended,
    EndReason,
    Failed,
    Lost,
    Prepare,
    Progress,
    Ready,
    Saved,
    Started,
    Stop,
    Train,
)

FASTEST_S = 0.01
"""A step without a pace."""


def state_after(train: Train, steps: int) -> bytes:
    """A state that tells how many steps are in it, and which batches."""
    before = unpack(train.state) if train.state is not None else None
    weight = before["model"]["steps"] if before is not None else torch.zeros(1, dtype=torch.float64)
    count = (before["steps"] if before is not None else 0) + steps
    return pack({"model": {"steps": weight + steps}, "optimizer": {"state": {}, "param_groups": []}, "steps": count})


@dataclass(eq=False)
class Working:
    """A gang at work: its ranks, and when its first step began."""

    train: Train
    slots: dict[int, int] = field(default_factory=dict)
    begun: float = math.inf
    step_s: float = 0.0
    received: float = 0.0
    alive: bool = True

    @property
    def width(self) -> int:
        return len(self.train.shares)

    def steps(self, now: float) -> int:
        whole = math.floor((now - self.begun) / self.step_s + 1e-9) if now >= self.begun else 0
        return min(self.train.quota, whole * self.width)

    def moment(self, steps: int) -> float:
        return self.begun + math.ceil(steps / self.width) * self.step_s


class ScriptedWorkers:
    """A backend over a heap of events; ``now`` is the clock of the run."""

    def __init__(self, cluster: Cluster, *, startup_s: float = 0.02, ready_s: float = 2.0) -> None:
        self.slots = tuple(
            Slot(int(h), int(r))
            for h in range(len(cluster.nodes))
            for r in range(len(cluster.types))
            for _ in range(int(cluster.capacity[h, r]))
        )
        self.meeting = ("nowhere", 0)
        self.startup_s, self.ready_s, self.now = startup_s, ready_s, 0.0
        self.slow: dict[int, float] = {}
        self.deaf: set[int] = set()
        self.closed = False
        self.started: list[Train] = []
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()
        self._out: list[tuple[int, Answer]] = []
        self._gangs: dict[int, Working] = {}
        self._gone: set[int] = set()

    def at(self, when: float, act: Callable[[], None]) -> None:
        """Do something at a moment."""
        heapq.heappush(self._events, (when, next(self._count), act))

    def kill(self, slot: int, when: float, reason: str = "SIGKILL") -> None:
        """A worker dies."""
        self.at(when, lambda: self._die(slot, reason))

    def start(self) -> None:
        for slot in range(len(self.slots)):
            self._out.append((slot, Ready(slot)))

    def send(self, slot: int, command: Command) -> None:
        if slot in self._gone:
            return
        if isinstance(command, Prepare):
            self._out.append((slot, Ready(slot)))
        elif isinstance(command, Train):
            self.started.append(command)
            gang = self._gangs.setdefault(command.gang, Working(command, received=self.now))
            gang.slots[command.rank] = slot
            pace = (command.pace_s or FASTEST_S) * self.slow.get(slot, 1.0)
            gang.step_s = max(gang.step_s, pace)
            if command.rank == 0:
                gang.train = command
            if len(gang.slots) == gang.width:
                self._begin(gang)
        elif isinstance(command, Stop) and slot not in self.deaf:
            gang = self._gangs.get(command.gang)
            if gang is not None and gang.alive:
                steps = gang.steps(self.now)
                due = self.now if self.now < gang.begun else gang.moment(steps + gang.width)
                self.at(min(due, gang.moment(gang.train.quota)), lambda: self._end(gang, "stopped"))

    def receive(self, timeout: float) -> list[tuple[int, Answer]]:
        until = self.now + timeout
        while not self._out and self._events and self._events[0][0] <= until:
            self.now, _, act = heapq.heappop(self._events)
            act()
        if not self._out:
            self.now = until
        out, self._out = self._out, []
        return out

    def end(self, slot: int) -> None:
        self._die(slot, "ended")

    def restart(self, slot: int) -> None:
        def ready() -> None:
            self._gone.discard(slot)
            self.deaf.discard(slot)
            self._out.append((slot, Ready(slot)))

        self.at(self.now + self.ready_s, ready)

    def close(self) -> None:
        self.closed = True

    def _begin(self, gang: Working) -> None:
        gang.begun = self.now + self.startup_s
        end: tuple[float, EndReason] = (gang.moment(gang.train.quota), "quota")
        if gang.train.seconds is not None and gang.received + gang.train.seconds < end[0]:
            end = (max(gang.begun, gang.received + gang.train.seconds), "time")
        self.at(gang.begun, lambda: self._say_all(gang, lambda rank: Started(gang.train.gang, rank)))
        every = gang.train.save_every
        for steps in range(every, gang.train.quota, every) if every else ():
            self.at(gang.moment(steps), lambda steps=steps: self._save(gang, steps))
        tick = gang.begun + 0.1
        while tick < min(end[0], gang.begun + 600):
            self.at(tick, lambda: self._progress(gang))
            tick += 0.1
        self.at(end[0], lambda: self._end(gang, end[1]))

    def _say_all(self, gang: Working, make: Callable[[int], Answer]) -> None:
        if gang.alive:
            self._out += [(slot, make(rank)) for rank, slot in sorted(gang.slots.items()) if slot not in self.deaf]

    def _save(self, gang: Working, steps: int) -> None:
        if gang.alive and gang.slots[0] not in self.deaf:
            self._out.append((gang.slots[0], Saved(gang.train.gang, steps, state_after(gang.train, steps))))

    def _progress(self, gang: Working) -> None:
        if gang.alive and gang.slots[0] not in self.deaf:
            steps = gang.steps(self.now)
            worked = math.ceil(steps / gang.width) * gang.step_s
            self._out.append((gang.slots[0], Progress(gang.train.gang, steps, worked, 0.0)))

    def _end(self, gang: Working, reason: EndReason) -> None:
        if not gang.alive:
            return
        steps = gang.steps(self.now)
        state = state_after(gang.train, steps) if steps else gang.train.state
        worked = math.ceil(steps / gang.width) * gang.step_s
        number = gang.train.gang
        self._say_all(
            gang,
            lambda rank: Ended(number, rank, reason, steps, state if rank == 0 else None, 0.0, worked, worked / 5, 0),
        )
        gang.alive = False

    def _die(self, slot: int, reason: str) -> None:
        if slot in self._gone:
            return
        self._gone.add(slot)
        self._out.append((slot, Lost(reason)))
        for gang in self._gangs.values():
            if gang.alive and slot in gang.slots.values():
                gang.alive = False
                for rank, peer in gang.slots.items():
                    if peer != slot:
                        sentence = f"rank {rank} lost its peer"
                        self.at(
                            self.now + 0.5,
                            lambda rank=rank, peer=peer, sentence=sentence, gang=gang: self._out.append(
                                (peer, Failed(gang.train.gang, rank, "peer", sentence))
                            ),
                        )
