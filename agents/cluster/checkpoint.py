"""A trained policy as a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ...envs.cluster.features import GLOBAL_FEATURES, JOB_FEATURES
from ...envs.errors import CheckpointError
from ..checkpoint_files import read_policy, write_file
from .network import ClusterNetwork

SHIPPED = Path(__file__).with_name("policy.pt")
"""The policy that comes with the package."""
KIND = "hadoppler cluster policy"


def save_policy(path: str | Path, network: ClusterNetwork, **told: Any) -> None:
    """Write weights, and what else is ``told`` (numbers, texts, lists, dicts, tensors), to a file; the old one stays
    until the new one is whole."""
    features = [*JOB_FEATURES, *GLOBAL_FEATURES]
    weights = {name: value.detach().clone() for name, value in network.state_dict().items()}
    write_file(Path(path), {"kind": KIND, "width": network.width, "features": features, "weights": weights, **told})


def load_policy(path: str | Path | None = None) -> tuple[ClusterNetwork, dict[str, Any]]:
    """The network of a file, and all that the file tells; None: the shipped one.

    Raises:
        CheckpointError: the file is not there, is damaged, is no cluster policy, or is one for other features or of
            another version.
    """
    path = SHIPPED if path is None else Path(path)
    told = read_policy(path, KIND)
    if told.get("features") != [*JOB_FEATURES, *GLOBAL_FEATURES]:
        raise CheckpointError(f"{path} was trained on other features than this version sees; train it again.")
    try:
        network = ClusterNetwork(int(told["width"]))
        network.load_state_dict(told["weights"])
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"{path}: was written by another version of this policy; train it again.") from error
    return network.eval(), told
