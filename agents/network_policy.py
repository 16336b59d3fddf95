"""Any network as a policy of sb3-contrib's MaskablePPO."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
from sb3_contrib.common.maskable.policies import MaskableActorCriticPolicy
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from torch import Tensor, nn


class _AsSeen(BaseFeaturesExtractor):
    """Hands observations on as they are."""

    def __init__(self, observation_space: gym.Space) -> None:
        super().__init__(observation_space, features_dim=1)

    def forward(self, observation: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        return observation


class _ActorAndCritic(nn.Module):
    """The network where stable-baselines3 has its hidden layers."""

    def __init__(self, network: nn.Module, choices: int) -> None:
        super().__init__()
        self.network, self.choices = network, choices

    def forward(self, observation: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        scores, value = self.network(observation, self.choices)
        return scores, value[:, None]

    def forward_actor(self, observation: Mapping[str, Tensor]) -> Tensor:
        return self(observation)[0]

    def forward_critic(self, observation: Mapping[str, Tensor]) -> Tensor:
        return self(observation)[1]


class NetworkPolicy(MaskableActorCriticPolicy):
    """Base of policies that are one network: ``network(observation, choices)`` -> scores [B, choices], values [B].

    A subclass says which, in ``make_network``. The environment has dictionaries as observations and numbered actions.

    Args:
        network_options: what the subclass's own constructor was given, so that a saved policy can be made again.
    """

    mlp_extractor: Any
    action_net: Any
    value_net: Any

    def __init__(self, *args: Any, network_options: Mapping[str, Any], **options: Any) -> None:
        self.network_options = dict(network_options)
        super().__init__(*args, **{"features_extractor_class": _AsSeen, **options})

    def make_network(self) -> nn.Module:
        """A new network, of ``network_options``; the spaces are known."""
        raise NotImplementedError

    def _build(self, lr_schedule: Any) -> None:
        choices: Any = self.action_space
        self.mlp_extractor = _ActorAndCritic(self.make_network(), int(choices.n))
        self.action_net, self.value_net = nn.Identity(), nn.Identity()
        make: Any = self.optimizer_class
        self.optimizer = make(self.parameters(), lr=lr_schedule(1), **self.optimizer_kwargs)

    def _get_constructor_parameters(self) -> dict[str, Any]:
        return super()._get_constructor_parameters() | self.network_options
