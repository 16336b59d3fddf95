"""Random workloads, each from one seed: Gavel's distributions, the headline workload, physical mixes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ..arguments import as_list, check_whole, is_number, read_range
from ..errors import TraceError, UnknownNameError, unknown_name
from .job import Job, split_kind
from .throughput import ThroughputTable
from .workload import Workload

HOUR = 3600.0
FAMILIES = ("ResNet-18", "ResNet-50", "Transformer", "LM", "Recommendation", "CycleGAN")
GPU_COUNTS, GPU_SHARES = (1, 2, 4, 8), (0.70, 0.10, 0.15, 0.05)
SIZE_CLASSES = ((0.05, 1.0), (1.0, 10.0), (10.0, 50.0), (60.0, 100.0))
"""GPU-hours on the reference type, uniform in each class (our choice)."""


def make_workload(
    name: str,
    *,
    jobs: int | None = None,
    seed: int = 0,
    per_hour: float | None = None,
    throughputs: ThroughputTable | str | Path | None = None,
    **options: Any,
) -> Workload:
    """Draw a workload by name.

    Args:
        name: ``headline`` (our choice), ``gavel`` (the distributions of Gavel's sweeps),
            ``gavel_trace`` (those of its trace generator), ``physical`` (one-GPU jobs for small
            clusters, our choice); the functions of this module describe them. The command line's
            ``workload=poisson`` is ``headline`` with ``per_hour``.
        jobs: how many; by default 480, 120, 120 and 5.
        seed: of all draws.
        per_hour: mean arrivals an hour of a Poisson process that starts with a job at 0; None: all at 0.
        throughputs: a table, or its file; by default Gavel's measurements.
        options: the generator's own.

    Raises:
        UnknownNameError: there is no generator of this name, or it has no such option.
        TraceError: a number is out of range.
    """
    check_drawing(name, jobs, per_hour)
    check_whole("seed", seed, TraceError, least=0)
    make, count, valid = GENERATORS[name]
    for key in options:
        if key not in valid:
            raise UnknownNameError(f"the workload {name!r} has no option {key!r}; it has {', '.join(valid) or 'none'}.")
    count = count if jobs is None else jobs
    rng = np.random.default_rng(seed)
    table = ThroughputTable.find(throughputs)
    drawn = make(count, rng, table, **options)
    arrival = np.zeros(count)
    if per_hour is not None:
        arrival[1:] = np.cumsum(rng.exponential(HOUR / per_hour, count - 1))
    placed = [
        Job(str(row), float(arrival[row]), job.workers, job.steps, job.model, job.batch_size, job.weight, job.slo)
        for row, job in enumerate(drawn)
    ]
    return Workload(tuple(placed), table, name=f"{name}-{count}-s{seed}")


def check_drawing(name: str, jobs: int | None, per_hour: float | None) -> None:
    """Refuse a generator, or numbers for it, that ``make_workload`` would refuse.

    Raises:
        UnknownNameError: there is no generator of this name.
        TraceError: a number is out of range.
    """
    if name not in GENERATORS:
        raise unknown_name("workload", name, GENERATORS, "; jobs that arrive by a Poisson process come with per_hour")
    if jobs is not None:
        check_whole("jobs", jobs, TraceError)
    if per_hour is not None and not (is_number(per_hour) and per_hour > 0):
        raise TraceError(f"per_hour is {per_hour!r}; expected a number above 0, or none for arrivals at 0.")


def _headline(count: int, rng: np.random.Generator, table: ThroughputTable) -> list[Job]:
    """GPUs 1/2/4/8 at 70/10/15/5 %; a family uniform over six, redrawn until the table has it at that
    GPU count with a positive rate on all types, then a batch size uniform among such; a size class
    uniform over four, then GPU-hours uniform in it; steps from the rate on the table's first type.
    """
    jobs = []
    for _ in range(count):
        workers = int(rng.choice(GPU_COUNTS, p=GPU_SHARES))
        kind = draw_fitting_kind(table, workers, FAMILIES, rng)
        low, high = SIZE_CLASSES[rng.integers(len(SIZE_CLASSES))]
        seconds = rng.uniform(low, high) * HOUR / workers
        jobs.append(_job(kind, workers, seconds, table))
    return jobs


def _gavel(
    count: int, rng: np.random.Generator, table: ThroughputTable, priorities: bool = False, slos: bool = False
) -> list[Job]:
    """A kind uniform over the table's; models that were measured on several GPUs take 1/2/4/8 at
    70/10/15/5 %; 80 % last 60 x 10^U(1.5, 3) s, the others 60 x 10^U(3, 4) s on the first type;
    ``priorities``: weight 5 for every fifth; ``slos``: 1.2, 2 or 10 times the duration, by thirds.
    """
    jobs = []
    for _ in range(count):
        kind = table.kinds[rng.integers(len(table.kinds))]
        workers = int(rng.choice(GPU_COUNTS, p=GPU_SHARES)) if (kind, 2) in table.rows else 1
        exponent = rng.uniform(1.5, 3.0) if rng.random() < 0.8 else rng.uniform(3.0, 4.0)
        weight = 5.0 if priorities and rng.random() < 0.2 else 1.0
        slo = float(rng.choice((1.2, 2.0, 10.0))) if slos else None
        jobs.append(_job(kind, workers, 60.0 * 10.0**exponent, table, weight, slo))
    return jobs


def _gavel_trace(
    count: int, rng: np.random.Generator, table: ThroughputTable, multi_gpu: bool = True, hours: tuple = (1, 2, 3, 4)
) -> list[Job]:
    """A kind uniform over the table's, 1/2/4 GPUs at 70/10/20 % for models that were measured on
    several, durations uniform over ``hours`` on the first type.
    """
    hours = tuple(as_list(hours))
    jobs = []
    for _ in range(count):
        kind = table.kinds[rng.integers(len(table.kinds))]
        several = multi_gpu and (kind, 2) in table.rows
        workers = int(rng.choice((1, 2, 4), p=(0.7, 0.1, 0.2))) if several else 1
        jobs.append(_job(kind, workers, float(rng.choice(hours)) * HOUR, table))
    return jobs


def _physical(
    count: int, rng: np.random.Generator, table: ThroughputTable, hours: tuple[float, float] = (0.5, 3.0)
) -> list[Job]:
    """One-GPU jobs of any family and batch size, with work for U(0.5, 3) hours on the fastest node,
    that is on the table's first type, which relative speeds refer to."""
    families = tuple(dict.fromkeys(split_kind(kind)[0] for kind in table.kinds))
    hours = read_range("hours", hours, TraceError)
    return [
        _job(draw_fitting_kind(table, 1, families, rng), 1, rng.uniform(*hours) * HOUR, table) for _ in range(count)
    ]


def draw_fitting_kind(table: ThroughputTable, workers: int, families: tuple[str, ...], rng: np.random.Generator) -> str:
    """A kind of a uniform family that was measured with this many workers on all types.

    Raises:
        TraceError: no family was.
    """
    fitting = table.families(workers)
    names = [family for family in families if family in fitting] or list(fitting)
    if not names:
        raise TraceError(f"the throughput table has no model with {workers} workers and a rate on every GPU type.")
    kinds = fitting[names[rng.integers(len(names))]]
    return kinds[rng.integers(len(kinds))]


def _job(
    kind: str, workers: int, seconds: float, table: ThroughputTable, weight: float = 1.0, slo: float | None = None
) -> Job:
    model, batch = split_kind(kind)
    steps = max(1.0, np.floor(seconds * table.reference_rate(kind, workers)))
    return Job("", 0.0, workers, float(steps), model, batch, weight, slo)


GENERATORS: dict[str, tuple[Callable[..., list[Job]], int, tuple[str, ...]]] = {
    "headline": (_headline, 480, ()),
    "gavel": (_gavel, 120, ("priorities", "slos")),
    "gavel_trace": (_gavel_trace, 120, ("multi_gpu", "hours")),
    "physical": (_physical, 5, ("hours",)),
}
"""Name -> generator, default number of jobs, own options. None is bit-equal to Gavel's own generators,
which draw from another random number generator; the distributions are theirs where so named."""
