"""The table and pictures of ``hadoppler run``: what was measured, beside what the simulator says of the same jobs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np
from omegaconf import DictConfig
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from hadoppler.scripts.report import say
from hadoppler.scripts.simulate import chosen_schedulers
from hadoppler.scripts.simulation_files import draw_world
from hadoppler.scripts.simulation_runs import METRICS, Choice

if TYPE_CHECKING:
    from hadoppler.envs.cluster import Cluster, ClusterResult, Workload
    from hadoppler.real_system.cluster.session import RunOutcome

Row = dict[str, Any]


def run_rows(config: DictConfig, outcomes: Mapping[str, RunOutcome], workload: Workload) -> list[Row]:
    """One row of ``results.json`` per scheduler."""
    choices = {choice.row: choice for choice in chosen_schedulers(config)}
    return [run_row(config, choices[name], outcome, workload.name) for name, outcome in outcomes.items()]


def run_row(config: DictConfig, choice: Choice, outcome: RunOutcome, workload: str) -> Row:
    """What was measured; under ``simulated_...`` what the simulator says of the finished jobs; times in seconds."""
    metrics = outcome.result.metrics
    row: Row = {"scheduler": choice.row, "workload": workload, "cluster": outcome.result.cluster.name}
    row |= {"seed": config.seed, "emulated": config.emulate, "clock": config.clock}
    row |= {key: metrics.get(key, math.nan) for key in (*METRICS, "left_out", "decision_s")}
    row |= {"restart_s": _mean(outcome.restarts_s), "consolidation_s": _mean(outcome.consolidations_s)}
    row |= {"consolidations": len(outcome.consolidations_s), "overruns": outcome.overruns}
    simulated = simulated_result(config, choice, outcome.result) if config.emulate else None
    for key in METRICS if simulated is not None else ():
        row[f"simulated_{key}"] = simulated.metrics.get(key, math.nan) if simulated is not None else math.nan
    return row


def simulated_result(config: DictConfig, choice: Choice, result: ClusterResult) -> ClusterResult | None:
    """The same jobs under the same scheduler, simulated with the emulated rates; None if none was finished."""
    from hadoppler.envs.cluster import simulate

    done = result.workload.select(np.flatnonzero(result.jobs.finished))
    if not len(done):
        return None
    rules = {key: config[key] for key in ("round_s", "restart_s", "early_refill", "mixed_rate", "consolidation_s")}
    return simulate(done, result.cluster, choice.make(), seed=config.seed, **rules)


def _mean(values: Sequence[float]) -> float:
    return fmean(values) if values else math.nan


def print_run(
    console: Console,
    workload: Workload,
    cluster: Cluster,
    rows: Sequence[Row],
    outcomes: Mapping[str, RunOutcome],
    *,
    emulated: bool,
) -> None:
    """Measured and simulated figures of each scheduler, each job's quality, and what went wrong."""
    print_figures(console, title_of(workload, cluster, outcomes, emulated=emulated), rows)
    print_jobs(console, outcomes)
    for sentence in dict.fromkeys(_sentences(outcomes)):
        say(console, sentence)
    for rejected in workload.rejected[:5]:
        said = f"line {rejected.line} was not used: {rejected.reason}"
        say(console, said)
    if len(workload.rejected) > 5:
        console.print(f"and {len(workload.rejected) - 5} more lines; results.json has all.")


def title_of(workload: Workload, cluster: Cluster, outcomes: Mapping[str, RunOutcome], *, emulated: bool) -> str:
    """What was run on what; jobs that were submitted are counted beside those of the workload."""
    speed = "emulated speeds, by sleeping" if emulated else "as fast as they are"
    return f"{jobs_of(workload, outcomes)} on {cluster.name}, {counted(len(cluster.nodes), 'node')}, {speed}"


def jobs_of(workload: Workload, outcomes: Mapping[str, RunOutcome]) -> str:
    """The workload's name, and how many jobs came."""
    more = max(len(outcome.result.jobs) for outcome in outcomes.values()) - len(workload)
    return f"{workload.name}: {counted(len(workload), 'job')}{f' and {more} submitted' if more > 0 else ''}"


def counted(number: int, noun: str) -> str:
    """``1 job``, ``2 jobs``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def print_figures(console: Console, title: str, rows: Sequence[Row]) -> None:
    """Measured and simulated figures of each scheduler; narrow, for terminals of 80 columns."""
    table = Table(title=escape(title))
    for header in ("scheduler", "", "TTD\n[s]", "mean JCT\n[s]", "CRU", "re-\nstarts", "done", "over-\nruns"):
        table.add_column(escape(header), justify="left" if header in ("scheduler", "") else "right", no_wrap=True)
    for row in rows:
        for prefix, label in (("", "measured"), ("simulated_", "simulated")):
            if f"{prefix}ttd_s" in row:
                figures = [f"{row[f'{prefix}{key}']:.3g}" for key in ("ttd_s", "mean_jct_s", "cru", "restarts")]
                own = [str(row["finished"]), str(row["overruns"])] if not prefix else ["", ""]
                table.add_row(escape(row["scheduler"]) if not prefix else "", label, *figures, *own)
    if any(row["left_out"] and "simulated_ttd_s" in row for row in rows):
        table.caption = "Of jobs that were not finished nothing is simulated."
    console.print(table)


def _sentences(outcomes: Mapping[str, RunOutcome]) -> Iterator[str]:
    """What went wrong; of a job that failed, its verdict alone."""
    for name, outcome in outcomes.items():
        left_out = outcome.result.left_out
        for sentence in outcome.problems:
            if not any(sentence.startswith(f"job {job!r}") for job in left_out):
                yield f"{name}: {sentence}"
        for job, why in left_out.items():
            yield f"{name}: job {job}: {why}"
        for why in outcome.unjudged.values():
            yield f"{name}: not judged: {why}"


def print_jobs(console: Console, outcomes: Mapping[str, RunOutcome]) -> None:
    """Completion time and quality of each job under each scheduler."""
    table = Table(title="jobs: seconds to completion, quality on held-out samples")
    table.add_column("job")
    for name in outcomes:
        table.add_column(escape(name))
    ids = dict.fromkeys(job for outcome in outcomes.values() for job in outcome.result.jobs.id)
    for job in ids:
        cells = []
        for outcome in outcomes.values():
            jobs = outcome.result.jobs
            number = jobs.id.index(job) if job in jobs.id else -1
            figures = "  ".join(f"{key} {value:.4g}" for key, value in outcome.quality.get(job, {}).items())
            figures = "not judged" if job in outcome.unjudged else figures
            done = number >= 0 and not math.isnan(jobs.jct[number])
            cells.append(f"{jobs.jct[number]:.1f}  {figures}" if done else "")
        table.add_row(escape(job), *map(escape, cells))
    console.print(table)


def draw_run(folder: Path, outcomes: Mapping[str, RunOutcome], workload: Workload, cluster: Cluster) -> list[Path]:
    """Completion times, use over time, and who ran where, measured; their paths."""
    from hadoppler.envs.cluster.timeline import timeline

    results = {name: outcome.result for name, outcome in outcomes.items()}
    jct = {name: result.jobs.jct[result.jobs.finished].tolist() for name, result in results.items()}
    drawn = {name: timeline(result) for name, result in results.items() if len(result.rounds)}
    names = {name: list(result.jobs.id) for name, result in results.items()}
    return draw_world(folder, f"{jobs_of(workload, outcomes)} on {cluster.name}, measured", jct, drawn, names)
