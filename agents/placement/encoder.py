"""Message passing over a dataflow graph: what each operation knows of its surroundings."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch_geometric.nn import GINEConv


class Encoder(nn.Module):
    """Rounds of message passing along the edges and against them (paper: the graph is made bidirected).

    Each round adds to an operation's embedding a function of it and of the mean messages of its producers and of
    its consumers, by two edge-aware layers of torch-geometric: lighter than the public code's edge-conditioned
    matrices (our choice).

    Args:
        columns, edge_columns: numbers of features of operations and of edges.
        width: of the embeddings.
        layers: rounds.
    """

    def __init__(self, columns: int, edge_columns: int, width: int, layers: int) -> None:
        super().__init__()
        self.enter = nn.Linear(columns, width)
        self.forth = nn.ModuleList(_messages(width, edge_columns) for _ in range(layers))
        self.back = nn.ModuleList(_messages(width, edge_columns) for _ in range(layers))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(layers))
        self.combine = nn.ModuleList(
            nn.Sequential(nn.Linear(3 * width, width), nn.ReLU(), nn.Linear(width, width)) for _ in range(layers)
        )

    def forward(self, nodes: Tensor, edge_index: Tensor, edges: Tensor) -> Tensor:
        """[N, columns], int64 [2, E], [E, edge_columns] -> [N, width]."""
        known = self.enter(nodes)
        against = edge_index.flip(0)
        for forth, back, norm, combine in zip(self.forth, self.back, self.norms, self.combine, strict=True):
            at = norm(known)
            told = torch.cat((at, forth(at, edge_index, edges), back(at, against, edges)), dim=1)
            known = known + combine(told)
        return known


def _messages(width: int, edge_columns: int) -> GINEConv:
    return GINEConv(nn.Sequential(nn.Linear(width, width)), edge_dim=edge_columns, aggr="mean")
