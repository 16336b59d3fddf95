"""What all readers share: counting rows, clock times, and models for jobs whose trace names none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np

from ...errors import HadopplerError, TraceError
from ..csv_rows import number, numbered_dicts, surplus
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

    def dicts(
        self, lines: Sequence[str], needed: Sequence[str], delimiter: str = ","
    ) -> Iterator[tuple[int, dict[str, str]]]:
        """Line numbers and rows of a CSV with a header, counted; rows with too many cells are left out.

        Raises:
            TraceError: ``numbered_dicts`` cannot read it.
        """
        for line, row in numbered_dicts(lines, self.path, needed, delimiter):
            self.read += 1
            if wrong := surplus(row):
                self.reject(line, wrong, row)
            else:
                yield line, row

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

    def seconds(self, text: str | None, start: str | None, end: str | None) -> float | None:
        """A duration in seconds, or the interval from start to end where its cell is empty; None if there is none."""
        return number(text) if (text or "").strip() else self.interval(start, end)

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
    if (seconds := number(text)) is not None:
        return seconds
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=zone, fold=fold)
    try:
        return moment.astimezone(UTC).timestamp()
    except OverflowError:  # the first or last hours that the calendar knows
        return None


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
    fitting = [count for count in table.counts if count <= workers] or table.counts[:1]
    found = (table.families(count) for count in reversed(fitting))
    families = next((list(kinds.values()) for kinds in found if kinds), [list(table.kinds)])
    kinds = families[rng.integers(len(families))]
    return kinds[rng.integers(len(kinds))]


def read_lines(path: Path) -> list[str]:
    """The lines of a text file.

    Raises:
        TraceError: it cannot be read, or is no UTF-8.
    """
    try:
        return path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise TraceError(f"{path}: cannot be read ({error}); give the path of a trace, in UTF-8.") from error


def build_job(rows: TraceRows, line: int, row: object, **values: object) -> None:
    """Add a job, or reject the row with what is wrong with its values."""
    try:
        job = Job(line=line, **values)  # type: ignore[arg-type]
    except HadopplerError as error:
        rows.reject(line, str(error).split(": ", 1)[1].rstrip("."), row)
        return
    rows.add(job, row)


Row = Mapping[str, str]
