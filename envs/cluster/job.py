"""One training job: what arrives when, how many GPUs it asks, how many steps it has to do."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from ..errors import TraceError

MOST_WORKERS = 1_000_000
"""GPUs of a job; more are taken for a mistake."""
_BATCH = re.compile(r"^(?P<model>.+?) \(batch size (?P<batch>\d+)\)$")


@dataclass(frozen=True, slots=True)
class Job:
    """A gang-scheduled training job.

    Attributes:
        id: a name for reports; no decision depends on it.
        arrival: seconds; nothing of the job runs before.
        workers: GPUs, all at once or none.
        steps: training steps, summed over the workers.
        model: with ``batch_size`` and ``workers`` the key into the throughput table.
        batch_size: samples a step; None where the table tells no batch sizes apart.
        weight: priority; 1 is normal, more is more urgent.
        slo: wanted completion time as a multiple of the job's duration alone on its fastest type; None for none.
        line: row of the trace that it comes from, counted from 1; 0 where there is none.
    """

    id: str
    arrival: float
    workers: int
    steps: float
    model: str
    batch_size: int | None = None
    weight: float = 1.0
    slo: float | None = None
    line: int = 0

    def __post_init__(self) -> None:
        for name, value, least in (("arrival", self.arrival, 0.0), ("weight", self.weight, 0.0)):
            if not (math.isfinite(value) and value >= least):
                raise TraceError(f"job {self.id!r}: {name} is {value}; expected a number from {least:g} up.")
        if not (1 <= self.workers <= MOST_WORKERS and self.workers == int(self.workers)):
            raise TraceError(
                f"job {self.id!r}: workers is {self.workers}; expected a whole number from 1 to {MOST_WORKERS:,}."
            )
        if self.batch_size is not None and self.batch_size < 1:
            raise TraceError(f"job {self.id!r}: batch_size is {self.batch_size}; expected a whole number from 1 up.")
        if self.slo is not None and not (math.isfinite(self.slo) and self.slo > 0):
            raise TraceError(f"job {self.id!r}: slo is {self.slo:g}; expected a multiple of its duration above 0.")
        if not (math.isfinite(self.steps) and self.steps > 0):
            raise TraceError(f"job {self.id!r}: steps is {self.steps}; expected a number above 0.")

    @property
    def kind(self) -> str:
        """Model and batch size as one key, as Gavel writes it: ``ResNet-18 (batch size 128)``."""
        return join_kind(self.model, self.batch_size)


def join_kind(model: str, batch_size: int | None) -> str:
    """``model`` alone, or ``model (batch size N)``."""
    return model if batch_size is None else f"{model} (batch size {batch_size})"


def split_kind(kind: str) -> tuple[str, int | None]:
    """The inverse of ``join_kind``."""
    match = _BATCH.match(kind.strip())
    return (match["model"], int(match["batch"])) if match else (kind.strip(), None)
