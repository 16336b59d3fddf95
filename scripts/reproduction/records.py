"""What became of a part, told in its folder: ``part.json``, ``log.txt``, and the command's own ``results.json``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hadoppler.scripts.report import plain, read_json, write_json
from hadoppler.scripts.reproduction.parts import Part

FINISHED, FAILED, MISSING = "finished", "failed", "missing"


@dataclass(frozen=True)
class Record:
    """State of a part.

    Attributes:
        state: ``finished``, ``failed``, or ``missing``: never begun, or interrupted.
        reason: why it failed.
        begun: ISO time; empty if it never was.
        seconds: that it took.
    """

    state: str = MISSING
    reason: str = ""
    begun: str = ""
    seconds: float = 0.0


def read_record(part: Part, root: Path) -> Record:
    """What became of a part."""
    folder = part.folder(root)
    told = read_json(folder / "part.json")
    if "code" not in told:
        return Record(begun=str(told.get("begun", "")))
    done = told["code"] == 0 and (folder / "results.json").exists()
    reason = "" if done else str(told.get("reason") or f"it ended with exit code {told['code']}.")
    state = FINISHED if done else FAILED
    return Record(state, reason, str(told.get("begun", "")), float(told.get("seconds", 0.0)))


def write_record(part: Part, root: Path, **told: Any) -> None:
    """Note which part a folder holds, and what became of it."""
    named = {"table": part.table, "row": part.row, "at": plain(part.at), "seed": part.seed}
    command = ["hadoppler", *part.words(root)]
    write_json(part.folder(root) / "part.json", {**named, "command": command, **told})


def reason_of(folder: Path, code: int) -> str:
    """The last sentence that a command said of its failure, from its log."""
    try:
        lines = (folder / "log.txt").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    told = [line for line in lines if line.startswith("hadoppler ")]
    if told:
        return told[-1].partition(": ")[2]
    last = next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")
    return f"it ended with exit code {code}: {last}"


def rows_of(results: Mapping[str, Any], inside: str) -> list[Mapping[str, Any]]:
    """The rows in a part of ``results.json``; an object stands for one row."""
    found: Any = results
    for name in inside.split("."):
        found = found.get(name, []) if isinstance(found, Mapping) else []
    rows = [found] if isinstance(found, Mapping) else found if isinstance(found, list) else []
    return [row for row in rows if isinstance(row, Mapping)]
