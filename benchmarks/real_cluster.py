"""A real cluster against its simulation: training jobs on emulated unequal nodes, all schedulers on the same workers.

Published (Hadar, IPDPS 2024; HadarE, arXiv 2503.10918), HadarE over Gavel on physical clusters: utilisation 1.45 times,
total time -50 % (AWS) and up to -80 % (lab), completion times 1.9 to 2.24 times shorter. Finished rows are kept in
``--folder``; simulated figures are those of the simulator for the same jobs and rules.

    python benchmarks/real_cluster.py [--quick] [--part lab_like|aws_like|equal5] [--folder DIR]
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from hadoppler import make_scheduler
from hadoppler.envs.cluster import Cluster, SimulationRules, Workload, simulate
from hadoppler.real_system.cluster.crew import Crew
from hadoppler.real_system.cluster.emulation import OwnPace, node_speeds
from hadoppler.real_system.cluster.job_rates import JobRates
from hadoppler.real_system.cluster.local import LocalBackend
from hadoppler.real_system.cluster.session import Session
from hadoppler.real_system.cluster.slots import slots_of
from hadoppler.real_system.cluster.workloads import pair_jobs, task_workload

BASE_S = 0.03
RULES = SimulationRules(round_s=3.0, restart_s=0.05, consolidation_s=0.15, early_refill=True)
SECONDS = {1: 20.0, 3: 15.0, 5: 12.0, 8: 9.0, 12: 7.0}
"""Jobs -> mean seconds of one job's work on a node of speed 1; from half to one and a half times as much."""
SCHEDULERS: dict[str, tuple[str, dict[str, Any]]] = {
    "yarn_cs": ("yarn_cs", {}),
    "tiresias": ("tiresias", {}),
    "gavel max-min": ("gavel", {"objective": "max_min"}),
    "gavel makespan": ("gavel", {"objective": "makespan"}),
    "hadar": ("hadar", {}),
    "hadare": ("hadare", {}),
}
CELLS = {"lab_like": ((1, 3, 5, 8, 12), (0, 1, 2)), "aws_like": ((3, 8), (0,)), "equal5": ((1,), (0,))}
FIGURES = ("ttd_s", "mean_jct_s", "cru", "gru", "restarts")
Row = dict[str, Any]


def jobs_of(count: int, seed: int) -> Workload:
    """A mix of tasks; all arrive at once."""
    steps = SECONDS[count] / BASE_S
    return task_workload(jobs=count, steps=(round(0.5 * steps), round(1.5 * steps)), seed=seed)


def measure(crew: Crew, cluster: Cluster, label: str, count: int, seed: int, folder: Path) -> Row:
    """One run, and its simulation."""
    name, options = SCHEDULERS[label]
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    pairs = pair_jobs(jobs_of(count, seed), seed)
    rates = JobRates(cluster, base_s=BASE_S, rates="formula" if label == "hadare" else "table")
    session = Session(folder, cluster, make_scheduler(name, **options), crew, rates, RULES, seed=seed)
    begin = time.perf_counter()
    outcome = session.run(pairs)
    wall = time.perf_counter() - begin
    metrics = outcome.result.metrics
    workload = Workload(tuple(job for job, _ in pairs), rates.table())
    rules = {key: getattr(RULES, key) for key in ("round_s", "restart_s", "early_refill", "consolidation_s")}
    simulated = simulate(workload, cluster, make_scheduler(name, **options), seed=seed, **rules).metrics
    shutil.rmtree(folder)
    return {
        "cluster": cluster.name,
        "jobs": count,
        "seed": seed,
        "scheduler": label,
        **{key: metrics[key] for key in FIGURES},
        **{f"simulated_{key}": simulated[key] for key in FIGURES},
        "ttd_error": metrics["ttd_s"] / simulated["ttd_s"] - 1,
        "restart_s": fmean(outcome.restarts_s),
        "consolidation_s": fmean(outcome.consolidations_s) if outcome.consolidations_s else 0.0,
        "overruns": outcome.overruns,
        "finished": metrics["finished"],
        "wall_s": wall,
    }


def cells(part: str, quick: bool) -> Iterator[tuple[str, int, int]]:
    """(cluster, jobs, seed)."""
    if quick:
        yield "lab_like", 3, 0
        return
    for name, (counts, seeds) in CELLS.items():
        if part in (name, "all"):
            yield from ((name, count, seed) for seed in seeds for count in counts)


def compute(part: str, folder: Path, quick: bool) -> list[Row]:
    """All rows; each is written as soon as it is there, and not measured again."""
    folder.mkdir(parents=True, exist_ok=True)
    path, console, rows = folder / "rows.jsonl", Console(stderr=True), list[Row]()
    backend, at_work = None, ""
    for name, count, seed in cells(part, quick):
        cluster = Cluster.built_in(name)
        for label in SCHEDULERS:
            known = [json.loads(text) for text in path.read_text().splitlines()] if path.exists() else []
            key = {"cluster": name, "jobs": count, "seed": seed, "scheduler": label}
            found = [row for row in known if all(row[k] == v for k, v in key.items())]
            if not found:
                if backend is None or at_work != name:
                    if backend is not None:
                        backend.close()
                    backend, at_work = LocalBackend(slots_of(cluster)), name
                    backend.start()
                    crew = Crew(backend, cluster, OwnPace(node_speeds(cluster)))
                found = [measure(crew, cluster, label, count, seed, folder / "run")]
                with path.open("a") as file:
                    file.write(json.dumps(found[0]) + "\n")
                console.print(f"{key}: TTD {found[0]['ttd_s']:.1f}, simulated {found[0]['simulated_ttd_s']:.1f}")
            rows += found
    if backend is not None:
        backend.close()
    return rows


def show(rows: list[Row]) -> None:
    """Means over seeds; ratios of HadarE to each of the others."""
    table = Table(title="measured (simulated); gain: figure over HadarE's")
    for header in ("cluster", "jobs", "scheduler", "TTD [s]", "gain", "mean JCT [s]", "gain", "CRU", "TTD error"):
        table.add_column(header, justify="left" if header in ("cluster", "scheduler") else "right")
    for name, count in dict.fromkeys((row["cluster"], row["jobs"]) for row in rows):
        group = [row for row in rows if (row["cluster"], row["jobs"]) == (name, count)]
        for label in SCHEDULERS:
            mine = [row for row in group if row["scheduler"] == label]
            best = [row for row in group if row["scheduler"] == "hadare"]
            if not mine or not best:
                continue
            mean = {key: fmean(row[key] for row in mine) for key in mine[0] if isinstance(mine[0][key], float)}
            goal = {key: fmean(row[key] for row in best) for key in ("ttd_s", "mean_jct_s")}
            worst = max((row["ttd_error"] for row in mine), key=abs)
            table.add_row(
                name,
                str(count),
                label,
                f"{mean['ttd_s']:.1f} ({mean['simulated_ttd_s']:.1f})",
                f"{mean['ttd_s'] / goal['ttd_s']:.2f}",
                f"{mean['mean_jct_s']:.1f} ({mean['simulated_mean_jct_s']:.1f})",
                f"{mean['mean_jct_s'] / goal['mean_jct_s']:.2f}",
                f"{mean['cru']:.2f} ({mean['simulated_cru']:.2f})",
                f"{worst:+.1%}",
            )
    Console(width=160).print(table)


def main() -> None:
    """Measure what is missing, print the table, and the rows as JSON on the last line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="three jobs on one cluster, one seed")
    parser.add_argument("--part", default="all", choices=(*CELLS, "all"))
    parser.add_argument("--folder", type=Path, default=Path("runs/real_cluster"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = compute(options.part, options.folder / "quick" if options.quick else options.folder, options.quick)
    show(rows)
    print(json.dumps({"rows": rows}))


if __name__ == "__main__":
    main()
