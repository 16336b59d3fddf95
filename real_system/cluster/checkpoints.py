"""States of jobs in files that are never half-written, and noticed when they were cut or altered."""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ...envs.errors import CheckpointError


@dataclass(frozen=True)
class Checkpoint:
    """One saved state.

    Attributes:
        row: of the job.
        done: steps of the job in it.
        issued: batches of the job's samples given out until then; above ``done`` where copies did not do their share.
        file: below the folder of checkpoints.
        digest: SHA-256 of the content.
    """

    row: int
    done: int
    issued: int
    file: str
    digest: str


class Checkpoints:
    """A folder with one file per saved state."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, row: int, name: str, done: int, issued: int, state: bytes) -> Checkpoint:
        """Write a state to the disk itself: it is there whole, or not at all.

        Raises:
            CheckpointError: it could not be written; the job and the path are named, older ones are untouched.
        """
        file = f"job_{row:04d}_{done:09d}_{issued:09d}.pt"
        path, part = self.folder / file, self.folder / f"{file}.part"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with part.open("wb") as target:
                target.write(state)
                target.flush()
                os.fsync(target.fileno())
            part.replace(path)
            _sync_folder(self.folder)
        except OSError as error:
            with suppress(OSError):
                part.unlink(missing_ok=True)
            raise CheckpointError(
                f"{path}: the checkpoint of job {name!r} after {done} steps cannot be written "
                f"({error.strerror or error}); the one before it is untouched: make room, and go on with resume=."
            ) from error
        return Checkpoint(row, done, issued, file, hashlib.sha256(state).hexdigest())

    def read(self, saved: Checkpoint) -> bytes:
        """The state.

        Raises:
            CheckpointError: the file is missing, cut, or not what was written.
        """
        path = self.folder / saved.file
        try:
            state = path.read_bytes()
        except OSError as error:
            raise CheckpointError(f"{path}: cannot be read ({error.strerror or error}).") from error
        if hashlib.sha256(state).hexdigest() != saved.digest:
            raise CheckpointError(f"{path}: is not what was written: {len(state)} bytes with another checksum.")
        return state

    def remove(self, saved: Checkpoint) -> None:
        """Delete a file that nothing refers to any more."""
        with suppress(OSError):
            (self.folder / saved.file).unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    """A rename is on the disk only when its folder is."""
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
