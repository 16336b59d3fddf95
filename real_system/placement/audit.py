"""Whether a measured execution was work-conserving: no device idles while an operation that is ready sits on it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...envs.placement.graph import Floats
from .executor import Execution


@dataclass(frozen=True)
class Audit:
    """How promptly devices took their work.

    Attributes:
        delays: [N] seconds that a device idled before each operation although one was ready, by operation.
        idle: [D] those seconds, summed.
    """

    delays: Floats
    idle: Floats

    def late(self, latency: float) -> int:
        """Operations before which a device idled longer than ``latency`` seconds with work at hand."""
        return int((self.delays > latency).sum())


def audit(execution: Execution) -> Audit:
    """Check a ``work_conserving`` execution against its own trace.

    Before each operation a device was idle from the end of the one before; from then, or from the moment when any of
    the operations that it had not begun was ready (all inputs there, whether its thread had noticed or not), until the
    start is its delay.
    """
    schedule, ready = execution.schedule, execution.ready
    delays, idle = np.zeros(len(ready)), np.zeros(len(schedule.peak_memory))
    for device in range(len(idle)):
        mine = schedule.sequence(device)
        if not mine.size:
            continue
        available = np.minimum.accumulate(ready[mine][::-1])[::-1]
        free = np.concatenate([[0.0], schedule.end[mine][:-1]])
        delays[mine] = np.maximum(schedule.start[mine] - np.maximum(free, available), 0.0)
        idle[device] = delays[mine].sum()
    return Audit(delays, idle)
