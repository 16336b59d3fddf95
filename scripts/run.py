"""``hadoppler run``: real training jobs on real workers, scheduled round by round, beside their simulation."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from omegaconf import MISSING, DictConfig, OmegaConf
from rich.console import Console

from hadoppler.scripts.application import CommandError, instantiate, launch
from hadoppler.scripts.report import plain, write_json, write_results, write_run_record
from hadoppler.scripts.resume import flat

if TYPE_CHECKING:
    from hadoppler.envs.cluster import Cluster, Workload
    from hadoppler.real_system.cluster.backend import Backend
    from hadoppler.real_system.cluster.crew import Crew
    from hadoppler.real_system.cluster.session import RunOutcome, Session
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


FREE = ("resume", "tracking", "pictures", "linger_s", "quiet_s", "tries", "backend")
"""Settings that may change when a run goes on."""

LEAST_ROUND_S = 0.2
"""A round that is shorter would be over before its decision is carried out."""

ConfigStore.instance().store(name="run_schema", node=RunConfig, provider="hadoppler")
OmegaConf.register_new_resolver("continued", lambda folder, there, fresh: there if folder else fresh, replace=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    return launch("run", run, with_settings(words), check=check_numbers, record=True)


def with_settings(words: Sequence[str]) -> list[str]:
    """``resume=FOLDER`` alone means all settings with which the run in it began; what is given beside it wins."""
    resumed = [word.partition("=")[2] for word in words if word.startswith("resume=")]
    if not resumed:
        return list(words)
    path = Path(resumed[-1]) / "settings.json"
    try:
        began: list[str] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return list(words)  # the check tells what is wrong with the folder
    given = {word.partition("=")[0] for word in words}
    return [*(word for word in began if word.partition("=")[0] not in given), *words]


def check_numbers(config: DictConfig) -> None:
    """Refuse settings that no other part would refuse with a name that the user gave."""
    from hadoppler.envs.cluster import SimulationRules

    if config.resume is not None and not (Path(config.resume) / "settings.json").exists():
        raise CommandError(f"resume={config.resume} is no folder of hadoppler run; give one that holds settings.json.")
    if config.resume is not None:
        check_settings(config, Path(config.resume))
    if config.clock not in ("wall", "nominal"):
        raise CommandError(f"clock is {config.clock!r}; expected wall or nominal.")
    if config.rates not in ("formula", "table"):
        raise CommandError(f"rates is {config.rates!r}; expected formula or table.")
    if config.clock == "nominal" and config.rates != "table":
        raise CommandError("clock=nominal goes by the table; give rates=table with it.")
    if config.rates == "table" and not config.emulate:
        raise CommandError("rates=table needs emulated nodes, whose rates are known; use rates=formula.")
    if config.base_s is not None and not config.base_s > 0:
        raise CommandError(f"base_s is {config.base_s}; expected seconds above 0, or null to measure.")
    if config.seed < 0 or config.save_every < 1 or config.tries < 1:
        raise CommandError(
            f"seed is {config.seed}, save_every {config.save_every}, tries {config.tries}; expected whole numbers, the "
            "seed from 0 and the others from 1 up."
        )
    if config.round_s < LEAST_ROUND_S:
        raise CommandError(f"round_s is {config.round_s}; expected {LEAST_ROUND_S} seconds or more on real workers.")
    if not config.quiet_s > 0 or not config.linger_s >= 0:
        raise CommandError(f"quiet_s is {config.quiet_s}, linger_s {config.linger_s}; expected seconds above 0.")
    SimulationRules(config.round_s, config.restart_s, config.early_refill, config.mixed_rate, config.consolidation_s)


def check_settings(config: DictConfig, folder: Path) -> None:
    """Refuse to go on with other settings than a run began with."""
    began = json.loads((folder / "run.json").read_text(encoding="utf-8"))["config"]
    now, then = (dict(flat(plain(values))) for values in (OmegaConf.to_container(config, resolve=True), began))
    for key in sorted({**now, **then}, key=lambda key: key.count(".")):
        if key.partition(".")[0] not in FREE and now.get(key) != then.get(key):
            raise CommandError(
                f"{key} is {now.get(key)!r}, but the run in {folder} began with {then.get(key)!r}; give resume= alone."
            )


def run(config: DictConfig) -> list[dict[str, Any]]:
    """Run the jobs under each scheduler, one after the other; returns the rows of ``results.json``."""
    from hadoppler.scripts.run_report import draw_run, print_run, run_rows
    from hadoppler.scripts.simulate import chosen_schedulers

    folder, console = Path(HydraConfig.get().runtime.output_dir), Console()
    if config.resume is None:
        write_json(folder / "settings.json", list(HydraConfig.get().overrides.task))
    choices = chosen_schedulers(config)
    workload: Workload = instantiate(config.workload, seed=config.seed)
    cluster: Cluster = instantiate(config.cluster)
    check_copies(config, choices)
    write_run_record(folder, config)
    outcomes = run_all(config, folder, console, choices, workload, cluster)
    rows = run_rows(config, outcomes, workload)
    rejected = [{"line": row.line, "reason": row.reason} for row in workload.rejected]
    write_results(folder, config, rows, {}, rejected=rejected, jobs=_job_rows(outcomes))
    print_run(console, workload, cluster, rows, outcomes, emulated=config.emulate)
    for path in draw_run(folder, outcomes, workload, cluster) if config.pictures else ():
        console.print(f"  {path}", highlight=False, markup=False, soft_wrap=True)
    if not any(row["finished"] for row in rows):
        raise CommandError("no job was finished; the reasons stand above.")
    return rows


def check_copies(config: DictConfig, choices: Sequence[Choice]) -> None:
    """Copies need time to become one."""
    if config.consolidation_s >= config.round_s and any(choice.make().forks for choice in choices):
        raise CommandError(
            f"consolidation_s is {config.consolidation_s}; copies need less than a round of {config.round_s} s for it."
        )


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
    from hadoppler.real_system.cluster.emulation import OwnPace, node_speeds
    from hadoppler.real_system.cluster.slots import slots_of
    from hadoppler.real_system.cluster.workloads import pair_jobs
    from hadoppler.scripts.run_display import ReadyLine, RunDisplay
    from hadoppler.scripts.run_tracking import tracked

    pairs = pair_jobs(workload, config.seed)
    slots = slots_of(cluster, emulated=config.emulate)
    backend: Backend = instantiate(config.backend, slots, nodes=[node.name for node in cluster.nodes])
    crew = Crew(backend, cluster, OwnPace(node_speeds(cluster)), quiet_s=config.quiet_s)
    outcomes: dict[str, RunOutcome] = {}
    try:
        said = f"{len(backend.slots)} workers start; the run's folder is {folder}"
        console.print(said, highlight=False, markup=False, soft_wrap=True)
        backend.start()
        crew.wait_for_all(told=ReadyLine(console))
        for choice in choices:
            where = folder if len(choices) == 1 else folder / choice.row
            where.mkdir(exist_ok=True)
            with RunDisplay(console, choice.row) as display, tracked(config, where, choice.row) as told:

                def watch(run: Any, display: RunDisplay = display, told: Callable = told) -> None:
                    display.show(run)
                    told(run)

                session = make_session(config, where, choice, cluster, crew, watch)
                outcomes[choice.row] = go(session, pairs)
    except KeyboardInterrupt:
        console.print(
            f"stopped; go on with: hadoppler run resume={folder}", highlight=False, markup=False, soft_wrap=True
        )
        raise
    finally:
        backend.close()
    return outcomes


def go(session: Session, pairs: Any) -> RunOutcome:
    """Begin a run, or go on with it where its folder has one."""
    from hadoppler.real_system.cluster.store import FILE

    return session.resume() if (session.folder / FILE).exists() else session.run(pairs)


def make_session(
    config: DictConfig, folder: Path, choice: Choice, cluster: Cluster, crew: Crew, watch: Callable[[Any], None]
) -> Session:
    """The run of one scheduler."""
    from hadoppler.envs.cluster import SimulationRules
    from hadoppler.real_system.cluster.job_rates import JobRates
    from hadoppler.real_system.cluster.real_run import RunSettings
    from hadoppler.real_system.cluster.session import Session

    rates = JobRates(cluster, emulated=config.emulate, base_s=config.base_s, rates=config.rates)
    rules = SimulationRules(
        config.round_s, config.restart_s, config.early_refill, config.mixed_rate, config.consolidation_s
    )
    settings = RunSettings(config.save_every, config.tries)
    more = {"clock": config.clock, "seed": config.seed, "linger_s": config.linger_s}
    return Session(folder, cluster, choice.make(), crew, rates, rules, settings, watch=watch, **more)


def _job_rows(outcomes: dict[str, RunOutcome]) -> list[dict[str, Any]]:
    """One row per scheduler and job, with its quality."""
    return [
        {"scheduler": name, **plain(row), "quality": outcome.quality.get(row["id"], {})}
        for name, outcome in outcomes.items()
        for row in outcome.result.jobs.rows()
    ]


if __name__ == "__main__":
    sys.exit(main())
