"""What all readers share: counting rows, clock times, and models for jobs whose trace names none."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np

from ...errors import HadopplerError, TraceError
from ..job import Job, split_kind
from ..throughput import ThroughputTable
from ..workload import Rejected, Workload

Zone = ZoneInfo


@dataclass
class TraceRows:
    """The rows of one trace on their way to a workload; every row ends as used or as rejected.

    Attributes:
        path: the file.
        table: throughputs that the jobs must be found in.
        rng: draws models for jobs whose trace names none.
        model: kind for such jobs, and for those whose model the table lacks; None draws one for the former.
        zone: of clock times without an offset.
        measured_on: the GPU type that durations were recorded on; None: the table's first that a job fits.
    """

    path: Path
    table: ThroughputTable
    rng: np.random.Generator
    model: str | None
    zone: Zone
    measured_on: str | None = None
    jobs: list[Job] = field(default_factory=list)
    rejected: list[Rejected] = field(default_factory=list)
    read: int = 0
    notes: list[str] = field(default_factory=list)
    _ids: set[str] = field(default_factory=set)
    _unknown: list[str] = field(default_factory=list)

    def reject(self, line: int, reason: str, row: object = "") -> None:
        """Leave a row out, with the reason."""
        self.rejected.append(Rejected(line, reason, str(row)[:200]))

    def note(self, text: str) -> None:
        """State a rule once."""
        if text not in self.notes:
            self.notes.append(text)

    def unique_id(self, name: str, line: int) -> str:
        """The trace's id, with the line behind it where it is empty or taken."""
        name = name.strip()
        if not name or name in self._ids:
            self.note("empty and repeated ids got their line number behind them")
            name = f"{name}@{line}"
        self._ids.add(name)
        return name

    def add(self, job: Job, row: object = "") -> None:
        """Keep a job if the throughput table knows it and some type runs it."""
        if self._runnable(job.kind, job.workers, job.line, row):
            self.jobs.append(job)

    def _runnable(self, kind: str, workers: int, line: int, row: object, timed: bool = False) -> bool:
        if not self.table.knows(kind):
            way = "name one of its models in workload.model for such jobs, or " if timed else ""
            self.reject(line, f"the throughput table has no {kind!r}; {way}give its rates in workload.throughputs", row)
            return False
        rates = self.table.job_rates(kind, workers)[0]
        if not (rates > 0).any():
            self.reject(line, f"no GPU type of the table runs {kind!r} with {workers} workers", row)
            return False
        if timed and self.measured_on is not None and not rates[self.table.types.index(self.measured_on)] > 0:
            where = f"{self.measured_on}, on which durations were recorded (workload.measured_on)"
            self.reject(line, f"{kind!r} with {workers} workers does not run on {where}", row)
            return False
        return True

    def add_timed(
        self,
        name: str,
        line: int,
        arrival: float,
        seconds: float,
        workers: int,
        row: object = "",
        kind: str | None = None,
        weight: float = 1.0,
        slo: float | None = None,
    ) -> None:
        """Keep a job that is known by its duration: steps = duration x reference rate.

        One without a kind gets one, and so does one of a kind that the table lacks, where ``model`` is given.
        """
        if not seconds > 0:
            self.reject(line, f"its duration is {seconds:g} s; expected more than 0", row)
            return
        if workers < 1:
            self.reject(line, "it asks no GPU", row)
            return
        if kind is None:
            kind = self.model or draw_kind(self.table, workers, self.rng)
            drawn = "drawn by GPU count, seeded, among those that the table has at that count"
            self.note(f"models: {self.model or drawn}")
        elif self.model and not self.table.knows(kind):
            self._unknown.append(kind)
            kind = self.model
        first = f"{self.table.types[0]}, the table's first type, or the next that a job fits"
        self.note(f"durations count as on {self.measured_on or first} (workload.measured_on)")
        if not self._runnable(kind, workers, line, row, timed=True):
            return
        model, batch = split_kind(kind)
        values = {"arrival": arrival, "workers": workers, "weight": weight, "slo": slo, "batch_size": batch}
        steps = seconds * self.table.reference_rate(kind, workers, self.measured_on)
        build_job(self, line, row, id=self.unique_id(name, line), steps=steps, model=model, **values)

    def clock(self, text: str | None, fold: int = 0) -> float | None:
        """Seconds since 1970 in UTC of a clock time in the trace's zone; None if there is none."""
        return parse_clock(text, self.zone, fold)

    def interval(self, start: str | None, end: str | None) -> float | None:
        """Seconds from start to end, over clock changes; None if one is missing.

        An hour that comes twice is taken the first time, and the second time for an end that would
        otherwise lie before its start.
        """
        begin, finish = self.clock(start), self.clock(end)
        if begin is None or finish is None:
            return None
        if finish < begin:
            later = self.clock(end, fold=1)
            finish = later if later is not None and later >= begin else finish
        return finish - begin

    def workload(self) -> Workload:
        """The jobs with arrivals counted from the first, and the rejected rows by line.

        Raises:
            TraceError: no row is usable.
        """
        if not self.jobs:
            first = f"; line {self.rejected[0].line}: {self.rejected[0].reason}" if self.rejected else ""
            raise TraceError(f"{self.path}: none of its {self.read} rows is a usable job{first}.")
        if self._unknown:
            named = ", ".join(list(dict.fromkeys(self._unknown))[:5])
            self.note(f"{self.model} stands for the models of {len(self._unknown)} rows that the table lacks ({named})")
        rejected = tuple(sorted(self.rejected, key=lambda row: row.line))
        return Workload(tuple(self.jobs), self.table, rejected, self.read, self.path.stem, tuple(self.notes))


def from_first(rows: TraceRows) -> Workload:
    """The workload with arrivals counted from the first job's, for traces with clock times."""
    if rows.jobs:
        first = min(job.arrival for job in rows.jobs)
        rows.note("arrivals are counted from the first job's")
        rows.jobs = [
            Job(j.id, j.arrival - first, j.workers, j.steps, j.model, j.batch_size, j.weight, j.slo, j.line)
            for j in rows.jobs
        ]
    return rows.workload()


def parse_clock(text: str | None, zone: Zone, fold: int = 0) -> float | None:
    """Seconds since 1970 in UTC of a number of seconds or an ISO time; None if it is neither."""
    text = (text or "").strip()
    if not text:
        return None
    try:
        number = float(text)
        return number if math.isfinite(number) else None
    except ValueError:
        pass
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=zone, fold=fold)
    return moment.astimezone(UTC).timestamp()


def find_zone(name: str) -> Zone:
    """A time zone by its IANA name.

    Raises:
        TraceError: there is none of this name.
    """
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError) as error:
        raise TraceError(f"no time zone is called {name!r}; give an IANA name such as America/Los_Angeles.") from error


def draw_kind(table: ThroughputTable, workers: int, rng: np.random.Generator) -> str:
    """A model for a job whose trace names none (our choice): uniform over the families that the
    table has measured with this number of workers on every type (or, where there is none, with the
    largest number below), then uniform over the batch sizes.
    """
    families = _families(table, workers)
    kinds = families[rng.integers(len(families))]
    return kinds[rng.integers(len(kinds))]


@lru_cache(maxsize=512)
def _families(table: ThroughputTable, workers: int) -> tuple[tuple[str, ...], ...]:
    """Kinds by family that ``draw_kind`` chooses from."""
    counts = sorted({count for _, count in table.rows if count <= workers}) or [min(c for _, c in table.rows)]
    for count in reversed(counts):
        families: dict[str, list[str]] = {}
        for (kind, measured), row in table.rows.items():
            if measured == count and (table.rates[row] > 0).all():
                families.setdefault(split_kind(kind)[0], []).append(kind)
        if families:
            return tuple(tuple(kinds) for kinds in families.values())
    return (table.kinds,)


def numbered_dicts(
    lines: Sequence[str], path: Path, needed: Sequence[str], delimiter: str = ","
) -> Iterator[tuple[int, dict[str, str]]]:
    """Line numbers and rows of a CSV with a header; empty lines are skipped.

    Raises:
        TraceError: a needed column is missing.
    """
    skipped = next((number for number, line in enumerate(lines) if line.strip()), 0)
    reader = csv.DictReader(lines[skipped:], delimiter=delimiter)
    columns = [name.strip() for name in reader.fieldnames or ()]
    for name in needed:
        if name not in columns:
            raise TraceError(
                f"{path}: the column {name!r} is missing; found {', '.join(columns)}{header_hint(columns, needed)}."
            )
    for row in reader:
        yield (
            skipped + reader.line_num,
            {str(k).strip(): (v or "").strip() for k, v in row.items() if isinstance(v, str | None)},
        )


def header_hint(columns: Sequence[str], needed: Sequence[str]) -> str:
    """Why a header does not hold the needed columns, where semicolons or capitals are the cause; else nothing."""
    cells = [cell.strip() for column in columns for cell in column.split(";")]
    if len(cells) > len(columns) and {cell.lower() for cell in cells} & set(needed):
        return "; semicolons stand between the columns: write commas"
    wrong = [cell for cell in cells if cell.lower() in needed and cell not in needed]
    return f"; write {', '.join(wrong)} in small letters" if wrong else ""


def whole(text: str | None) -> int | None:
    """A whole number from a cell such as ``4`` or ``4.0``; None if it is none."""
    try:
        number = float((text or "").strip())
    except ValueError:
        return None
    return int(number) if math.isfinite(number) and number == int(number) else None


def build_job(rows: TraceRows, line: int, row: object, **values: object) -> None:
    """Add a job, or reject the row with what is wrong with its values."""
    try:
        job = Job(line=line, **values)  # type: ignore[arg-type]
    except HadopplerError as error:
        rows.reject(line, str(error).split(": ", 1)[1].rstrip("."), row)
        return
    rows.add(job, row)


Row = Mapping[str, str]
