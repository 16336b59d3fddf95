"""Runs parts as processes: some at once, those that measure seconds alone, each after those that it needs."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from hadoppler.scripts.report import say
from hadoppler.scripts.reproduction.parts import Part
from hadoppler.scripts.reproduction.records import FAILED, FINISHED, read_record, reason_of, write_record
from hadoppler.scripts.settings import setting

ONE_THREAD = dict.fromkeys(
    ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"), "1"
)  # fmt: skip
PROGRAM = (sys.executable, "-m", "hadoppler.scripts.cli")
"""What is called with a part's words."""
PAUSE_S = 0.05
PATIENCE_S = 15.0
"""How long a process that was asked to end may take."""
GOES_ON = {"train": "last.pt", "run": "run.sqlite"}
"""Command -> the file by which it can go on where it was stopped."""


@dataclass
class Running:
    """A process that computes a part."""

    part: Part
    process: subprocess.Popen[bytes]
    begun: str
    clock: float


@dataclass
class Crew:
    """What is under way and what became of what.

    Attributes:
        root: folder of the parts.
        jobs: parts at once.
        waiting: in the order in which they should begin.
        state: key -> ``finished`` or ``failed``, of those that have ended.
        running: processes.
        hindered: whether a process of an earlier call is still at work on what would begin now.
    """

    root: Path
    jobs: int
    waiting: list[Part]
    state: dict[str, str]
    running: list[Running] = field(default_factory=list)
    hindered: bool = False

    def begin(self) -> None:
        """Start what can start."""
        while len(self.running) < self.jobs:
            part = self._next()
            if part is None:
                return
            started = start(part, self.root)
            if started is None:  # tried again later
                self.hindered = True
                return
            self.waiting.remove(part)
            self.running.append(started)
            self.hindered = False

    def _next(self) -> Part | None:
        """A part that may begin now: alone ones only when nothing else runs, or could."""
        if any(item.part.alone for item in self.running):
            return None
        ready = [part for part in self.waiting if all(self._done(other) for other, _ in part.needs.values())]
        together = [part for part in ready if not part.alone]
        if together:
            return together[0]
        return ready[0] if ready and not self.running else None

    def _done(self, part: Part) -> bool:
        return self.state.get(part.key) == FINISHED

    def ended(self) -> Iterator[tuple[Part, int, str]]:
        """(part, exit code, reason) of every process that has ended, and of parts that will never begin."""
        for item in list(self.running):
            code = item.process.poll()
            if code is not None:
                self.running.remove(item)
                yield item.part, code, finish(item, code, self.root)
        for part in list(self.waiting):
            lost = next((other for other, _ in part.needs.values() if self.state.get(other.key) == FAILED), None)
            if lost is not None:
                self.waiting.remove(part)
                reason = f"it needs {lost.name}, which failed."
                part.folder(self.root).mkdir(parents=True, exist_ok=True)
                write_record(part, self.root, begun="", code=1, reason=reason, seconds=0.0)
                yield part, 1, reason

    def stop(self) -> None:
        """End all processes; their parts count as not begun."""
        for item in self.running:
            _signal(item.process, signal.SIGINT)
        deadline = time.monotonic() + PATIENCE_S
        for item in self.running:
            with suppress(subprocess.TimeoutExpired):
                item.process.wait(max(0.1, deadline - time.monotonic()))
            if item.process.poll() is None:
                _signal(item.process, signal.SIGKILL)
                item.process.wait()


def run_parts(parts: Mapping[str, Part], root: Path, jobs: int, console: Console) -> dict[str, str]:
    """Run all parts that have not finished; returns the reasons of those that failed, by key.

    Raises:
        KeyboardInterrupt: the processes have been ended; what had finished is kept.
    """
    state = {key: FINISHED for key, part in parts.items() if read_record(part, root).state == FINISHED}
    waiting = [part for key, part in parts.items() if key not in state]
    crew, failed = Crew(root, jobs, [part for part in waiting if not part.alone], state), dict[str, str]()
    crew.waiting += [part for part in waiting if part.alone]
    say(console, f"{len(parts)} parts: {len(state)} finished before, {len(waiting)} to run, {jobs} at once")
    with _ended_by_signals(), _progress(console) as bar:
        task, told = bar.add_task("", total=len(parts), completed=len(state)), False
        try:
            while crew.waiting or crew.running:
                crew.begin()
                for part, code, reason in crew.ended():
                    state[part.key] = FAILED if code or reason else FINISHED
                    if reason:
                        failed[part.key] = reason
                    bar.advance(task)
                    _tell(console, part, reason, root)
                now = "; ".join(item.part.name for item in crew.running)
                if crew.hindered and not told:
                    say(console, "a process of an earlier call is still at work on the next part; waiting for its end")
                told = crew.hindered
                bar.update(task, description=escape(now[:70]))
                time.sleep(PAUSE_S)
        finally:
            crew.stop()
    return failed


def start(part: Part, root: Path) -> Running | None:
    """Begin a part's process; a training or run that was stopped goes on, anything else begins anew.

    None if a process that an earlier call left behind is still at work on the part: it holds the part's lock.
    """
    folder = part.folder(root)
    lock = _lock(root / "locks" / part.key)
    if lock is None:
        return None
    goes_on = not part.alone and part.command in GOES_ON and (folder / GOES_ON[part.command]).exists()
    goes_on = goes_on and (folder / "run.json").exists() and read_record(part, root).state != FAILED
    if not goes_on:
        shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "results.json").unlink(missing_ok=True)
    begun = datetime.now(UTC).isoformat(timespec="seconds")
    write_record(part, root, begun=begun)
    where = setting("resume" if goes_on else "hydra.run.dir", str(folder))
    command = [*PROGRAM, *part.words(root), where]
    with (folder / "log.txt").open("ab") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
            pass_fds=[lock],
            env=os.environ | ONE_THREAD | {"COLUMNS": "160"},
        )  # fmt: skip
    os.close(lock)  # the process has it now, as long as it lives
    return Running(part, process, begun, time.monotonic())


def finish(item: Running, code: int, root: Path) -> str:
    """Note how a part ended; returns the reason if it failed."""
    folder, reason = item.part.folder(root), ""
    if code:
        reason = reason_of(folder, code)
    elif not (folder / "results.json").exists():
        code, reason = 1, "it left no results.json."
    seconds = time.monotonic() - item.clock
    write_record(item.part, root, begun=item.begun, code=code, reason=reason, seconds=seconds)
    return reason


def _lock(path: Path) -> int | None:
    """The descriptor of a locked file, which processes inherit; None if another process has it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    with suppress(ImportError):  # where there are no such locks nothing is held
        import fcntl

        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            return None
    return descriptor


def _signal(process: subprocess.Popen[bytes], number: int) -> None:
    """Send a signal to a process and to those that it started."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def _tell(console: Console, part: Part, reason: str, root: Path) -> None:
    if reason:
        say(console, f"failed: {part.name}: {reason} Its output is in {part.folder(root) / 'log.txt'}.")
    elif not console.is_terminal:
        say(console, f"finished: {part.name}")


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Let a request to end be as Ctrl-C, so that no process is left behind."""

    def stop(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _progress(console: Console) -> Iterator[Progress]:
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn())
    shown = Progress(
        *columns, TextColumn("{task.description}"),
        console=console, transient=True, disable=not console.is_terminal, speed_estimate_period=3600.0,
    )  # fmt: skip
    with shown as bar:
        yield bar
