"""How a placement episode is scored, and what an illegal action brings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from numpy.typing import ArrayLike

from ..arguments import is_number
from ..errors import PlacementError
from .episodes import EpisodeBatch
from .graph import Floats
from .simulator import Order
from .topology import Contention

RewardMode = Literal["final", "dense"]
IllegalAction = Literal["penalty", "terminate", "raise"]


@dataclass(frozen=True)
class EpisodeRules:
    """The rules that both environments share.

    Attributes:
        reward: ``final`` - 0 until the last step, then -makespan / bound; ``dense`` - each step the
            difference of -(end of the partial schedule) / bound, the last one closing at -makespan / bound, so
            that both have the same sum.
        order: how devices choose among ready operations in the final simulation: ``fifo``, ``priority``
            (the order in which the episode chose them) or ``random``.
        contention: of the final simulation; the problem's own by default.
        noise: deviation of the lognormal factor on every time of the final simulation.
        illegal_action: ``penalty`` - the next legal action upward is taken instead and ``illegal_penalty`` is
            subtracted from the reward; ``terminate`` - the episode ends with a reward that no schedule goes
            below; ``raise`` - ``PlacementError``, nothing changes.
        illegal_penalty: in makespans of length bound.
    """

    reward: RewardMode = "final"
    order: Order = "fifo"
    contention: Contention | None = None
    noise: float = 0.0
    illegal_action: IllegalAction = "penalty"
    illegal_penalty: float = 0.1

    def __post_init__(self) -> None:
        for name, choices in (
            ("reward", RewardMode),
            ("order", Order),
            ("contention", Contention),
            ("illegal_action", IllegalAction),
        ):
            value, valid = getattr(self, name), get_args(choices)
            if value not in valid and not (name == "contention" and value is None):
                raise PlacementError(f"{name} is {value!r}; expected {', '.join(valid)}.")
        for name, highest in (("noise", 10.0), ("illegal_penalty", 1e6)):
            value = getattr(self, name)
            if not (is_number(value) and 0 <= value < highest):
                raise PlacementError(f"{name} is {value!r}; expected a number from 0 to {highest:g}.")

    @property
    def stochastic(self) -> bool:
        """Whether the final simulation draws random numbers."""
        return self.noise > 0 or self.order == "random"

    def makespans(self, batch: EpisodeBatch, rows: ArrayLike, seed: int = 0) -> Floats:
        """Simulated makespans of the finished episodes ``rows``; an overflowing device costs a penalty."""
        return batch.makespans(rows=rows, order=self.order, contention=self.contention, noise=self.noise, seed=seed)

    def forfeit(self, batch: EpisodeBatch) -> float:
        """Reward of the step that ends an episode under ``terminate``: below that of any schedule that fits."""
        return -batch.problem.serial_s / batch.scale - self.illegal_penalty

    def refuse(self, batch: EpisodeBatch, operation: int, device: int) -> PlacementError:
        """The error of an illegal action under ``raise``."""
        return PlacementError(
            f"{batch.problem.graph.title}: placing operation number {operation} on device {device} is illegal now; "
            "take an action that the mask allows."
        )
