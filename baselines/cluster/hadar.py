"""Hadar, in its three modes, as one scheduler by name."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from ...envs.cluster import Scheduler
from ...envs.errors import UnknownNameError
from ..registry import check_options

MODES = {
    "round": "hadar_round:HadarRound",
    "horizon": "hadar_horizon:HadarHorizon",
    "admission": "hadar_admission:HadarAdmission",
}
"""Mode -> class: as published, re-decided each round | ours, with prices from a linear program |
irrevocable schedules over the time to come, or rejection."""


def hadar(mode: str = "round", **options: Any) -> Scheduler:
    """Hadar in one of its modes: ``round``, ``horizon`` or ``admission``.

    Args:
        mode: how it looks at time.
        options: the mode's own; its class describes them.

    Raises:
        UnknownNameError: there is no such mode, or it has no such option.
    """
    if mode not in MODES:
        raise UnknownNameError(f"hadar has no mode {mode!r}; choose one of {', '.join(MODES)}.")
    module, _, name = MODES[mode].partition(":")
    make = getattr(import_module(f".{module}", __package__), name)
    check_options(f"scheduler 'hadar' with mode={mode}", make, options)
    scheduler: Scheduler = make(**options)
    return scheduler
