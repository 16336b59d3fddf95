"""Measured throughputs in a JSON file that ``ThroughputTable.read`` reads: Gavel's form."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ...envs.cluster import ThroughputTable
from ...envs.placement.readers.files import write_text
from .training_step import ProfileError


def check_target(path: str | Path) -> dict[str, Any]:
    """What a file holds that shall be extended; nothing, if it is not there.

    Raises:
        ProfileError: it is no JSON file, or its folder does not exist.
        ThroughputError: it holds something else than throughputs.
    """
    path = Path(path)
    if path.suffix != ".json":
        raise ProfileError(f"{path}: measurements go into a file whose name ends in .json; give such a one.")
    if not path.exists():
        if not path.resolve().parent.is_dir():
            raise ProfileError(f"{path}: its folder does not exist; make it, or give another path.")
        return {}
    text = path.read_text(encoding="utf-8-sig") if path.is_file() else ""
    if not text.lstrip().startswith("{"):
        raise ProfileError(f"{path}: is not a JSON file of throughputs; give another path, or remove it.")
    ThroughputTable.read(path)
    content: dict[str, Any] = json.loads(text)
    return content


def extend(path: str | Path, entries: Iterable[tuple[str, int, str, float]]) -> tuple[int, int]:
    """Add (kind, workers, GPU type, steps/s) to a file, or begin one; how many were added, and replaced.

    Everything else in the file stays as it is. A reader sees the old file or the whole new one.

    Raises:
        ProfileError, ThroughputError: as ``check_target``.
    """
    content = check_target(path)
    added = replaced = 0
    for kind, workers, gpu_type, rate in entries:
        rates, key = content.setdefault(gpu_type, {}), str((kind, workers))
        added, replaced = added + (key not in rates), replaced + (key in rates)
        rates[key] = {**rates.get(key, {}), "null": rate}
    write_text(path, json.dumps(content, ensure_ascii=False, indent=1) + "\n")
    return added, replaced
