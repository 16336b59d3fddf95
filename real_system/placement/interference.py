"""How much other work disturbed a measurement."""

from __future__ import annotations

import os
from collections.abc import Iterable

NANO = 1e-9


def waited_seconds(threads: Iterable[int | None]) -> float:
    """Seconds that threads of this process have waited for a processor since they began, summed.

    NaN where the system does not tell (anything but Linux).
    """
    total = 0.0
    for number in threads:
        try:
            with open(f"/proc/self/task/{number}/schedstat", encoding="ascii") as file:
                total += int(file.read().split()[1]) * NANO
        except (OSError, IndexError, ValueError):
            return float("nan")
    return total


def load() -> float:
    """Mean number of processes that ran or waited in the last minute; NaN where the system does not tell."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else float("nan")
