"""What training minimises: imitation of a rule or of placements, and policy gradients."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from scipy.special import comb
from torch import Tensor

from .policy import Scores

Baseline = Literal["running", "batch", "greedy", "best_of"]


def imitation_loss(scores: Scores, *, order: bool = True) -> Tensor:
    """Mean over decisions of the negative log-probability of given episodes.

    ``order=False``: of the devices alone, unless the policy leaves those to a rule.
    """
    told = scores.place + scores.select if order or not scores.place.requires_grad else scores.place
    return -told.mean()


def reinforce_loss(scores: Scores, advantage: Tensor, entropy: float) -> Tensor:
    """Policy gradient of whole episodes: every decision gets its episode's advantage [B] (paper: REINFORCE)."""
    gained = (advantage[:, None] * (scores.select + scores.place)).mean()
    return -gained - entropy * (scores.select_entropy + scores.place_entropy).mean()


def clipped_loss(scores: Scores, before: Tensor, advantage: Tensor, clip: float, entropy: float) -> Tensor:
    """PPO's clipped objective per decision; ``before`` [B, N] are the log-probabilities when it was played."""
    ratio = (scores.select + scores.place - before).exp()
    gained = torch.minimum(ratio * advantage[:, None], ratio.clamp(1.0 - clip, 1.0 + clip) * advantage[:, None]).mean()
    return -gained - entropy * (scores.select_entropy + scores.place_entropy).mean()


LEAST_SPREAD = 1e-3
"""Deviations of rewards below this (a thousandth of the bound) are noise, and not blown up to 1."""


BEST_OF = 8


def best_of(rewards: np.ndarray, count: int) -> np.ndarray:
    """[B] mean, over all choices of ``count`` of the B episodes with episode i among them, of their best reward.

    With it in the place of the reward, the policy gradient is that of the expected best of ``count`` episodes.
    """
    total, count = len(rewards), min(count, len(rewards))
    order = np.argsort(rewards, kind="stable")
    ascending = rewards[order]
    below = np.arange(total)
    sets = float(comb(total - 1, count - 1))
    as_best = comb(below, count - 1) / sets  # the others are all below
    beside_best = comb(below - 1, count - 2) / sets if count > 1 else np.zeros(total)  # a given lower one is among them
    later = np.append(np.cumsum((beside_best * ascending)[::-1])[::-1][1:], 0.0)
    found = np.empty(total)
    found[order] = as_best * ascending + later
    return found


class Advantage:
    """Rewards [B] against a baseline.

    ``running``: the mean over all earlier episodes (paper); ``batch``: mean and deviation of the batch (ours);
    ``greedy``: the time of the policy's best guess, given as ``reference``; ``best_of``: as ``batch``, of what each
    episode adds to the expected best of ``BEST_OF`` episodes, for policies that will be sampled many times (ours).
    """

    def __init__(self, baseline: Baseline) -> None:
        self.baseline = baseline
        self.total, self.count = 0.0, 0

    def __call__(self, rewards: np.ndarray, reference: float | None = None) -> Tensor:
        if self.baseline == "running":
            centre = self.total / self.count if self.count else float(rewards.mean())
            self.total, self.count = self.total + float(rewards.sum()), self.count + len(rewards)
            found = rewards - centre
        elif self.baseline == "greedy" and reference is not None:
            found = (rewards - reference) / max(float(rewards.std()), LEAST_SPREAD)
        else:
            rewards = best_of(rewards, BEST_OF) if self.baseline == "best_of" else rewards
            found = (rewards - rewards.mean()) / max(float(rewards.std()), LEAST_SPREAD)
        return torch.from_numpy(np.asarray(found, np.float32))
