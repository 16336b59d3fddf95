"""Reading what users describe in YAML or JSON: topologies and clusters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from .errors import HadopplerError


def read_yaml(path: str | Path, error: type[HadopplerError]) -> Any:
    """The content of a YAML or JSON file.

    Raises:
        error: the file is missing or is no YAML.
    """
    import yaml

    try:
        return yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except OSError as problem:
        raise error(f"{path}: cannot be read ({problem.strerror}); give the path of a YAML file.") from problem
    except (yaml.YAMLError, UnicodeDecodeError) as problem:
        raise error(f"{path}: is not YAML ({' '.join(str(problem).split())}).") from problem


def check_keys(values: Mapping[str, Any], valid: Sequence[str], where: str, error: type[HadopplerError]) -> None:
    """Refuse keys that nobody reads.

    Raises:
        error: there is one; the nearest valid one is named, or all are.
    """
    for key in values:
        if key not in valid:
            near = get_close_matches(str(key), valid, n=1)
            hint = f"did you mean {near[0]}?" if near else f"valid keys are {', '.join(valid)}."
            raise error(f"{where}: unknown key {key!r}; {hint}")
