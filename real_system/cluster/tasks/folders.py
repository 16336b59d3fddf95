"""A user's own data: CIFAR-10 as its authors offer it, or a folder of texts. Nothing is downloaded."""

from __future__ import annotations

import pickle
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional

from ..training_job import Data, TrainingJob, TrainingJobError
from .language import LENGTH, ByteJob, pieces

if TYPE_CHECKING:
    from ..training_job import Tensors

TRAIN_FILES = tuple(f"data_batch_{number}" for number in range(1, 6))
TEST_FILE = "test_batch"
EVALUATED = 500
"""Pictures that are evaluated at a time."""


class Cifar10(TrainingJob):
    """Which of ten things is it? 50,000 coloured pictures of 32 x 32 pixels to train on, 10,000 held out; accuracy.

    Args:
        path: the folder ``cifar-10-batches-py`` of the "python version", or the folder it is in.
        channels: of the first convolution; each of the two others has twice as many.

    Raises:
        TrainingJobError: the files are not there.
    """

    def __init__(self, path: str, channels: int = 16) -> None:
        self.channels, self._folder = channels, _cifar_folder(Path(path).expanduser())

    def model(self) -> nn.Module:
        layers, before = list[nn.Module](), 3
        for after in (self.channels, 2 * self.channels, 4 * self.channels):
            convolution = nn.Conv2d(before, after, 3, padding=1, bias=False)
            layers += [convolution, nn.BatchNorm2d(after), nn.ReLU(), nn.MaxPool2d(2)]
            before = after
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(16 * before, 10))

    def data(self) -> Data:
        return _cifar_pictures(self._folder)

    def step(self, model: nn.Module, batch: Tensors) -> torch.Tensor:
        images, labels = batch
        return functional.cross_entropy(model(_scaled(images)), labels)

    def evaluate(self, model: nn.Module, samples: Tensors) -> dict[str, float]:
        images, labels = samples
        right = [
            (model(_scaled(some)).argmax(1) == truth).sum().item()
            for some, truth in zip(torch.split(images, EVALUATED), torch.split(labels, EVALUATED), strict=True)
        ]
        return {"accuracy": sum(right) / len(labels)}


class Text(ByteJob):
    """Predict the next byte of a user's texts; the last tenth of each file is held out.

    Args:
        path: a folder; files in folders below count, too.
        pattern: names of the files that are read.
        hidden: width of the LSTM.

    Raises:
        TrainingJobError: there is no such folder.
    """

    def __init__(self, path: str, pattern: str = "*.txt", hidden: int = 64) -> None:
        super().__init__(hidden)
        self._folder, self._pattern = Path(path).expanduser(), pattern
        if not self._folder.is_dir():
            raise TrainingJobError(f"{path}: there is no such folder; expected one with text files ({pattern}).")

    def data(self) -> Data:
        return _texts(self._folder, self._pattern)


@lru_cache(maxsize=2)
def _texts(folder: Path, pattern: str) -> Data:
    """Pieces of all texts, in the order of their names."""
    train, held_out = list[bytes](), list[bytes]()
    for path in sorted(path for path in folder.rglob(pattern) if path.is_file()):
        text = path.read_bytes()
        train.append(text[: len(text) * 9 // 10])
        held_out.append(text[len(text) * 9 // 10 :])
    texts = b"\n".join(train), b"\n".join(held_out)
    if min(map(len, texts)) <= LENGTH:
        raise TrainingJobError(
            f"{folder}: {len(train)} files {pattern} with {sum(map(len, texts))} bytes; expected text files with more "
            f"than {10 * LENGTH} bytes together."
        )
    return pieces(*texts)


def _scaled(images: torch.Tensor) -> torch.Tensor:
    """Bytes as numbers about 0."""
    return images.float() / 127.5 - 1.0


def _cifar_folder(path: Path) -> Path:
    """Where the files are."""
    for folder in (path, path / "cifar-10-batches-py"):
        if (folder / TEST_FILE).is_file():
            return folder
    raise TrainingJobError(
        f"{path}: CIFAR-10 is not there; expected the folder cifar-10-batches-py of its python version, with the files "
        f"{TRAIN_FILES[0]} to {TRAIN_FILES[-1]} and {TEST_FILE}."
    )


@lru_cache(maxsize=1)
def _cifar_pictures(folder: Path) -> Data:
    """Pictures uint8 [N, 3, 32, 32] and what they show [N]."""
    train = [_read_cifar(folder / name) for name in TRAIN_FILES]
    images, labels = (torch.from_numpy(np.concatenate(parts)) for parts in zip(*train, strict=True))
    return Data((images, labels), tuple(torch.from_numpy(part) for part in _read_cifar(folder / TEST_FILE)))


def _read_cifar(path: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Pictures and labels of one file."""
    try:
        with path.open("rb") as file:
            found = _ArraysOnly(file, encoding="bytes").load()
        images = np.asarray(found[b"data"], dtype=np.uint8).reshape(-1, 3, 32, 32)
        labels = np.asarray(found[b"labels"], dtype=np.int64)
    except Exception as error:  # a damaged pickle raises anything
        raise TrainingJobError(
            f"{path}: is no file of CIFAR-10's python version ({type(error).__name__}: {error}); unpack it anew."
        ) from error
    if len(images) != len(labels) or not len(labels):
        raise TrainingJobError(f"{path}: has {len(images)} pictures and {len(labels)} labels; unpack it anew.")
    return images, labels


ARRAYS = frozenset({
    ("numpy", "ndarray"), ("numpy", "dtype"), ("_codecs", "encode"),
    ("numpy._core.multiarray", "_reconstruct"), ("numpy._core.numeric", "_frombuffer"),
})  # fmt: skip
"""What the pickle of an array names."""


class _ArraysOnly(pickle.Unpickler):
    """Reads numpy's arrays and plain values, and nothing that could run code."""

    def __init__(self, file: BinaryIO, encoding: str) -> None:
        super().__init__(file, encoding=encoding)

    def find_class(self, module: str, name: str) -> Any:
        place = module.replace("numpy.core", "numpy._core")
        if (place, name) not in ARRAYS:
            raise pickle.UnpicklingError(f"it names {module}.{name}, which has no place in it")
        return super().find_class(place, name)
