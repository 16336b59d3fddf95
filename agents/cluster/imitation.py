"""Imitation: the network learns to decide as schedulers do, in the states to which it leads itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from ...envs.cluster import (
    Cluster,
    ClusterSchedulingEnv,
    ClusterView,
    Scheduler,
    SequentialAllocation,
    Workload,
    simulate,
)
from ...envs.cluster.features import observe_round
from ...envs.cluster.round_choices import RoundChoices
from ...envs.cluster.scheduler import begin
from ..checkpoint_files import read_file, write_file
from .network import ClusterNetwork
from .scheduler import changes

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
    leader: Scheduler | None = None,
    density: float = 0.5,
) -> list[Example]:
    """Examples from one episode: what the teacher would do in each round, one decision after the other.

    Args:
        rng: of the orders, and of the choice of examples.
        leader: whose decisions are carried out (as in DAgger, where it is the learner); None: the teacher's.
        density: of the examples; see ``explain_round``.
    """
    inner = ClusterSchedulingEnv(workload, cluster, window=len(workload), nodes=False)
    env = SequentialAllocation(inner, every_round=False)
    env.reset(seed=0)
    for scheduler in filter(None, (teacher, leader)):
        begin(scheduler, workload, cluster, inner.simulation_rules.round_s, rng)
    found: list[Example] = []
    rewards: list[float] = []
    starts: list[int] = []
    while inner.view is not None:
        wanted = env.actions_for(teacher.schedule(inner.view))
        examples = list(explain_round(inner.view, inner.origin, wanted, rng, density))
        found += examples
        starts += [len(rewards)] * len(examples)
        for action in wanted if leader is None else env.actions_for(leader.schedule(inner.view)):
            rewards.append(float(env.step(action)[1]))
    to_come = np.cumsum(rewards[::-1])[::-1]
    return [example._replace(value=float(to_come[start])) for example, start in zip(found, starts, strict=True)]


def write_examples(path: Path, examples: Sequence[Example]) -> None:
    """Examples as a file of plain tensors; it is there once it is whole."""
    write_file(path, [[torch.as_tensor(part) for part in example[:4]] + [example.value] for example in examples])


def read_examples(path: Path) -> list[Example]:
    """The examples of ``write_examples``.

    Raises:
        CheckpointError: the file is not there, or is damaged.
    """
    return [Example._make([*(part.numpy() for part in parts[:4]), parts[4]]) for parts in read_file(path)]


def explain_round(
    view: ClusterView, origin: float, wanted: Sequence[int], rng: np.random.Generator, density: float
) -> Iterator[Example]:
    """Some of the states on the way to a round's decisions, in the given order (who stays, first) or a random one.

    The order does not matter, so everything that is still wanted is right. A state becomes an example with
    probability ``density`` / decisions that are still wanted: when many are, most are easy.
    """
    choices = RoundChoices(view, len(view), True, False)
    rows, whole = observe_round(view, choices.held, origin, 0)
    order = [action for action in wanted if action < len(choices.mask) - 1]
    if rng.random() < 0.5:
        order = rng.permutation(order).tolist()
    while choices.open:
        legal = choices.mask > 0
        order = [action for action in order if legal[action]]
        if not order:
            break
        if rng.random() * len(order) < density:
            right = np.zeros(len(legal), np.bool_)
            right[order] = True
            state, left = changes(choices)
            yield Example(np.concatenate((rows, state), axis=1), np.concatenate((whole, left)), legal, right, 0.0)
        choices.choose(*divmod(order.pop(0), choices.options))


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
    """Minus the log-probability that a decision drawn under the mask is one that the teacher wants, plus the Huber
    loss of the value times ``value_weight``; and the part of the batch in which the one with the highest score is."""
    seen = {"job_features": batch.rows, "global_features": batch.whole}
    scores, value = network(seen, batch.legal.shape[1])
    legal = scores.masked_fill(~batch.legal, -torch.inf)
    right = scores.masked_fill(~batch.wanted, -torch.inf)
    loss = (torch.logsumexp(legal, dim=1) - torch.logsumexp(right, dim=1)).mean()
    correct = batch.wanted.gather(1, legal.argmax(dim=1, keepdim=True)).float().mean()
    return loss + value_weight * functional.smooth_l1_loss(value, batch.value), float(correct)


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
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        told[step] = float(loss.detach()), correct
    return float(told[:, 0].mean()), float(told[:, 1].mean())
