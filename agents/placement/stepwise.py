"""DOPPLER with message passing at every step, for the ablation: what once per episode saves, and what it costs.

The encoder sees the state beside the constant features, so SEL's scores and what PLC knows of operations follow it; one
pass of messages serves both choices of a step. Heads, device features and trajectories are DOPPLER's own. What a node
shows of the state is our choice, the paper leaves it open.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from numba import njit
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from ...envs.placement import EpisodeBatch
from . import rollout_kernels as kernels
from .choices import draw, score_choices
from .doppler import SCORE_LIMIT, DopplerPolicy, Prepared, new_record
from .encoder import Encoder
from .inputs import EDGE_COLUMNS, ProblemInputs, node_columns, path_sums
from .policy import Exploration, Scores, Trajectories, torch_seed

STATE_COLUMNS = ("placed", "candidate", "end", "load")
"""What a node shows of the state: whether it is placed, whether it could be placed now; if it is placed, its end in
shares of the bound, and how much more its device has to compute than the idlest, as DOPPLER's ``more_computed``."""

LATEST = 4.0
"""Ends are cut off here."""
LOAD_COLUMN = kernels.COLUMNS.index("more_computed")
SCORED_AT_ONCE = 1 << 18
"""Numbers of one hidden layer that a score computes at once (ours: a core's cache)."""


class States(NamedTuple):
    """S states; N operations, D devices."""

    shown: Tensor
    """[N, S, 4] columns ``STATE_COLUMNS``"""
    placed: Tensor
    """[S, N, D] 1 where an operation sits"""
    candidate: Tensor
    """bool [S, N]"""


class Replay(NamedTuple):
    """B episodes such that any of their states can be made again."""

    order: Tensor
    """int64 [B, N] the operations by step"""
    assignment: Tensor
    """int64 [B, N] devices by operation"""
    position: Tensor
    """int64 [B, N] step at which an operation was placed"""
    joined: Tensor
    """int64 [B, N] step from which an operation was a candidate"""
    end: Tensor
    """[B, N] booked ends by operation, in shares of the bound"""
    features: Tensor
    """[B, N, D, F] device features by step"""

    def states(self, episode: Tensor, step: Tensor) -> States:
        """The states before ``step`` [S] of ``episode`` [S]."""
        before = self.position[episode] < step[:, None]
        devices = torch.where(before, self.assignment[episode], -1)
        candidate = (self.joined[episode] <= step[:, None]) & ~before
        return make_states(devices, candidate, self.end[episode], self.features[episode, step, :, LOAD_COLUMN])


class StepwisePolicy(DopplerPolicy):
    """SEL and PLC over an encoder that runs at every step.

    A roll-out costs N passes of messages over B graphs, where DOPPLER's needs one over one. ``score`` makes the same
    N B passes, in chunks of states that are computed anew for the gradients, so that its memory does not grow with the
    steps or the episodes.

    Args:
        width, second, layers, random: as of ``DopplerPolicy``.
    """

    def __init__(self, width: int = 64, second: int = 32, layers: int = 3, random: int = 8) -> None:
        super().__init__(width, second, layers, random)
        self.options = {"width": width, "second": second, "layers": layers, "random": random}
        self.encoder = Encoder(node_columns(random) + len(STATE_COLUMNS), EDGE_COLUMNS, width, layers)

    @torch.no_grad()
    def roll_out(
        self,
        prepared: Prepared,
        episodes: int,
        rng: np.random.Generator,
        exploration: Exploration | None = None,
        *,
        record: bool = True,
        threads: int = 1,
    ) -> Trajectories:
        """Play episodes: per step one set of tensor operations over all of them; the last two options do nothing."""
        how, generator = exploration or Exploration(), torch_seed(rng)
        inputs = prepared.inputs.to(self.device)
        batch, kept = EpisodeBatch(prepared.problem, episodes, inputs.scale), new_record(prepared, episodes, True)
        for step in range(prepared.problem.n):
            states = current_states(batch, inputs)
            known = self.look(inputs, states)
            logits = self.select_logits(inputs, states, known)
            chosen = draw(logits, states.candidate, how.select_temperature, how.epsilon, generator)
            operations = chosen.cpu().numpy()
            kept.features[:, step] = device_features(batch, operations, inputs)
            features = torch.from_numpy(kept.features[:, step]).to(self.device)
            logits = self.device_logits(inputs, states, known, chosen, features)
            devices = draw(logits, _allowed(features), how.place_temperature, how.epsilon, generator)
            kept.devices[:, step] = devices.cpu().numpy()
            batch.step(operations, kept.devices[:, step])
        return self.finished(batch, kept)

    def finished(self, batch: EpisodeBatch, record: kernels.Record) -> Trajectories:
        """As DOPPLER's, and when each operation ends."""
        played = super().finished(batch, record)
        played.records["end"] = (batch.state.end / batch.scale).astype(np.float32)
        return played

    def score(self, prepared: Prepared, trajectories: Trajectories) -> Scores:
        """Log-probabilities of all choices; see the class for its cost."""
        select, select_entropy, place, place_entropy = self._by_states(self._score_states, prepared, trajectories)
        return Scores(select, place, select_entropy, place_entropy)

    def rule_loss(self, prepared: Prepared, trajectories: Trajectories) -> Tensor:
        """As of ``DopplerPolicy``: minus the logarithm of the probability of all that CRITICAL PATH could choose."""
        (loss,) = self._by_states(self._rule_losses, prepared, trajectories)
        return loss.mean()

    def look(self, inputs: ProblemInputs, states: States) -> Tensor:
        """[N, S, W] what all operations know of their surroundings in each state."""
        (n, count, _), device = states.shown.shape, states.shown.device
        nodes = torch.cat((inputs.nodes[:, None].expand(-1, count, -1), states.shown), dim=2)
        edge_index = inputs.edge_index[:, :, None] * count + torch.arange(count, device=device)
        edges = inputs.edges.repeat_interleave(count, dim=0)
        return self.encoder(nodes.flatten(0, 1), edge_index.flatten(1), edges).reshape(n, count, -1)

    def select_logits(self, inputs: ProblemInputs, states: States, known: Tensor) -> Tensor:
        """[S, N] SEL's scores of the candidates, 0 elsewhere."""
        count, v = states.candidate.nonzero(as_tuple=True)
        seen = [known[v, count]]
        for jumps in (inputs.to_exit, inputs.to_entry):
            seen.append(path_sums(known.flatten(1), jumps).reshape(known.shape)[v, count] / inputs.longest)
        score = self.select(torch.cat((*seen, self.embed(inputs.nodes)[v]), dim=1))[:, 0]
        empty = torch.zeros(states.candidate.shape, device=known.device)
        return empty.index_put((count, v), SCORE_LIMIT * torch.tanh(score / SCORE_LIMIT))

    def device_logits(
        self, inputs: ProblemInputs, states: States, known: Tensor, chosen: Tensor, features: Tensor
    ) -> Tensor:
        """[S, D] PLC's logits for operation ``chosen`` [S], which sees ``features`` [S, D, F]."""
        own = known[chosen, torch.arange(len(chosen), device=chosen.device)]
        operation = self.operation(torch.cat((own, self.embed(inputs.nodes[chosen])), dim=1))
        share = inputs.problem.d / inputs.problem.n
        there = share * self.placed(states.placed.transpose(1, 2) @ known.transpose(0, 1))
        first = operation[:, None] + there + self.feature(features)
        return self.last(torch.relu(self.hidden(torch.relu(first))))[..., 0]

    def _by_states(
        self, compute: Callable[..., tuple[Tensor, ...]], prepared: Prepared, trajectories: Trajectories
    ) -> list[Tensor]:
        """[B, N] each of what ``compute`` tells of the states of all episodes, a chunk after the other."""
        seen, inputs = _replay(trajectories.tensors(self.device)), prepared.inputs.to(self.device)
        size = max(1, SCORED_AT_ONCE // (seen.order.shape[1] * self.options["width"]))
        parts = []
        for states in torch.split(torch.arange(seen.order.numel(), device=self.device), size):
            chunk = (inputs, prepared.ranks, seen, states)
            parts.append(checkpoint(compute, *chunk, use_reentrant=False, preserve_rng_state=False))
        return [torch.cat(values).reshape(seen.order.shape) for values in zip(*parts, strict=True)]

    def _score_states(
        self, inputs: ProblemInputs, ranks: np.ndarray, seen: Replay, numbers: Tensor
    ) -> tuple[Tensor, ...]:
        """Log-probability and entropy [S] of the operation, then of the device, in states b N + t."""
        states, select, place, features, chosen = self._logits(inputs, seen, numbers)
        devices = seen.assignment[numbers // seen.order.shape[1], chosen]
        return (
            *score_choices(select, states.candidate, chosen),
            *score_choices(place, _allowed(features), devices),
        )

    def _rule_losses(self, inputs: ProblemInputs, ranks: np.ndarray, seen: Replay, numbers: Tensor) -> tuple[Tensor]:
        """[S] losses of both choices in states b N + t."""
        states, select, place, features, _ = self._logits(inputs, seen, numbers)
        rank = torch.from_numpy(ranks).to(select.device).masked_fill(~states.candidate, -1.0)
        tied = rank == rank.amax(dim=1, keepdim=True)
        earliest = features[..., kernels.COLUMNS.index("earliest_start")] > 0
        return (
            _miss(select, states.candidate, tied) + _miss(place, _allowed(features), earliest & _allowed(features)),
        )

    def _logits(
        self, inputs: ProblemInputs, seen: Replay, numbers: Tensor
    ) -> tuple[States, Tensor, Tensor, Tensor, Tensor]:
        """States b N + t, SEL's and PLC's logits there, the device features, and the chosen operations [S]."""
        episode, step = numbers // seen.order.shape[1], numbers % seen.order.shape[1]
        states, chosen, features = seen.states(episode, step), seen.order[episode, step], seen.features[episode, step]
        known = self.look(inputs, states)
        select = self.select_logits(inputs, states, known)
        return states, select, self.device_logits(inputs, states, known, chosen, features), features, chosen


def make_states(devices: Tensor, candidate: Tensor, end: Tensor, load: Tensor) -> States:
    """States from ``devices`` int64 [S, N] (-1 where not placed), ``end`` [S, N] and each device's ``load`` [S, D]."""
    placed = devices >= 0
    there = torch.where(placed, load.gather(1, devices.clamp(min=0)), 0.0)
    ends = torch.where(placed, end.clamp(max=LATEST), 0.0)
    shown = torch.stack((placed.float(), candidate.float(), ends, there), dim=2)
    sits = devices[..., None] == torch.arange(load.shape[1], device=devices.device)
    return States(shown.transpose(0, 1), sits.float(), candidate)


def current_states(batch: EpisodeBatch, inputs: ProblemInputs) -> States:
    """Where all episodes of a batch stand, on the device of the inputs."""
    state = batch.state
    load = np.log1p((state.computed - state.computed.min(axis=1, keepdims=True)) / inputs.unit)
    arrays = (
        state.assignment.astype(np.int64),
        state.slot >= 0,
        (state.end / batch.scale).astype(np.float32),
        load.astype(np.float32),
    )
    return make_states(*(torch.from_numpy(array).to(inputs.nodes.device) for array in arrays))


def device_features(batch: EpisodeBatch, operations: NDArray[np.int64], inputs: ProblemInputs) -> NDArray[np.float32]:
    """[B, D, F] the devices as candidate ``operations`` [B] see them, columns ``rollout_kernels.COLUMNS``."""
    raw = batch.device_features(operations)
    out = np.empty((*raw.shape[:2], len(kernels.COLUMNS)), np.float32)
    _relative_features(raw, inputs.unit / inputs.scale, out)
    return out


def _replay(seen: dict[str, Tensor]) -> Replay:
    """From the tensors of trajectories."""
    order, pointer = seen["order"].long(), seen["ready_ptr"].long()
    place = torch.arange(order.shape[1], device=order.device).expand_as(order).contiguous()
    since = torch.searchsorted(pointer[:, 1:].contiguous(), place, right=True)
    return Replay(
        order=order,
        assignment=torch.empty_like(order).scatter_(1, order, seen["devices"].long()),
        position=torch.empty_like(order).scatter_(1, order, place),
        joined=torch.empty_like(order).scatter_(1, seen["ready"].long(), since),
        end=seen["end"],
        features=seen["features"],
    )


def _allowed(features: Tensor) -> Tensor:
    return features[..., kernels.ALLOWED_COLUMN] > 0


def _miss(logits: Tensor, legal: Tensor, right: Tensor) -> Tensor:
    """[S] minus the logarithm of the probability of all ``right`` options."""
    logs = torch.log_softmax(logits.masked_fill(~legal, -1e9), dim=-1)
    return -torch.logsumexp(logs.masked_fill(~right, -1e9), dim=-1)


@njit(cache=True, nogil=True)
def _relative_features(raw, unit, out):  # type: ignore[no-untyped-def]
    """``rollout_kernels.relative_features`` of B episodes: [B, D, K] to [B, D, F]."""
    for b in range(raw.shape[0]):
        kernels.relative_features(raw[b], unit, out[b])
