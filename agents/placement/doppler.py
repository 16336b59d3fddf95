"""DOPPLER's two policies: SEL picks the next operation, PLC its device (paper, sections on both policies).

Message passing runs once per episode. SEL's score of an operation is then a constant of the episode; PLC reads it
together with what is on each device so far. So episodes are played in a compiled loop, and their probabilities are
computed afterwards for all steps at once.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from ...envs.errors import PlacementError, TrainingError
from ...envs.placement import EpisodeBatch, PlacementProblem
from ...envs.placement.features import longest_paths
from . import rollout_kernels as kernels
from .encoder import Encoder
from .inputs import EDGE_COLUMNS, ProblemInputs, node_columns, path_sums, problem_inputs
from .policy import Exploration, PlacementPolicy, Scores, Trajectories

Half = Literal["both", "select", "place"]
SCORE_LIMIT = 10.0
"""SEL's scores lie between plus and minus this, so that sums of their exponentials can be kept up by differences."""
SCORED_AT_ONCE = 1 << 19
"""Numbers of the first hidden layer that ``place_logits`` computes at once (ours: 2 MB; much larger arrays come anew
from the system each time, which took nearly half of the time at 10,000 operations)."""


@dataclass(eq=False)
class Prepared:
    """A problem as DOPPLER's policy needs it."""

    inputs: ProblemInputs
    ranks: np.ndarray
    """[N] dense ranks of the b-levels, for the rule of CRITICAL PATH."""

    @property
    def problem(self) -> PlacementProblem:
        """What is placed."""
        return self.inputs.problem


class Embeddings(NamedTuple):
    """What depends on the weights and the problem alone: N operations, W hidden units."""

    score: Tensor
    """[N] SEL's"""
    operation: Tensor
    """[N, W] PLC's first layer, the operation's part"""
    placed: Tensor
    """[N, W] what an operation adds on its device"""


class DopplerPolicy(PlacementPolicy):
    """SEL and PLC over one encoder.

    Args:
        width: of node embeddings and of the first hidden layers.
        second: width of PLC's second hidden layer.
        layers: rounds of message passing.
        random: random features of each operation (``problem_inputs``); 0 for none.
        halves: ``both``; ``select`` or ``place`` learns one policy and leaves the other to the rule of CRITICAL
            PATH (largest b-level; earliest start; ties at random).
    """

    def __init__(
        self, width: int = 64, second: int = 32, layers: int = 3, random: int = 8, halves: Half = "both"
    ) -> None:
        super().__init__()
        if halves not in get_args(Half):
            raise TrainingError(f"halves is {halves!r}; expected {', '.join(get_args(Half))}.")
        self.options: dict[str, Any] = {
            "width": width, "second": second, "layers": layers, "random": random, "halves": halves,
        }  # fmt: skip
        columns = node_columns(random)
        self.halves, self.random = halves, random
        self.encoder = Encoder(columns, EDGE_COLUMNS, width, layers)
        self.embed = nn.Linear(columns, width)
        self.select = nn.Sequential(nn.Linear(4 * width, width), nn.ReLU(), nn.Linear(width, 1))
        self.operation = nn.Linear(2 * width, width)
        self.placed = nn.Linear(width, width, bias=False)
        self.feature = nn.Linear(len(kernels.COLUMNS), width, bias=False)
        self.hidden = nn.Linear(width, second)
        self.last = nn.Linear(second, 1, bias=False)

    def prepare(self, problem: PlacementProblem, rng: np.random.Generator) -> Prepared:
        inputs = problem_inputs(problem, rng, self.random)
        (to_exit, _), _ = longest_paths(problem)
        # sums in another order differ by a last bit, whatever the unit of time is: those are ties
        _, ranks = np.unique((to_exit / (to_exit.max() or 1.0)).round(12), return_inverse=True)
        return Prepared(inputs, ranks.astype(np.float64))

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.embed.weight.device

    def embeddings(self, inputs: ProblemInputs) -> Embeddings:
        """The once-per-episode part."""
        inputs = inputs.to(self.device)
        known = self.encoder(inputs.nodes, inputs.edge_index, inputs.edges)
        raw = self.embed(inputs.nodes)
        share = 1.0 / inputs.longest
        paths = [share * path_sums(known, jumps) for jumps in (inputs.to_exit, inputs.to_entry)]
        score = self.select(torch.cat((known, *paths, raw), dim=1))[:, 0]
        share = inputs.problem.d / inputs.problem.n  # sums over a device's operations become about a mean
        return Embeddings(
            SCORE_LIMIT * torch.tanh(score / SCORE_LIMIT),
            self.operation(torch.cat((known, raw), dim=1)),
            share * self.placed(known),
        )

    @torch.no_grad()
    def arrays(self, prepared: Prepared) -> kernels.PolicyArrays:
        """The policy for the compiled loop."""
        found = self.embeddings(prepared.inputs)
        learned = self.halves != "place"
        return kernels.PolicyArrays(
            score=_array(found.score.double()) if learned else prepared.ranks,
            jitter=0.0 if learned else 0.5,
            operation=_array(found.operation),
            placed=_array(found.placed),
            feature=_array(self.feature.weight.T),
            hidden=_array(self.hidden.weight.T),
            hidden_bias=_array(self.hidden.bias),
            last=_array(self.last.weight[0]),
            earliest_start=self.halves == "select",
        )

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
        """As of ``PlacementPolicy``; without ``record`` the episodes cannot be scored, which saves memory."""
        how = exploration or Exploration()
        policy = self.arrays(prepared)
        batch = EpisodeBatch(prepared.problem, episodes, prepared.inputs.scale)
        choice = kernels.Choice(
            0.0 if self.halves == "place" else how.select_temperature, how.place_temperature, how.epsilon
        )
        streams = rng.integers(1, 2**63, size=episodes, dtype=np.uint64)
        kept = new_record(prepared, episodes, record)
        unit = prepared.inputs.unit / prepared.inputs.scale

        def play(first: int, last: int) -> None:
            kernels.play(batch.arrays, batch.scales, batch.state, policy, choice, unit, streams, first, last, kept)

        _in_slices(play, episodes, threads)
        return self.finished(batch, kept)

    def follow(self, prepared: Prepared, assignments: ArrayLike, orders: ArrayLike) -> Trajectories:
        order = np.ascontiguousarray(np.atleast_2d(orders), np.int32)
        assignment = np.ascontiguousarray(np.atleast_2d(assignments), np.int32)
        batch = EpisodeBatch(prepared.problem, len(order), prepared.inputs.scale)
        kept = new_record(prepared, len(order), True)
        unit = prepared.inputs.unit / prepared.inputs.scale
        wrong = kernels.follow(batch.arrays, batch.scales, batch.state, unit, order, assignment, 0, len(order), kept)
        if wrong >= 0:
            raise PlacementError(
                f"{prepared.problem.graph.title}: placement {wrong} cannot be followed; its order must respect the "
                "edges and its devices the pins."
            )
        return self.finished(batch, kept)

    def finished(self, batch: EpisodeBatch, record: kernels.Record) -> Trajectories:
        """What a batch at its end has played."""
        state = batch.state
        records = {"features": record.features, "ready": state.ready.copy(), "ready_ptr": state.ready_ptr.copy()}
        return Trajectories(state.order.copy(), record.devices, records)

    def score(self, prepared: Prepared, trajectories: Trajectories) -> Scores:
        found = self.embeddings(prepared.inputs)
        seen = trajectories.tensors(self.device)
        order, devices = seen["order"].long(), seen["devices"].long()
        zeros = torch.zeros(order.shape, device=self.device)
        select, select_entropy = zeros, zeros
        place, place_entropy = zeros, zeros
        if self.halves != "place":
            select, select_entropy = select_scores(found.score, order, seen["ready"].long(), seen["ready_ptr"].long())
        if self.halves != "select":
            logits = self.place_logits(found, order, devices, seen["features"])
            logs = torch.log_softmax(logits, dim=2)
            place = logs.gather(2, devices[:, :, None])[:, :, 0]
            place_entropy = -(logs.exp() * logs.clamp(min=-1e4)).sum(dim=2)
        return Scores(select, place, select_entropy, place_entropy)

    def rule_loss(self, prepared: Prepared, trajectories: Trajectories) -> Tensor:
        """Stage I's loss against CRITICAL PATH in the states of the student's own episodes."""
        from .critical_path import critical_path_loss

        return critical_path_loss(self, prepared, trajectories)

    def place_logits(self, found: Embeddings, order: Tensor, devices: Tensor, features: Tensor) -> Tensor:
        """[B, N, D] PLC's logits at every step of every episode; sums run on from one chunk of steps to the next."""
        chosen = nn.functional.one_hot(devices, features.shape[2]).to(found.placed.dtype)
        size = max(1, SCORED_AT_ONCE // (chosen[:, 0].numel() * found.placed.shape[1]))
        before, parts = found.placed.new_zeros(()), []
        for now, there, seen in zip(
            *(torch.split(part, size, dim=1) for part in (order, chosen, features)), strict=True
        ):
            added = there[..., None] * found.placed[now][:, :, None]
            sums = before + added.cumsum(dim=1)
            first = sums - added + found.operation[now][:, :, None] + self.feature(seen)
            parts.append(self.last(torch.relu(self.hidden(torch.relu(first))))[..., 0])
            before = sums[:, -1:]
        logits = torch.cat(parts, dim=1)
        return logits.masked_fill(features[..., kernels.ALLOWED_COLUMN] == 0, -1e9)


def select_scores(score: Tensor, order: Tensor, ready: Tensor, pointer: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probabilities and entropies [B, N] of choosing ``order`` [B, N] by a softmax over the candidates.

    ``ready`` [B, N] lists the operations as they became candidates, the first ``pointer[b, t + 1]`` of them until
    step t. The sums over the candidates follow from what joined and what left: nothing is of size steps x N.
    """
    weight = score.double().exp()
    moments = torch.stack((weight, weight * score.double()))
    joined, left = moments[:, ready].cumsum(dim=2), moments[:, order]
    left = left.cumsum(dim=2) - left
    last = pointer[:, 1:-1] - 1
    total, moment = joined.gather(2, last[None].expand(2, -1, -1)) - left
    total = total.clamp(min=1e-300)
    normaliser = total.log()
    select = score.double()[order] - normaliser
    return select.float(), (normaliser - moment / total).clamp(min=0.0).float()


def _array(values: Tensor) -> Any:
    return np.ascontiguousarray(values.cpu().numpy())


def new_record(prepared: Prepared, episodes: int, features: bool) -> kernels.Record:
    """Room for what episodes leave behind, with device features or without."""
    n, d = prepared.problem.n, prepared.problem.d
    return kernels.Record(
        np.empty((episodes, n), np.int32),
        np.empty((episodes, n if features else 0, d, len(kernels.COLUMNS)), np.float32),
    )


def _in_slices(run: Any, episodes: int, threads: int) -> None:
    """Call ``run(first, last)`` over all episodes; the loops release the interpreter's lock."""
    if threads < 2 or episodes < 2:
        run(0, episodes)
        return
    edges = np.linspace(0, episodes, min(threads, episodes) + 1).astype(int).tolist()
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(run, edges[:-1], edges[1:]))
