"""Find out which format a trace has, and read it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from ...errors import TraceError, UnknownNameError, unknown_name
from ..csv_rows import header_hint
from ..throughput import DATA, ThroughputTable, same_but_case
from ..workload import Workload
from . import gavel, helios, own_csv, pai, philly, slurm
from .rows import TraceRows, find_zone, read_lines
from .window import cut_window

Reader = Callable[[TraceRows, list[str]], Workload]

FORMATS: dict[str, tuple[Reader, str]] = {
    "gavel": (gavel.read_gavel, "UTC"),
    "philly": (philly.read_job_log, "America/Los_Angeles"),
    "philly_csv": (philly.read_derived, "America/Los_Angeles"),
    "helios": (helios.read_helios, "Asia/Shanghai"),
    "pai": (pai.read_tasks, "UTC"),
    "slurm": (slurm.read_sacct, "UTC"),
    "csv": (own_csv.read_own, "UTC"),
}
"""Reader and default time zone of every format. Philly's job log names no zone; its utilisation files
are in US Pacific time. Helios names none either (our choice: where it was recorded). Times of Gavel
and PAI are seconds."""

SAMPLES = {
    "gavel": "gavel.trace",
    "gavel_7_columns": "gavel_7_columns.trace",
    "philly": "philly_cluster_job_log.json",
    "philly_csv": "philly.csv",
    "helios": "helios_cluster_log.csv",
    "pai": "pai_task_table.csv",
    "slurm": "sacct.txt",
    "csv": "own.csv",
}
"""Small traces written by hand in every format, by name."""


def read_workload(
    path: str | Path,
    throughputs: ThroughputTable | str | Path | None = None,
    *,
    format: str | None = None,
    timezone: str | None = None,
    model: str | None = None,
    measured_on: str | None = None,
    start_s: float = 0.0,
    end_s: float | None = None,
    load: float = 1.0,
    seed: int = 0,
) -> Workload:
    """Read a trace of jobs; what cannot be used is listed in ``.rejected`` with line and reason.

    Args:
        path: Gavel (10 or 7 columns), Philly's ``cluster_job_log`` or the CSV derived from it,
            Helios' ``cluster_log.csv``, Alibaba's ``pai_task_table``, ``sacct --parsable2``, or a CSV
            of one's own (columns: ``own_csv``). The format is found from the content. ``sample:NAME``
            is a small bundled one (``SAMPLES``).
        throughputs: a table, or its file; by default Gavel's measurements.
        format: one of ``FORMATS``, if the detection should be overruled.
        timezone: IANA name of the zone of clock times; by default the format's.
        model: kind such as ``ResNet-50 (batch size 64)`` for jobs whose trace names no model, or one that the
            table lacks beside a duration. By default the former's are drawn from ``seed``, in the rows'
            order, and the latter are rejected.
        measured_on: GPU type of the table on which durations were recorded; by default its first that a job fits.
        start_s, end_s, load: part of the trace and density of arrivals (``cut_window``).
        seed: of the draws.

    Raises:
        TraceError: the file cannot be read, has an unknown format or no usable row; a model, a type or a window
            is not usable.
        ThroughputError: the throughput file is not usable.
    """
    path = find_sample(str(path)) if str(path).startswith("sample:") else Path(path)
    table = ThroughputTable.find(throughputs)
    lines = read_lines(path)
    name = format or detect_format(path, lines)
    if name not in FORMATS:
        raise UnknownNameError(f"no trace format is called {name!r}; choose one of {', '.join(FORMATS)}.")
    reader, zone = FORMATS[name]
    if model is not None and not table.knows(model):
        raise TraceError(f"model is {model!r}, which the throughput table lacks; it has {', '.join(table.kinds[:6])}.")
    if measured_on is not None and measured_on not in table.types:
        near = same_but_case(measured_on, table.types)
        hint = f"; did you mean {near}?" if near else f"; it has {', '.join(table.types)}."
        raise TraceError(f"measured_on is {measured_on!r}, a GPU type that the throughput table lacks{hint}")
    rows = TraceRows(path, table, np.random.default_rng(seed), model, find_zone(timezone or zone), measured_on)
    return cut_window(reader(rows, lines), start_s, end_s, load)


def find_sample(name: str) -> Path:
    """The bundled trace called ``sample:NAME``.

    Raises:
        UnknownNameError: there is none of this name.
    """
    sample = name.removeprefix("sample:")
    if sample not in SAMPLES:
        raise unknown_name("sample trace", sample, SAMPLES)
    return DATA / "samples" / SAMPLES[sample]


def detect_format(path: Path, lines: list[str]) -> str:
    """Name in ``FORMATS`` of a trace, from its first line that is neither empty nor a comment (#).

    Raises:
        TraceError: it looks like none of them.
    """
    first = next((line for line in lines if line.strip() and not line.lstrip().startswith("#")), "")
    columns = {cell.strip() for cell in first.split(",")}
    if first.lstrip().startswith("["):
        return "philly"
    if first.count("\t") in (6, 9):
        return "gavel"
    if "JobID" in first and "|" in first:
        return "slurm"
    if {"gpu_num", "submit_time"} <= columns:
        return "helios"
    if {"timestamp", "num_gpus", "duration"} <= columns:
        return "philly_csv"
    if "plan_gpu" in columns or (len(first.split(",")) == 10 and first.split(",")[3].strip() in pai.STATES):
        return "pai"
    if "arrival" in columns:
        return "csv"
    raise TraceError(
        f"{path}: its first line {first[:60]!r} belongs to no known format; expected one of {', '.join(FORMATS)}, "
        "or a CSV with the columns arrival, workers and duration, or arrival, workers, model, batch_size and steps"
        f"{header_hint(first.split(','), own_csv.COLUMNS)}."
    )
