"""``hadoppler train``: an agent's plan of training -> a policy, and how it came to be."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import MISSING, DictConfig
from rich.console import Console

from hadoppler.envs.errors import MissingExtraError
from hadoppler.scripts.application import CommandError, instantiate, launch
from hadoppler.scripts.curves import draw_learning_curve
from hadoppler.scripts.metrics import read_metrics
from hadoppler.scripts.progress import TrainingProgress
from hadoppler.scripts.report import write_results, write_run_record
from hadoppler.scripts.resume import TRAINING, ResumeError
from hadoppler.scripts.settings import setting
from hadoppler.scripts.sweep_figures import training_figures
from hadoppler.scripts.tracking import tracked


@dataclass
class TrainConfig:
    """Schema of ``hadoppler train``."""

    agent: dict[str, Any] = MISSING
    tracking: dict[str, Any] = MISSING
    graph: dict[str, Any] = field(default_factory=dict)
    topology: dict[str, Any] = field(default_factory=dict)
    problems: dict[str, Any] = field(default_factory=dict)
    stage: dict[str, Any] = field(default_factory=dict)
    executor: dict[str, Any] | None = None
    model: str | None = None
    order: str = "fifo"
    seed: int = 0
    resume: str | None = None
    pictures: bool = True


ConfigStore.instance().store(name="train_schema", node=TrainConfig, provider="hadoppler")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    return launch("train", run, TRAINING.with_settings(words), check=check, record=True, figures=training_figures)


def check(config: DictConfig) -> None:
    """Refuse what can be refused before the run's folder is touched: a folder to resume from keeps all that it has.

    Raises:
        HadopplerError: the seed, or the folder to resume from, is none.
    """
    if config.seed < 0:
        raise CommandError(f"seed is {config.seed}; expected a whole number from 0 up.")
    if config.resume is not None:
        if HydraConfig.get().mode == RunMode.MULTIRUN:
            raise ResumeError("resume goes on with one training; give it without -m, once for each member of a sweep.")
        TRAINING.check(config, config.resume)


def run(config: DictConfig) -> list[dict[str, Any]]:
    """Train; returns the lines of ``metrics.jsonl``."""
    folder = Path(HydraConfig.get().runtime.output_dir)
    console, quiet = Console(), in_parallel()
    plan, tracker = make_plan(config), instantiate(config.tracking, _convert_="all")
    resumed = config.resume is not None
    if not resumed:
        write_run_record(folder, config)
    told: list[dict[str, Any]] = []
    with (
        tracked(tracker, folder, config, resume=resumed) as sentence,
        TrainingProgress(console, quiet=quiet) as progress,
    ):
        if sentence and not quiet:
            console.print(sentence, highlight=False, markup=False, soft_wrap=True)

        def report(line: Mapping[str, Any]) -> None:
            told.append(dict(line))
            tracker.log(line)
            progress.update(line)

        try:
            with devices(config, plan) as real:
                policy = plan.train(folder, report, resume=resumed, **real)
        except Exception:
            with suppress(Exception):  # the picture may show why; what matters is the first error
                draw(config, folder, told)
            raise
        lines, picture = read_metrics(folder) or told, draw(config, folder, told)
        measured = fastest_measured(folder) if "online" in config.stage else {}
        write_results(folder, config, lines, {}, policy=str(policy), **({"measured": measured} if measured else {}))
    if not quiet:
        paths = [f"  {path}" for path in (policy, picture) if path is not None]
        for text in [*(what_runs_showed(lines, measured) if measured else []), *paths]:
            console.print(text, highlight=False, markup=False, soft_wrap=True)
    return lines


def fastest_measured(folder: Path) -> dict[str, Any]:
    """The file of the fastest placement that the stage ``online`` has run, and what was measured; {} without one."""
    path = folder / "placement.json"
    if not path.exists():
        return {}
    return {"placement": str(path)} | json.loads(path.read_text(encoding="utf-8"))["notes"]


def what_runs_showed(lines: Sequence[Mapping[str, Any]], measured: Mapping[str, Any]) -> list[str]:
    """Sentences on the fastest placement of the stage ``online``, and how to use it."""
    told = [
        f"The fastest placement of {measured['runs']} runs takes {measured['measured_s']:.4g} s (mean of "
        f"{measured['measured_runs']}); the one that they began with takes {measured['incumbent_s']:.4g} s.",
    ]
    if "ratio" not in lines[-1]:
        told.append("Nothing was measured of what the policy itself would place: give more updates, or a larger batch.")
    told.append("To place the same graph so:")
    told.append(f"  {command_line(str(measured['placement']))}")
    return told


def command_line(placement: str) -> str:
    """How to read a placement of this training's graph and topology, quoted for the shell."""
    settings = HydraConfig.get()
    chosen = {str(group).rpartition("/")[2].partition("@")[0]: name for group, name in settings.runtime.choices.items()}
    words = [f"{group}={chosen[group]}" for group in ("graph", "topology") if chosen.get(group)]
    words += [word for word in settings.overrides.task if re.match(r"(graph|topology)\.|model=", word)]
    words += ["method=[file]", setting("method.file.path", Path(placement))]
    return " ".join(["hadoppler place", *map(shlex.quote, words)])


def draw(config: DictConfig, folder: Path, told: Sequence[Mapping[str, Any]]) -> Path | None:
    """``learning_curve.png``, also of what a training had done before it was resumed; None if there is none."""
    return draw_learning_curve(folder, read_metrics(folder) or told) if config.pictures else None


def make_plan(config: DictConfig) -> Any:
    """The agent's plan: ``train(folder, report, resume) -> Path``.

    Raises:
        HadopplerError: its settings are refused, or it needs packages that are not installed.
    """
    try:
        return instantiate(config.agent, _convert_="all")
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            f"training needs the package {error.name!r}; install it with pip install 'hadoppler[learn]'."
        ) from error


@contextmanager
def devices(config: DictConfig, plan: Any) -> Iterator[dict[str, Any]]:
    """What runs placements for the stage ``online``, as an argument of ``train``; nothing without an executor.

    Raises:
        HadopplerError: an executor is given without need, or cannot be made.
    """
    if not config.executor:
        yield {}
        return
    if "online" not in config.stage:
        raise CommandError("executor is for the stage online, which is not among the stages; add stage=[...,online].")
    from hadoppler.real_system.placement.measured_time import MeasuredTime
    from hadoppler.scripts.executors import make_executor

    problems = plan.problems if isinstance(plan.problems, list) else []
    if len(problems) != 1:
        raise CommandError("the stage online runs one graph; use problems=one.")
    with make_executor(config.executor, problems[0], config.graph) as executor:
        yield {"real": MeasuredTime(executor, execution=config.order, seed=config.seed)}


def in_parallel() -> bool:
    """Whether this is a member of a sweep that may run beside others, whose output would be mixed."""
    settings = HydraConfig.get()
    return settings.mode == RunMode.MULTIRUN and not str(settings.launcher._target_).endswith(".BasicLauncher")


if __name__ == "__main__":
    sys.exit(main())
