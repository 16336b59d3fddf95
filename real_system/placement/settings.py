"""What the settings of executors must be: one sentence where one is not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...envs.arguments import is_number
from ...envs.errors import PlacementError
from ...envs.placement.graph import Floats

NO_LIMIT_S = 1e6
"""Time-outs of so many seconds (eleven days) or more are none: the system's own clocks take no much larger ones."""


def time_out(value: Any) -> float:
    """Seconds of a time-out; infinite for no limit.

    Raises:
        PlacementError: it is no number above 0.
    """
    if not is_number(value) or not value > 0:
        raise PlacementError(f"timeout is {value!r}; expected seconds above 0, or inf for no limit.")
    return float("inf") if value >= NO_LIMIT_S else float(value)


def rate(name: str, value: Any) -> float:
    """Bytes per second; infinite for no limit.

    Raises:
        PlacementError: it is no number above 0.
    """
    if not is_number(value) or not value > 0:
        raise PlacementError(f"{name} is {value!r}; expected bytes per second above 0, or inf for no limit.")
    return float(value)


def seconds(name: str, value: Any) -> float:
    """A duration that can be waited for.

    Raises:
        PlacementError: it is no number above 0, or one beyond ``NO_LIMIT_S``.
    """
    if not is_number(value) or not 0 < value <= NO_LIMIT_S:
        raise PlacementError(f"{name} is {value!r}; expected seconds above 0, at most {NO_LIMIT_S:g}.")
    return float(value)


def deviation(name: str, value: Any) -> float:
    """The deviation of a logarithm.

    Raises:
        PlacementError: it is no number from 0 to below 10.
    """
    if not is_number(value) or not 0 <= value < 10:
        raise PlacementError(f"{name} is {value!r}; expected a number from 0 up, such as 0.1, below 10.")
    return float(value)


def seed(value: Any) -> int:
    """A seed of random draws.

    Raises:
        PlacementError: it is no whole number from 0 up.
    """
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < 0:
        raise PlacementError(f"seed is {value!r}; expected a whole number from 0 up.")
    return int(value)


def factors(name: str, value: Any, devices: int) -> Floats:
    """[D] factors, from one or from D.

    Raises:
        PlacementError: they are others.
    """
    try:
        found = np.broadcast_to(np.asarray(value, dtype=np.float64), (devices,)).copy()
    except (TypeError, ValueError):
        found = np.zeros(devices)
    if not ((found > 0) & (found < np.inf)).all():
        raise PlacementError(f"{name} is {_told(value)}; expected one factor above 0, or a list of {devices}.")
    return found


def links(name: str, value: Any, devices: int) -> list[tuple[int, int, float]]:
    """(from, to, factor) of some links.

    Raises:
        PlacementError: it is no list of these; the entry is named.
    """
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise PlacementError(f"{name} is {value!r}; expected a list of [from, to, factor], such as [[0, 1, 3.0]].")
    found = []
    for entry in value:
        parts = list(entry) if isinstance(entry, Sequence) and not isinstance(entry, str) else []
        whole = len(parts) == 3 and all(type(end) is int and 0 <= end < devices for end in parts[:2])
        if not whole or parts[0] == parts[1] or not is_number(parts[2]) or not 0 < parts[2] < np.inf:
            raise PlacementError(
                f"{name} holds {_told(entry)}; expected [from, to, factor] with two different devices from 0 to "
                f"{devices - 1} and a factor above 0."
            )
        found.append((parts[0], parts[1], float(parts[2])))
    return found


def _told(value: Any) -> str:
    """A value for people; lists of any kind as lists."""
    return repr(value.tolist() if isinstance(value, np.ndarray) else value)
