"""Language modelling: a recurrent network that predicts the next byte of Python's own sources."""

from __future__ import annotations

import math
import sysconfig
from abc import abstractmethod
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from ..training_job import Data, TrainingJob, TrainingJobError

if TYPE_CHECKING:
    from ..training_job import Tensors

LENGTH = 24
"""Bytes that are predicted in a sample."""
SAMPLES_HELD_OUT = 1024
"""At most so many, evenly spread."""
TRAIN = (
    "argparse", "configparser", "dataclasses", "difflib", "doctest", "functools", "inspect", "logging/__init__",
    "optparse", "shutil", "socket", "statistics", "subprocess", "tarfile", "threading", "typing", "unittest/mock",
)  # fmt: skip
HELD_OUT = ("fractions", "heapq", "random", "textwrap")


class NextByte(nn.Module):
    """Bytes [N, T] -> scores of the next one [N, T, 256], by an LSTM."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, hidden // 2)
        self.lstm = nn.LSTM(hidden // 2, hidden, batch_first=True)
        self.output = nn.Linear(hidden, 256)

    def forward(self, bytes: torch.Tensor) -> torch.Tensor:
        return self.output(self.lstm(self.embedding(bytes))[0])


class ByteJob(TrainingJob):
    """Predict each byte of a text from those before it, in pieces of 24; bits a byte on a text that is held out.

    Args:
        hidden: width of the LSTM.
    """

    quality: ClassVar[str] = "bits_per_byte"
    higher_is_better: ClassVar[bool] = False

    def __init__(self, hidden: int = 64) -> None:
        self.hidden = hidden

    @abstractmethod
    def data(self) -> Data:
        """Pieces of a text (``pieces``)."""

    def model(self) -> nn.Module:
        return NextByte(self.hidden)

    def step(self, model: nn.Module, batch: Tensors) -> torch.Tensor:
        text = batch[0].long()
        return functional.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())

    def evaluate(self, model: nn.Module, samples: Tensors) -> dict[str, float]:
        loss = self.step(model, samples).item()
        return {"bits_per_byte": loss / math.log(2), "loss": loss}

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.Adam(model.parameters(), lr=2e-3)


class Language(ByteJob):
    """It with Python's own sources: 17 modules of the standard library to learn from, 4 held out."""

    def data(self) -> Data:
        return sources()


def pieces(train: bytes, held_out: bytes) -> Data:
    """Two texts in pieces of ``LENGTH`` bytes and the one that follows, uint8 [N, LENGTH + 1]."""
    cut = []
    for text in (train, held_out):
        count = (len(text) - 1) // LENGTH
        starts = np.arange(count)[:, None] * LENGTH
        cut.append(np.frombuffer(text, dtype=np.uint8)[starts + np.arange(LENGTH + 1)])
    chosen = np.linspace(0, len(cut[1]) - 1, min(SAMPLES_HELD_OUT, len(cut[1]))).astype(np.int64)
    return Data((torch.from_numpy(cut[0]),), (torch.from_numpy(cut[1][chosen]),))


@lru_cache(maxsize=1)
def sources() -> Data:
    """Pieces of the standard library of the Python that runs."""
    folder = Path(sysconfig.get_path("stdlib"))

    def read(names: tuple[str, ...]) -> bytes:
        try:
            return b"\n".join((folder / f"{name}.py").read_bytes() for name in names)
        except OSError as error:
            raise TrainingJobError(
                f"{error.filename}: Python's own sources cannot be read ({error.strerror}); the task language needs a "
                "Python with its standard library as files."
            ) from error

    return pieces(read(TRAIN), read(HELD_OUT))
