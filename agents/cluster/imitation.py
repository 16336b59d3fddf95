"""Imitation: the network learns to decide as schedulers do, in the states to which it leads itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from ...envs.cluster import Cluster, ClusterSchedulingEnv, Scheduler, SequentialAllocation, Workload, simulate
from .network import ClusterNetwork, split
from .scheduler import best_decision

Bits = NDArray[np.bool_]
Floats = NDArray[np.float32]


class Example(NamedTuple):
    """A state and what the teacher would do; n jobs, O options.

    ``rows`` [n, F], ``whole`` [G] of an observation, ``legal`` and ``wanted`` [n * O + 1] decisions, ``value`` the
    sum of the rewards that followed.
    """

    rows: Floats
    whole: Floats
    legal: Bits
    wanted: Bits
    value: float


def best_teacher(workload: Workload, cluster: Cluster, teachers: Sequence[Callable[[], Scheduler]]) -> Scheduler:
    """The one of several schedulers with the least mean completion time on a workload."""
    made = [teacher() for teacher in teachers]
    if len(made) == 1:
        return made[0]
    times = [simulate(workload, cluster, teacher, log=False).metrics["mean_jct_s"] for teacher in made]
    return made[int(np.argmin(times))]


def demonstrate(
    workload: Workload,
    cluster: Cluster,
    teacher: Scheduler,
    rng: np.random.Generator,
    *,
    learner: ClusterNetwork | None = None,
    part: float = 0.1,
) -> list[Example]:
    """Examples from one episode.

    A round's order does not matter, so everything that the teacher still wants in the round is right, and the
    teacher's own decisions are taken in random order. With a ``learner`` its best-scored decisions are taken instead
    (as in DAgger), and the teacher tells in every round what it would do there.

    Args:
        rng: of the orders, and of the choice of examples.
        part: of the decisions that become examples.
    """
    inner = ClusterSchedulingEnv(workload, cluster, window=len(workload), nodes=False, flat=False)
    env = SequentialAllocation(inner, every_round=False)
    observation, _ = env.reset(seed=0)
    teacher.reset(cluster, inner.simulation_rules.round_s, rng)
    kept: list[tuple[Example, float]] = []
    greedy = _Greedy(learner) if learner is not None else None
    total, decided, wanted = 0.0, -1, np.zeros(0, np.bool_)
    while not inner.over:
        mask = observation["action_mask"] > 0
        if begins := decided != inner.decisions:
            decided, wanted = inner.decisions, np.zeros(len(mask), np.bool_)
            wanted[env.actions_for(teacher.schedule(inner.view))] = True
        right = wanted & mask
        right[-1] = not right[:-1].any()
        if rng.random() < part:
            kept.append((_example(observation, mask, right), total))
        if greedy is not None:
            action = greedy.decide(observation, mask, begins)
        else:
            (choices,) = np.nonzero(right)
            action = int(choices[rng.integers(len(choices))])
        observation, reward, *_ = env.step(action)
        total += float(reward)
        wanted[action] = False
    return [example._replace(value=total - before) for example, before in kept]


class _Greedy:
    """Best decisions of a network, as those of ``decide_round``; it looks at a round's jobs once."""

    def __init__(self, network: ClusterNetwork) -> None:
        self.network = network

    @torch.no_grad()
    def decide(self, observation: dict[str, Floats], mask: Bits, begins: bool) -> int:
        seen = split(*(torch.from_numpy(observation[name])[None] for name in ("job_features", "global_features")))
        if begins:
            self.known = self.network.encode(seen.rows, seen.whole)
        options = (len(mask) - 1) // seen.rows.shape[1]
        scores = self.network.decide(self.known, seen.state, seen.left, options == seen.left.shape[1] + 3)[0][0]
        return best_decision(scores.numpy(), mask, options, given=not begins)


def _example(observation: dict[str, Floats], mask: Bits, right: Bits) -> Example:
    """Without the padding of the window."""
    rows = observation["job_features"]
    n, options = int(rows[:, 0].sum()), (len(mask) - 1) // len(rows)
    cut = np.append(np.arange(n * options), len(mask) - 1)
    return Example(rows[:n], observation["global_features"], mask[cut], right[cut], 0.0)


class Batch(NamedTuple):
    """B examples with padding: ``rows`` [B, J, F], ``whole`` [B, G], ``legal`` and ``wanted`` [B, J * O + 1],
    ``value`` [B]."""

    rows: Tensor
    whole: Tensor
    legal: Tensor
    wanted: Tensor
    value: Tensor


def collate(examples: Sequence[Example]) -> Batch:
    """Pad examples of one cluster to the longest."""
    most, (_, columns) = max(len(example.rows) for example in examples), examples[0].rows.shape
    options = (len(examples[0].legal) - 1) // len(examples[0].rows)
    rows = torch.zeros(len(examples), most, columns)
    bits = torch.zeros(2, len(examples), most * options + 1, dtype=torch.bool)
    for i, example in enumerate(examples):
        rows[i, : len(example.rows)] = torch.from_numpy(example.rows)
        for j, marked in enumerate((example.legal, example.wanted)):
            bits[j, i, : len(marked) - 1] = torch.from_numpy(marked[:-1])
            bits[j, i, -1] = bool(marked[-1])
    whole = torch.from_numpy(np.stack([example.whole for example in examples]))
    return Batch(rows, whole, bits[0], bits[1], torch.tensor([example.value for example in examples]).float())


def imitation_loss(network: ClusterNetwork, batch: Batch, value_weight: float = 0.1) -> tuple[Tensor, float]:
    """Minus the log-probability that a decision drawn under the mask is one that the teacher wants, plus the squared
    error of the value times ``value_weight``; and the part of the batch in which ``best_decision`` is."""
    scores, value = network(batch.rows, batch.whole, batch.legal.shape[1])
    legal = scores.masked_fill(~batch.legal, -torch.inf)
    right = scores.masked_fill(~batch.wanted, -torch.inf)
    loss = (torch.logsumexp(legal, dim=1) - torch.logsumexp(right, dim=1)).mean()
    chosen = torch.where(legal.softmax(dim=1)[:, -1] > 0.5, legal.shape[1] - 1, legal[:, :-1].argmax(dim=1))
    correct = batch.wanted.gather(1, chosen[:, None]).float().mean()
    return loss + value_weight * functional.mse_loss(value, batch.value), float(correct)


def imitate(
    network: ClusterNetwork,
    optimizer: torch.optim.Optimizer,
    examples: Sequence[Example],
    steps: int,
    rng: np.random.Generator,
    batch_size: int = 64,
) -> tuple[float, float]:
    """Gradient steps on random batches; mean loss and accuracy over them.

    Examples of one batch have about the same number of jobs, so that there is little padding.
    """
    order = np.argsort([len(example.rows) for example in examples], kind="stable")
    told = np.zeros((steps, 2))
    for step in range(steps):
        first = int(rng.integers(max(1, len(order) - 4 * batch_size)))
        near = order[first : first + 4 * batch_size]
        chosen = rng.choice(near, min(batch_size, len(near)), replace=False)
        loss, correct = imitation_loss(network, collate([examples[i] for i in chosen]))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        told[step] = float(loss.detach()), correct
    return float(told[:, 0].mean()), float(told[:, 1].mean())
