"""The network of the cluster policy: one set of weights for every job and every GPU type."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ...envs.cluster.features import GLOBAL_FEATURES, JOB_FEATURES

PER_JOB_AND_TYPE = 3
"""Rate, spread rate, GPUs held: columns of a job's row, each once per type."""
PER_TYPE = 3
"""Free, all, mean rate: columns of the whole that do not change within a round; a fourth, left, does."""


class Round(NamedTuple):
    """What the network knows of a round before the first decision; B rounds, J jobs, R types, H width.

    ``pair`` [B, J, R, H] a job on a type, ``job`` [B, J, H], ``whole`` [B, H], ``present`` [B, J, 1] 1 for jobs and
    0 for padding.
    """

    pair: Tensor
    job: Tensor
    whole: Tensor
    present: Tensor


class ClusterNetwork(nn.Module):
    """Scores of all decisions of ``SequentialAllocation``, and the value of the state.

    A job meets each type through the same weights, and jobs meet each other through the mean over all. So the
    scores do not depend on how many jobs or types there are, nor on their order or names. What changes from decision to
    decision enters in the last layer only: ``encode`` runs once per round, ``decide`` per decision.
    The seconds since the first arrival are not looked at.

    Args:
        width: numbers per hidden layer (our choice).
    """

    def __init__(self, width: int = 40) -> None:
        super().__init__()
        self.width = width
        self.pair_in = nn.Linear(PER_JOB_AND_TYPE + PER_TYPE, width)
        self.job_in = nn.Linear(len(JOB_FEATURES), width)
        self.job_of_pairs = nn.Linear(width, width, bias=False)
        self.whole_in = nn.Linear(len(GLOBAL_FEATURES) - 1 + 2 * width, width)
        self.job_hidden = nn.Linear(2 * width, width)
        self.pair_out = nn.Linear(2 * width, width)
        self.job_out = nn.Linear(width, width)
        self.left_to_pair = nn.Linear(2, width, bias=False)
        self.left_to_job = nn.Linear(1, width, bias=False)
        self.state_to_job = nn.Linear(2, width, bias=False)
        self.score_pair = nn.Linear(width, 1)
        self.score_job = nn.Linear(width, 3)
        self.end_hidden = nn.Linear(2 * width + 1, width)
        self.score_close = nn.Linear(width, 1)
        self.value_hidden = nn.Linear(2 * width + 1, width)
        self.value_out = nn.Linear(width, 1)

    def encode(self, rows: Tensor, whole: Tensor) -> Round:
        """What is the same for all decisions of a round.

        Args:
            rows: [B, J, 17 + 3R] or more; the features of jobs, without what changes.
            whole: [B, 7 + 3R] or more; the features of the whole, without what changes.
        """
        base, wide = len(JOB_FEATURES), len(GLOBAL_FEATURES)
        types = (rows.shape[-1] - base) // PER_JOB_AND_TYPE
        pair = rows[..., base : base + PER_JOB_AND_TYPE * types].reshape(*rows.shape[:2], PER_JOB_AND_TYPE, types).mT
        per_type = whole[..., wide : wide + PER_TYPE * types].reshape(-1, PER_TYPE, types).mT
        shared = per_type[:, None].expand(-1, rows.shape[1], -1, -1)
        pair = torch.relu(self.pair_in(torch.cat((pair, shared), dim=-1)))
        job = torch.relu(self.job_in(rows[..., :base]) + self.job_of_pairs(pair.mean(dim=2)))
        present = rows[..., :1]
        mean, most = _mean(job, present), (job * present).amax(dim=1)
        context = torch.relu(self.whole_in(torch.cat((whole[..., 1:wide], mean, most), dim=-1)))
        around = context[:, None].expand(-1, rows.shape[1], -1)
        job = torch.relu(self.job_hidden(torch.cat((job, around), dim=-1)))
        on_type = job[:, :, None].expand(-1, -1, types, -1)
        return Round(self.pair_out(torch.cat((on_type, pair), dim=-1)), self.job_out(job), context, present)

    def decide(self, known: Round, state: Tensor, left: Tensor, mixing: bool) -> tuple[Tensor, Tensor]:
        """Scores [B, J * O + 1] of the next decision, and values [B].

        Args:
            known: of ``encode``.
            state: [B, J, 2] whether the job was decided on, and the rate of a mixed gang.
            left: [B, R] GPUs that are left of each type / all GPUs.
            mixing: whether ``mixed`` is among the O options.
        """
        total = left.sum(dim=-1, keepdim=True)
        of_type = self.left_to_pair(torch.stack((left, total.expand_as(left)), dim=-1))
        pair = self.score_pair(torch.relu(known.pair + of_type[:, None])).squeeze(-1)
        job = torch.relu(known.job + self.state_to_job(state) + self.left_to_job(total)[:, None])
        keep, mixed, skip = self.score_job(job).split(1, dim=-1)
        options = torch.cat((keep, pair, mixed, skip) if mixing else (keep, pair, skip), dim=-1)
        end = torch.cat((known.whole, _mean(job, known.present), total), dim=-1)
        close = self.score_close(torch.relu(self.end_hidden(end)))
        value = self.value_out(torch.relu(self.value_hidden(end)))
        return torch.cat((options.flatten(1), close), dim=-1), value.squeeze(-1)

    def forward(self, observation: Mapping[str, Tensor], choices: int) -> tuple[Tensor, Tensor]:
        """Scores [B, ``choices``] and values [B] of observations of ``SequentialAllocation``, flat or not.

        Of an observation, ``job_features`` and ``global_features`` are read. ``choices`` is the number of decisions
        J * O + 1; J and R follow from the shapes.
        """
        seen = split(observation["job_features"], observation["global_features"])
        mixing = (choices - 1) // seen.rows.shape[1] == seen.left.shape[1] + 3
        return self.decide(self.encode(seen.rows, seen.whole), seen.state, seen.left, mixing)


class Seen(NamedTuple):
    """An observation in parts: what stays for a round, ``rows`` [B, J, 17 + 3R] and ``whole`` [B, 7 + 3R]; and what
    changes, ``state`` [B, J, 2] and ``left`` [B, R]."""

    rows: Tensor
    whole: Tensor
    state: Tensor
    left: Tensor


def split(job_features: Tensor, global_features: Tensor) -> Seen:
    """The parts of observations of ``SequentialAllocation``, flat or not."""
    types = (global_features.shape[-1] - len(GLOBAL_FEATURES)) // (PER_TYPE + 1)
    columns = len(JOB_FEATURES) + PER_JOB_AND_TYPE * types + 2
    rows = job_features.reshape(len(job_features), -1, columns)
    return Seen(rows[..., :-2], global_features[..., :-types], rows[..., -2:], global_features[..., -types:])


def _mean(job: Tensor, present: Tensor) -> Tensor:
    """[B, H] mean over the jobs that are there."""
    return (job * present).sum(dim=1) / present.sum(dim=1).clamp(min=1.0)
