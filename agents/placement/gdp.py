"""GDP: a graph encoder and attention over the operations give all devices in one pass.

After Zhou et al., "GDP: Generalized Device Placement for Dataflow Graphs" (2019), as DOPPLER's paper compares with it:
GraphSAGE with pooled neighbours, then attention that recurs over segments of the topological order as in
Transformer-XL. Our choices: devices are scored through an embedding of what they are, so that no size depends on how
many there are; devices carry random numbers, for equal ones would get equal logits for every operation, and operations
carry their positions, for shards that are alike would get equal logits too (GDP leaves positions out;
``positions=False`` does too).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.nn import SAGEConv

from ...envs.errors import TrainingError
from ...envs.placement import PlacementProblem
from ...envs.placement.features import NODE_FEATURES, static_features
from .choices import draw, score_choices
from .fixed_order import FixedOrderPolicy
from .policy import Exploration, Scores, Trajectories, torch_seed

DEVICE_INPUTS = ("speed", "memory", "bandwidth_out", "bandwidth_in")
"""What a device is, as shares of the best device: mean over operations of the least time / the time there; capacity;
mean bandwidth to and from the others."""
MARKS = 8
"""Random numbers that tell equal devices apart, drawn once per problem."""
WAVES = 16
"""Numbers that tell an operation's place in the order: sines and cosines of periods from 4 to 4096 operations."""


class GdpProblem(NamedTuple):
    """What GDP knows of a problem; N operations, D devices."""

    order: Tensor
    """int64 [N] topological"""
    nodes: Tensor
    """[N, 6 + WAVES] static features, and positions if wanted"""
    edges: Tensor
    """int64 [2, 2 E] both directions"""
    devices: Tensor
    """[D, 4 + MARKS] what a device is, and its random numbers"""
    allowed: Tensor
    """bool [N, D]"""

    def to(self, device: torch.device) -> GdpProblem:
        """The same on another device."""
        return GdpProblem(*(part.to(device) for part in self))


class GdpPolicy(FixedOrderPolicy):
    """Logits of every operation on every device in one pass; devices are drawn independently of each other.

    Args:
        width: numbers per hidden layer; a multiple of ``heads``.
        rounds: layers of GraphSAGE.
        layers: of attention.
        heads: of attention.
        segment: operations per segment; each attends to its own and, without gradients, to the one before.
        positions: whether operations carry their positions in the order.

    Raises:
        TrainingError: ``width`` is no multiple of ``heads``.
    """

    def __init__(
        self,
        width: int = 64,
        rounds: int = 3,
        layers: int = 2,
        heads: int = 4,
        segment: int = 64,
        positions: bool = True,
    ) -> None:
        super().__init__()
        if width % heads:
            raise TrainingError(f"width is {width}; expected a multiple of heads, {heads}.")
        self.options = {
            "width": width, "rounds": rounds, "layers": layers,
            "heads": heads, "segment": segment, "positions": positions,
        }  # fmt: skip
        self.node = nn.Linear(len(NODE_FEATURES) + WAVES * positions, width)
        self.neighbours = nn.ModuleList(SAGEConv(width, width, aggr="max", project=True) for _ in range(rounds))
        self.attention = nn.ModuleList(SegmentAttention(width, heads, segment) for _ in range(layers))
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Sequential(nn.Linear(len(DEVICE_INPUTS) + MARKS, width), nn.ReLU())
        self.match = nn.Sequential(nn.Linear(width, width), nn.LayerNorm(width, bias=False))
        self.lean = nn.Linear(width, 1, bias=False)

    def prepare(self, problem: PlacementProblem, rng: np.random.Generator) -> GdpProblem:
        """Features and edges; ``rng`` draws the random numbers of the devices."""
        static = static_features(problem)
        order = problem.graph.topological_order.astype(np.int64)
        edges = static.edge_index.astype(np.int64)
        marks = rng.standard_normal((problem.d, MARKS)).astype(np.float32)
        columns = (static.nodes, _waves(np.argsort(order))) if self.options["positions"] else (static.nodes,)
        return GdpProblem(
            order=torch.from_numpy(order),
            nodes=torch.from_numpy(np.concatenate(columns, axis=1)),
            edges=torch.from_numpy(np.concatenate((edges, edges[::-1]), axis=1)),
            devices=torch.from_numpy(np.concatenate((_device_inputs(problem), marks), axis=1)),
            allowed=torch.from_numpy(np.array(problem.allowed)),
        )

    def logits(self, known: GdpProblem) -> Tensor:
        """[N, D] of all operations, by number, on all devices: how they match, and how much all lean to a device.

        What an operation asks for is standardised over the graph. Else all would at first ask for about the same; as
        that is bad, the policy gradient drives the logits to 0, where equal devices are a saddle point (our choice).
        """
        hidden = torch.relu(self.node(known.nodes))
        for layer in self.neighbours:
            hidden = hidden + torch.relu(layer(hidden, known.edges))
        hidden = hidden[known.order]
        for layer in self.attention:
            hidden = layer(hidden)
        query, devices = self.query(hidden[torch.argsort(known.order)]), self.key(known.devices)
        query = (query - query.mean(dim=0)) / (query.var(dim=0, correction=0) + 1e-5).sqrt()
        return query @ self.match(devices).T / query.shape[1] ** 0.5 + self.lean(devices)[:, 0]

    @torch.no_grad()
    def roll_out(
        self, prepared: GdpProblem, episodes: int, rng: np.random.Generator, exploration: Exploration | None = None
    ) -> Trajectories:
        """Draw all devices of all episodes at once."""
        explore, generator = exploration or Exploration(), torch_seed(rng)
        known = prepared.to(self.device)
        logits = self.logits(known).expand(episodes, -1, -1)
        legal = known.allowed.expand(episodes, -1, -1)
        assignment = draw(logits, legal, explore.place_temperature, explore.epsilon, generator)
        logs = score_choices(logits, legal, assignment).log_probability[:, known.order]
        return self.episodes(known, assignment.cpu().numpy(), {"log_probability": logs.cpu().numpy()})

    def score(self, prepared: GdpProblem, trajectories: Trajectories) -> Scores:
        """Log-probabilities of all devices from one pass for all episodes."""
        known = prepared.to(self.device)
        chosen = torch.from_numpy(trajectories.devices.astype(np.int64)).to(self.device)
        logits = self.logits(known)[known.order].expand(len(chosen), -1, -1)
        place, entropy = score_choices(logits, known.allowed[known.order].expand(logits.shape), chosen)
        return self.scores(place, entropy)


class SegmentAttention(nn.Module):
    """A Transformer layer in which a segment of a sequence attends to itself and to the segment before.

    What comes from the segment before brings no gradients, as in Transformer-XL; with L layers an operation sees
    L segments back. All segments are computed together.
    """

    def __init__(self, width: int, heads: int, segment: int) -> None:
        super().__init__()
        self.heads, self.segment = heads, segment
        self.norm, self.norm_after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key_value = nn.Linear(width, width), nn.Linear(width, 2 * width)
        self.out = nn.Linear(width, width)
        self.after = nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width))

    def forward(self, sequence: Tensor) -> Tensor:
        """[N, H] to [N, H]."""
        n, width = sequence.shape
        count = -(-n // self.segment)
        padded = functional.pad(self.norm(sequence), (0, 0, 0, count * self.segment - n))
        own = padded.reshape(count, self.segment, width)
        previous = torch.cat((torch.zeros_like(own[:1]), own[:-1].detach()))
        there = torch.arange(count * self.segment, device=sequence.device).reshape(count, -1) < n
        before = torch.cat((torch.zeros_like(there[:1]), there[:-1]))
        query = self._heads(self.query(own))
        key, value = (self._heads(part) for part in self.key_value(torch.cat((previous, own), dim=1)).chunk(2, dim=-1))
        mask = torch.cat((before, there), dim=1)[:, None, None]
        heard = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        sequence = sequence + self.out(heard.transpose(1, 2).reshape(-1, width)[:n])
        return sequence + self.after(self.norm_after(sequence))

    def _heads(self, rows: Tensor) -> Tensor:
        """[S, L, H] to [S, heads, L, H / heads]."""
        return rows.reshape(*rows.shape[:2], self.heads, -1).transpose(1, 2)


def _waves(position: NDArray[np.int64]) -> NDArray[np.float32]:
    """[N, WAVES] sines and cosines of positions."""
    angle = 2 * np.pi * position[:, None] / np.geomspace(4.0, 4096.0, WAVES // 2)
    return np.concatenate((np.sin(angle), np.cos(angle)), axis=1).astype(np.float32)


def _device_inputs(problem: PlacementProblem) -> NDArray[np.float32]:
    """[D, 4], columns ``DEVICE_INPUTS``; without a limit of memory, and alone, a device has the share 1."""
    topology, apart = problem.topology, ~np.eye(problem.d, dtype=bool)
    least = problem.compute_s.min(axis=1, keepdims=True)
    speed = np.where(problem.compute_s > 0, least / np.where(problem.compute_s > 0, problem.compute_s, 1.0), 1.0)
    capacity = topology.memory_bytes
    most = capacity[np.isfinite(capacity)].max(initial=1.0)
    columns = [speed.mean(axis=0), np.where(np.isfinite(capacity), capacity / most, 1.0)]
    rate = np.where(apart, topology.bandwidth, 0.0)
    rate = np.where(np.isfinite(rate), rate, np.where(np.isfinite(rate), rate, 0.0).max(initial=1.0))
    for axis in (1, 0):
        mean = rate.sum(axis=axis) / max(problem.d - 1, 1)
        columns.append(mean / mean.max() if mean.max() > 0 else np.ones(problem.d))
    return np.stack(columns, axis=1).astype(np.float32)
