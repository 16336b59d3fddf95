"""What a run tells while it goes on: ``metrics.jsonl`` in its folder, and the tracker."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig, OmegaConf

from hadoppler.scripts.application import instantiate
from hadoppler.scripts.report import plain

if TYPE_CHECKING:
    from hadoppler.real_system.cluster.real_run import RealRun
    from hadoppler.scripts.tracking import Tracker

EVERY_S = 2.0
"""Seconds of the run between two lines."""


@contextmanager
def tracked(config: DictConfig, folder: Path, name: str) -> Iterator[Callable[[RealRun], None]]:
    """A function that tells how a run is going, to be called often."""
    tracker: Tracker = instantiate(config.tracking)
    settings: Any = plain(OmegaConf.to_container(config, resolve=True))
    resumed = (folder / "metrics.jsonl").exists()
    tracker.start(folder, settings, group=name, resume=resumed)
    state = "failed"
    try:
        with (folder / "metrics.jsonl").open("a", encoding="utf-8") as file:
            last = [-EVERY_S]

            def tell(run: RealRun) -> None:
                if run.time < last[0] + EVERY_S:
                    return
                last[0] = run.time
                line = line_of(run)
                file.write(json.dumps(plain(line)) + "\n")
                file.flush()
                tracker.log(line)

            yield tell
        state = "finished"
    except KeyboardInterrupt:
        state = "interrupted"
        raise
    finally:
        tracker.finish(state)


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
