"""Sweeps: where the members of one wrote, what became of each, and the table at the end."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from hydra.experimental.callback import Callback
from omegaconf import DictConfig
from rich.console import Console
from rich.table import Table
from rich.text import Text

from hadoppler.scripts.metrics import best_figures, read_metrics, telling
from hadoppler.scripts.report import say, write_json
from hadoppler.scripts.run_state import read_status
from hadoppler.scripts.sweep_figures import Figures
from hadoppler.scripts.sweep_seeds import draw_lines, over_seeds, print_lines

STYLES = {"finished": "green", "failed": "red", "interrupted": "yellow"}


class SweepFolder(Callback):
    """Notes the folder of a sweep, where members, often other processes, tell what became of them.

    Attributes:
        pictures: whether pictures are wanted.
    """

    current: ClassVar[Path | None] = None
    pictures: ClassVar[bool] = True

    @classmethod
    def forget(cls) -> None:
        """Before a command: no sweep has begun."""
        cls.current = None

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Hydra calls this before any member begins."""
        SweepFolder.current = Path(str(config.hydra.sweep.dir)).absolute()
        SweepFolder.pictures = bool(config.get("pictures", True))
        if "joblib" in str(config.hydra.launcher._target_):
            from joblib.externals.loky import get_reusable_executor

            # processes kept from an earlier sweep would go on in its folder, with its environment
            get_reusable_executor().shutdown(wait=True)


@dataclass(frozen=True)
class Member:
    """What became of one member of a sweep.

    Attributes:
        number: its place in the sweep.
        words: the settings in which it differs from others.
        state: ``finished``, ``failed`` or ``interrupted``.
        reason, code: sentence and exit code, if it did not finish.
        folder: where it wrote.
    """

    number: int
    words: tuple[str, ...]
    state: str
    reason: str
    code: int
    folder: Path

    @property
    def name(self) -> str:
        """Its own settings in one line."""
        return " ".join(self.words)

    def told(self) -> dict[str, Any]:
        """For ``sweep.json``."""
        told = {"number": self.number, "name": self.name, "folder": self.folder.name, "state": self.state}
        return told if self.state == "finished" else {**told, "code": self.code, "reason": self.reason}


def read_members(sweep: str) -> list[Member]:
    """The members of the last sweep that began, in their order; none if there was no sweep.

    Args:
        sweep: what their ``status.json`` calls the sweep; a folder given by hand may hold members of an earlier one.
    """
    folder = SweepFolder.current
    if folder is None:
        return []
    found = [(path.parent, read_status(path.parent)) for path in sorted(folder.rglob("status.json"))]
    mine = [(where, status) for where, status in found if status.get("sweep") == sweep]
    common = set.intersection(*(set(status["overrides"]) for _, status in mine)) if len(mine) > 1 else set()
    members = [
        Member(
            status["number"],
            tuple(word for word in status["overrides"] if word not in common),
            status["state"],
            status.get("reason", "it was stopped before its end."),
            status.get("code", 1),
            where,
        )
        for where, status in mine
    ]
    return sorted(members, key=lambda member: member.number)


def report_sweep(console: Console, members: Sequence[Member], figures: Figures) -> None:
    """Print what became of the members, and their figures over the seeds; ``sweep.json`` and a picture keep that.

    Nothing for no members.
    """
    folder = SweepFolder.current
    if not members or folder is None:
        return
    lines = over_seeds(members, figures)
    print_members(console, members)
    if lines:
        print_lines(console, lines)
    told = {"command": sys.argv, "members": [member.told() for member in members]}
    write_json(folder / "sweep.json", {**told, "over_seeds": [line.told() for line in lines]})
    for path in [folder, *([draw_lines(folder / "over_seeds.png", lines)] if lines and SweepFolder.pictures else [])]:
        say(console, f"  {path}")


def print_members(console: Console, members: Sequence[Member]) -> None:
    """Member, status, figures (of those that left ``metrics.jsonl``) and folder of each."""
    table = Table()
    found = [read_metrics(member.folder) for member in members]
    best = [best_figures(lines) for lines in found]
    told = best if any(best) else [next(filter(None, map(telling, reversed(lines))), {}) for lines in found]
    header = ["best by validation" if any(best) else "last figures"] if any(told) else []
    for name in ["member", "status", *header, "folder"]:
        table.add_column(name, overflow="fold")
    for member, shown in zip(members, told, strict=True):
        state = Text(member.state, style=STYLES.get(member.state, ""))
        text = "  ".join(f"{name} {value:.4g}" for name, value in shown.items())
        table.add_row(Text(member.name), state, *([Text(text)] if header else []), Text(member.folder.name))
    console.print(table)
