"""A trained policy as a file: plain numbers, texts and tensors, nothing that would run code when it is read."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import torch

from ...envs.cluster.features import GLOBAL_FEATURES, JOB_FEATURES
from ...envs.errors import CheckpointError
from .network import ClusterNetwork

SHIPPED = Path(__file__).with_name("policy.pt")
"""The policy that comes with the package."""
KIND = "hadoppler cluster policy"


def save_policy(path: str | Path, network: ClusterNetwork, **told: Any) -> None:
    """Write weights, and what else is ``told`` (numbers, texts, lists, dicts, tensors), to a file; the old one stays
    until the new one is whole."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    features = [*JOB_FEATURES, *GLOBAL_FEATURES]
    weights = {name: value.detach().clone() for name, value in network.state_dict().items()}
    part = path.with_name(f".{path.name}.part")
    torch.save({"kind": KIND, "width": network.width, "features": features, "weights": weights, **told}, part)
    os.replace(part, path)


def load_policy(path: str | Path | None = None) -> tuple[ClusterNetwork, dict[str, Any]]:
    """The network of a file, and all that the file tells; None: the shipped one.

    Raises:
        CheckpointError: the file is not there, is no policy, or is one for other features.
    """
    path = SHIPPED if path is None else Path(path)
    try:
        told: Any = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror or error}; give a file of hadoppler train.") from error
    except (pickle.UnpicklingError, RuntimeError, EOFError, KeyError, ValueError) as error:
        raise CheckpointError(f"{path} is no policy that can be read; give a file of hadoppler train.") from error
    if not isinstance(told, dict) or told.get("kind") != KIND:
        raise CheckpointError(f"{path} is no cluster policy; give a file of hadoppler train agent=cluster.")
    if told["features"] != [*JOB_FEATURES, *GLOBAL_FEATURES]:
        raise CheckpointError(f"{path} was trained on other features than this version sees; train it again.")
    network = ClusterNetwork(int(told["width"]))
    network.load_state_dict(told["weights"])
    return network.eval(), told
