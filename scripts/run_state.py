"""What became of a run, told in its folder: ``status.json``, ``traceback.txt``, and a lock while it is under way."""

from __future__ import annotations

import os
import platform
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hadoppler.envs.errors import HadopplerError
from hadoppler.scripts.report import read_json, write_json

Judge = Callable[[Exception], tuple[int, str]]
"""Exit code and sentence of an error."""


class RunningError(HadopplerError):
    """Another process is at work in a run's folder."""


@contextmanager
def recorded(folder: Path, judge: Judge, *, swallow: bool = False, **told: Any) -> Iterator[None]:
    """Keep ``status.json`` true while the body runs: running, then finished, failed or interrupted.

    A failure leaves its traceback in ``traceback.txt``, its sentence as ``reason`` and its exit ``code``.

    Args:
        judge: what an error means.
        swallow: end quietly after a failure, for members of a sweep.
        told: more for ``status.json``.

    Raises:
        RunningError: another process is at work in this folder.
    """
    with held(folder):
        (folder / "traceback.txt").unlink(missing_ok=True)
        status = {**told, "process": os.getpid(), "machine": platform.node(), "begun": _now()}

        def write(state: str, **more: Any) -> None:
            write_json(folder / "status.json", {"state": state, **status, **more})

        write("running")
        try:
            yield
        except Exception as error:
            (folder / "traceback.txt").write_text(traceback.format_exc(), encoding="utf-8")
            code, reason = judge(error)
            write("failed", code=code, reason=reason, ended=_now())
            if not swallow:
                raise
        except BaseException:
            write("interrupted", ended=_now())
            raise
        else:
            write("finished", ended=_now())


def read_status(folder: str | Path) -> dict[str, Any]:
    """``status.json`` of a folder, ``{}`` if it has none; a run whose process is gone is ``interrupted``."""
    status = read_json(Path(folder) / "status.json")
    if status.get("state") == "running":
        try:
            with held(Path(folder)):
                status["state"] = "interrupted"
        except RunningError:
            pass
    return status


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """A lock on a folder, which the system lifts when the process ends, however it ends.

    Where folders cannot be locked (Windows, some network file systems) nothing is held.

    Raises:
        RunningError: another one holds it.
    """
    try:
        import fcntl

        handle = os.open(folder, os.O_RDONLY)
    except (ImportError, OSError):
        yield
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(handle)
        raise RunningError(f"{folder}: a run is under way there; wait until it ends, or stop it.") from error
    except OSError:
        pass
    try:
        yield
    finally:
        os.close(handle)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
