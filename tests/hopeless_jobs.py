"""Training jobs that never get beyond their first step."""

from __future__ import annotations

import os
import signal
import time

import torch

from hadoppler.real_system.cluster.training_job import Data, TrainingJob


class Deadly(TrainingJob):
    """Ends its process at the first step."""

    def model(self) -> torch.nn.Module:
        return torch.nn.Linear(2, 1)

    def data(self) -> Data:
        samples = (torch.zeros(64, 2),)
        return Data(samples, samples)

    def step(self, model: torch.nn.Module, batch: tuple) -> torch.Tensor:
        os.kill(os.getpid(), signal.SIGKILL)
        return model(batch[0]).mean()

    def evaluate(self, model: torch.nn.Module, samples: tuple) -> dict[str, float]:
        return {"accuracy": 0.0}


class Broken(Deadly):
    """Fails at the first step."""

    def step(self, model: torch.nn.Module, batch: tuple) -> torch.Tensor:
        raise RuntimeError("no such thing")


class Unjudged(Deadly):
    """Trains, and cannot be evaluated."""

    def step(self, model: torch.nn.Module, batch: tuple) -> torch.Tensor:
        return model(batch[0] + 1.0).pow(2).mean()

    def evaluate(self, model: torch.nn.Module, samples: tuple) -> dict[str, float]:
        raise ValueError("no figures")


class Undecided(Unjudged):
    """Trains, and is judged by a figure that is no number."""

    def evaluate(self, model: torch.nn.Module, samples: tuple) -> dict[str, float]:
        return {"accuracy": float("nan")}


class Sleepy(Deadly):
    """Never returns from its data."""

    def data(self) -> Data:
        time.sleep(1000)
        return super().data()
