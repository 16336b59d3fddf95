"""Modules to try ``graph=module`` with: a transformer block and a perceptron."""

from __future__ import annotations

import torch
from torch import nn


class TransformerBlock(nn.Module):
    """Pre-norm attention and feed-forward with residuals."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm, self.feedforward_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.projections = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)
        self.feedforward = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [batch, sequence, width] to the same shape."""
        query, key, value = self.projections(self.attention_norm(x)).chunk(3, dim=-1)
        split = (*x.shape[:2], self.heads, x.shape[2] // self.heads)
        query, key, value = (part.view(split).transpose(1, 2) for part in (query, key, value))
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.output(mixed.transpose(1, 2).reshape(x.shape))
        return x + self.feedforward(self.feedforward_norm(x))


def transformer_block() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """A block of width 1024 on 4 sequences of 512 tokens; no memory is spent on its weights."""
    with torch.device("meta"):
        return TransformerBlock(1024, 16), (torch.zeros(4, 512, 1024),)


def perceptron() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """Three linear layers of width 4096 on a batch of 8192."""
    with torch.device("meta"):
        layers = [layer for _ in range(3) for layer in (nn.Linear(4096, 4096), nn.ReLU())]
        return nn.Sequential(*layers), (torch.zeros(8192, 4096),)
