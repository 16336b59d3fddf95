"""Recommendation: an autoencoder that completes the ratings of users, on generated ratings of known structure."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from ..training_job import Data, TrainingJob

if TYPE_CHECKING:
    from ..training_job import Tensors

USERS, HELD_OUT, ITEMS, TASTES = 4096, 512, 256, 8
NOISE = 0.3
"""Standard deviation of what tastes do not explain: no prediction has a lower error."""


class Recommendation(TrainingJob):
    """From a quarter of a user's ratings to the others; error (root of the mean square) on users never seen.

    Ratings are numbers about the mean of all, from -2 to 2; 0 is: not rated.

    Args:
        hidden: width of the code.
    """

    quality: ClassVar[str] = "rmse"
    higher_is_better: ClassVar[bool] = False

    def __init__(self, hidden: int = 48) -> None:
        self.hidden = hidden

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Dropout(0.3), nn.Linear(ITEMS, self.hidden), nn.Tanh(), nn.Linear(self.hidden, ITEMS))

    def data(self) -> Data:
        return ratings()

    def step(self, model: nn.Module, batch: Tensors) -> torch.Tensor:
        given, asked = batch
        return (_squares(model(given), asked).sum(1) / _count(asked)).mean()

    def evaluate(self, model: nn.Module, samples: Tensors) -> dict[str, float]:
        given, asked = samples
        return {"rmse": (_squares(model(given), asked).sum() / _count(asked).sum()).sqrt().item()}

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.Adam(model.parameters(), lr=5e-4)


def _squares(predicted: torch.Tensor, asked: torch.Tensor) -> torch.Tensor:
    return functional.mse_loss(predicted, asked, reduction="none") * (asked != 0)


def _count(asked: torch.Tensor) -> torch.Tensor:
    return (asked != 0).sum(1).clamp(min=1)


@lru_cache(maxsize=1)
def ratings() -> Data:
    """Given and asked ratings [N, ITEMS] each: to learn from, the same ones; of users held out, others."""
    rng = np.random.default_rng(0)
    users, items = rng.standard_normal((USERS, TASTES)), rng.standard_normal((ITEMS, TASTES))
    habits = rng.standard_normal(ITEMS) + rng.standard_normal((USERS, 1))
    liked = 0.7 * users @ items.T / np.sqrt(TASTES) + 0.4 * habits
    rated = np.clip(liked + NOISE * rng.standard_normal(liked.shape), -2, 2).astype(np.float32)
    draw = rng.random(rated.shape)
    given = torch.from_numpy(np.where(draw < 0.25, rated, 0.0).astype(np.float32))
    others = torch.from_numpy(np.where(draw >= 0.75, rated, 0.0).astype(np.float32))
    return Data((given[HELD_OUT:], given[HELD_OUT:]), (given[:HELD_OUT], others[:HELD_OUT]))
