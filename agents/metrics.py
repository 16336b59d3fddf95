"""``metrics.jsonl``: a JSON object per round of a training, the record of truth of how it went."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any


def append_line(path: str | Path, line: Mapping[str, Any]) -> None:
    """Write one more line; before the checkpoint of the same round, so that none is ever missing."""
    with Path(path).open("a", encoding="utf-8") as file:
        file.write(json.dumps(dict(line)) + "\n")


def cut_lines(path: str | Path, counter: str, last: int) -> None:
    """Keep the lines up to a checkpoint: those whose ``counter`` is at most ``last``.

    What came after it, whole or half written, is done again by a training that goes on from there.
    """
    path = Path(path)
    if not path.exists():
        return
    kept = []
    for text in path.read_text(encoding="utf-8", errors="replace").splitlines():
        with suppress(json.JSONDecodeError, KeyError, TypeError):
            if json.loads(text)[counter] <= last:
                kept.append(text + "\n")
    part = path.with_name(f".{path.name}.part")
    part.write_text("".join(kept), encoding="utf-8")
    os.replace(part, path)
