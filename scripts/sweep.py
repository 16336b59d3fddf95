"""Sweeps: where the members of one wrote, what became of each, and the table at the end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from hydra.experimental.callback import Callback
from omegaconf import DictConfig
from rich.console import Console
from rich.table import Table
from rich.text import Text

from hadoppler.scripts.metrics import read_metrics, telling
from hadoppler.scripts.run_state import read_status

STYLES = {"finished": "green", "failed": "red", "interrupted": "yellow"}


class SweepFolder(Callback):
    """Notes the folder of a sweep; its members, often other processes, leave in it what became of them."""

    current: ClassVar[Path | None] = None

    @classmethod
    def forget(cls) -> None:
        """Before a command: no sweep has begun."""
        cls.current = None

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Hydra calls this before any member begins."""
        SweepFolder.current = Path(str(config.hydra.sweep.dir)).absolute()
        if "joblib" in str(config.hydra.launcher._target_):
            from joblib.externals.loky import get_reusable_executor

            # processes kept from an earlier sweep would go on in its folder, with its environment
            get_reusable_executor().shutdown(wait=True)


@dataclass(frozen=True)
class Member:
    """What became of one member of a sweep.

    Attributes:
        number: its place in the sweep.
        name: the settings in which it differs from others.
        state: ``finished``, ``failed`` or ``interrupted``.
        reason, code: sentence and exit code, if it did not finish.
        folder: where it wrote.
    """

    number: int
    name: str
    state: str
    reason: str
    code: int
    folder: Path


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
            " ".join(word for word in status["overrides"] if word not in common),
            status["state"],
            status.get("reason", "it was stopped before its end."),
            status.get("code", 1),
            where,
        )
        for where, status in mine
    ]
    return sorted(members, key=lambda member: member.number)


def print_members(console: Console, members: Sequence[Member]) -> None:
    """Member, status, last figures (of those that left ``metrics.jsonl``) and folder of each; nothing for none."""
    if not members:
        return
    table = Table()
    told = [_last_figures(member.folder) for member in members]
    for name in ["member", "status", *(["last figures"] if any(told) else []), "folder"]:
        table.add_column(name, overflow="fold")
    for member, last in zip(members, told, strict=True):
        state = Text(member.state, style=STYLES.get(member.state, ""))
        table.add_row(Text(member.name), state, *([Text(last)] if any(told) else []), Text(member.folder.name))
    console.print(table)
    console.print(f"  {SweepFolder.current}", highlight=False, markup=False, soft_wrap=True)


def _last_figures(folder: Path) -> str:
    last = next(filter(None, map(telling, reversed(read_metrics(folder)))), {})
    return "  ".join(f"{name} {value:.4g}" for name, value in last.items())
