"""Regression: a small network on scikit-learn's diabetes data."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from ..training_job import Data, TrainingJob
from .scikit_data import load

if TYPE_CHECKING:
    from ..training_job import Tensors

HELD_OUT = 110


class Diabetes(TrainingJob):
    """How far has the disease gone in a year? Ten measurements of 332 patients to train on, 110 held out.

    Measurements and answer have mean 0 and deviation 1 over the training patients; squared error in these units.

    Args:
        hidden: width of the two hidden layers.
    """

    quality: ClassVar[str] = "squared_error"
    higher_is_better: ClassVar[bool] = False

    def __init__(self, hidden: int = 64) -> None:
        self.hidden = hidden

    def model(self) -> nn.Module:
        hidden = self.hidden
        return nn.Sequential(
            nn.Linear(10, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 1)
        )

    def data(self) -> Data:
        return patients()

    def step(self, model: nn.Module, batch: Tensors) -> torch.Tensor:
        measured, answer = batch
        return functional.mse_loss(model(measured), answer)

    def evaluate(self, model: nn.Module, samples: Tensors) -> dict[str, float]:
        return {"squared_error": self.step(model, samples).item()}

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=2e-4, momentum=0.9, weight_decay=1e-2)


@lru_cache(maxsize=1)
def patients() -> Data:
    """Measurements [N, 10] and answers [N, 1], standardised."""
    found = load("diabetes")
    order = np.random.default_rng(0).permutation(len(found.target))
    parts = []
    for values in (found.data[order], found.target[order, None]):
        train = values[HELD_OUT:]
        parts.append(torch.from_numpy(((values - train.mean(0)) / train.std(0)).astype(np.float32)))
    measured, answer = parts
    return Data((measured[HELD_OUT:], answer[HELD_OUT:]), (measured[:HELD_OUT], answer[:HELD_OUT]))
