"""What throughput estimates are worth: against measured rates, as they are corrected, and to schedulers.

``rank``: Spearman's rank correlation of the formula with the bundled measurements, per model, over GPU
types and batch sizes. ``error``: mean error of rates, from priors wrong by 3x at random, after 0, 1, 3 and
10 rounds: under HadarE (``forks``), and under SRTF, which keeps a job on few types; beside the correction as
it is, one that treats the prior as a measurement (``half``). ``loss``: total time and mean completion
time of schedulers that are shown estimates, over the same with the true rates.

    python benchmarks/throughput_estimates.py [--quick]
"""

from __future__ import annotations

import argparse
import json
from statistics import fmean
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from scipy.stats import spearmanr

from hadoppler.baselines.cluster.registry import SCHEDULERS, find_scheduler
from hadoppler.envs.cluster import (
    Cluster,
    RateEstimator,
    Simulation,
    SimulationRules,
    ThroughputTable,
    disturbed,
    estimate_table,
    make_workload,
    prior_table,
    simulate,
)
from hadoppler.envs.cluster.job import split_kind

ROUNDS = (0, 1, 3, 10)
SCHEDULES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("srtf", {}),
    ("gavel", {"objective": "max_min"}),
    ("gavel", {"objective": "makespan"}),
    ("gavel", {"objective": "finish_time_fairness"}),
    ("hadar", {}),
    ("hadar", {"mode": "horizon"}),
    ("hadare", {}),
    ("sia", {}),
    ("learned", {}),
)


def rank_correlations() -> list[dict[str, Any]]:
    """One row per model, for one worker and for every number of workers."""
    true = ThroughputTable.default()
    estimated = estimate_table(true.rows, true.types)
    rows = []
    for model in dict.fromkeys(split_kind(kind)[0] for kind, _ in true.rows):
        row: dict[str, Any] = {"what": "rank", "model": model}
        for key, most in (("one_worker", 1), ("all_workers", np.inf)):
            chosen = [name for name in true.rows if split_kind(name[0])[0] == model and name[1] <= most]
            measured = true.rates[[true.rows[name] for name in chosen]].ravel()
            guessed = estimated.rates[[estimated.rows[name] for name in chosen]].ravel()
            runs = measured > 0
            row[key], row[f"{key}_points"] = float(spearmanr(measured[runs], guessed[runs])[0]), int(runs.sum())
        rows.append(row)
    return rows


def errors(name: str, jobs: int, seeds: range, prior_weight: float) -> dict[str, Any]:
    """One row: mean relative error over the jobs' types, of all and of those measured so far, after each round."""
    found: dict[str, list[float]] = {}
    for seed in seeds:
        workload, cluster = make_workload("headline", jobs=jobs, seed=seed), Cluster.built_in("headline")
        scheduler, true = find_scheduler(name), workload.rates(cluster)[0]
        wrong = disturbed(workload.throughputs, 3.0, seed)
        believed = RateEstimator.from_table(wrong, workload, cluster, prior_weight=prior_weight)
        scheduler.reset(cluster, 360.0, np.random.default_rng(seed))
        run = Simulation(workload, cluster, SimulationRules(), mixes=False, estimator=believed)
        for number in range(max(ROUNDS) + 1):
            if number in ROUNDS:
                off = np.abs(believed.rates / np.where(true > 0, true, 1.0) - 1)
                often = believed.measured[0] & (true > 0)
                found.setdefault(f"all_{number}", []).append(float(off[true > 0].mean()))
                found.setdefault(f"measured_{number}", []).append(float(off[often].mean()) if often.any() else np.nan)
            view = run.next_view()
            if view is None:
                break
            run.apply(scheduler.schedule(view))
    label = f"{name}, first measurement counts {'half' if prior_weight else 'whole'}"
    means = {key: fmean(values) for key, values in found.items()}
    return {
        "what": "error",
        "scheduler": label,
        **{key: None if value != value else value for key, value in means.items()},
    }


def losses(name: str, options: dict[str, Any], jobs: int, seeds: range) -> dict[str, Any]:
    """One row: hours with true rates, and the ratios of means with estimates."""
    cluster = Cluster.built_in("headline")
    found: dict[str, list[tuple[float, float]]] = {}
    for seed in seeds:
        workload = make_workload("headline", jobs=jobs, seed=seed)
        shown = {"true": None, **{prior: prior_table(prior, workload, cluster, seed=seed) for prior in PRIORS}}
        for prior, table in shown.items():
            metrics = simulate(workload, cluster, find_scheduler(name, options), estimates=table, seed=seed).metrics
            found.setdefault(prior, []).append((metrics["ttd_s"], metrics["mean_jct_s"]))
    means = {prior: np.mean(values, axis=0) for prior, values in found.items()}
    row: dict[str, Any] = {"what": "loss", "scheduler": " ".join([name, *map(str, options.values())])}
    row |= {"ttd_h": float(means["true"][0] / 3600), "mean_jct_h": float(means["true"][1] / 3600)}
    for prior in PRIORS:
        row[f"ttd_{prior}"], row[f"jct_{prior}"] = (float(value) for value in means[prior] / means["true"])
    return row


PRIORS = ("formula", "disturbed")
TITLES = {
    "rank": "Rank correlation of the formula with measured rates",
    "error": "Mean error of rates after so many rounds, priors wrong by 3x",
    "loss": "Hours with true rates, and times those with estimates (disturbed: by 3x)",
}


def show(console: Console, rows: list[dict[str, Any]]) -> None:
    """A table per kind of row."""
    for what, title in TITLES.items():
        mine = [row for row in rows if row["what"] == what]
        names = [name for name in mine[0] if name != "what"]
        table = Table(title=title)
        for name in names:
            table.add_column(name.replace("_", " "), justify="left" if name == names[0] else "right")
        for row in mine:
            cells = (row.get(name) for name in names[1:])
            table.add_row(row[names[0]], *("-" if cell is None else f"{cell:.4g}" for cell in cells))
        console.print(table)


def main() -> None:
    """Measure, print tables, and the rows as JSON on the last line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a quarter of the jobs, one seed")
    quick = parser.parse_args().quick
    jobs, seeds = (40, range(1)) if quick else (160, range(3))
    rows = rank_correlations()
    rows += [errors(name, 40, seeds, weight) for name in ("hadare", "srtf") for weight in (0.0, 0.5)]
    rows += [losses(name, options, jobs, seeds) for name, options in SCHEDULES if name in SCHEDULERS]
    show(Console(width=150), rows)
    print(json.dumps({"rows": rows}))


if __name__ == "__main__":
    main()
