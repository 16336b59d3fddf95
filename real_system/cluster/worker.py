"""One worker: takes commands one after the other, and trains as a rank of gangs."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, Queue
from typing import TYPE_CHECKING, Any

from ...envs.errors import HadopplerError
from .meeting import Meeting, PeerError
from .messages import Answer, Command, Ended, EndReason, Failed, Prepare, Quit, Ready, Stop, Train
from .rank import Rank
from .training_job import JobSpec, make_training_job

if TYPE_CHECKING:
    from .learner import Learner

ENVIRONMENT = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS"), "1")
"""One thread a worker; to be set before torch and NumPy are imported."""

MakeLearner = Callable[[JobSpec, str], "Learner"]
"""From a job and a device."""


class Channel:
    """What a worker hears and says; whoever made the worker carries both on, in other threads.

    Not ``SimpleQueue``: with a timeout CPython 3.11's can wait for ever, as ``placement.links`` tells.
    """

    def __init__(self) -> None:
        self.outbox: Queue[Answer] = Queue()
        self._inbox: Queue[tuple[float, Command]] = Queue()

    def put(self, command: Command) -> None:
        """Let the worker hear a command; the moment is noted."""
        self._inbox.put((time.monotonic(), command))

    def receive(self, timeout: float | None = None) -> tuple[float, Command] | None:
        """The next command, with the moment at which it came; None if none comes within ``timeout`` seconds."""
        with suppress(Empty):
            return self._inbox.get(timeout=timeout)
        return None

    def send(self, answer: Answer) -> None:
        """Say something."""
        self.outbox.put(answer)


def drain(queue: Queue[Any], timeout: float) -> list[Any]:
    """All that is in a queue; waits up to ``timeout`` seconds for the first."""
    found = []
    with suppress(Empty):
        found.append(queue.get(timeout=max(0.0, timeout)))
        while True:
            found.append(queue.get_nowait())
    return found


@dataclass(eq=False)
class Task:
    """A ``Train`` that was received, and whether it is to end."""

    train: Train
    ends_at: float
    stopped: bool = False

    def wish(self) -> EndReason | None:
        """Why it should end now, if it should."""
        if self.stopped:
            return "stopped"
        return "time" if time.monotonic() >= self.ends_at else None


class Worker:
    """The loop of one worker.

    Args:
        channel: of commands and answers.
        make_learner: makes what trains a job; ``Learner`` by default.
    """

    def __init__(self, channel: Channel, make_learner: MakeLearner | None = None) -> None:
        self.channel = channel
        self._make_learner = make_learner or _make_learner
        self._tasks: deque[Task] = deque()
        self._learner: Learner | None = None
        self._made_for: tuple[JobSpec, str] | None = None
        self._first_state = b""

    def run(self) -> None:
        """Take commands until ``Quit``."""
        self.channel.send(Ready(os.getpid()))
        with suppress(SystemExit):
            while True:
                while not self._tasks:
                    self._take(self.channel.receive())
                self.channel.send(self._train(self._tasks[0]))
                self._tasks.popleft()

    def _take(self, received: tuple[float, Command] | None) -> None:
        """Note a command: gangs are started one after the other."""
        if received is None:
            return
        moment, command = received
        if isinstance(command, Train):
            limit = float("inf") if command.seconds is None else command.seconds
            self._tasks.append(Task(command, moment + limit))
        elif isinstance(command, Stop):
            for task in self._tasks:
                task.stopped |= task.train.gang == command.gang
        elif isinstance(command, Prepare):
            prepare_tasks(command)
            self.channel.send(Ready(os.getpid()))
        elif isinstance(command, Quit):
            raise SystemExit

    def listen(self, until: float) -> EndReason | None:
        """Take commands until the monotonic clock shows ``until``, or the first task is to end: the reason for that."""
        task = self._tasks[0]
        while (wish := task.wish()) is None:
            now = time.monotonic()
            received = self.channel.receive(max(0.0, min(until, task.ends_at) - now))
            if received is None and now >= until:
                return task.wish()
            self._take(received)
        return wish

    def _train(self, task: Task) -> Answer:
        """Train as long as the task allows; what it ended with."""
        train = task.train
        try:
            if len(train.shares) == 1:
                return self._train_alone(train)
            return self._train_together(train)
        except PeerError as error:
            return Failed(train.gang, train.rank, "peer", str(error))
        except Exception as error:
            self._learner = self._made_for = None
            return Failed(train.gang, train.rank, "job", _sentence(train.spec, error))

    def _train_alone(self, train: Train) -> Ended:
        wish = self.listen(time.monotonic())
        if wish is not None:
            return not_begun(train, wish)
        return Rank(train, self._loaded(train), None, self.listen, self.channel.send).run()

    def _train_together(self, train: Train) -> Ended:
        learner = self._loaded(train)
        with Meeting(train) as meeting:
            wish = meeting.gather(self.listen)
            if wish is not None:
                return not_begun(train, wish)
            return Rank(train, learner, meeting, self.listen, self.channel.send).run()

    def _loaded(self, train: Train) -> Learner:
        """What trains the job, in the state to begin with; made anew only for another job."""
        from .learner import pack, unpack

        wanted = (train.spec, train.device)
        if self._learner is None or self._made_for != wanted:
            self._learner = self._made_for = None
            self._learner = self._make_learner(*wanted)
            self._first_state = pack(self._learner.state())
            self._made_for = wanted
        self._learner.load(unpack(self._first_state if train.state is None else train.state))
        return self._learner


def _make_learner(spec: JobSpec, device: str) -> Learner:
    from .learner import Learner

    return Learner(spec, device)


def not_begun(train: Train, reason: EndReason) -> Ended:
    """The end of a gang that did no step."""
    state = train.state if train.rank == 0 else None
    return Ended(train.gang, train.rank, reason, 0, state, float("nan"), 0.0, 0.0, 0)


def _sentence(spec: JobSpec, error: Exception) -> str:
    """What went wrong in a job, for people."""
    if isinstance(error, HadopplerError):
        return str(error)
    reason = (str(error).strip().splitlines() or [""])[0]
    return f"job {spec.id!r}: its task {spec.task} failed ({type(error).__name__}: {reason})."


def prepare_tasks(command: Prepare) -> None:
    """Import tasks and load their data, which lasts; what is wrong with one is told when a job of it begins."""
    for name, options in command.tasks:
        with suppress(Exception):
            job = make_training_job(name, dict(options))
            job.model()
            job.data()


def prepare_torch() -> None:
    """Import torch, and let it do what it does only once, so that the first step of the first job is no slower.

    To be called by the thread that trains: how many threads OpenMP uses is a setting of each thread.
    """
    import torch

    torch.set_num_threads(1)
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.Adam([weight])
    weight.sum().backward()  # type: ignore[no-untyped-call]
    optimizer.step()
