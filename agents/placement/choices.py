"""Choices among legal options: drawn without gradients, and scored with them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

_ILLEGAL = -1e9
"""Logit of an illegal option: its probability is exactly 0, and unlike with -inf the entropy stays a number."""


class ScoredChoice(NamedTuple):
    """Logarithm of the probability of a choice, and entropy of what it was drawn from, both [...]."""

    log_probability: Tensor
    entropy: Tensor


def draw(logits: Tensor, legal: Tensor, temperature: float, epsilon: float, generator: torch.Generator) -> Tensor:
    """int64 [...] options drawn from a softmax over the last dimension; at least one of each row is legal.

    Args:
        logits: [..., K].
        legal: bool [..., K].
        temperature: of the softmax; 0 takes the best, the first of several.
        epsilon: share of choices that are drawn evenly from the legal options instead.
        generator: on the CPU; the same draws on every device.
    """
    if temperature > 0:
        logits = logits / temperature + _gumbel(logits, generator)
    if epsilon > 0:
        evenly = (torch.rand(logits.shape[:-1], generator=generator) < epsilon).to(logits.device)
        logits = torch.where(evenly[..., None], _gumbel(logits, generator), logits)
    return logits.masked_fill(~legal, -torch.inf).argmax(dim=-1)


def score_choices(logits: Tensor, legal: Tensor, chosen: Tensor) -> ScoredChoice:
    """How probable ``chosen`` int64 [...] was under the softmax of ``logits`` [..., K] over the ``legal`` options."""
    logs = torch.log_softmax(logits.masked_fill(~legal, _ILLEGAL), dim=-1)
    entropy = -(logs.exp() * logs).sum(dim=-1)
    return ScoredChoice(logs.gather(-1, chosen[..., None]).squeeze(-1), entropy)


def _gumbel(like: Tensor, generator: torch.Generator) -> Tensor:
    """Noise of a shape; the largest of logits + noise is a draw from their softmax."""
    waits = torch.empty(like.shape).exponential_(generator=generator).clamp_min_(1e-30)
    return -waits.log_().to(like.device)
