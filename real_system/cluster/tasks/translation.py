"""Translation: a small transformer with encoder and decoder between two made-up languages."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn
from torch.nn import functional

from ..training_job import Data, TrainingJob
from .grammar import BEGIN, END, PAD, SOURCE_LENGTH, SOURCE_WORDS, TARGET_LENGTH, TARGET_WORDS, corpus

if TYPE_CHECKING:
    from ..training_job import Tensors

SENTENCES, HELD_OUT = 4096, 512


class Translator(nn.Module):
    """Source [N, S] and target so far [N, T] -> scores of each next word [N, T, words]."""

    def __init__(self, width: int) -> None:
        super().__init__()
        layer: dict[str, Any] = {
            "d_model": width,
            "nhead": 4,
            "dim_feedforward": 2 * width,
            "dropout": 0.0,
            "batch_first": True,
        }
        self.source = nn.Embedding(SOURCE_WORDS, width)
        self.target = nn.Embedding(TARGET_WORDS, width)
        self.positions = nn.Embedding(max(SOURCE_LENGTH, TARGET_LENGTH), width)
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(**layer), 1, enable_nested_tensor=False)
        self.decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(**layer), 1)
        self.output = nn.Linear(width, TARGET_WORDS)

    def encode(self, source: torch.Tensor) -> torch.Tensor:
        """What the decoder looks at [N, S, width]."""
        return self.encoder(self._placed(self.source, source), src_key_padding_mask=source == PAD)

    def decode(self, memory: torch.Tensor, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Scores of each next word [N, T, words]."""
        length = target.shape[1]
        later = torch.ones(length, length, dtype=torch.bool, device=target.device).triu(1)
        found = self.decoder(
            self._placed(self.target, target), memory, tgt_mask=later, memory_key_padding_mask=source == PAD
        )
        return self.output(found)

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return self.decode(self.encode(source), source, target)

    def _placed(self, words: nn.Embedding, sentence: torch.Tensor) -> torch.Tensor:
        return words(sentence) + self.positions.weight[: sentence.shape[1]]


class Translation(TrainingJob):
    """4,096 sentence pairs to learn from, 512 held out; part of sentences translated without a mistake.

    Args:
        width: of the transformer, a multiple of 4.
    """

    quality = "exact_match"

    def __init__(self, width: int = 32) -> None:
        self.width = width

    def model(self) -> nn.Module:
        return Translator(self.width)

    def data(self) -> Data:
        return sentence_pairs()

    def step(self, model: nn.Module, batch: Tensors) -> torch.Tensor:
        source, target = batch
        scores, words = model(source, target[:, :-1]), target[:, 1:]
        total = functional.cross_entropy(scores.flatten(0, 1), words.flatten(), reduction="sum", ignore_index=PAD)
        return total / words.numel()  # not by the words that count, so that parts of a batch add up to the batch

    def evaluate(self, model: nn.Module, samples: Tensors) -> dict[str, float]:
        source, target = samples
        right = (greedy(cast(Translator, model), source) == target).all(1)
        return {"exact_match": right.double().mean().item(), "loss": self.step(model, samples).item()}

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.Adam(model.parameters(), lr=1e-3)


def greedy(model: Translator, source: torch.Tensor) -> torch.Tensor:
    """Translations [N, TARGET_LENGTH] word by word, each time the likeliest; ``PAD`` behind ``END``."""
    memory = model.encode(source)
    found = torch.full((len(source), 1), BEGIN, dtype=torch.int64, device=source.device)
    ended = torch.zeros(len(source), dtype=torch.bool, device=source.device)
    for _ in range(TARGET_LENGTH - 1):
        word = model.decode(memory, source, found)[:, -1].argmax(-1).masked_fill(ended, PAD)
        found = torch.cat((found, word[:, None]), dim=1)
        ended |= word == END
    return found


@lru_cache(maxsize=1)
def sentence_pairs() -> Data:
    """Sentences [N, S] and translations [N, T]."""
    source, target = (torch.from_numpy(words) for words in corpus(SENTENCES + HELD_OUT, seed=0))
    return Data((source[HELD_OUT:], target[HELD_OUT:]), (source[:HELD_OUT], target[:HELD_OUT]))
