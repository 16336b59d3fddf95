"""``hadoppler cancel``: takes a job out of a run that is going on."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING, DictConfig
from rich.console import Console

from hadoppler.scripts.application import launch
from hadoppler.scripts.report import say
from hadoppler.scripts.run_requests import running_folder, wait_for_answer


@dataclass
class CancelConfig:
    """Schema of ``hadoppler cancel``."""

    run: str = MISSING
    id: str = MISSING
    wait_s: float = 10.0


ConfigStore.instance().store(name="cancel_schema", node=CancelConfig, provider="hadoppler")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    return launch("cancel", run, sys.argv[1:] if arguments is None else arguments)


def run(config: DictConfig) -> None:
    """Ask, and wait for the answer."""
    from hadoppler.real_system.cluster.job_source import cancel

    folder = running_folder(Path(config.run))
    done = wait_for_answer(folder, cancel(folder, str(config.id)), config.wait_s)
    said = "is cancelled" if done else f"will be cancelled; the run has not answered within {config.wait_s:g} s"
    say(Console(), f"job {config.id} {said}.")


if __name__ == "__main__":
    sys.exit(main())
