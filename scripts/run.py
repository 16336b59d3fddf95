"""``hadoppler run``: real training jobs on real workers, scheduled round by round, beside their simulation."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from omegaconf import MISSING, DictConfig
from rich.console import Console

from hadoppler.scripts.application import CommandError, instantiate, launch
from hadoppler.scripts.report import plain, say, write_results, write_run_record
from hadoppler.scripts.resume import RUN
from hadoppler.scripts.sweep_figures import numbers, row_figures
from hadoppler.scripts.tracking import tracked

if TYPE_CHECKING:
    from hadoppler.envs.cluster import Cluster, SimulationRules, Workload
    from hadoppler.real_system.cluster.backend import Backend
    from hadoppler.real_system.cluster.crew import Crew
    from hadoppler.real_system.cluster.job_rates import JobRates
    from hadoppler.real_system.cluster.real_run import RealRun
    from hadoppler.real_system.cluster.session import Pairs, RunOutcome
    from hadoppler.scripts.simulation_runs import Choice


@dataclass
class RunConfig:
    """Schema of ``hadoppler run``."""

    workload: dict[str, Any] = MISSING
    cluster: dict[str, Any] = MISSING
    scheduler: dict[str, Any] = field(default_factory=dict)
    backend: dict[str, Any] = MISSING
    tracking: dict[str, Any] = MISSING
    seed: int = 0
    clock: str = "wall"
    emulate: bool = True
    base_s: float | None = 0.03
    rates: str = "formula"
    round_s: float = 4.0
    restart_s: float = 0.05
    consolidation_s: float = 0.15
    early_refill: bool = True
    mixed_rate: str = "proportional"
    save_every: int = 100
    tries: int = 3
    quiet_s: float = 30.0
    linger_s: float = 0.0
    resume: str | None = None
    pictures: bool = True


LEAST_ROUND_S = 0.2
"""A round that is shorter would be over before its decision is carried out."""

SHOWN = ("ttd_s", "mean_jct_s", "cru", "restarts", "finished", "overruns", "simulated_ttd_s", "simulated_mean_jct_s")
"""Figures of a row that are looked at over seeds."""

ConfigStore.instance().store(name="run_schema", node=RunConfig, provider="hadoppler")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    return launch(
        "run", run, RUN.with_settings(words), check=check, record=True, figures=row_figures("scheduler", SHOWN)
    )


def check(config: DictConfig) -> None:
    """Refuse settings that no other part would refuse with a name that the user gave, and folders to go on in.

    Raises:
        HadopplerError: a setting is out of range, or the folder is no run's, or of one that has ended.
    """
    if config.resume is not None:
        RUN.check(config, config.resume)
        check_open(config)
    if config.clock not in ("wall", "nominal"):
        raise CommandError(f"clock is {config.clock!r}; expected wall or nominal.")
    if config.rates not in ("formula", "table"):
        raise CommandError(f"rates is {config.rates!r}; expected formula or table.")
    if config.clock == "nominal" and config.rates != "table":
        raise CommandError("clock=nominal goes by the table; give rates=table with it.")
    if config.seed < 0 or config.save_every < 1 or config.tries < 1:
        raise CommandError(
            f"seed is {config.seed}, save_every {config.save_every}, tries {config.tries}; expected whole numbers, the "
            "seed from 0 and the others from 1 up."
        )
    if config.round_s < LEAST_ROUND_S:
        raise CommandError(f"round_s is {config.round_s}; expected {LEAST_ROUND_S} seconds or more on real workers.")
    if not config.quiet_s > 0 or not config.linger_s >= 0:
        raise CommandError(f"quiet_s is {config.quiet_s}, linger_s {config.linger_s}; expected seconds above 0.")
    rules_of(config)


def check_open(config: DictConfig) -> None:
    """Refuse to go on where nothing is left to do, or where nobody knows any more what was done."""
    from hadoppler.real_system.cluster.decisions import FILE as DECISIONS
    from hadoppler.real_system.cluster.store import FILE, has_ended

    folder = Path(config.resume)
    places = folders_of(folder, list(config.scheduler))
    for place in places:
        if (place / DECISIONS).exists() and not (place / FILE).exists():
            raise CommandError(f"{place / FILE} is gone, and with it what was done; put it back, or begin another run.")
    results = folder / "results.json"  # written last
    if results.exists() and all(has_ended(place) for place in places):
        raise CommandError(f"resume={folder}: the run has ended; its results stand in {results}.")


def folders_of(folder: Path, schedulers: Sequence[str]) -> list[Path]:
    """Where each scheduler's run is kept: in the run's own folder if it is alone, else in one below."""
    return [folder] if len(schedulers) == 1 else [folder / name for name in schedulers]


def rules_of(config: DictConfig) -> SimulationRules:
    """The rules of rounds.

    Raises:
        ClusterError: one is out of range.
    """
    from hadoppler.envs.cluster import SimulationRules

    return SimulationRules(
        config.round_s, config.restart_s, config.early_refill, config.mixed_rate, config.consolidation_s
    )


def run(config: DictConfig) -> list[dict[str, Any]]:
    """Run the jobs under each scheduler, one after the other; returns the rows of ``results.json``."""
    from hadoppler.scripts.run_report import draw_run, print_run, run_rows
    from hadoppler.scripts.simulate import chosen_schedulers

    folder, console = Path(HydraConfig.get().runtime.output_dir), Console()
    choices = chosen_schedulers(config)
    workload: Workload = instantiate(config.workload, seed=config.seed)
    cluster: Cluster = instantiate(config.cluster)
    for choice in choices:
        rules_of(config).check_forks(choice.make().forks)
    if config.resume is None:
        write_run_record(folder, config)
    outcomes = run_all(config, folder, console, choices, workload, cluster)
    rows = run_rows(config, outcomes, workload)
    rejected = [{"line": row.line, "reason": row.reason} for row in workload.rejected]
    write_results(folder, config, rows, _failures(outcomes), rejected=rejected, jobs=_job_rows(outcomes))
    print_run(console, workload, cluster, rows, outcomes, emulated=config.emulate)
    for path in draw_run(folder, outcomes, workload, cluster) if config.pictures else ():
        say(console, f"  {path}")
    if not any(row["finished"] for row in rows):
        raise CommandError("no job was finished; the reasons stand above.")
    return rows


def run_all(
    config: DictConfig,
    folder: Path,
    console: Console,
    choices: Sequence[Choice],
    workload: Workload,
    cluster: Cluster,
) -> dict[str, RunOutcome]:
    """Outcome of every scheduler; workers are started once."""
    from hadoppler.real_system.cluster.crew import Crew
    from hadoppler.real_system.cluster.job_rates import JobRates
    from hadoppler.real_system.cluster.slots import slots_of
    from hadoppler.real_system.cluster.workloads import pair_jobs
    from hadoppler.scripts.run_display import ReadyLine

    pairs = pair_jobs(workload, config.seed)
    rates = JobRates(cluster, emulated=config.emulate, base_s=config.base_s, rates=config.rates)
    slots = slots_of(cluster, emulated=config.emulate)
    backend: Backend = instantiate(config.backend, slots, nodes=[node.name for node in cluster.nodes])
    crew = Crew(backend, cluster, rates.pace, quiet_s=config.quiet_s)
    places = folders_of(folder, [choice.row for choice in choices])
    try:
        start = "1 worker starts" if len(backend.slots) == 1 else f"{len(backend.slots)} workers start"
        say(console, f"{start}; the run's folder is {folder}")
        backend.start()
        crew.wait_for_all(told=ReadyLine(console))
        return {
            choice.row: run_one(config, place, console, choice, crew, rates, pairs)
            for choice, place in zip(choices, places, strict=True)
        }
    except KeyboardInterrupt:
        say(console, f"stopped; go on with: hadoppler run resume={folder}")
        raise
    finally:
        backend.close()


def run_one(
    config: DictConfig, folder: Path, console: Console, choice: Choice, crew: Crew, rates: JobRates, pairs: Pairs
) -> RunOutcome:
    """Begin the run of one scheduler, or go on with it where its folder has one."""
    from hadoppler.real_system.cluster.real_run import RunSettings
    from hadoppler.real_system.cluster.session import Session
    from hadoppler.real_system.cluster.store import FILE
    from hadoppler.scripts.run_display import RunDisplay
    from hadoppler.scripts.run_tracking import RunMetrics

    folder.mkdir(exist_ok=True)
    resumed, tracker = (folder / FILE).exists(), instantiate(config.tracking, _convert_="all")
    with (
        tracked(tracker, folder, config, resume=resumed) as sentence,
        RunDisplay(console, choice.row) as display,
        (folder / "metrics.jsonl").open("a", encoding="utf-8") as file,
    ):
        if sentence:
            say(console, sentence)
        tell = RunMetrics(file, tracker)

        def watch(run: RealRun) -> None:
            display.show(run)
            tell(run)

        settings = RunSettings(config.save_every, config.tries)
        more = {"clock": config.clock, "seed": config.seed, "linger_s": config.linger_s, "watch": watch}
        more["tell"] = lambda text: say(console, f"{choice.row}: {text}")
        session = Session(folder, crew.cluster, choice.make(), crew, rates, rules_of(config), settings, **more)
        outcome = session.resume() if resumed else session.run(pairs)
        tracker.log(numbers(plain(outcome.result.metrics), outcome.result.metrics))
        return outcome


def _failures(outcomes: dict[str, RunOutcome]) -> dict[str, str]:
    """``scheduler: job`` -> why it was not finished, or not judged."""
    return {f"{name}: {job}": why for name, outcome in outcomes.items() for job, why in outcome.failed.items()}


def _job_rows(outcomes: dict[str, RunOutcome]) -> list[dict[str, Any]]:
    """One row per scheduler and job, with its quality."""
    return [
        {"scheduler": name, **plain(row), "quality": outcome.quality.get(row["id"], {})}
        for name, outcome in outcomes.items()
        for row in outcome.result.jobs.rows()
    ]


if __name__ == "__main__":
    sys.exit(main())
