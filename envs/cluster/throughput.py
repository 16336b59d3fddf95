"""How fast a job trains on which GPU type: measured tables, and what to do between their rows."""

from __future__ import annotations

import ast
import json
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import ThroughputError
from .cluster import Cluster
from .csv_rows import numbered_dicts, surplus
from .job import Job, join_kind, split_kind

DATA = Path(__file__).parent / "data"
SPREAD_SHARE = 0.8
"""Rate of a gang spread over nodes as a share of its rate in one node, where not measured (our choice)."""

Floats = NDArray[np.float64]
COLUMNS = ("model", "batch_size", "workers", "gpu_type", "steps_per_s", "spread_steps_per_s")
_OPTIONAL = ("batch_size", "spread_steps_per_s")


@dataclass(frozen=True, eq=False)
class ThroughputTable:
    """Steps per second of whole jobs, by model and batch size, number of workers and GPU type.

    Attributes:
        types: [R] GPU types; the first is the reference for relative speeds and recorded durations.
        rows: (kind, workers) -> row; a kind is ``MODEL`` or ``MODEL (batch size N)``.
        rates: [K, R] steps/s with all workers in one node; 0: does not fit; NaN: not measured.
        spread: [K, R] steps/s with the workers on several nodes; NaN: not measured.
        source: where the numbers come from.

    Worker counts between two measured ones are interpolated linearly, those outside are taken in
    proportion from the nearest measured one, and 0 stays 0 (our choice); for each type between the counts
    that it was measured with. A type that a model was never measured on does not fit. Spread rates are never
    above those in one node; where not measured they are 0.8 of them.
    """

    types: tuple[str, ...]
    rows: Mapping[tuple[str, int], int]
    rates: Floats
    spread: Floats
    source: str = ""

    def __post_init__(self) -> None:
        for (kind, workers), row in self.rows.items():
            if workers < 1:
                raise ThroughputError(
                    f"{self.source or 'throughputs'}: {kind!r} has {workers} workers; expected numbers from 1 up."
                )
            for name, value in (("steps_per_s", self.rates[row]), ("spread_steps_per_s", self.spread[row])):
                if not (np.isnan(value) | ((value >= 0) & np.isfinite(value))).all():
                    raise ThroughputError(
                        f"{self.source or 'throughputs'}: {name} of {kind!r} with {workers} workers is "
                        f"{value.tolist()}; expected numbers from 0 up."
                    )

    @classmethod
    def default(cls, physical: bool = False) -> ThroughputTable:
        """Gavel's measurements on V100, P100 and K80 (MIT; the notice lies beside the data).

        Args:
            physical: those of its physical cluster instead of those of its simulator.
        """
        return _bundled("throughputs_physical.csv" if physical else "throughputs.csv")

    @classmethod
    def find(cls, throughputs: ThroughputTable | str | Path | None) -> ThroughputTable:
        """The table itself, the one in a file (``read``), or the default one for None."""
        if throughputs is None:
            return cls.default()
        return throughputs if isinstance(throughputs, ThroughputTable) else cls.read(throughputs)

    @classmethod
    def build(cls, entries: Iterable[tuple[str, int, str, float, float]], source: str = "") -> ThroughputTable:
        """Build a table from (kind, workers, GPU type, steps/s, spread steps/s or NaN)."""
        found = list(entries)
        types = tuple(dict.fromkeys(kind for _, _, kind, _, _ in found))
        rows: dict[tuple[str, int], int] = {}
        for kind, workers, *_ in found:
            rows.setdefault((kind, workers), len(rows))
        rates, spread = np.full((2, len(rows), len(types)), np.nan)
        for kind, workers, gpu_type, rate, apart in found:
            where = rows[kind, workers], types.index(gpu_type)
            if not np.isnan(rates[where]):
                raise ThroughputError(
                    f"{source or 'throughputs'}: {kind!r} with {workers} workers on {gpu_type} stands there twice; "
                    "keep one of the rows."
                )
            rates[where], spread[where] = rate, apart
        return cls(types, rows, rates, spread, source)

    @classmethod
    def read(cls, path: str | Path) -> ThroughputTable:
        """Read a table of one's own: CSV with one row per measurement, or Gavel's JSON.

        CSV columns: ``model``, ``batch_size`` (may be empty), ``workers``, ``gpu_type``,
        ``steps_per_s`` (of the whole job; 0: does not fit), ``spread_steps_per_s`` (may be empty or
        absent). Lines that start with # are comments. JSON: GPU type -> ``"('MODEL', WORKERS)"`` ->
        ``{"null": steps/s}``; types that end in ``_unconsolidated`` are the spread rates of the
        type before it.

        Raises:
            ThroughputError: the file, a column or a value is not usable; it is named.
        """
        path = Path(path)
        try:
            text = path.read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            raise ThroughputError(f"{path}: cannot be read ({error}); give a CSV or JSON file.") from error
        if text.lstrip().startswith("{"):
            try:
                return cls.build(_gavel_entries(json.loads(text), str(path)), str(path))
            except json.JSONDecodeError as error:
                raise ThroughputError(f"{path}: is not JSON ({error}).") from error
        return cls.build(_csv_entries(text.splitlines(), str(path)), str(path))

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        """Models with their batch sizes, in order of appearance."""
        return tuple(dict.fromkeys(kind for kind, _ in self.rows))

    @cached_property
    def _measured(self) -> dict[str, list[list[int]]]:
        """Kind -> for each type the numbers of workers that it was measured with, ascending."""
        measured: dict[str, list[list[int]]] = {kind: [[] for _ in self.types] for kind in self.kinds}
        for (kind, workers), row in sorted(self.rows.items()):
            for column in np.flatnonzero(~np.isnan(self.rates[row])):
                measured[kind][column].append(workers)
        return measured

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """Numbers of workers that anything was measured with, ascending."""
        return tuple(sorted({workers for _, workers in self.rows}))

    @cached_property
    def _families(self) -> dict[int, dict[str, list[str]]]:
        """Answers of ``families`` so far."""
        return {}

    def families(self, workers: int) -> dict[str, list[str]]:
        """Model -> its kinds that were measured with this many workers and run on every type; not to be changed."""
        if workers not in self._families:
            families: dict[str, list[str]] = {}
            for (kind, measured), row in self.rows.items():
                if measured == workers and (self.rates[row] > 0).all():
                    families.setdefault(split_kind(kind)[0], []).append(kind)
            self._families[workers] = families
        return self._families[workers]

    @cached_property
    def _job_rates(self) -> dict[tuple[str, int], tuple[Floats, Floats]]:
        """Answers of ``job_rates`` so far."""
        return {}

    def knows(self, kind: str) -> bool:
        """Whether the table has this model and batch size with any number of workers."""
        return kind in self._measured

    def job_rates(self, kind: str, workers: int) -> tuple[Floats, Floats]:
        """[R] steps/s in one node and spread over nodes, of a job on each type of the table; read-only.

        Raises:
            ThroughputError: the table does not know the kind.
        """
        if (kind, workers) in self._job_rates:
            return self._job_rates[kind, workers]
        if not self.knows(kind):
            models = ", ".join(self.kinds[:6])
            raise ThroughputError(
                f"the throughput table ({self.source or 'unnamed'}) has no {kind!r}; its kinds are {models}"
                f"{', ...' if len(self.kinds) > 6 else ''}."
            )
        together = np.nan_to_num(self._interpolate(kind, workers, self.rates), nan=0.0)
        apart = together
        if workers > 1:
            apart = self._interpolate(kind, workers, self.spread)
            apart = np.minimum(np.where(np.isnan(apart), SPREAD_SHARE * together, apart), together)
        together.setflags(write=False)
        apart.setflags(write=False)
        self._job_rates[kind, workers] = together, apart
        return together, apart

    def _interpolate(self, kind: str, workers: int, values: Floats) -> Floats:
        """[R] values for a number of workers; NaN on types without any."""
        found = np.full(len(self.types), np.nan)
        for column, known in enumerate(self._measured[kind]):
            if known:
                by_count = {count: float(values[self.rows[kind, count], column]) for count in known}
                found[column] = _between(by_count, workers)
        return found

    def rates_of(self, jobs: Sequence[Job], cluster: Cluster) -> tuple[Floats, Floats]:
        """[J, R] steps/s of jobs on the cluster's types: in one node, and spread over nodes.

        Raises:
            ThroughputError: a type is neither in the table nor given a relative speed, or a job's
                kind is not in the table.
        """
        column = np.zeros(len(cluster.types), dtype=np.int64)
        factor = np.ones(len(cluster.types))
        for position, gpu_type in enumerate(cluster.types):
            if gpu_type in self.types:
                column[position] = self.types.index(gpu_type)
            elif gpu_type in cluster.relative_speed:
                factor[position] = cluster.relative_speed[gpu_type]
            else:
                near = same_but_case(gpu_type, self.types)
                ways = (
                    "add its rates (workload.throughputs=FILE), or give relative_speed, the share of the rate on "
                    f"{self.types[0]}: in the cluster's file, or as 'cluster.relative_speed={{{gpu_type}: 1.5}}'"
                )
                raise ThroughputError(
                    f"cluster {cluster.name}: the throughput table ({self.source or 'unnamed'}) has no GPU type "
                    f"{gpu_type!r}, only {', '.join(self.types)}; {f'did you mean {near}?' if near else f'{ways}.'}"
                )
        pairs = [(job.kind, job.workers) for job in jobs]
        number = {pair: position for position, pair in enumerate(dict.fromkeys(pairs))}
        table = np.array([self.job_rates(*pair) for pair in number]).reshape(-1, 2, len(self.types))
        chosen = table[[number[pair] for pair in pairs]][:, :, column] * factor
        return np.ascontiguousarray(chosen[:, 0]), np.ascontiguousarray(chosen[:, 1])

    def speed_notes(self, cluster: Cluster) -> list[str]:
        """For reports: which of the cluster's relative speeds stand for rates, and which do not count."""
        given = cluster.relative_speed
        used = [f"{kind} {speed:g}" for kind, speed in given.items() if kind not in self.types]
        notes = [f"rates as multiples of those on {self.types[0]}: {', '.join(used)}"] if used else []
        if measured := [kind for kind in given if kind in self.types]:
            notes.append(f"relative_speed of {', '.join(measured)} is not used: the table has measured rates")
        return notes

    def reference_rate(self, kind: str, workers: int, gpu_type: str | None = None) -> float:
        """Steps/s on a type, or on the first that the job fits; recorded durations become steps with it.

        Raises:
            ThroughputError: the table does not know the kind, or has no positive rate for it.
        """
        rates = self.job_rates(kind, workers)[0]
        if gpu_type is not None:
            rates = rates[[self.types.index(gpu_type)]]
        if not (rates > 0).any():
            where = "" if gpu_type is None else f" on {gpu_type}"
            raise ThroughputError(
                f"the throughput table has no positive rate of {kind!r} with {workers} workers{where}."
            )
        return float(rates[np.argmax(rates > 0)])


def _between(by_count: Mapping[int, float], workers: int) -> float:
    """The value at a number of workers from those at ascending ones."""
    if workers in by_count:
        return by_count[workers]
    known = list(by_count)
    above = bisect_left(known, workers)
    if above in (0, len(known)):
        nearest = known[0] if above == 0 else known[-1]
        return by_count[nearest] * (workers / nearest)
    less, more = known[above - 1], known[above]
    low, high = by_count[less], by_count[more]
    share = (workers - less) / (more - less)
    return 0.0 if low == 0 or high == 0 else low + share * (high - low)


def same_but_case(name: str, known: Iterable[str]) -> str | None:
    """The known name that differs from one in small and capital letters only; None if there is none."""
    return next((other for other in known if other.lower() == name.lower()), None)


@lru_cache(maxsize=4)
def _bundled(name: str) -> ThroughputTable:
    lines = (DATA / name).read_text(encoding="utf-8").splitlines()
    return ThroughputTable.build(_csv_entries(lines, name), f"Gavel (OSDI 2020), {name}")


def _csv_entries(lines: Sequence[str], where: str) -> list[tuple[str, int, str, float, float]]:
    kept = ["" if line.startswith("#") or not line.strip() else line for line in lines]
    needed = [name for name in COLUMNS if name not in _OPTIONAL]
    entries = []
    for number, row in numbered_dicts(kept, where, needed, error=ThroughputError):
        if wrong := surplus(row):
            raise ThroughputError(f"{where}, line {number}: {wrong}; expected {', '.join(COLUMNS)}.")
        try:
            batch, apart = row.get("batch_size"), row.get("spread_steps_per_s")
            kind = join_kind(row["model"], int(batch) if batch else None)
            rate = float(row["steps_per_s"])
            entries.append((kind, int(row["workers"]), row["gpu_type"], rate, float(apart) if apart else np.nan))
        except ValueError as error:
            raise ThroughputError(
                f"{where}, line {number}: cannot read {list(row.values())}; expected a model, whole numbers for "
                "batch_size and workers, a GPU type and steps per second."
            ) from error
    return entries


def _gavel_entries(values: Mapping[str, Any], where: str) -> list[tuple[str, int, str, float, float]]:
    suffix = "_unconsolidated"
    entries = []
    try:
        for gpu_type, table in values.items():
            if gpu_type.endswith(suffix):
                continue
            spread = values.get(gpu_type + suffix, {})
            for key, rates in table.items():
                kind, workers = ast.literal_eval(key)
                apart = spread.get(key, {}).get("null", np.nan) if workers > 1 else np.nan
                entries.append((str(kind), int(workers), str(gpu_type), float(rates["null"]), float(apart)))
    except (AttributeError, KeyError, TypeError, ValueError, SyntaxError) as error:
        raise ThroughputError(
            f"{where}: cannot read it as Gavel's throughputs ({error!r}); expected GPU type -> \"('MODEL', WORKERS)\" "
            '-> {"null": steps per second}.'
        ) from error
    return entries
