"""Trained policies as files, each with the class that can be made again from it."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from ...baselines.registry import find_by_name
from ...envs.errors import CheckpointError
from ..checkpoint_files import read_policy, write_file
from .policy import PlacementPolicy

SHIPPED = Path(__file__).with_name("policy.pt")
"""The policy that comes with the package: trained on generated graphs and topologies."""
KIND = "hadoppler placement policy"
POLICIES = {
    "doppler": "hadoppler.agents.placement.doppler:DopplerPolicy",
    "doppler_stepwise": "hadoppler.agents.placement.stepwise:StepwisePolicy",
    "placeto": "hadoppler.agents.placement.placeto:PlacetoPolicy",
    "gdp": "hadoppler.agents.placement.gdp:GdpPolicy",
    "joint": "hadoppler.agents.placement.joint:JointPolicy",
}
"""Name -> ``module:class``. Other packages add theirs through the entry point group ``hadoppler.policies``."""


def policy_class(name: str) -> type[PlacementPolicy]:
    """The class of a policy by name.

    Raises:
        UnknownNameError: nobody offers it.
        MissingExtraError: it needs a package that is not installed.
    """
    return cast(type[PlacementPolicy], find_by_name(name, POLICIES, "hadoppler.policies", "placement policy"))


def policy_name(policy: PlacementPolicy) -> str:
    """The name under which a policy's class is offered.

    Raises:
        CheckpointError: it is not offered, so nobody could load it again.
    """
    target = f"{type(policy).__module__}:{type(policy).__qualname__}"
    offered = POLICIES | {entry.name: entry.value for entry in entry_points(group="hadoppler.policies")}
    for name, value in offered.items():
        if value == target:
            return name
    raise CheckpointError(f"{target} has no name; add it to the entry points hadoppler.policies of its package.")


def save_policy(path: str | Path, policy: PlacementPolicy, **told: Any) -> None:
    """Write weights, options, and what else is ``told`` (numbers, texts, lists, dicts, arrays, tensors); atomically."""
    weights = {name: value.detach().cpu().clone() for name, value in policy.state_dict().items()}
    record = {"kind": KIND, "policy": policy_name(policy), "options": policy.options, "weights": weights, **told}
    write_file(Path(path), _plain(record))


def keep_last(path: str | Path) -> None:
    """Before a checkpoint is replaced: keep it as ``*.previous.pt``, if it is there and whole."""
    path = Path(path)
    if path.exists():
        os.replace(path, previous_of(path))


def previous_of(path: Path) -> Path:
    """Where the checkpoint before the newest one lies."""
    return path.with_name(f"{path.stem}.previous{path.suffix}")


def load_newest(path: str | Path) -> tuple[PlacementPolicy, dict[str, Any]]:
    """As ``load_policy``; if the newest file is damaged, the one before it, with a warning.

    Raises:
        CheckpointError: neither can be read.
    """
    path = Path(path)
    try:
        return load_policy(path)
    except CheckpointError as error:
        older = previous_of(path)
        if not older.exists() and not path.exists():
            raise CheckpointError(
                f"{path.parent}: holds no checkpoint to go on from; give another folder, or begin anew."
            ) from error
        if not older.exists():
            raise
        warnings.warn(f"{error} Going on from {older.name}, the one before it.", stacklevel=2)
        return load_policy(older)


def load_policy(path: str | Path | None = None) -> tuple[PlacementPolicy, dict[str, Any]]:
    """The policy of a file, or of a training's folder, and all that the file tells; None: the shipped one.

    Raises:
        CheckpointError: the file is not there, is damaged, is no placement policy, or is of another version.
    """
    path = SHIPPED if path is None else Path(path)
    path = path / "policy.pt" if path.is_dir() else path
    told = read_policy(path, KIND)
    try:
        policy = policy_class(told["policy"])(**told["options"])
        policy.load_state_dict(told["weights"])
    except (KeyError, TypeError, RuntimeError) as error:
        raise CheckpointError(f"{path}: was written by another version of this policy; train it again.") from error
    return policy.eval(), told


def _plain(value: Any) -> Any:
    """The same value of types that ``weights_only`` reads: NumPy's arrays as tensors, its numbers as Python's."""
    if isinstance(value, np.ndarray):
        return torch.from_numpy(value.copy())
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        return {str(key) if not isinstance(key, int) else key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
