"""Dataflow graphs as torch-geometric data."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...errors import MissingExtraError
from ..graph import DataflowGraph


def to_pyg(graph: DataflowGraph) -> Any:
    """The graph as ``torch_geometric.data.Data``.

    Fields: ``x`` float64 [N, 3] (flops, bytes_moved, out_bytes), ``edge_index`` int64 [2, E] by
    position of the operation, ``edge_attr`` float64 [E, 1] (bytes), ``tensor`` int64 [E], ``group``
    int64 [N], ``num_nodes``.

    Raises:
        MissingExtraError: torch-geometric is not installed.
    """
    try:
        import torch
        from torch_geometric.data import Data
    except ImportError as error:
        raise MissingExtraError("to_pyg needs torch-geometric; install hadoppler[learn].") from error
    return Data(
        x=torch.from_numpy(np.stack([graph.flops, graph.bytes_moved, graph.out_bytes], axis=1)),
        edge_index=torch.from_numpy(graph.edge_index.astype(np.int64)),
        edge_attr=torch.from_numpy(graph.edge_bytes[:, None].copy()),
        tensor=torch.from_numpy(graph.tensor.astype(np.int64)),
        group=torch.from_numpy(graph.group.astype(np.int64)),
        num_nodes=graph.n,
    )
