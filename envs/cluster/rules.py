"""Rules of the simulated cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

import numpy as np

from ..arguments import check_whole, is_number
from ..errors import ClusterError
from .scheduler import MixedRate


@dataclass(frozen=True)
class SimulationRules:
    """Rules of the simulated world.

    Attributes:
        round_s: seconds between decisions.
        restart_s: seconds that a gang on new GPUs needs before it works, the first start included.
        early_refill: GPUs that a finished job (or a lost gang) sets free are offered at once, not at
            the next round.
        mixed_rate: rate of a gang on several types (``gang_rate``).
        consolidation_s: seconds at a round's end in which copies of one job average their weights.
        max_idle_rounds: rounds in a row without any work (not counting one restart) and without
            anything to come, after which the jobs that are there are reported as unfinished.
    """

    round_s: float = 360.0
    restart_s: float = 10.0
    early_refill: bool = False
    mixed_rate: MixedRate = "proportional"
    consolidation_s: float = 15.0
    max_idle_rounds: int = 1000

    def __post_init__(self) -> None:
        if not (is_number(self.round_s) and np.isfinite(self.round_s) and self.round_s > 0):
            raise ClusterError(f"round_s is {self.round_s!r}; expected seconds above 0.")
        for name, value in (("restart_s", self.restart_s), ("consolidation_s", self.consolidation_s)):
            if not (is_number(value) and np.isfinite(value) and value >= 0):
                raise ClusterError(f"{name} is {value!r}; expected seconds from 0 up.")
        if self.mixed_rate not in get_args(MixedRate):
            raise ClusterError(f"mixed_rate is {self.mixed_rate!r}; expected proportional or min.")
        check_whole("max_idle_rounds", self.max_idle_rounds, ClusterError)

    def check_forks(self, forks: bool) -> None:
        """Refuse a scheduler that forks where no time is left between two consolidations.

        Raises:
            ClusterError: there is none.
        """
        if forks and self.consolidation_s >= self.round_s:
            raise ClusterError(
                f"consolidation_s is {self.consolidation_s}; copies need less than a round of {self.round_s} s for it."
            )
