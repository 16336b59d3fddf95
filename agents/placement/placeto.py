"""PLACETO: one operation after the other in a fixed order, with message passing at every step.

After Addanki et al., "Learning Generalizable Device Placement Algorithms for Distributed Machine Learning" (2019),
as DOPPLER's paper compares with it: it begins with nothing placed and chooses devices only. Our choices: a device is
scored alone, by a graph that shows what sits there and what the operations cost there, so that no size depends on how
many devices there are and equal devices are treated alike; means instead of sums, so that wide graphs do not overflow.
The mean over a group of many operations hides where one of them is, so what sets the devices apart is multiplied by the
root of the group's size.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from numba import njit
from numpy.typing import ArrayLike
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ...envs.placement import PlacementProblem
from ...envs.placement.features import standardise
from .choices import ScoredChoice, draw, score_choices
from .fixed_order import FixedOrderPolicy
from .policy import Exploration, Scores, Trajectories, torch_seed

NODE_INPUTS = ("cost", "output", "here", "current", "placed")
"""What a node shows when device d is scored: its time on d, its output bytes, whether it sits on d, whether it is the
one to place, whether it is placed."""

PLAYED_AT_ONCE, SCORED_AT_ONCE = 1 << 24, 1 << 18
"""Numbers of one hidden layer that a roll-out and a score compute at once (ours: 64 MB; a core's cache)."""


class PlacetoProblem(NamedTuple):
    """What PLACETO knows of a problem; N operations, D devices."""

    order: Tensor
    """int64 [N] topological"""
    position: Tensor
    """int64 [N] step at which an operation is placed"""
    cost: Tensor
    """[N, D] seconds, standardised"""
    output: Tensor
    """[N] bytes, standardised"""
    allowed: Tensor
    """bool [N, D]"""
    ancestors: Tensor
    """bool [N, N] ``[v, u]``: u comes before v on some path"""
    producers: Tensor
    """sparse [N, N] takes the mean over an operation's producers"""
    consumers: Tensor
    """sparse [N, N] takes the mean over an operation's consumers"""

    def to(self, device: torch.device) -> PlacetoProblem:
        """The same on another device."""
        return PlacetoProblem(*(part.to(device) for part in self))


class PlacetoPolicy(FixedOrderPolicy):
    """Scores each device for the next operation of a fixed topological order.

    A roll-out costs N passes of messages over B D graphs. ``score`` makes the same N B D graphs, in chunks that are
    computed anew for the gradients, so that its memory does not grow with the steps or the episodes.

    Args:
        width: numbers per hidden layer.
        rounds: of message passing in each direction; how far an operation sees.
    """

    def __init__(self, width: int = 16, rounds: int = 4) -> None:
        super().__init__()
        self.options = {"width": width, "rounds": rounds}
        self.rounds = rounds
        self.node = nn.Sequential(nn.Linear(len(NODE_INPUTS), width), nn.ReLU())
        self.send = nn.ModuleList(nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(2))
        self.receive = nn.ModuleList(nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(2))
        self.rate = nn.Sequential(nn.Linear(8 * width, 2 * width), nn.ReLU(), nn.Linear(2 * width, 1, bias=False))
        self.apply(_keep_scale)

    def prepare(self, problem: PlacementProblem, rng: np.random.Generator) -> PlacetoProblem:
        """Order, features and neighbours; nothing is drawn. N^2 bytes hold who comes before whom."""
        graph = problem.graph
        order = graph.topological_order.astype(np.int64)
        largest = graph.out_bytes.copy()
        np.maximum.at(largest, graph.edge_source, graph.edge_bytes)
        ancestors = np.zeros((problem.n, problem.n), np.bool_)
        _mark_ancestors(order, np.array(graph.in_ptr), np.array(graph.edge_source[graph.in_edge]), ancestors)
        return PlacetoProblem(
            order=torch.from_numpy(order),
            position=torch.from_numpy(np.argsort(order)),
            cost=torch.from_numpy(standardise(problem.compute_s.reshape(-1, 1)).reshape(problem.n, problem.d)),
            output=torch.from_numpy(standardise(largest[:, None])[:, 0]),
            allowed=torch.from_numpy(np.array(problem.allowed)),
            ancestors=torch.from_numpy(ancestors),
            producers=_mean_over(graph.edge_target, graph.edge_source, problem.n),
            consumers=_mean_over(graph.edge_source, graph.edge_target, problem.n),
        )

    @torch.no_grad()
    def roll_out(
        self,
        prepared: PlacetoProblem,
        episodes: int,
        rng: np.random.Generator,
        exploration: Exploration | None = None,
    ) -> Trajectories:
        """Play episodes: per step one set of tensor operations over all episodes and devices (of a chunk)."""
        explore, generator = exploration or Exploration(), torch_seed(rng)
        known = prepared.to(self.device)
        assignment = torch.full((episodes, len(known.order)), -1, device=self.device)
        logs = torch.empty(assignment.shape, device=self.device)
        for step, v in enumerate(known.order):
            current, legal = v.expand(episodes), known.allowed[v].expand(episodes, -1)
            parts = self._chunks(known, episodes, PLAYED_AT_ONCE)
            logits = torch.cat([self._rate(known, assignment[rows], current[rows]) for rows in parts])
            chosen = draw(logits, legal, explore.place_temperature, explore.epsilon, generator)
            logs[:, step] = score_choices(logits, legal, chosen).log_probability
            assignment[:, v] = chosen
        records = {"log_probability": logs.cpu().numpy()}
        return self.episodes(known, assignment.cpu().numpy(), records)

    def score(self, prepared: PlacetoProblem, trajectories: Trajectories) -> Scores:
        """Log-probabilities of all devices; see the class for its cost."""
        known = prepared.to(self.device)
        assignment = torch.from_numpy(trajectories.assignment.astype(np.int64)).to(self.device)
        episodes, n = assignment.shape
        state = torch.arange(episodes * n, device=self.device)
        parts: list[ScoredChoice] = []
        for states in self._chunks(known, episodes * n, SCORED_AT_ONCE):
            chunk = (assignment[state[states] // n], state[states] % n)
            parts.append(checkpoint(self._score_states, known, *chunk, use_reentrant=False, preserve_rng_state=False))
        place, entropy = (torch.cat(values).reshape(episodes, n) for values in zip(*parts, strict=True))
        return self.scores(place, entropy)

    def _chunks(self, known: PlacetoProblem, states: int, numbers: int) -> Iterator[slice]:
        """Slices of ``states`` states, each with about so many numbers per hidden layer."""
        size = max(1, numbers // (known.allowed.numel() * self.options["width"]))
        return (slice(start, start + size) for start in range(0, states, size))

    def _score_states(self, known: PlacetoProblem, assignment: Tensor, step: Tensor) -> ScoredChoice:
        """Scores [S] of step ``step`` [S] in episodes that end in ``assignment`` [S, N]."""
        current = known.order[step]
        before = torch.where(known.position < step[:, None], assignment, -1)
        chosen = assignment.gather(1, current[:, None]).squeeze(1)
        return score_choices(self._rate(known, before, current), known.allowed[current], chosen)

    def _rate(self, known: PlacetoProblem, assignment: Tensor, current: Tensor) -> Tensor:
        """Logits [S, D] of states with ``assignment`` [S, N], -1 where not placed, for operation ``current`` [S]."""
        embedding = self._embed(known, assignment, current)
        own = embedding[current, torch.arange(len(current), device=current.device)]
        before, after = known.ancestors[current], known.ancestors.T[current]
        beside = ~(before | after)
        beside.scatter_(1, current[:, None], False)
        groups = torch.stack((before, after, beside), dim=1).to(embedding.dtype)
        count = groups.sum(dim=-1, keepdim=True).clamp_min(1.0)
        pooled = torch.einsum("sgn,nsdh->sdgh", groups / count, embedding)
        alike = pooled.mean(dim=1, keepdim=True)
        pooled = alike + (pooled - alike) * count.sqrt()[:, None]
        return self.rate(torch.cat((own, pooled.flatten(2)), dim=-1)).squeeze(-1)

    def _embed(self, known: PlacetoProblem, assignment: Tensor, current: Tensor) -> Tensor:
        """[N, S, D, 2 H] embeddings of all operations by messages down from producers and up from consumers."""
        (states, n), devices = assignment.shape, known.cost.shape[1]
        placed = assignment.T[..., None]
        shown = torch.empty((n, states, devices, len(NODE_INPUTS)), device=assignment.device)
        shown[..., 0] = known.cost[:, None]
        shown[..., 1] = known.output[:, None, None]
        shown[..., 2] = placed == torch.arange(devices, device=assignment.device)
        shown[..., 3] = (torch.arange(n, device=current.device)[:, None] == current)[..., None]
        shown[..., 4] = placed >= 0
        first = self.node(shown)
        both = []
        for neighbours, send, receive in zip((known.producers, known.consumers), self.send, self.receive, strict=True):
            hidden = first
            for _ in range(self.rounds):
                heard = torch.sparse.mm(neighbours, send(hidden).reshape(n, -1)).reshape(first.shape)
                hidden = first + receive(heard)
            both.append(hidden)
        return torch.cat(both, dim=-1)


def _keep_scale(layer: nn.Module) -> None:
    """He's weights: with torch's own the devices look alike after some layers, and learning starts late."""
    if isinstance(layer, nn.Linear):
        nn.init.kaiming_uniform_(layer.weight, nonlinearity="relu")
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)


def _mean_over(here: ArrayLike, there: ArrayLike, n: int) -> Tensor:
    """Sparse [N, N] that gives each ``here`` the mean over its ``there``; 0 without any."""
    index = torch.from_numpy(np.stack((here, there)).astype(np.int64))
    edges = torch.sparse_coo_tensor(index, torch.ones(index.shape[1]), (n, n), check_invariants=False).coalesce()
    share = 1.0 / torch.bincount(edges.indices()[0], minlength=n).clamp(min=1)
    values = share[edges.indices()[0]]
    return torch.sparse_coo_tensor(edges.indices(), values, (n, n), is_coalesced=True, check_invariants=False)


@njit(cache=True)
def _mark_ancestors(order, in_ptr, producer, ancestors):  # type: ignore[no-untyped-def]
    """Mark in ``ancestors`` bool [N, N], which holds False, who comes before whom: edges times N bytes."""
    for v in order:
        for entry in range(in_ptr[v], in_ptr[v + 1]):
            u = producer[entry]
            ancestors[v] |= ancestors[u]
            ancestors[v, u] = True
