"""What a run tells while it goes on: a line every few seconds, in ``metrics.jsonl`` and to the tracker."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TextIO

from hadoppler.scripts.report import plain

if TYPE_CHECKING:
    from hadoppler.real_system.cluster.real_run import RealRun
    from hadoppler.scripts.tracking import Tracker

EVERY_S = 2.0
"""Seconds of the run between two lines."""


@dataclass
class RunMetrics:
    """Called often with a run, it tells now and then how it is going."""

    file: TextIO
    tracker: Tracker
    last: float = -EVERY_S

    def __call__(self, run: RealRun) -> None:
        """Tell, if it is time to."""
        if run.time < self.last + EVERY_S:
            return
        self.last, line = run.time, line_of(run)
        self.file.write(json.dumps(plain(line)) + "\n")
        self.file.flush()
        self.tracker.log(line)


def line_of(run: RealRun) -> dict[str, Any]:
    """How a run is going: seconds, jobs, steps, and node-seconds in use / all so far."""
    jobs = run.tracker.jobs
    steps = sum(job.spec.steps for job in jobs)
    left = sum(job.left for job in jobs)
    nodes = max(1, len(run.cluster.nodes))
    return {
        "seconds": run.time,
        "active": len(run.state.active),
        "finished_jobs": sum(job.finished for job in jobs),
        "steps_done": steps - left,
        "done": (steps - left) / max(steps, 1),
        "cru": float(run.state.use.held.sum()) / (nodes * run.time) if run.time > 0 else 0.0,
        "restarts": int(run.state.jobs.restarts.sum()),
        "overruns": run.overruns,
    }
