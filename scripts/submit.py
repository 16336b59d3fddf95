"""``hadoppler submit``: one more job for a run that is going on."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING, DictConfig, OmegaConf
from rich.console import Console

from hadoppler.scripts.application import launch
from hadoppler.scripts.report import say
from hadoppler.scripts.run_requests import running_folder, wait_for_answer


@dataclass
class SubmitConfig:
    """Schema of ``hadoppler submit``."""

    run: str = MISSING
    task: str = MISSING
    steps: int = MISSING
    id: str | None = None
    workers: int = 1
    batch_size: int | None = None
    seed: int | None = None
    weight: float = 1.0
    options: Any = None
    wait_s: float = 10.0


ConfigStore.instance().store(name="submit_schema", node=SubmitConfig, provider="hadoppler")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    return launch("submit", run, sys.argv[1:] if arguments is None else arguments)


def run(config: DictConfig) -> None:
    """Ask, and wait for the answer."""
    from hadoppler.real_system.cluster.job_source import read_submitted, submit, submitted_id

    folder = running_folder(Path(config.run))
    given: Any = OmegaConf.to_container(config, resolve=True)
    job = {key: value for key, value in given.items() if key not in ("run", "wait_s") and value is not None}
    read_submitted(job, "job", 0)
    number = submit(folder, job)
    done = wait_for_answer(folder, number, config.wait_s)
    said = "the run has taken it" if done else f"the run has not answered within {config.wait_s:g} s; it will"
    say(Console(), f"job {submitted_id(number, job)} ({config.task}, {config.steps} steps): {said}.")


if __name__ == "__main__":
    sys.exit(main())
