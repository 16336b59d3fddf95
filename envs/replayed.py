"""What a step of an environment was, when somebody else's decisions are replayed in it."""

from __future__ import annotations

from typing import Any, NamedTuple


class ReplayedStep(NamedTuple):
    """One step: the observation before it, the action, and what the environment answered."""

    observation: Any
    action: Any
    reward: float
    terminated: bool
    truncated: bool
    info: dict[str, Any]
