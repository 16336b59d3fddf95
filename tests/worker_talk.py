"""Talking to workers in tests: jobs, commands, and waiting for what they answer."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hadoppler.real_system.cluster.backend import Backend
from hadoppler.real_system.cluster.messages import Answer, Ended, Failed, Train
from hadoppler.real_system.cluster.shares import sample_shares
from hadoppler.real_system.cluster.training_job import JobSpec

Heard = list[tuple[int, Answer]]
GANGS = itertools.count()
"""Numbers of gangs; none is used twice in a session of tests."""


def spec(kind: str = "Curve", *, job: str = "job", batch_size: int = 32, seed: int = 3, **options: Any) -> JobSpec:
    """A job of ``worker_jobs``."""
    return JobSpec(job, f"worker_jobs:{kind}", 1000, batch_size=batch_size, seed=seed, options=options)


def train(what: JobSpec, quota: int, **more: Any) -> Train:
    """A gang of one, if nothing else is said."""
    settings = {"gang": next(GANGS), "state": None, "first": 0, "counted": 0, "shares": (what.batch_size,)}
    return Train(**(settings | {"spec": what, "quota": quota} | more))


def gang(backend: Backend, what: JobSpec, quota: int, speeds: Sequence[float], **more: Any) -> list[Train]:
    """Commands of a gang on the first workers, one rank each; ``pace_s`` is that of a batch at speed 1."""
    number, base = next(GANGS), more.pop("pace_s", 0.0)
    shares = sample_shares(what.batch_size, len(speeds), speeds)
    return [
        train(
            what,
            quota,
            gang=number,
            shares=shares,
            rank=rank,
            meeting=backend.meeting,
            pace_s=base / speed * share / what.batch_size,
            **more,
        )
        for rank, (speed, share) in enumerate(zip(speeds, shares, strict=True))
    ]


def hear(backend: Backend, enough: Callable[[Heard], bool], timeout: float = 15.0) -> Heard:
    """All that is said until it is enough."""
    heard: Heard = []
    until = time.monotonic() + timeout
    while not enough(heard):
        assert time.monotonic() < until, f"not enough was heard in {timeout} s: {[shown(a) for a in heard]}"
        heard += backend.receive(0.1)
    return heard


def hear_for(backend: Backend, seconds: float) -> Heard:
    """All that is said in some seconds."""
    until = time.monotonic() + seconds
    return hear(backend, lambda _: time.monotonic() >= until)


def shown(said: tuple[int, Answer]) -> str:
    """Short, without the states."""
    return f"{said[0]}: {str(said[1])[:90]}"


def of_kind(heard: Heard, *kinds: type) -> list[Any]:
    """Answers of some kinds."""
    return [answer for _, answer in heard if isinstance(answer, kinds)]


def some(kind: type, count: int = 1) -> Callable[[Heard], bool]:
    """Enough is ``count`` answers of a kind."""
    return lambda heard: len(of_kind(heard, kind)) >= count


def over(number: int, ranks: int = 1) -> Callable[[Heard], bool]:
    """Enough is that all ranks of a gang are through."""
    return lambda heard: sum(a.gang == number for a in of_kind(heard, Ended, Failed)) >= ranks


def run_gang(backend: Backend, commands: Sequence[Train], timeout: float = 15.0) -> Heard:
    """Start a gang on the first workers, and wait for its end."""
    for slot, command in enumerate(commands):
        backend.send(slot, command)
    return hear(backend, over(commands[0].gang, len(commands)), timeout)


def open_files(pid: int | str = "self") -> int:
    """File descriptors of a process."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def threads(pid: int | str = "self") -> int:
    """Threads of a process."""
    return len(list(Path(f"/proc/{pid}/task").iterdir()))


def lives(pid: int) -> bool:
    """Whether a process is there, and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def all_gone(pids: Sequence[int], timeout: float) -> bool:
    """Whether no process is left within some seconds."""
    until = time.monotonic() + timeout
    while any(lives(pid) for pid in pids) and time.monotonic() < until:
        time.sleep(0.02)
    return not any(lives(pid) for pid in pids)


def kill(pid: int, number: int) -> None:
    """Send a signal."""
    os.kill(pid, number)
