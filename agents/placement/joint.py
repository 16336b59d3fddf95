"""One softmax over all pairs of a candidate and a device, where DOPPLER chooses one after the other.

The paper's reviewers asked for it. It has DOPPLER's encoder, device features and layers (our choice), so that nothing
but the choice differs. A step looks at all candidates on all devices; DOPPLER looks at the devices of one.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ...envs.placement import EpisodeBatch, PlacementProblem
from . import joint_kernels
from .choices import ScoredChoice
from .encoder import Encoder
from .inputs import EDGE_COLUMNS, ProblemInputs, node_columns, path_sums, problem_inputs
from .joint_kernels import Options, Played
from .policy import Exploration, PlacementPolicy, Scores, Trajectories
from .rollout_kernels import ALLOWED_COLUMN, COLUMNS, PolicyArrays

SCORED_AT_ONCE = 1 << 20
"""Numbers of the first hidden layer that ``score`` computes at once, in whole episodes (ours)."""


class Embeddings(NamedTuple):
    """What depends on the weights and the problem alone; N operations, H hidden units."""

    operation: Tensor
    """[N, H] an operation's part of the first layer"""
    placed: Tensor
    """[N, H] what an operation adds to it on its device"""


class JointPolicy(PlacementPolicy):
    """Chooses an operation and its device together, by one softmax over all legal pairs.

    ``Exploration.place_temperature`` is that of the one softmax; the halves that it can leave to CRITICAL PATH do not
    exist here. ``Scores`` hold the pair in ``place``, zeros in ``select``. ``records["log_probability"]`` [B, N] is
    what ``score`` tells, whatever the temperature was.

    What it costs, with C candidates at a step: N C D device features and rows of the network per episode, where
    DOPPLER has N D. ``score`` plays the episodes again instead of keeping the N C D F features, in chunks that are
    computed anew for the gradients; an episode alone takes 4 N C D H bytes per layer.

    Args:
        width, second: of the hidden layers.
        layers: rounds of message passing.
        random: random features of each operation (``problem_inputs``).
    """

    def __init__(self, width: int = 64, second: int = 32, layers: int = 3, random: int = 8) -> None:
        super().__init__()
        self.options = {"width": width, "second": second, "layers": layers, "random": random}
        self.encoder = Encoder(node_columns(random), EDGE_COLUMNS, width, layers)
        self.embed = nn.Linear(node_columns(random), width)
        self.operation = nn.Linear(4 * width, width)
        self.placed = nn.Linear(width, width, bias=False)
        self.feature = nn.Linear(len(COLUMNS), width, bias=False)
        self.hidden = nn.Linear(width, second)
        self.last = nn.Linear(second, 1, bias=False)

    def prepare(self, problem: PlacementProblem, rng: np.random.Generator) -> ProblemInputs:
        """DOPPLER's inputs; ``rng`` draws the random features."""
        return problem_inputs(problem, rng, self.options["random"])

    def embeddings(self, inputs: ProblemInputs) -> Embeddings:
        """The part of once per episode: messages, and sums over the longest paths as in SEL."""
        inputs = inputs.to(self.embed.weight.device)
        known, raw = self.encoder(inputs.nodes, inputs.edge_index, inputs.edges), self.embed(inputs.nodes)
        paths = [path_sums(known, jumps) / inputs.longest for jumps in (inputs.to_exit, inputs.to_entry)]
        share = inputs.problem.d / inputs.problem.n  # sums over a device's operations become about a mean
        return Embeddings(self.operation(torch.cat((known, *paths, raw), dim=1)), share * self.placed(known))

    @torch.no_grad()
    def roll_out(
        self, prepared: ProblemInputs, episodes: int, rng: np.random.Generator, exploration: Exploration | None = None
    ) -> Trajectories:
        """Play episodes in the compiled loop."""
        explore, found = exploration or Exploration(), self.embeddings(prepared)
        policy = PolicyArrays(
            score=np.zeros(0),
            jitter=0.0,
            operation=_array(found.operation),
            placed=_array(found.placed),
            feature=_array(self.feature.weight.T),
            hidden=_array(self.hidden.weight.T),
            hidden_bias=_array(self.hidden.bias),
            last=_array(self.last.weight[0]),
            earliest_start=False,
        )
        batch = EpisodeBatch(prepared.problem, episodes, prepared.scale)
        shape = (episodes, prepared.problem.n)
        played = Played(np.empty(shape, np.int32), np.empty(shape, np.float32))
        streams = rng.integers(1, 2**63, size=episodes, dtype=np.uint64)
        how = (explore.place_temperature, explore.epsilon, prepared.unit / prepared.scale)
        joint_kernels.play(batch.arrays, batch.scales, batch.state, policy, *how, streams, played)
        return _trajectories(batch, played.devices, {"log_probability": played.log_probability})

    def follow(self, prepared: ProblemInputs, assignments: ArrayLike, orders: ArrayLike) -> Trajectories:
        """The given episodes.

        Raises:
            PlacementError: an order does not respect the edges, or a device the pins.
        """
        order, assignment = np.atleast_2d(np.asarray(orders)), np.atleast_2d(np.asarray(assignments))
        devices = np.take_along_axis(assignment, order.astype(np.int64), axis=1).astype(np.int32)
        batch = EpisodeBatch(prepared.problem, len(order), prepared.scale)
        for step in range(prepared.problem.n):
            batch.step(order[:, step], devices[:, step])
        return _trajectories(batch, devices, {})

    def score(self, prepared: ProblemInputs, trajectories: Trajectories) -> Scores:
        """Log-probabilities of all pairs; see the class for its cost."""
        found = self.embeddings(prepared)
        candidates = trajectories.records["ready_ptr"][:, 1:-1] - np.arange(prepared.problem.n)
        most = int(candidates.sum(axis=1).max()) * prepared.problem.d * self.options["width"]
        size = max(1, SCORED_AT_ONCE // most)
        parts = []
        for start in range(0, len(trajectories), size):
            rows = np.arange(start, min(start + size, len(trajectories)))
            chunk = (prepared, found, trajectories.take(rows), candidates[rows])
            parts.append(checkpoint(self._score_episodes, *chunk, use_reentrant=False, preserve_rng_state=False))
        place, entropy = (torch.cat(values) for values in zip(*parts, strict=True))
        nothing = torch.zeros_like(place)
        return Scores(select=nothing, place=place, select_entropy=nothing, place_entropy=entropy)

    def _score_episodes(
        self, prepared: ProblemInputs, found: Embeddings, trajectories: Trajectories, candidates: np.ndarray
    ) -> tuple[Tensor, Tensor]:
        """Log-probabilities and entropies [B, N] of the chosen pairs; ``candidates`` [B, N] counts."""
        shown, seen = _options(prepared, trajectories, candidates), trajectories.tensors(found.operation.device)
        order, devices = seen["order"].long(), seen["devices"].long()
        operations, features, chosen = (torch.from_numpy(part).to(order.device) for part in shown[1:])
        step = torch.from_numpy(np.repeat(np.arange(candidates.size), candidates.reshape(-1))).to(order.device)
        there = nn.functional.one_hot(devices, features.shape[1]).to(features.dtype)
        added = there[..., None] * found.placed[order][:, :, None]
        before = (added.cumsum(dim=1) - added).flatten(0, 1)
        first = before[step] + found.operation[operations][:, None] + self.feature(features)
        logits = self.last(torch.relu(self.hidden(torch.relu(first))))[..., 0]
        logits = logits.masked_fill(features[..., ALLOWED_COLUMN] == 0, -1e9)
        place, entropy = _score_pairs(logits, step, chosen, devices.flatten())
        return place.reshape(candidates.shape), entropy.reshape(candidates.shape)


def _score_pairs(logits: Tensor, step: Tensor, chosen: Tensor, devices: Tensor) -> ScoredChoice:
    """Softmax over all rows of ``logits`` [M, D] that have the same number of a step, [M] from 0 to S - 1.

    Step s chose row ``chosen[s]`` and device ``devices[s]``.
    """
    nothing = logits.new_zeros(len(chosen))
    peak = nothing.scatter_reduce(0, step, logits.detach().amax(dim=1), "amax", include_self=False)
    logits = logits - peak[step][:, None]
    weight = logits.exp()
    total = nothing.index_add(0, step, weight.sum(dim=1))
    moment = nothing.index_add(0, step, (weight * logits).sum(dim=1))
    return ScoredChoice(logits[chosen, devices] - total.log(), total.log() - moment / total)


def _array(values: Tensor) -> np.ndarray:
    return np.ascontiguousarray(values.cpu().numpy())


def _options(prepared: ProblemInputs, trajectories: Trajectories, candidates: np.ndarray) -> Options:
    """Play the episodes again for what could be chosen at every step."""
    problem = prepared.problem
    pointer = np.concatenate(([0], np.cumsum(candidates.reshape(-1), dtype=np.int64)))
    shown = Options(
        pointer,
        np.empty(pointer[-1], np.int64),
        np.empty((pointer[-1], problem.d, len(COLUMNS)), np.float32),
        np.empty(candidates.size, np.int64),
    )
    batch = EpisodeBatch(problem, len(trajectories), prepared.scale)
    unit = prepared.unit / prepared.scale
    joint_kernels.options(
        batch.arrays, batch.scales, batch.state, unit, trajectories.order, trajectories.devices, shown
    )
    return shown


def _trajectories(batch: EpisodeBatch, devices: np.ndarray, records: dict[str, np.ndarray]) -> Trajectories:
    """Finished episodes; ``ready_ptr`` tells how many candidates each step had."""
    return Trajectories(batch.state.order.copy(), devices, records | {"ready_ptr": batch.state.ready_ptr.copy()})
