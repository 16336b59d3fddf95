"""What every placement policy is: it plays episodes without gradients, and scores them afterwards with gradients."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from ...envs.placement import PlacementProblem
from ...envs.placement.graph import Integers


@dataclass(frozen=True)
class Exploration:
    """How a roll-out chooses.

    Attributes:
        select_temperature, place_temperature: of the softmax over operations and over devices; 0 takes the best.
        epsilon: share of decisions that are drawn evenly from all legal ones instead.
    """

    select_temperature: float = 1.0
    place_temperature: float = 1.0
    epsilon: float = 0.0

    @classmethod
    def greedy(cls) -> Exploration:
        """Always the most probable action."""
        return cls(select_temperature=0.0, place_temperature=0.0)


@dataclass(frozen=True, eq=False)
class Trajectories:
    """B finished episodes of one problem.

    Attributes:
        order: int32 [B, N] the operations in the order in which they were placed.
        devices: int32 [B, N] their devices, by step: ``devices[b, t]`` is the device of ``order[b, t]``.
        records: what the policy wants to see again when it scores the episodes, each array [B, ...].
    """

    order: Integers
    devices: Integers
    records: dict[str, NDArray[Any]]

    def __len__(self) -> int:
        return len(self.order)

    @property
    def assignment(self) -> Integers:
        """int32 [B, N] device of each operation."""
        assignment = np.empty_like(self.devices)
        np.put_along_axis(assignment, self.order.astype(np.int64), self.devices, axis=1)
        return assignment

    def tensors(self, device: torch.device) -> dict[str, Tensor]:
        """Order, devices and records as tensors on a device."""
        arrays = {"order": self.order, "devices": self.devices, **self.records}
        return {name: torch.from_numpy(values).to(device) for name, values in arrays.items()}

    def take(self, rows: ArrayLike) -> Trajectories:
        """The episodes ``rows`` alone."""
        chosen = np.asarray(rows)
        records = {name: values[chosen] for name, values in self.records.items()}
        return replace(self, order=self.order[chosen], devices=self.devices[chosen], records=records)


@dataclass(frozen=True, eq=False)
class Scores:
    """Logarithms of probabilities of the decisions of B episodes, with gradients.

    Attributes:
        select: [B, N] of the chosen operation at each step; zeros if the order is fixed.
        place: [B, N] of the chosen device at each step.
        select_entropy, place_entropy: [B, N] entropies of the two choices; zeros where there is no choice.
    """

    select: Tensor
    place: Tensor
    select_entropy: Tensor
    place_entropy: Tensor

    @property
    def episode(self) -> Tensor:
        """[B] logarithm of the probability of each whole episode."""
        return (self.select + self.place).sum(dim=1)


class PlacementPolicy(nn.Module):
    """A policy that places all operations of a problem, whatever its size.

    Trainers and decoders use these four methods alone. ``prepared`` is what ``prepare`` returned for a problem: all
    that does not depend on the weights, so that it can be kept and used again.
    """

    options: dict[str, Any]
    """The constructor's arguments, for checkpoints: plain numbers and texts."""

    def prepare(self, problem: PlacementProblem, rng: np.random.Generator) -> Any:
        """Everything about a problem that no training step changes. ``rng`` draws random node features, if any."""
        raise NotImplementedError

    def roll_out(
        self, prepared: Any, episodes: int, rng: np.random.Generator, exploration: Exploration | None = None
    ) -> Trajectories:
        """Play ``episodes`` episodes, without gradients; the same generator gives the same episodes."""
        raise NotImplementedError

    def follow(self, prepared: Any, assignments: ArrayLike, orders: ArrayLike) -> Trajectories:
        """The episodes that make given placements: ``assignments`` [B, N] by operation, ``orders`` [B, N].

        A policy with a fixed order of its own follows that instead of ``orders``.
        """
        raise NotImplementedError

    def score(self, prepared: Any, trajectories: Trajectories) -> Scores:
        """Log-probabilities of all decisions of all episodes in one batched pass, with gradients."""
        raise NotImplementedError


def torch_seed(rng: np.random.Generator) -> torch.Generator:
    """A torch generator seeded from a NumPy one."""
    return torch.Generator().manual_seed(int(rng.integers(2**63)))
