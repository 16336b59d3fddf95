"""Lines of ``metrics.jsonl`` as people read them: which values are figures, and which of these tell most."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

COUNTERS = frozenset(
    {"round", "rounds", "update", "updates", "step", "steps", "episode", "episodes", "iteration", "epoch"}
    | {"calls", "examples", "seconds", "done"}
)
"""Numbers that only tell how far a training is."""
TELLING = ("validation", "makespan", "ratio", "best", "return", "loss", "accuracy")
"""Words in the names of the figures that are looked at first."""

VALIDATED = ("validation", "makespan", "ratio", "ratio_greedy")
"""Figures of a validation: of a scheduler the first, of placements the others."""


def read_metrics(folder: str | Path) -> list[dict[str, Any]]:
    """The lines in a run's folder; none where there is no file, and without a half-written one."""
    path, lines = Path(folder) / "metrics.jsonl", []
    if path.exists():
        for text in path.read_text(encoding="utf-8", errors="replace").splitlines():
            with suppress(json.JSONDecodeError):
                line = json.loads(text)
                if isinstance(line, dict):
                    lines.append(line)
    return lines


def figures(line: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a line that are no counters."""
    return {
        name: float(value)
        for name, value in line.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and name not in COUNTERS
    }


def rank(name: str) -> int:
    """Place of a figure by how much it tells; least first."""
    return next((place for place, word in enumerate(TELLING) if word in name), len(TELLING))


def telling(line: Mapping[str, Any], most: int = 3) -> dict[str, float]:
    """The figures of a line that tell most."""
    found = figures(line)
    return {name: found[name] for name in sorted(found, key=rank)[:most]}


def best_figures(lines: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Figures of the best validation, that of the policy that a training keeps; nothing where there was none.

    The stage ``online`` judges by measured times and begins anew: of what came before it, nothing counts then.
    """
    judged = [line for line in lines if "ratio" in figures(line) or "validation" in figures(line)]
    judged = [line for line in judged if line.get("stage") == "online"] or judged
    if not judged:
        return {}
    best = min(judged, key=lambda line: (line.get("validation", line.get("ratio")), line.get("ratio_greedy", 0.0)))
    found = figures(best)
    return {name: found[name] for name in VALIDATED if name in found}


def position(line: Mapping[str, Any]) -> str:
    """Where in the training a line is: its stage and its first counter."""
    counter = next((f"{name} {line[name]}" for name in line if name in COUNTERS), "")
    return f"{line.get('stage', '')} {counter}".strip()


def describe(line: Mapping[str, Any]) -> str:
    """A whole line; how much of the training is done as a percentage."""
    return "  ".join(f"{value:.0%}" if name == "done" else in_words(line, name, value) for name, value in line.items())


MEASURED = {"makespan": "measured {} s", "ratio": "of the incumbent's {}"}
"""Figures that the stage ``online`` gives in seconds and as shares of the incumbent's, other stages as simulated."""


def in_words(line: Mapping[str, Any], name: str, value: Any) -> str:
    """A figure of a line with its name."""
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    if line.get("stage") == "online" and name in MEASURED:
        return MEASURED[name].format(text)
    return f"{name} {text}"
