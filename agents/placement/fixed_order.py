"""What policies share that place the operations in the graph's topological order and choose devices alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from ...envs.errors import PlacementError
from .policy import PlacementPolicy, Scores, Trajectories


class FixedOrderPolicy(PlacementPolicy):
    """A policy whose ``prepare`` returns something with ``order``, int64 [N], which all its episodes follow, and
    ``allowed``, bool [N, D].

    The halves of ``Exploration`` that leave a choice to CRITICAL PATH do not apply. Roll-outs keep
    ``records["log_probability"]`` [B, N]: what ``score`` tells of each step, whatever the temperature was.
    """

    def follow(self, prepared: Any, assignments: ArrayLike, orders: ArrayLike) -> Trajectories:
        """The given placements, in the policy's own order.

        Raises:
            PlacementError: a device does not exist, or its operation may not use it.
        """
        assignment, allowed = np.atleast_2d(np.asarray(assignments)), prepared.allowed.cpu().numpy()
        legal = (assignment >= 0) & (assignment < allowed.shape[1])
        legal &= allowed[np.arange(len(allowed)), np.where(legal, assignment, 0)]
        if not legal.all():
            row, v = np.argwhere(~legal)[0]
            raise PlacementError(
                f"placement {row} cannot be followed: operation number {v} is on device {assignment[row, v]}; it may "
                f"only use {np.flatnonzero(allowed[v]).tolist()}."
            )
        return self.episodes(prepared, assignment, {})

    def episodes(self, prepared: Any, assignment: NDArray[Any], records: dict[str, NDArray[Any]]) -> Trajectories:
        """Episodes that end in ``assignment`` [B, N], by operation."""
        order = prepared.order.cpu().numpy()
        orders = np.tile(order.astype(np.int32), (len(assignment), 1))
        return Trajectories(orders, np.ascontiguousarray(assignment[:, order], dtype=np.int32), records)

    def scores(self, place: Tensor, entropy: Tensor) -> Scores:
        """Scores of devices [B, N] and entropies [B, N], in a fixed order."""
        nothing = torch.zeros_like(place)
        return Scores(select=nothing, place=place, select_entropy=nothing, place_entropy=entropy)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.parameters()).device
