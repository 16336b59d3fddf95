"""``hadoppler train``: an agent's plan of training -> a policy, and how it came to be."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from omegaconf import MISSING, DictConfig
from rich.console import Console

from hadoppler.envs.errors import MissingExtraError
from hadoppler.scripts.application import CommandError, instantiate, launch
from hadoppler.scripts.report import write_results, write_run_record


@dataclass
class TrainConfig:
    """Schema of ``hadoppler train``."""

    agent: dict[str, Any] = MISSING
    seed: int = 0
    resume: str | None = None


ConfigStore.instance().store(name="train_schema", node=TrainConfig, provider="hadoppler")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    return launch("train", run, sys.argv[1:] if arguments is None else arguments)


def run(config: DictConfig) -> list[dict[str, Any]]:
    """Train; returns the lines of ``metrics.jsonl`` of this run."""
    if config.seed < 0:
        raise CommandError(f"seed is {config.seed}; expected a whole number from 0 up.")
    folder = Path(HydraConfig.get().runtime.output_dir)
    console = Console()
    try:
        plan = instantiate(config.agent, _convert_="all")
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            f"training needs the package {error.name!r}; install it with pip install 'hadoppler[learn]'."
        ) from error
    write_run_record(folder, config)
    lines: list[dict[str, Any]] = []

    def report(line: Mapping[str, Any]) -> None:
        lines.append(dict(line))
        console.print(describe(line), highlight=False, markup=False, soft_wrap=True)

    resumed = config.resume is not None
    path = plan.train(Path(config.resume) if resumed else folder, report, resume=resumed)
    write_results(folder, config, lines, {}, policy=str(path))
    console.print(f"  {path}", highlight=False, markup=False, soft_wrap=True)
    return lines


def describe(line: Mapping[str, Any]) -> str:
    """A line of ``metrics.jsonl`` for people."""
    return "  ".join(
        f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}" for name, value in line.items()
    )


if __name__ == "__main__":
    sys.exit(main())
