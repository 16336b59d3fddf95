"""``hadoppler reproduce``: published tables and figures, run again part by part -> one report."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING, DictConfig, OmegaConf
from rich.console import Console

from hadoppler.scripts.application import CommandError, launch
from hadoppler.scripts.report import say
from hadoppler.scripts.run_state import held


@dataclass
class ReproduceConfig:
    """Schema of ``hadoppler reproduce``."""

    mode: str = MISSING
    tables: Any = None
    folder: str = MISSING
    jobs: int = 2
    run: bool = True
    short: dict[str, Any] = field(default_factory=dict)


ConfigStore.instance().store(name="reproduce_schema", node=ReproduceConfig, provider="hadoppler")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code: 1 if a part failed."""
    failed: dict[str, str] = {}
    code = launch("reproduce", partial(run, failed), sys.argv[1:] if arguments is None else arguments, check=check)
    return code or int(bool(failed))


def check(config: DictConfig) -> None:
    """Refuse settings that no other part would refuse.

    Raises:
        CommandError: one is out of range.
    """
    if config.mode not in ("quick", "full"):
        raise CommandError(f"mode is {config.mode!r}; expected quick or full.")
    if config.jobs < 1:
        raise CommandError(f"jobs is {config.jobs}; expected a whole number from 1 up.")


def run(failed: dict[str, str], config: DictConfig) -> None:
    """Run the parts that have not finished, then write the report; tells of parts that failed in ``failed``."""
    from hadoppler.scripts.reproduction.evidence import Evidence
    from hadoppler.scripts.reproduction.figures import write_figures
    from hadoppler.scripts.reproduction.parts import make_plan
    from hadoppler.scripts.reproduction.report import write_report
    from hadoppler.scripts.reproduction.running import run_parts

    console, root = Console(), (Path(config.folder) / config.mode).absolute()
    short: Any = OmegaConf.to_container(config.short, resolve=True)
    with console.status("reading tables"):
        plan = make_plan(chosen_tables(config), quick=config.mode == "quick", short=short)
    root.mkdir(parents=True, exist_ok=True)
    with held(root) if config.run else nullcontext():
        if config.run:
            failed |= run_parts(plan.parts, root, config.jobs, console)
        with console.status("writing the report"):
            evidence = Evidence(plan, root)
            paths = *write_report(evidence, root), write_figures(evidence, root)
    for key, reason in failed.items():
        say(console, f"failed: {plan.parts[key].name}: {reason}")
    for path in paths:
        say(console, f"  {path}")


def chosen_tables(config: DictConfig) -> list[str]:
    """Names of the tables, each once; all of them without a choice."""
    from hadoppler.scripts.reproduction.table_files import table_names

    if config.tables is None:
        return table_names()
    given = list(config.tables) if OmegaConf.is_list(config.tables) else [config.tables]
    if not given:
        raise CommandError("tables is empty; name some, or leave it out for all.")
    return list(dict.fromkeys(map(str, given)))


if __name__ == "__main__":
    sys.exit(main())
