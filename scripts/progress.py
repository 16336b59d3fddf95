"""How far a command is: a bar with the time that is left, or now and then a line where there is no terminal."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from hadoppler.scripts.metrics import describe, in_words, position, telling

EVERY_S = 5.0
"""Least seconds between two plain lines of one stage."""


LONG_S = 10.0
"""Seconds after which work that tells nothing of itself is told of."""


class PlainProgress:
    """A line every ``every_s`` seconds of what is being done, if that is another thing, where there is no terminal.

    ``with PlainProgress(console) as progress: progress.at("heft (1 of 3)")``
    """

    def __init__(self, console: Console, *, every_s: float = LONG_S) -> None:
        self.console, self.every_s = console, every_s
        self._doing = self._told = ""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._tell, daemon=True)

    def __enter__(self) -> PlainProgress:
        if not self.console.is_terminal:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()

    def at(self, doing: str) -> None:
        """What is being done from now on."""
        self._doing = doing

    def _tell(self) -> None:
        while not self._over.wait(self.every_s):
            if self._doing != self._told:
                self._told = self._doing
                self.console.print(f"{self._told} ...", highlight=False, markup=False, soft_wrap=True)


class TrainingProgress:
    """One bar over ``done`` of the lines that a plan reports; the last line of every stage stays on the screen.

    Args:
        quiet: print nothing, as in a sweep whose members run side by side.
    """

    def __init__(self, console: Console, *, quiet: bool = False, every_s: float = EVERY_S) -> None:
        self.console, self.quiet, self.every_s = console, quiet, every_s
        self._last: Mapping[str, Any] | None = None
        self._told = True
        self._next = 0.0
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=quiet or not console.is_terminal,
            speed_estimate_period=3600.0,  # a round may take minutes
        )
        self._task = self._bar.add_task("begins", total=None)

    def __enter__(self) -> TrainingProgress:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._tell_last()
        self._bar.stop()

    def update(self, line: Mapping[str, Any]) -> None:
        """Show a line of ``metrics.jsonl``."""
        if self._last is not None and self._last.get("stage") != line.get("stage"):
            self._tell_last()
        self._last, self._told = line, False
        if not self._bar.disable:
            shown = "  ".join(in_words(line, name, value) for name, value in telling(line).items())
            self._bar.update(self._task, description=escape(f"{position(line)}  {shown}"))
            if "done" in line:
                self._bar.update(self._task, total=1.0, completed=float(line["done"]))
        elif time.monotonic() >= self._next:
            self._tell_last()

    def _tell_last(self) -> None:
        """Print the newest line, unless it was printed."""
        if self._last is not None and not self._told and not self.quiet:
            self.console.print(describe(self._last), highlight=False, markup=False, soft_wrap=True)
            self._next = time.monotonic() + self.every_s
        self._told = True
