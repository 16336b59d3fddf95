"""Small training jobs that do on purpose what workers must live with."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import ClassVar

import torch

from hadoppler.real_system.cluster.training_job import Data, TrainingJob


class Curve(TrainingJob):
    """A smooth function learned by a small network without BatchNorm and drop-out.

    Args:
        sleep_s: how long a step takes beside its computation.
        fail: a step raises.
        exit_code: a step ends the process.
        mark: file that each reading of the data appends a line to.
        rows: samples that only a rank with fewer than so many in its step fails at.
    """

    rates: ClassVar[list[float]] = []
    quality = "error"
    higher_is_better = False

    def __init__(
        self, sleep_s: float = 0.0, fail: bool = False, exit_code: int = -1, mark: str = "", rows: int = 0
    ) -> None:
        self.sleep_s, self.fail, self.exit_code, self.mark, self.rows = sleep_s, fail, exit_code, mark, rows

    def model(self) -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))

    def data(self) -> Data:
        if self.mark:
            with Path(self.mark).open("a") as file:
                file.write("data\n")
        generator = torch.Generator().manual_seed(5)
        inputs = torch.randn(640, 4, generator=generator)
        targets = inputs.prod(1, keepdim=True) + inputs[:, :1]
        return Data((inputs[:512], targets[:512]), (inputs[512:], targets[512:]))

    def step(self, model: torch.nn.Module, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        time.sleep(self.sleep_s)
        if self.fail or len(batch[0]) < self.rows:
            raise RuntimeError("the job is broken\nin several lines")
        if self.exit_code >= 0:
            os._exit(self.exit_code)
        inputs, targets = batch
        return torch.nn.functional.mse_loss(model(inputs), targets)

    def evaluate(self, model: torch.nn.Module, samples: tuple[torch.Tensor, ...]) -> dict[str, float]:
        inputs, targets = samples
        return {"error": float(torch.nn.functional.mse_loss(model(inputs), targets))}

    def learning_rate(self, step: float) -> float:
        self.rates.append(step)
        return 1.0


class Normed(Curve):
    """The same with BatchNorm."""

    def model(self) -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1))
