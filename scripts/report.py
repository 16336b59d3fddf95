"""Tables for people and records for programs."""

from __future__ import annotations

import json
import math
import platform
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from omegaconf import DictConfig, OmegaConf
from rich.console import Console
from rich.markup import escape
from rich.table import Table

if TYPE_CHECKING:
    from hadoppler.envs.placement import LowerBounds, PlacementProblem

PACKAGES = ("hadoppler", "numpy", "numba", "scipy", "networkx", "gymnasium", "torch", "ortools", "hydra-core")

PACKAGE = Path(__file__).resolve().parents[1]
"""The package's folder, which is the root of its repository."""


def write_json(path: Path, value: Any) -> None:
    """Write JSON so that a reader sees either the old file or the whole new one.

    Infinite and undefined numbers, which JSON lacks, become the texts ``inf``, ``-inf`` and ``nan``.
    """
    from hadoppler.envs.placement.readers.files import write_text

    write_text(path, json.dumps(plain(value), ensure_ascii=False, indent=1, default=str, allow_nan=False))


def plain(value: Any) -> Any:
    """The same value of JSON's own types, NumPy's turned into them."""
    if isinstance(value, np.generic | np.ndarray):
        return plain(value.tolist())
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object; ``{}`` if there is none."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def installed(package: str) -> str | None:
    """Version of a distribution, None without it."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def write_run_record(folder: Path, config: DictConfig) -> None:
    """``run.json``: resolved config, command, seed, versions, git state here and of a checkout of the package."""
    versions = {package: found for package in PACKAGES if (found := installed(package)) is not None}
    write_json(
        folder / "run.json",
        {
            "command": sys.argv,
            "config": OmegaConf.to_container(config, resolve=True),
            "seed": config.seeds if "seeds" in config else config.seed,
            "python": platform.python_version(),
            "machine": platform.platform(),
            "versions": versions,
            "git": git_state(Path.cwd()),
            "hadoppler_git": git_state(PACKAGE, root=True),
        },
    )


def git_state(folder: Path, *, root: bool = False) -> dict[str, Any] | None:
    """Commit of a folder and whether its repository has changes; None outside one, or (``root``) within another's."""
    git = ["git", "-C", str(folder)]
    try:
        found = subprocess.run(
            [*git, "rev-parse", "HEAD", "--show-toplevel"], capture_output=True, text=True, check=True, timeout=10
        )
        changed = subprocess.run(
            [*git, "status", "--porcelain"], capture_output=True, text=True, check=True, timeout=10
        )
    except (OSError, subprocess.SubprocessError):
        return None
    commit, top = found.stdout.splitlines()
    if root and Path(top).resolve() != folder.resolve():
        return None
    return {"commit": commit, "changed": bool(changed.stdout.strip())}


def write_results(
    folder: Path, config: DictConfig, rows: Sequence[Mapping[str, Any]], failures: Mapping[str, str], **more: Any
) -> None:
    """``results.json``: the printed table in full precision, what failed and why, and ``more`` of a command's own."""
    write_json(
        folder / "results.json",
        {
            "command": sys.argv,
            "config": OmegaConf.to_container(config, resolve=True),
            "rows": list(rows),
            "failed": dict(failures),
            **more,
        },
    )


def say(console: Console, text: str) -> None:
    """Print a line as it is."""
    console.print(text, highlight=False, markup=False, soft_wrap=True)


Column = tuple[str, Sequence[Any]]
"""Header, which may have several lines, and cells: texts, or Rich's."""


def pack_columns(columns: Sequence[Column], room: int) -> list[list[Column]]:
    """The columns in groups that are no wider than ``room``, each column with its frame."""
    groups: list[list[Column]] = []
    left = 0
    for column in columns:
        texts = (line for cell in (column[0], *column[1]) for line in cell.split("\n"))
        width = 3 + max(map(len, texts))
        if width > left or not groups:
            groups.append([])
            left = room
        groups[-1].append(column)
        left -= width
    return groups


def first_width(console: Console, names: Sequence[str], corner: str) -> int:
    """Letters of ``print_columns``' first column."""
    return min(max(len(corner), *map(len, names)), max(console.width // 3, 20))


def print_columns(
    console: Console, names: Sequence[str], columns: Sequence[Column], *, title: str | None = None, corner: str = ""
) -> None:
    """Tables with the same first column, which takes a third of the terminal's width at most.

    Args:
        names: of the rows.
        corner: header of the first column.
    """
    first = first_width(console, names, corner)
    for number, group in enumerate(pack_columns(columns, console.width - first - 4)):
        table = Table(title=None if number else title, title_justify="left")
        table.add_column(corner, width=first, overflow="fold")
        for header, _ in group:
            table.add_column(escape(header), justify="right", no_wrap=True)
        for row, name in enumerate(names):
            shown = (cells[row] for _, cells in group)
            table.add_row(escape(name), *(escape(cell) if isinstance(cell, str) else cell for cell in shown))
        console.print(table)


def print_placements(
    console: Console,
    problem: PlacementProblem,
    bounds: LowerBounds,
    rows: Sequence[Mapping[str, Any]],
    failures: Mapping[str, str],
) -> None:
    """The table of methods, best first, with the bound below."""
    from hadoppler.envs.placement.render import time_axis

    unit, label = time_axis(problem, max(row["makespan"] for row in rows))
    title = f"{problem.graph.summary()}; {problem.topology.name}, contention: {problem.contention}"
    table = Table(title=escape(title))
    size, size_label = size_axis(max(max(row["peak_memory_bytes"]) for row in rows))
    for name in ("method", label, "/ bound", "/ best", "decided [s]", f"peak memory [{size_label}]", "moved"):
        table.add_column(escape(name), justify="left" if name == "method" else "right", no_wrap=name == "method")
    for row in sorted(rows, key=lambda row: row["makespan"]):
        best = row["ratio_best"] == 1.0
        table.add_row(
            escape(row["method"]) + " *" * (not row["repeatable"]) + " +" * bool(row["notes"].get("repaired")),
            f"{row['makespan'] / unit:.4g}",
            f"{row['ratio_bound']:.3f}",
            f"{row['ratio_best']:.3f}",
            f"{row['decision_s']:.3f}",
            " ".join(f"{peak / size:.3g}" for peak in row["peak_memory_bytes"]),
            _bytes(row["bytes_moved"]),
            style="bold" if best else None,
        )
    console.print(table)
    console.print(f"No placement is faster than {bounds.best / unit:.4g} {label} (bound: {bounds.name}).")
    if problem.d > 1:
        console.print("peak memory: of each device in turn; moved: bytes sent between devices.")
    if not all(row["repeatable"] for row in rows):
        console.print("* stopped by a budget in seconds; another run may differ.")
    if any(row["notes"].get("repaired") for row in rows):
        console.print("+ its own answer did not fit the memory; operations were moved until it did.")
    for sentence in fallen_back(rows):
        say(console, sentence)
    _print_stand_ins(console, problem)
    for name, reason in failures.items():
        console.print(f"{name}: no placement. {reason}", highlight=False, markup=False, soft_wrap=True)


def fallen_back(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """A sentence for each method that gave other methods' placements where its own were worse, and how to forbid it."""
    answers: dict[str, list[str | None]] = {}
    for row in rows:
        answers.setdefault(row["method"], []).append(row["notes"].get("fall_back"))
    told = []
    for name, winners in answers.items():
        taken, never = Counter(filter(None, winners)), f"(method.{name}.fall_back=false: never)."
        if taken and len(winners) == 1:
            told.append(f"{name} answered with {winners[0]}'s placement, for its own was worse {never}")
        elif taken:
            counts = ", ".join(f"{winner}'s on {count}" for winner, count in taken.most_common())
            share = f"{taken.total()} of {len(winners)} problems, where its own were worse"
            told.append(f"{name} answered with other methods' placements on {share}: {counts} {never}")
    return told


def _print_stand_ins(console: Console, problem: PlacementProblem) -> None:
    """Say which devices have no measured seconds in a graph that has some for others."""
    measured = sorted(problem.graph.seconds)
    others = sorted({device.kind for device in problem.topology.devices} - set(measured))
    if measured and others:
        console.print(
            f"Measured on {', '.join(measured)}; scaled from that for {', '.join(others)} where there are no FLOPs.",
            highlight=False,
            markup=False,
        )


def size_axis(size: float) -> tuple[float, str]:
    """A divisor in bytes and its name so that ``size`` reads well."""
    for unit, label in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if size >= unit:
            return unit, label
    return 1.0, "B"


def _bytes(size: float) -> str:
    unit, label = size_axis(size)
    return f"{size / unit:.3g} {label}"
