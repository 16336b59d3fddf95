"""What a run must remember if its process dies: one SQLite file, written in transactions."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ...envs.cluster import Job
from ...envs.errors import HadopplerError
from .checkpoints import Checkpoint
from .training_job import JobSpec
from .wall_clock import system_seconds

FILE = "run.sqlite"
SCHEMA = """
CREATE TABLE facts (name TEXT PRIMARY KEY, content TEXT NOT NULL);
CREATE TABLE jobs (
    row INTEGER PRIMARY KEY, job TEXT NOT NULL, spec TEXT NOT NULL, status TEXT NOT NULL, quality TEXT
);
CREATE TABLE checkpoints (
    number INTEGER PRIMARY KEY AUTOINCREMENT, row INTEGER NOT NULL REFERENCES jobs, done INTEGER NOT NULL,
    issued INTEGER NOT NULL, file TEXT NOT NULL, digest TEXT NOT NULL
);
CREATE TABLE events (number INTEGER PRIMARY KEY AUTOINCREMENT, time REAL, kind TEXT, job TEXT, text TEXT);
CREATE TABLE requests (
    number INTEGER PRIMARY KEY AUTOINCREMENT, kind TEXT NOT NULL, content TEXT NOT NULL, asked REAL NOT NULL,
    answer TEXT
);
"""
WAITING, FINISHED = "waiting", "finished"
"""Status of a job that is not done, and of one that is; anything else is a reason why it never will be."""


class StoreError(HadopplerError):
    """The file of a run is missing, is not one, or cannot be written."""


@dataclass(frozen=True)
class Request:
    """Something that was asked of a run from outside.

    Attributes:
        number: of the request.
        kind: ``submit`` or ``cancel``.
        content: of the job that is asked for, by key.
        asked: when, by the system's clock.
    """

    number: int
    kind: str
    content: Mapping[str, Any]
    asked: float


@dataclass(frozen=True)
class StoredJob:
    """A job as the file knows it."""

    job: Job
    spec: JobSpec
    status: str
    quality: Mapping[str, float] | None


class RunStore:
    """The state of one run.

    Every method is a transaction of its own. Readers in other processes see it before or after, never within.

    Args:
        folder: of the run.
        create: begin a new file; otherwise it must be there.

    Raises:
        StoreError: as above.
    """

    def __init__(self, folder: Path, *, create: bool = False) -> None:
        self.path = Path(folder) / FILE
        if create == self.path.exists():
            what = (
                "holds a run already; choose another folder" if create else "is not there: this is no folder of a run"
            )
            raise StoreError(f"{self.path}: {what}.")
        try:
            self._base = sqlite3.connect(self.path, timeout=30.0, isolation_level=None)
            self._base.execute("PRAGMA synchronous=FULL")
            if create:
                self._base.executescript(f"BEGIN; {SCHEMA} COMMIT;")
            self._base.execute("SELECT count(asked) FROM jobs, checkpoints, events, requests, facts")
        except sqlite3.Error as error:
            raise StoreError(f"{self.path}: is not the file of a run, or cannot be written ({error}).") from error

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        try:
            self._base.execute("BEGIN IMMEDIATE")
            yield self._base
            self._base.execute("COMMIT")
        except sqlite3.Error as error:
            if self._base.in_transaction:
                self._base.execute("ROLLBACK")
            raise StoreError(
                f"{self.path}: the state of the run cannot be written ({error}); what was saved before is untouched: "
                "make room, and go on with resume=."
            ) from error
        except BaseException:
            if self._base.in_transaction:
                self._base.execute("ROLLBACK")
            raise

    def close(self) -> None:
        """Close the file."""
        self._base.close()

    def write_facts(self, **facts: Any) -> None:
        """Remember values by name, in the place of older ones."""
        rows = [(name, json.dumps(value)) for name, value in facts.items()]
        with self._transaction() as base:
            base.executemany("INSERT OR REPLACE INTO facts VALUES (?, ?)", rows)

    def fact(self, name: str, default: Any = None) -> Any:
        """A value by its name."""
        found = self._base.execute("SELECT content FROM facts WHERE name = ?", (name,)).fetchone()
        return default if found is None else json.loads(found[0])

    def add_jobs(self, first: int, jobs: Sequence[tuple[Job, JobSpec]], answered: int | None = None) -> None:
        """Take in jobs as rows from ``first`` on; with them the request that brought them counts as answered."""
        rows = [
            (first + number, json.dumps(asdict(job)), json.dumps(asdict(spec)), WAITING)
            for number, (job, spec) in enumerate(jobs)
        ]
        with self._transaction() as base:
            base.executemany("INSERT INTO jobs (row, job, spec, status) VALUES (?, ?, ?, ?)", rows)
            if answered is not None:
                base.execute("UPDATE requests SET answer = 'taken' WHERE number = ?", (answered,))

    def jobs(self) -> list[StoredJob]:
        """All jobs by row."""
        rows = self._base.execute("SELECT job, spec, status, quality FROM jobs ORDER BY row").fetchall()
        return [
            StoredJob(
                Job(**json.loads(job)),
                JobSpec(**json.loads(spec)),
                status,
                None if figures is None else json.loads(figures),
            )
            for job, spec, status, figures in rows
        ]

    def set_status(self, row: int, status: str) -> None:
        """A job is done, or will never be."""
        with self._transaction() as base:
            base.execute("UPDATE jobs SET status = ? WHERE row = ?", (status, row))

    def set_quality(self, row: int, quality: Mapping[str, float]) -> None:
        """How good a finished job's model is."""
        with self._transaction() as base:
            base.execute("UPDATE jobs SET quality = ? WHERE row = ?", (json.dumps(dict(quality)), row))

    def add_checkpoint(self, saved: Checkpoint, *, finished: bool, keep: int = 2) -> list[Checkpoint]:
        """A state is on the disk; returns the older ones that nobody needs any more."""
        with self._transaction() as base:
            base.execute(
                "INSERT INTO checkpoints (row, done, issued, file, digest) VALUES (?, ?, ?, ?, ?)",
                (saved.row, saved.done, saved.issued, saved.file, saved.digest),
            )
            if finished:
                base.execute("UPDATE jobs SET status = ? WHERE row = ?", (FINISHED, saved.row))
            old = base.execute(
                "SELECT number, row, done, issued, file, digest FROM checkpoints WHERE row = ? ORDER BY number DESC",
                (saved.row,),
            ).fetchall()[keep:]
            base.executemany("DELETE FROM checkpoints WHERE number = ?", [(row[0],) for row in old])
        return [Checkpoint(*row[1:]) for row in old if row[4] != saved.file]

    def checkpoints(self, row: int) -> list[Checkpoint]:
        """States of a job, the latest first."""
        rows = self._base.execute(
            "SELECT row, done, issued, file, digest FROM checkpoints WHERE row = ? ORDER BY number DESC", (row,)
        )
        return [Checkpoint(*found) for found in rows]

    def forget_checkpoint(self, saved: Checkpoint) -> None:
        """A state that cannot be read is not offered again."""
        with self._transaction() as base:
            base.execute("DELETE FROM checkpoints WHERE row = ? AND file = ?", (saved.row, saved.file))

    def add_event(self, time: float, kind: str, job: str, text: str) -> None:
        """Note what happened: deaths, failures, late reports."""
        with self._transaction() as base:
            base.execute("INSERT INTO events (time, kind, job, text) VALUES (?, ?, ?, ?)", (time, kind, job, text))

    def events(self) -> list[dict[str, Any]]:
        """Everything that was noted, in order."""
        rows = self._base.execute("SELECT time, kind, job, text FROM events ORDER BY number")
        return [dict(zip(("time", "kind", "job", "text"), row, strict=True)) for row in rows]

    def ask(self, kind: str, content: Mapping[str, Any]) -> int:
        """Leave a request for the run; its number."""
        with self._transaction() as base:
            number = base.execute(
                "INSERT INTO requests (kind, content, asked) VALUES (?, ?, ?)",
                (kind, json.dumps(dict(content)), system_seconds()),
            ).lastrowid
        assert number is not None, "a row was inserted"
        return number

    def requests(self) -> list[Request]:
        """Requests that were not answered yet."""
        rows = self._base.execute(
            "SELECT number, kind, content, asked FROM requests WHERE answer IS NULL ORDER BY number"
        )
        return [Request(number, kind, json.loads(content), asked) for number, kind, content, asked in rows]

    def answer(self, number: int, text: str) -> None:
        """A request was dealt with."""
        with self._transaction() as base:
            base.execute("UPDATE requests SET answer = ? WHERE number = ?", (text, number))

    def answer_of(self, number: int) -> str | None:
        """What became of a request; None: nothing yet."""
        found = self._base.execute("SELECT answer FROM requests WHERE number = ?", (number,)).fetchone()
        return None if found is None else found[0]


def has_ended(folder: Path) -> bool:
    """Whether a folder holds a run that has ended."""
    if not (folder / FILE).exists():
        return False
    store = RunStore(folder)
    try:
        return bool(store.fact("ended", False))
    finally:
        store.close()
