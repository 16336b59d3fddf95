"""A run while it goes on: jobs and nodes in a live table, or now and then a line where there is no terminal."""

from __future__ import annotations

import time
from types import TracebackType
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from hadoppler.scripts.report import say

if TYPE_CHECKING:
    from hadoppler.real_system.cluster.real_run import Post, RealRun
    from hadoppler.real_system.cluster.tracker import TrackedJob

EVERY_S = 5.0
"""Seconds between two plain lines."""
REFRESH_S = 0.25
SHOWN = 20
"""Jobs in the table; those that run come first."""


class RunDisplay:
    """Shows a run; ``show`` is called whenever something may have happened."""

    def __init__(self, console: Console, name: str) -> None:
        self.console, self.name = console, name
        self._live = Live(console=console, transient=True, auto_refresh=False) if console.is_terminal else None
        self._next, self._told = 0.0, 0

    def __enter__(self) -> RunDisplay:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, run: RealRun) -> None:
        """Draw the run as it is now, if it is time to."""
        for text in run.notes[self._told :]:
            said = f"{self.name} {run.time:6.1f} s: {text}"
            say(self.console, said)
        self._told = len(run.notes)
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + (REFRESH_S if self._live is not None else EVERY_S)
        if self._live is not None:
            self._live.update(Group(self._jobs(run), self._nodes(run)), refresh=True)
        else:
            say(self.console, _line(self.name, run))

    def _jobs(self, run: RealRun) -> Table:
        table = Table(title=escape(f"{self.name}, {run.time:.0f} s"), title_justify="left")
        for header in ("job", "task", "done", "steps/s", "ends in", "where, or why it waits"):
            table.add_column(header, justify="left" if header in ("job", "task") or "," in header else "right")
        rows = run.state.active.tolist()
        rows.sort(key=lambda row: (not _posts(run, row), row))
        for row in rows[:SHOWN]:
            job, rate = run.tracker.jobs[row], _rate(run, row)
            left = f"{job.left / rate:.0f} s" if rate > 0 else ""
            table.add_row(
                escape(job.spec.id), escape(job.spec.task), done(job), f"{rate:.1f}", left, escape(where(run, row))
            )
        if len(rows) > SHOWN:
            table.caption = f"and {len(rows) - SHOWN} more"
        return table

    def _nodes(self, run: RealRun) -> Table:
        table = Table()
        for header in ("node", "type", "workers", "jobs"):
            table.add_column(header)
        capacity = run.crew.capacity
        for number, node in enumerate(run.cluster.nodes):
            types = [kind for kind, name in enumerate(run.cluster.types) if node.gpus.get(name)]
            there = f"{int(capacity[number].sum())} of {sum(node.gpus.values())}"
            jobs = [run.workload.jobs[key[0]].id for key, post in run.posts.items() if number in _nodes_of(post)]
            names = ", ".join(run.cluster.types[kind] for kind in types)
            table.add_row(escape(node.name), escape(names), there, escape(", ".join(jobs)))
        return table


class ReadyLine:
    """Tells now and then how many workers are ready, and at last that all are, if it has said anything."""

    def __init__(self, console: Console) -> None:
        self.console, self._next, self._said = console, time.monotonic() + EVERY_S, False

    def __call__(self, ready: int, count: int) -> None:
        """So many of so many."""
        if time.monotonic() >= self._next or (self._said and ready == count):
            self._next, self._said = time.monotonic() + EVERY_S, ready < count
            self.console.print(f"{ready} of {count} workers are ready", highlight=False)


def done(job: TrackedJob) -> str:
    """Part of a job's steps that are done; 100 % when all are."""
    return f"{100 * (job.spec.steps - job.left) // job.spec.steps}%"


def where(run: RealRun, row: int) -> str:
    """On which nodes a job runs, or why it waits."""
    names = [run.cluster.nodes[node].name for post in _posts(run, row) for node in _nodes_of(post)]
    if names:
        return " ".join(dict.fromkeys(names))
    missing = int(run.cluster.capacity.sum() - run.crew.capacity.sum())
    lost = f", {missing} workers are gone" if missing else ""
    if int(run.crew.capacity.sum()) < run.tracker.jobs[row].spec.workers:
        return f"waits for {run.tracker.jobs[row].spec.workers} workers{lost}"
    ahead = sum(1 for other in run.state.active.tolist() if _posts(run, other))
    soon = max(0.0, run.round_end - run.time)
    return f"waits: {ahead} other jobs were given the workers{lost}; next decision in {soon:.0f} s"


def _posts(run: RealRun, row: int) -> list[Post]:
    return [post for key, post in run.posts.items() if key[0] == row]


def _nodes_of(post: Post) -> list[int]:
    return [node for node, _, _ in post.gang.order.entries]


def _rate(run: RealRun, row: int) -> float:
    """Steps/s of all gangs of a job, as measured since their starts."""
    posts = _posts(run, row)
    return sum(post.gang.steps / post.gang.worked_s for post in posts if post.gang.worked_s > 0)


def _line(name: str, run: RealRun) -> str:
    """The run in one line."""
    active = run.state.active.tolist()
    finished = int(np.isfinite(run.state.jobs.finish).sum())
    parts = [f"{run.workload.jobs[row].id} {done(run.tracker.jobs[row])}" for row in active[:8]]
    more = f" and {len(active) - 8} more" if len(active) > 8 else ""
    return f"{name} {run.time:6.1f} s: {finished} finished; {', '.join(parts) or 'nobody is there'}{more}"
