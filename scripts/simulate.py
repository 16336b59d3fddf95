"""``hadoppler simulate``: workload x cluster x schedulers -> a table, pictures, ``jobs.csv``, ``rounds.csv``."""

from __future__ import annotations

import math
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from omegaconf import MISSING, DictConfig, OmegaConf
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from hadoppler.envs.arguments import as_list, is_whole
from hadoppler.envs.errors import HadopplerError
from hadoppler.scripts.application import CommandError, instantiate, launch
from hadoppler.scripts.progress import PlainProgress
from hadoppler.scripts.report import write_results, write_run_record
from hadoppler.scripts.sweep_figures import row_figures
from hadoppler.scripts.tracking import tracked_job

if TYPE_CHECKING:
    from hadoppler.envs.cluster import Cluster, NodeEvent, ThroughputTable, Workload
    from hadoppler.scripts.simulation_runs import Choice, Outcome, Task


@dataclass
class Failures:
    """Failures of nodes, drawn from the seed; ``draw_failures`` tells their law."""

    mean_between_s: float | None = None
    repair_s: float = 3600.0
    until_s: float | None = None


@dataclass
class SimulateConfig:
    """Schema of ``hadoppler simulate``."""

    workload: dict[str, Any] = MISSING
    cluster: dict[str, Any] = MISSING
    scheduler: dict[str, Any] = field(default_factory=dict)
    tracking: dict[str, Any] = MISSING
    seeds: Any = 0
    round_s: float = 360.0
    restart_s: float = 10.0
    early_refill: bool = False
    mixed_rate: str = "proportional"
    consolidation_s: float = 15.0
    mechanism: str | None = None
    failures: Failures = field(default_factory=Failures)
    estimates: str | None = "none"
    estimates_factor: float = 3.0
    reference: str | None = None
    explain: bool = False
    max_rounds: int | None = None
    processes: int = 1
    rounds: bool = True
    pictures: bool = True


RULES = ("round_s", "restart_s", "early_refill", "mixed_rate", "consolidation_s", "mechanism", "explain", "max_rounds")
"""Settings that are arguments of ``simulate``."""
NO_ESTIMATES = (None, "none")
ESTIMATES = (*NO_ESTIMATES, "formula", "disturbed")
"""What schedulers may know of rates: the true ones, or estimates that measurements correct."""
MOST_EVENTS = 2_000_000
"""Failures and repairs of nodes that one run may be given."""

SHOWN = (
    *("ttd_s", "ratio_bound", "mean_jct_s", "median_jct_s", "p99_jct_s", "queueing_s", "max_waiting_s"),
    *("ftf", "max_ftf", "gru", "cru", "restarts"),
)
"""Figures of a row that are looked at over seeds."""

ConfigStore.instance().store(name="simulate_schema", node=SimulateConfig, provider="hadoppler")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    words = sys.argv[1:] if arguments is None else arguments
    return launch("simulate", tracked_job(run), words, figures=row_figures("scheduler", SHOWN))


def run(config: DictConfig) -> list[dict[str, Any]]:
    """Simulate every chosen scheduler with every seed; returns the rows of ``results.json``."""
    from hadoppler.scripts.simulation_files import draw_pictures, write_failures, write_tables
    from hadoppler.scripts.simulation_report import print_remarks, print_table, summarise

    folder = Path(HydraConfig.get().runtime.output_dir)
    console = Console()
    check_numbers(config)
    seeds, choices = chosen_seeds(config), chosen_schedulers(config)
    reference = chosen_reference(config, choices)
    worlds = {seed: build_world(config, seed) for seed in seeds}
    shown = {seed: shown_rates(config, seed, world) for seed, world in worlds.items()}
    write_run_record(folder, config)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".parts-") as parts:
        outcomes = run_tasks(console, make_tasks(config, choices, worlds, shown, Path(parts)), config.processes)
        rows = [outcome.row for _, outcome in outcomes if outcome.row]
        if not rows:
            reasons = dict.fromkeys(outcome.failure for _, outcome in outcomes)
            raise CommandError("no scheduler gave a result: " + " ".join(reasons))
        written = write_tables(folder, outcomes, rounds=config.rounds)
    if config.pictures:
        written += draw_pictures(folder, outcomes)
    lines = summarise(rows, reference)
    workload = worlds[seeds[0]][0]
    failures, defects = write_failures(folder, outcomes)
    rejected = [asdict(row) for row in workload.rejected]
    notes = [*workload.notes, *workload.throughputs.speed_notes(worlds[seeds[0]][1])]
    write_results(folder, config, rows, failures, summary=lines, rejected=rejected, notes=notes)
    print_table(console, [world[:2] for world in worlds.values()], lines)
    print_remarks(console, worlds[seeds[0]][:2], outcomes)
    for path in written:
        console.print(f"  {path}", highlight=False, markup=False, soft_wrap=True)
    if defects:
        raise CommandError(f"the runs that failed: {', '.join(defects)}; the others' results are complete.")
    if not any(row["finished"] for row in rows):
        way = f"give more than max_rounds={config.max_rounds}" if config.max_rounds else "the remarks above say why"
        raise CommandError(f"no job was finished under any scheduler, so there are no figures; {way}.")
    return rows


def check_numbers(config: DictConfig) -> None:
    """Refuse settings that no other part would refuse with a name that the user gave."""
    from hadoppler.envs.cluster import SimulationRules

    if config.processes < 1:
        raise CommandError(f"processes is {config.processes}; expected a whole number from 1 up.")
    if config.max_rounds is not None and config.max_rounds < 1:
        raise CommandError(f"max_rounds is {config.max_rounds}; expected a whole number from 1 up, or null.")
    if config.mechanism not in (None, "gavel"):
        raise CommandError(f"mechanism is {config.mechanism!r}; expected gavel or null.")
    SimulationRules(config.round_s, config.restart_s, config.early_refill, config.mixed_rate, config.consolidation_s)
    if config.estimates not in ESTIMATES:
        raise CommandError(f"estimates is {config.estimates!r}; expected none, formula or disturbed.")
    if config.estimates not in NO_ESTIMATES and config.mechanism is not None:
        raise CommandError("mechanism=gavel knows no estimates; leave estimates or mechanism out.")
    for name in ("mean_between_s", "repair_s", "until_s"):
        value = config.failures[name]
        if value is not None and not (math.isfinite(value) and value > 0):
            raise CommandError(f"failures.{name} is {value}; expected seconds above 0.")
    if config.failures.mean_between_s is not None and config.mechanism is not None:
        raise CommandError("mechanism=gavel knows no failures; leave failures.mean_between_s or mechanism out.")


def chosen_seeds(config: DictConfig) -> list[int]:
    """The seeds.

    Raises:
        CommandError: they are no whole numbers from 0 up, or one stands there twice.
    """
    given = as_list(config.seeds)
    if not given or not all(is_whole(seed) and seed >= 0 for seed in given):
        raise CommandError(f"seeds is {config.seeds}; expected whole numbers from 0 up, such as seeds=[0,1,2].")
    if twice := [seed for seed in dict.fromkeys(given) if given.count(seed) > 1]:
        raise CommandError(f"seeds is {config.seeds}, with {twice[0]} more than once; give each seed once.")
    return given


def chosen_schedulers(config: DictConfig) -> list[Choice]:
    """Every chosen row of the table, checked before any of them runs.

    Raises:
        HadopplerError: none is chosen, or a scheduler or an option does not exist.
    """
    from hadoppler.baselines.cluster.registry import SCHEDULERS
    from hadoppler.scripts.simulation_runs import Choice

    if not config.scheduler:
        raise CommandError(f"no scheduler is chosen; give scheduler=[...] with some of {', '.join(SCHEDULERS)}.")
    choices = []
    chosen: Any = OmegaConf.to_container(config.scheduler, resolve=True)
    for row, values in chosen.items():
        if not isinstance(values, dict | None):
            raise CommandError(f"scheduler.{row} is {values!r}; expected its options, {{}} for none.")
        options = {str(key): value for key, value in (values or {}).items()}
        choice = Choice(str(row), str(options.pop("name", row)), options)
        try:
            scheduler = choice.make()
        except HadopplerError:
            raise
        except (TypeError, ValueError) as error:
            raise CommandError(f"scheduler.{row} cannot take {options} ({error}).") from error
        if "mechanism" in config and config.mechanism is not None and not hasattr(scheduler, "policy"):
            raise CommandError(f"mechanism=gavel runs gavel and replay, and scheduler.{row} is neither; leave it out.")
        choices.append(choice)
    return choices


def chosen_reference(config: DictConfig, choices: Sequence[Choice]) -> str:
    """The row that ratios refer to."""
    rows = [choice.row for choice in choices]
    if config.reference is None:
        return next((choice.row for choice in choices if choice.name == "gavel"), rows[0])
    if config.reference not in rows:
        raise CommandError(f"reference is {config.reference!r}; expected one of the schedulers {', '.join(rows)}.")
    return str(config.reference)


World = tuple["Workload", "Cluster", "list[NodeEvent]"]


def build_world(config: DictConfig, seed: int) -> World:
    """Jobs, cluster and failures of a seed; what cannot be simulated together is refused."""
    from hadoppler.envs.cluster import draw_failures

    workload: Workload = instantiate(config.workload, seed=seed)
    cluster: Cluster = instantiate(config.cluster)
    rates, _ = workload.rates(cluster)
    law = config.failures
    if law.mean_between_s is None:
        return workload, cluster, []
    with np.errstate(divide="ignore"):
        alone = workload.steps / rates.max(axis=1)
    until = float(workload.arrival[-1] + alone[np.isfinite(alone)].sum()) if law.until_s is None else law.until_s
    expected = 2 * len(cluster.nodes) * until / (law.mean_between_s + law.repair_s)
    if expected > MOST_EVENTS:
        raise CommandError(
            f"failures.mean_between_s={law.mean_between_s:g} means some {expected:.0f} events until {until:g} s; "
            "give larger ones, or an earlier failures.until_s."
        )
    rng = np.random.default_rng((seed, 1))  # not the schedulers' own draws
    spaced = {"mean_between_s": law.mean_between_s, "repair_s": law.repair_s}
    return workload, cluster, draw_failures(cluster, until_s=until, rng=rng, **spaced)


def shown_rates(config: DictConfig, seed: int, world: World) -> ThroughputTable | None:
    """Estimates that schedulers are shown at first with a seed; None: the true rates."""
    from hadoppler.envs.cluster import prior_table

    if config.estimates in NO_ESTIMATES:
        return None
    return prior_table(config.estimates, *world[:2], factor=config.estimates_factor, seed=seed)


def make_tasks(
    config: DictConfig,
    choices: Sequence[Choice],
    worlds: Mapping[int, World],
    shown: Mapping[int, ThroughputTable | None],
    parts: Path,
) -> list[Task]:
    """One run per seed and scheduler; pictures show the first seed."""
    from hadoppler.scripts.simulation_runs import Task

    rules = {name: config[name] for name in RULES}
    first = next(iter(worlds))
    return [
        Task(
            choice,
            seed,
            workload,
            cluster,
            failures,
            {**rules, "estimates": shown[seed]},
            parts,
            rounds=config.rounds or (config.pictures and seed == first),
            pictured=config.pictures and seed == first,
        )
        for choice in choices
        for seed, (workload, cluster, failures) in worlds.items()
    ]


def run_tasks(console: Console, tasks: Sequence[Task], processes: int) -> list[tuple[Task, Outcome]]:
    """Run all, with a bar and the time that is left; outcomes in the order of the tasks."""
    from hadoppler.scripts.simulation_runs import run_all

    found: dict[int, Outcome] = {}
    places = {(task.choice.row, task.seed): number for number, task in enumerate(tasks)}
    bar = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    progress = Progress(*bar, TextColumn("left"), TimeRemainingColumn(), console=console, transient=True)
    with progress, PlainProgress(console) as plain:
        shown = progress.add_task(_label(tasks[0]), total=len(tasks))
        plain.at(f"simulating {_label(tasks[0])} (1 of {len(tasks)})")
        for task, outcome in run_all(tasks, processes):
            found[places[task.choice.row, task.seed]] = outcome
            waiting = next((number for number in range(len(tasks)) if number not in found), 0)
            progress.update(shown, advance=1, description=_label(tasks[waiting]))
            plain.at(f"simulating {_label(tasks[waiting])} ({len(found) + 1} of {len(tasks)})")
    return [(task, found[number]) for number, task in enumerate(tasks)]


def _label(task: Task) -> str:
    return f"{task.choice.row}, seed {task.seed}"


if __name__ == "__main__":
    sys.exit(main())
