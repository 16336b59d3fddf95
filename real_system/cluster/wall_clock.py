"""The time of a run that may be interrupted."""

from __future__ import annotations

import time
from collections.abc import Callable


def system_seconds() -> float:
    """Seconds since 1970, which all processes of a machine read alike."""
    return time.time()


class WallClock:
    """Seconds of a run, which go on where an interrupted one stopped."""

    def __init__(self, begun: float = 0.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.offset = begun - clock()

    def __call__(self) -> float:
        """Seconds since the run's first begin, without those in which it was not running."""
        return self._clock() + self.offset
