"""What coordinator and workers tell each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from .training_job import JobSpec

EndReason = Literal["quota", "stopped", "time"]


@dataclass(frozen=True)
class Train:
    """Do steps of a job, as one rank of a gang.

    A job alone, and each copy of a forked one, is a gang of one.

    Attributes:
        gang: number of this start; none is used twice in a run.
        spec: the job.
        state: packed weights, optimiser and counters to begin with (``Learner.pack``); None: the job's first.
        first: number of the gang's first batch in the job's stream of samples.
        counted: steps of the job that were done before; the learning rate's position is ``counted + k * stretch`` at
            the gang's step k.
        quota: steps that the gang is to do.
        seconds: after so many from receipt it ends, done or not; None: never.
        shares: samples of each rank in a full step of W batches; one entry where the gang is one worker.
        rank: which of them this worker is.
        meeting: host and port of the store where the ranks meet; None where the gang is one worker.
        pace_s: seconds that a full step of this rank lasts at least (emulated speed); 0: as fast as it can.
        save_every: steps between two ``Saved``; 0: never.
        stretch: global steps that pass, for the learning rate, while this gang does one (other copies work, too).
        device: of torch.
    """

    gang: int
    spec: JobSpec
    state: bytes | None
    first: int
    counted: int
    quota: int
    seconds: float | None = None
    shares: tuple[int, ...] = (1,)
    rank: int = 0
    meeting: tuple[str, int] | None = None
    pace_s: float = 0.0
    save_every: int = 100
    stretch: float = 1.0
    device: str = "cpu"


@dataclass(frozen=True)
class Stop:
    """End a gang after the step that it is at; unknown and ended gangs are ignored."""

    gang: int


@dataclass(frozen=True)
class Prepare:
    """Get ready for jobs of these tasks, (name, options) each: import them and load their data; ``Ready`` follows."""

    tasks: tuple[tuple[str, tuple[tuple[str, Any], ...]], ...]


@dataclass(frozen=True)
class Quit:
    """End the process."""


Command = Train | Stop | Prepare | Quit


@dataclass(frozen=True)
class Ready:
    """The worker can take commands."""

    pid: int


@dataclass(frozen=True)
class Started:
    """A rank begins its first step."""

    gang: int
    rank: int


@dataclass(frozen=True)
class Progress:
    """From rank 0, a few times a second: steps since the gang's start, seconds since its first one began, and loss."""

    gang: int
    steps: int
    worked_s: float
    loss: float


@dataclass(frozen=True)
class Saved:
    """From rank 0: the state after so many steps since the gang's start."""

    gang: int
    steps: int
    state: bytes


@dataclass(frozen=True)
class Ended:
    """A rank is through.

    Attributes:
        steps: of the gang since its start.
        state: after them; from rank 0 only.
        loss: mean over the last steps, NaN if there were none.
        worked_s: seconds between its first step's begin and its last one's end; a step that was cut by a wish to end
            counts with its whole pace.
        compute_s: of them, seconds of computation, without what was slept or waited for peers.
        overruns: steps whose computation took longer than their pace.
    """

    gang: int
    rank: int
    reason: EndReason
    steps: int
    state: bytes | None
    loss: float
    worked_s: float
    compute_s: float
    overruns: int


@dataclass(frozen=True)
class Failed:
    """A rank cannot go on: the job's own code failed (``job``), or another rank is gone (``peer``)."""

    gang: int
    rank: int
    fault: Literal["job", "peer"]
    sentence: str


@dataclass(frozen=True)
class Lost:
    """Told by the backend, not by the worker: the process is gone, with the reason (signal, exit code, node)."""

    reason: str


Answer = Ready | Started | Progress | Saved | Ended | Failed | Lost
