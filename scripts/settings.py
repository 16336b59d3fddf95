"""Settings as words of a command line."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def setting(name: str, value: Any) -> str:
    """``name=value`` as Hydra reads it: texts and paths are quoted where a sign in them would mean something."""
    return f"{name}={_written(value)}"


def _written(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{_written(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return f"[{','.join(map(_written, value))}]"
    if isinstance(value, str | Path):
        text = str(value)
        if re.fullmatch(r"[\w/.\-]+", text):
            return text
        escaped = text.replace("\\", "\\\\").replace("'", "\\'")
        return f"'{escaped}'"
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else repr(value)
