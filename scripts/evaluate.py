"""``hadoppler evaluate``: a policy, methods or schedulers on problems -> how good they are."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
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
from hadoppler.scripts.progress import PlainProgress
from hadoppler.scripts.report import say, write_results, write_run_record
from hadoppler.scripts.suite_report import draw_judgement, print_judgement, print_worlds, say_suite
from hadoppler.scripts.suite_runs import judge_methods, judge_schedulers, summarise_methods, summarise_schedulers
from hadoppler.scripts.sweep_figures import numbers, read_results
from hadoppler.scripts.tracking import tracked_job

if TYPE_CHECKING:
    from hadoppler.envs.placement import PlacementProblem


@dataclass
class EvaluateConfig:
    """Schema of ``hadoppler evaluate``."""

    graph: dict[str, Any] = MISSING
    topology: dict[str, Any] = MISSING
    problems: dict[str, Any] = MISSING
    suite: dict[str, Any] | None = None
    method: dict[str, Any] = field(default_factory=dict)
    scheduler: dict[str, Any] = field(default_factory=dict)
    tracking: dict[str, Any] = MISSING
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
    words = sys.argv[1:] if arguments is None else arguments
    return launch("evaluate", tracked_job(run), words, check=check_alone, figures=summary_figures)


def run(config: DictConfig) -> list[dict[str, Any]]:
    """Evaluate on every problem; returns the rows of the table."""
    if config.method or config.scheduler or is_cluster_suite(config):
        return judge(config)
    return evaluate_policy(config)


def evaluate_policy(config: DictConfig) -> list[dict[str, Any]]:
    """A policy beside its rivals; returns a row per problem."""
    folder = Path(HydraConfig.get().runtime.output_dir)
    console = Console()
    decoding = chosen_decoding(config)
    candidate = read_candidate(config.checkpoint)
    source, problems, suite = make_problems(config)
    source = generator(config) if suite else source
    write_run_record(folder, config)
    rows: list[dict[str, Any]] = []
    failures: dict[str, str] = {}
    with progress_bar(console) as bar, PlainProgress(console) as plain:
        shown = bar.add_task("compiling (takes a while after installation only)", total=len(problems))
        warm_up(problems[0], candidate, decoding.order)
        for number, problem in enumerate(problems):
            title = f"{problem.graph.title} on {problem.topology.name}"

            def tell(what: str, share: float, number: int = number, title: str = title) -> None:
                bar.update(shown, description=escape(f"{title}: {what}"), completed=number + share)
                plain.at(f"{title} ({number + 1} of {len(problems)}): {what}")

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
    write_results(folder, config, rows, failures, checkpoint=candidate.path, summary=summary, **suite)
    print_evaluation(console, rows, summary, failures)
    say_suite(console, **suite)
    if config.pictures:
        path = draw_evaluation(folder, rows)
        console.print(f"  {path}", highlight=False, markup=False, soft_wrap=True)
    return rows


def judge(config: DictConfig) -> list[dict[str, Any]]:
    """Methods or schedulers, each by itself; returns a row per problem and method, or world and scheduler."""
    folder, console = Path(HydraConfig.get().runtime.output_dir), Console()
    if is_cluster_suite(config):
        made = instantiate(config.suite, _convert_="all")
        items = made.make()
        suite = told_of(made, items)
        rows, failures = judge_schedulers(config, made, items, console)
        who, summary = "scheduler", summarise_schedulers(rows)
    else:
        _, items, suite = make_problems(config)
        rows, failures = judge_methods(config, items, console)
        who, summary = "method", summarise_methods(rows)
    if not rows:
        raise CommandError(f"no {who} gave a result: " + " ".join(dict.fromkeys(failures.values())))
    write_run_record(folder, config)
    write_results(folder, config, rows, failures, summary=summary, **suite)
    print_judgement(console, who, len(items), rows, summary, failures)
    if who == "scheduler":
        print_worlds(console, rows)
    say_suite(console, **suite)
    if config.pictures:
        title = suite["suite"]["name"] if suite else f"{len(items)} problems"
        say(console, f"  {draw_judgement(folder, who, title, rows)}")
    return rows


def is_cluster_suite(config: DictConfig) -> bool:
    """Whether the suite holds jobs on clusters."""
    return bool(config.suite) and "worlds" in config.suite


def check_alone(config: DictConfig) -> None:
    """Refuse settings that would have no effect beside others.

    Raises:
        CommandError: there is one.
    """
    given = [word.lstrip("+").partition("=")[0] for word in HydraConfig.get().overrides.task]
    roots = {word.partition(".")[0]: word for word in given}
    if config.suite:
        for root in ("graph", "topology", "problems", "model", "count"):
            if root in roots:
                raise CommandError(f"{roots[root]} does not go with a suite, whose problems are frozen; leave it out.")
    if is_cluster_suite(config) and config.method:
        raise CommandError("method is for suites of placement problems; give scheduler=[...] with this suite.")
    if config.scheduler and not is_cluster_suite(config):
        raise CommandError("scheduler is for suites of clusters, such as suite=cluster_test; leave it out.")
    if config.method or is_cluster_suite(config):
        for root in ("checkpoint", "samples", "refine", "refine_seconds", "fine_tune"):
            if root in roots:
                other = "scheduler.learned.checkpoint" if is_cluster_suite(config) else f"method.doppler.{root}"
                raise CommandError(f"{roots[root]} is for a policy beside its rivals; with these choices give {other}.")


def generator(config: DictConfig) -> Any:
    """What a policy's plan of training calls the problems of a suite."""
    from hadoppler.agents.placement.tasks import GeneratedProblems

    return GeneratedProblems(config.suite.seed, config.suite.most_operations)


def told_of(suite: Any, items: Sequence[Any]) -> dict[str, Any]:
    """What ``results.json`` tells of a suite, once its content is known to be the frozen one.

    Raises:
        SuiteError: it is not.
    """
    return {"suite": {"name": suite.name, "count": len(items), "sha256": suite.check(items)}}


def summary_figures(folder: Path) -> list[tuple[str, dict[str, float]]]:
    """Figures of every line of the summary, for sweeps."""
    summary = read_results(folder).get("summary", {})
    return [(name, numbers(told, told)) for name, told in summary.items()]


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


def make_problems(config: DictConfig) -> tuple[Any, list[PlacementProblem], dict[str, Any]]:
    """What ``problems=...`` stands for, the problems themselves, and what is told of a suite that they come from.

    Raises:
        HadopplerError: a graph or the devices cannot be made, or an option does not exist.
    """
    if config.suite:
        suite = instantiate(config.suite, _convert_="all")
        problems = suite.make()
        return suite, problems, told_of(suite, problems)
    if config.count < 1:
        raise CommandError(f"count is {config.count}; expected a whole number from 1 up.")
    if config.model is not None and "model" not in config.graph:
        raise CommandError(f"model={config.model} is given, but the graph is another one; add graph=module.")
    source = instantiate(config.problems, _convert_="all")
    problems = [source(number) for number in range(config.count)] if callable(source) else list(source)
    if not problems:
        raise CommandError("there is no problem to evaluate on; give problems.graphs at least one graph.")
    return source, problems, {}


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
