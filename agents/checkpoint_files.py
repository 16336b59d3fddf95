"""Files of trained policies: plain tensors, numbers and texts, nothing that would run code when it is read."""

from __future__ import annotations

import os
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from ..envs.errors import CheckpointError


def write_file(path: Path, content: Any) -> None:
    """Write numbers, texts, lists, mappings and tensors to a file; the old one stays until the new one is whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    torch.save(content, part)
    os.replace(part, path)


def read_file(path: Path) -> Any:
    """What ``write_file`` wrote, its tensors on the processor.

    Raises:
        CheckpointError: the file is not there, is damaged, or is none of these.
    """
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        why = error.strerror or error
        raise CheckpointError(f"{path}: cannot be read ({why}); give the path of a policy.") from error
    except (pickle.UnpicklingError, RuntimeError, EOFError, KeyError, ValueError) as error:
        raise CheckpointError(f"{path}: is no checkpoint, or was cut; give one that hadoppler train wrote.") from error


def read_policy(path: Path, kind: str) -> dict[str, Any]:
    """The record of a policy, a mapping with ``kind``.

    Raises:
        CheckpointError: ``read_file`` cannot read it, or it is of another kind.
    """
    told = read_file(path)
    if not isinstance(told, Mapping) or told.get("kind") != kind:
        noun = kind.removeprefix("hadoppler ")
        raise CheckpointError(f"{path}: holds no {noun}; give one that hadoppler train wrote.")
    return dict(told)
