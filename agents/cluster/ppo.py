"""The network as a policy of sb3-contrib's MaskablePPO, and fine-tuning with it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import gymnasium as gym
from sb3_contrib import MaskablePPO

from ..network_policy import NetworkPolicy
from .network import ClusterNetwork


class ClusterPolicy(NetworkPolicy):
    """``MaskablePPO(ClusterPolicy, env, ...)`` for ``SequentialAllocation`` with any window, cluster and options.

    Args:
        network_width: of a new ``ClusterNetwork``, the attribute ``network``.
    """

    def __init__(self, *args: Any, network_width: int = 40, **options: Any) -> None:
        super().__init__(*args, network_options={"network_width": network_width}, **options)

    def make_network(self) -> ClusterNetwork:
        """As of ``NetworkPolicy``."""
        return ClusterNetwork(self.network_options["network_width"])

    @property
    def network(self) -> ClusterNetwork:
        """What is trained."""
        network: ClusterNetwork = self.mlp_extractor.network
        return network


PPO_SETTINGS: dict[str, Any] = {
    "learning_rate": 1e-4,
    "n_steps": 2048,
    "batch_size": 512,
    "n_epochs": 3,
    "gae_lambda": 0.99,
    "clip_range": 0.1,
    "ent_coef": 0.0,
    "target_kl": 0.02,
}
"""Ours: long credit, for a round is some tens of decisions; small steps, for the network can decide already."""


def make_ppo(network: ClusterNetwork, env: gym.Env | Any, **options: Any) -> MaskablePPO:
    """A learner that goes on from a network's weights, in a copy of it (``network_of``).

    ``options`` are MaskablePPO's, over ``PPO_SETTINGS``. Nothing is discounted, for the mean completion time is not.
    """
    settings: dict[str, Any] = {"gamma": 1.0, "device": "cpu", **PPO_SETTINGS, **options}
    model = MaskablePPO(ClusterPolicy, env, policy_kwargs={"network_width": network.width}, **settings)
    network_of(model).load_state_dict(network.state_dict())
    return model


def network_of(model: MaskablePPO) -> ClusterNetwork:
    """What a learner trains."""
    policy: Any = model.policy
    network: ClusterNetwork = policy.network
    return network


def ppo_round(model: MaskablePPO, seed: int) -> dict[str, float]:
    """One roll-out from new episodes, and one update; all draws come from ``seed``.

    Returns what MaskablePPO tells of it, and ``return``, the mean return of the episodes that ended.
    """
    model.set_random_seed(seed)
    model._last_obs = None  # begin with a reset
    model.ep_info_buffer = None
    model.learn(model.n_steps * model.n_envs, log_interval=1000)
    told = {name.removeprefix("train/"): float(value) for name, value in model.logger.name_to_value.items()}
    ended: Iterable[dict[str, float]] = model.ep_info_buffer or ()
    returns = [episode["r"] for episode in ended]
    return told | {"return": sum(returns) / len(returns) if returns else float("nan")}
