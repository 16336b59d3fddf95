"""One's own algorithm on the environment: sb3-contrib's MaskablePPO with a policy that fits graphs of every size.

``make_masked_ppo(FlatAction(DevicePlacementEnv(problem, reward="dense"))).learn(20_000)`` trains one. The network
scores operations and devices one by one with the same weights, so ``policy.state_dict()`` of a small graph can be
loaded into a model for a larger one, or for more devices.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import gymnasium as gym
import torch
from gymnasium import spaces
from sb3_contrib import MaskablePPO
from torch import Tensor, nn

from ...envs.errors import PlacementError
from ...envs.placement.features import DEVICE_FEATURES, EDGE_FEATURES, NODE_FEATURES
from ..network_policy import NetworkPolicy

PPO_SETTINGS: dict[str, Any] = {
    "learning_rate": 1e-3,
    "n_steps": 512,
    "batch_size": 128,
    "n_epochs": 8,
    "gamma": 1.0,
    "gae_lambda": 0.98,
    "ent_coef": 0.02,
    "device": "cpu",
}
"""Ours: nothing is discounted, for the makespan is not; credit is long, for an episode is a whole graph."""


class Seen(NamedTuple):
    """Observations in parts: B of them, N operations, E edges, D devices, padding included."""

    nodes: Tensor
    """[B, N, 6 + 2] static features, whether it is a candidate, whether it is placed"""
    edge_index: Tensor
    """int64 [B, 2, E]"""
    edges: Tensor
    """[B, E, 1]"""
    edge_there: Tensor
    """[B, E, 1] 1 for edges, 0 for padding"""
    there: Tensor
    """[B, N, 1] 1 for operations, 0 for padding"""
    device_there: Tensor
    """[B, D, 1] 1 for devices, 0 for padding"""
    on: Tensor
    """[B, N, D] 1 where an operation is placed"""
    pairs: Tensor
    """[B, N, D, 15 + 1] device features of candidates as log(1 + x), and the device's memory"""


def split(observation: Mapping[str, Tensor]) -> Seen:
    """The parts of observations of ``DevicePlacementEnv``, flat or not, as stable-baselines3 hands them on."""
    flat = {name: part.flatten(1) for name, part in observation.items()}
    (b, d), n = flat["memory"].shape, flat["candidates"].shape[1]
    operations, edges, devices = flat["counts"].unbind(1)
    assignment = flat["assignment"].long()[..., None]
    nodes = flat["node_features"].reshape(b, n, len(NODE_FEATURES))
    pairs = torch.log1p(flat["device_features"].reshape(b, n, d, len(DEVICE_FEATURES)))
    memory = torch.log1p(flat["memory"])[:, None, :, None].expand(-1, n, -1, -1)
    edge_features = flat["edge_features"].reshape(b, -1, len(EDGE_FEATURES))
    return Seen(
        nodes=torch.cat((nodes, flat["candidates"][..., None], assignment >= 0), dim=-1),
        edge_index=flat["edge_index"].reshape(b, 2, -1).long(),
        edges=edge_features,
        edge_there=_first(edges, edge_features.shape[1]),
        there=_first(operations, n),
        device_there=_first(devices, d),
        on=(assignment == torch.arange(d, device=assignment.device)).float(),
        pairs=torch.cat((pairs, memory), dim=-1),
    )


def _first(count: Tensor, room: int) -> Tensor:
    """[B, room, 1]: 1 for the first ``count`` [B], 0 for the others."""
    return (torch.arange(room, device=count.device) < count[:, None])[..., None].float()


class PlacementNetwork(nn.Module):
    """Scores of operations and devices, and the value of the state.

    Operations hear from producers and consumers, a device is the mean of what sits on it, and a pair of both reads the
    environment's device features. So scores do not depend on the numbers of operations, edges and devices, nor on
    padding, and equal devices are treated alike.

    Args:
        width: numbers per hidden layer.
        rounds: of message passing.
    """

    def __init__(self, width: int = 32, rounds: int = 2) -> None:
        super().__init__()
        self.node = nn.Linear(len(NODE_FEATURES) + 2, width)
        self.forth = nn.ModuleList(nn.Linear(width + len(EDGE_FEATURES), width) for _ in range(rounds))
        self.back = nn.ModuleList(nn.Linear(width + len(EDGE_FEATURES), width) for _ in range(rounds))
        self.update = nn.ModuleList(nn.Linear(3 * width, width) for _ in range(rounds))
        self.pair = nn.Linear(len(DEVICE_FEATURES) + 1, width)
        self.operation = nn.Linear(width, width, bias=False)
        self.device = nn.Linear(width, width, bias=False)
        self.pair_hidden = nn.Linear(width, width)
        self.score_pair = nn.Linear(width, 1, bias=False)
        self.score_operation = nn.Linear(width, 1, bias=False)
        self.value = nn.Sequential(nn.Linear(3 * width, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, observation: Mapping[str, Tensor], choices: int) -> tuple[Tensor, Tensor]:
        """Scores [B, ``choices``] and values [B]; observations of ``FlatAction`` or ``SelectThenPlace``."""
        seen = split(observation)
        known = self.embed(seen)
        sits = seen.on.mT @ known / seen.on.sum(dim=1)[..., None].clamp(min=1.0)
        pair = self.pair(seen.pairs) + self.operation(known)[:, :, None] + self.device(sits)[:, None]
        pair = torch.relu(self.pair_hidden(torch.relu(pair)))
        scores = self.score_pair(pair).squeeze(-1)
        anywhere = (pair * seen.device_there[:, None]).sum(dim=2) / seen.device_there.sum(dim=1)[:, None].clamp(min=1.0)
        candidates = observation["candidates"].flatten(1)[..., None]
        means = (_mean(known, seen.there), _mean(sits, seen.device_there), _mean(anywhere, candidates))
        value = self.value(torch.cat(means, dim=-1)).squeeze(-1)
        if "phase" not in observation:
            return scores.flatten(1), value
        selecting = observation["phase"].flatten(1)[:, :1]
        selected = observation["selected"].flatten(1)[:, : scores.shape[1]]
        operations = self.score_operation(anywhere).squeeze(-1)
        devices = (selected[..., None] * scores).sum(dim=1)
        return selecting * _wide(operations, choices) + (1 - selecting) * _wide(devices, choices), value

    def embed(self, seen: Seen) -> Tensor:
        """[B, N, H] embeddings of operations after some rounds of messages."""
        known = torch.relu(self.node(seen.nodes))
        source, target = seen.edge_index.unbind(1)
        for forth, back, update in zip(self.forth, self.back, self.update, strict=True):
            down, up = _messages(known, source, target, seen, forth), _messages(known, target, source, seen, back)
            known = known + torch.relu(update(torch.cat((known, down, up), dim=-1)))
        return known


def _messages(known: Tensor, sender: Tensor, receiver: Tensor, seen: Seen, layer: nn.Module) -> Tensor:
    """[B, N, H] mean over the messages to each operation; 0 without any."""
    width = known.shape[-1]
    said = known.gather(1, sender[..., None].expand(-1, -1, width))
    said = torch.relu(layer(torch.cat((said, seen.edges), dim=-1))) * seen.edge_there
    total = torch.zeros_like(known).scatter_add(1, receiver[..., None].expand(-1, -1, width), said)
    count = torch.zeros_like(seen.there).scatter_add(1, receiver[..., None], seen.edge_there)
    return total / count.clamp(min=1.0)


def _mean(rows: Tensor, there: Tensor) -> Tensor:
    """[B, H] mean over the rows [B, N, H] that are there, [B, N, 1]."""
    return (rows * there).sum(dim=1) / there.sum(dim=1).clamp(min=1.0)


def _wide(scores: Tensor, choices: int) -> Tensor:
    """Scores with zeros behind, which the masks exclude."""
    return nn.functional.pad(scores, (0, choices - scores.shape[1]))


class PlacementActorCritic(NetworkPolicy):
    """``MaskablePPO(PlacementActorCritic, env, ...)`` for a ``DevicePlacementEnv`` of any size, wrapped in
    ``FlatAction`` or ``SelectThenPlace``.

    Args:
        network_width, network_rounds: of its ``PlacementNetwork``.

    Raises:
        PlacementError: the environment is not wrapped, or its observations lack the edges.
    """

    def __init__(self, *args: Any, network_width: int = 32, network_rounds: int = 2, **options: Any) -> None:
        network = {"network_width": network_width, "network_rounds": network_rounds}
        super().__init__(*args, network_options=network, **options)

    def make_network(self) -> PlacementNetwork:
        """As of ``NetworkPolicy``."""
        if not isinstance(self.action_space, spaces.Discrete):
            raise PlacementError("the policy makes one choice a step; wrap the environment in FlatAction.")
        seen: Any = self.observation_space
        if "edge_index" not in seen.spaces:
            raise PlacementError("the policy passes messages along the edges; make the environment with edges=True.")
        return PlacementNetwork(*self.network_options.values())


def make_masked_ppo(env: gym.Env | Any, *, width: int = 32, rounds: int = 2, **settings: Any) -> MaskablePPO:
    """A MaskablePPO with a new ``PlacementActorCritic``.

    Args:
        env: a wrapped environment, or a vector environment of stable-baselines3 of such.
        width, rounds: of the network.
        settings: MaskablePPO's, over ``PPO_SETTINGS``.
    """
    network = {"network_width": width, "network_rounds": rounds}
    return MaskablePPO(PlacementActorCritic, env, policy_kwargs=network, **{**PPO_SETTINGS, **settings})
