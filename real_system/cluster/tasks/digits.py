"""Image classification: a convolutional network with BatchNorm on scikit-learn's handwritten digits."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from ..training_job import Data, TrainingJob
from .scikit_data import load

if TYPE_CHECKING:
    from ..training_job import Tensors

HELD_OUT = 450
NOISE = 0.25
"""Deviation of the noise on every pixel (0 to 1), anew in each step; digits alone are too easy."""


class Digits(TrainingJob):
    """Which digit is it? 1,347 pictures of 8 x 8 pixels to train on, 450 held out; accuracy.

    Args:
        channels: of the first convolution; the second has twice as many.
    """

    def __init__(self, channels: int = 16) -> None:
        self.channels = channels

    def model(self) -> nn.Module:
        return nn.Sequential(
            *_block(1, self.channels),
            *_block(self.channels, 2 * self.channels),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(2 * self.channels * 16, 10),
        )

    def data(self) -> Data:
        return pictures()

    def step(self, model: nn.Module, batch: Tensors) -> torch.Tensor:
        images, labels = batch
        return functional.cross_entropy(model(images + NOISE * torch.randn_like(images)), labels)

    def evaluate(self, model: nn.Module, samples: Tensors) -> dict[str, float]:
        images, labels = samples
        scores = model(images)
        return {
            "accuracy": (scores.argmax(1) == labels).double().mean().item(),
            "loss": functional.cross_entropy(scores, labels).item(),
        }

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=5e-4, momentum=0.9)


def _block(before: int, after: int) -> tuple[nn.Module, ...]:
    return nn.Conv2d(before, after, 3, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU()


@lru_cache(maxsize=1)
def pictures() -> Data:
    """Pictures [N, 1, 8, 8] from 0 to 1, the held-out ones with noise, and digits [N]."""
    found, rng = load("digits"), np.random.default_rng(0)
    order = rng.permutation(len(found.images))
    images = torch.from_numpy((found.images[order] / 16.0).astype(np.float32)).unsqueeze(1)
    labels = torch.from_numpy(found.target[order].astype(np.int64))
    noisy = images[:HELD_OUT] + NOISE * torch.from_numpy(rng.standard_normal((HELD_OUT, 1, 8, 8)).astype(np.float32))
    return Data((images[HELD_OUT:], labels[HELD_OUT:]), (noisy, labels[:HELD_OUT]))
