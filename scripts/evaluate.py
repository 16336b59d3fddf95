"""``hadoppler evaluate``: a trained policy on problems -> how good its placements are, beside those of others."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from omegaconf import MISSING, DictConfig, OmegaConf
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from hadoppler.envs.errors import MissingExtraError, PlacementError
from hadoppler.scripts.application import CommandError, instantiate, launch
from hadoppler.scripts.evaluation_report import draw_evaluation, print_evaluation, summarise
from hadoppler.scripts.evaluation_runs import Candidate, Decoding, evaluate, fine_tune, trained_on, warm_up
from hadoppler.scripts.report import write_results, write_run_record

if TYPE_CHECKING:
    from hadoppler.envs.placement import PlacementProblem


@dataclass
class EvaluateConfig:
    """Schema of ``hadoppler evaluate``."""

    graph: dict[str, Any] = MISSING
    topology: dict[str, Any] = MISSING
    problems: dict[str, Any] = MISSING
    fine_tune: dict[str, Any] = MISSING
    checkpoint: str | None = None
    model: str | None = None
    count: int = 20
    samples: int = 64
    refine: int = 0
    refine_seconds: float | None = None
    order: str = "fifo"
    seed: int = 0
    pictures: bool = True


ConfigStore.instance().store(name="evaluate_schema", node=EvaluateConfig, provider="hadoppler")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    return launch("evaluate", run, sys.argv[1:] if arguments is None else arguments)


def run(config: DictConfig) -> list[dict[str, Any]]:
    """Evaluate on every problem; returns the rows of the table."""
    folder = Path(HydraConfig.get().runtime.output_dir)
    console = Console()
    decoding = chosen_decoding(config)
    candidate = read_candidate(config.checkpoint)
    source, problems = make_problems(config)
    write_run_record(folder, config)
    rows: list[dict[str, Any]] = []
    failures: dict[str, str] = {}
    with progress_bar(console) as bar:
        shown = bar.add_task("compiling (takes a while after installation only)", total=len(problems))
        warm_up(problems[0], candidate, decoding.order)
        for number, problem in enumerate(problems):
            title = f"{problem.graph.title} on {problem.topology.name}"

            def tell(what: str, share: float, number: int = number, title: str = title) -> None:
                bar.update(shown, description=escape(f"{title}: {what}"), completed=number + share)

            try:
                tuned = tune(config, candidate, problem, decoding, folder / "fine_tuned" / str(number), tell)
                row = evaluate(problem, tuned, decoding, tell)
            except PlacementError as error:
                failures[f"{number}: {title}"] = str(error)
                continue
            row["trained_on"] = trained_on(candidate.told.get("plan", {}), source, number, problem)
            rows.append(row)
            write_results(folder, config, rows, failures)  # what is done is kept, whatever comes
    if not rows:
        raise CommandError("the policy placed nothing: " + " ".join(failures.values()))
    summary = summarise(rows)
    write_results(folder, config, rows, failures, checkpoint=candidate.path, summary=summary)
    print_evaluation(console, rows, summary, failures)
    if config.pictures:
        path = draw_evaluation(folder, rows)
        console.print(f"  {path}", highlight=False, markup=False, soft_wrap=True)
    return rows


def chosen_decoding(config: DictConfig) -> Decoding:
    """How to draw placements, from the settings.

    Raises:
        CommandError: one of them is impossible.
    """
    return Decoding(config.samples, config.refine, config.refine_seconds, config.order, config.seed)


def read_candidate(checkpoint: str | None) -> Candidate:
    """The policy of a file, or the shipped one.

    Raises:
        CheckpointError: it cannot be read.
        MissingExtraError: the packages that it runs on are not installed.
    """
    try:
        from hadoppler.agents.placement.checkpoint import SHIPPED, load_policy
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            f"evaluating needs the package {error.name!r}; install it with pip install 'hadoppler[learn]'."
        ) from error
    path = str(SHIPPED if checkpoint is None else checkpoint)
    return Candidate(path, load_policy(path)[1])


def make_problems(config: DictConfig) -> tuple[Any, list[PlacementProblem]]:
    """What ``problems=...`` stands for, and the problems themselves.

    Raises:
        HadopplerError: a graph or the devices cannot be made, or an option does not exist.
    """
    if config.count < 1:
        raise CommandError(f"count is {config.count}; expected a whole number from 1 up.")
    if config.model is not None and "model" not in config.graph:
        raise CommandError(f"model={config.model} is given, but the graph is another one; add graph=module.")
    source = instantiate(config.problems, _convert_="all")
    problems = [source(number) for number in range(config.count)] if callable(source) else list(source)
    if not problems:
        raise CommandError("there is no problem to evaluate on; give problems.graphs at least one graph.")
    return source, problems


def tune(
    config: DictConfig, candidate: Candidate, problem: PlacementProblem, decoding: Decoding, folder: Path, tell: Any
) -> Candidate:
    """The candidate itself, or with ``fine_tune.updates`` what it becomes on a problem."""
    stage: Any = OmegaConf.to_container(config.fine_tune, resolve=True)
    if not isinstance(stage.get("updates"), int) or stage["updates"] < 0:
        raise CommandError(f"fine_tune.updates is {stage.get('updates')!r}; expected a whole number from 0 up.")
    return fine_tune(candidate, problem, stage, decoding, folder, tell) if stage["updates"] else candidate


def progress_bar(console: Console) -> Progress:
    """A bar over the problems; what is done at the moment beside it."""
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


if __name__ == "__main__":
    sys.exit(main())
