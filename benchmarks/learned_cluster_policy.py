"""The learned cluster policy beside Hadar, SRTF and Gavel, on workloads of seeds that its training did not draw.

python benchmarks/learned_cluster_policy.py [--quick] [--checkpoint policy.pt]
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

from hadoppler import make_scheduler
from hadoppler.envs.cluster import Cluster, make_workload, simulate

HELD_OUT = range(100, 110)
RIVALS: dict[str, tuple[str, dict[str, Any]]] = {
    "hadar": ("hadar", {}),
    "hadar, no price": ("hadar", {"price": "none"}),
    "hadar horizon": ("hadar", {"mode": "horizon"}),
    "srtf": ("srtf", {}),
    "gavel max_min": ("gavel", {"objective": "max_min"}),
}
WORLDS = {
    "headline 160": ("headline", 160, None),
    "headline 60": ("headline", 60, None),
    "headline 480": ("headline", 480, None),
    "poisson 160 at 1/h": ("headline", 160, 1.0),
    "poisson 160 at 3/h": ("headline", 160, 3.0),
    "two types 60": ("v100:4x4 k80:8x3", 60, None),
}
"""Name -> cluster, jobs, arrivals an hour."""


def measure(world: str, row: str, name: str, options: dict[str, Any], seeds: Sequence[int]) -> dict[str, Any]:
    """Means over the seeds: hours, wall seconds of the scheduler, CPU seconds of the whole simulation."""
    text, jobs, per_hour = WORLDS[world]
    cluster, found = Cluster.parse(text), []
    begin = time.process_time()
    for seed in seeds:
        workload = make_workload("headline", jobs=jobs, seed=seed, per_hour=per_hour)
        found.append(simulate(workload, cluster, make_scheduler(name, **options), log=False).metrics)
    return {
        "world": world,
        "scheduler": row,
        "seeds": len(seeds),
        "mean_jct_h": float(np.mean([metrics["mean_jct_s"] for metrics in found])) / 3600,
        "ttd_h": float(np.mean([metrics["ttd_s"] for metrics in found])) / 3600,
        "decision_s": float(np.mean([metrics["decision_s"] for metrics in found])),
        "cpu_s": (time.process_time() - begin) / len(seeds),
    }


def main() -> None:
    """Measure, print a table, and the rows as JSON on the last line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="two worlds, two seeds")
    parser.add_argument("--checkpoint", help="a policy; by default the one that comes with the package")
    given = parser.parse_args()
    seeds = HELD_OUT[:2] if given.quick else HELD_OUT
    worlds = list(WORLDS)[:2] if given.quick else list(WORLDS)
    schedulers = {"learned": ("learned", {"checkpoint": given.checkpoint}), **RIVALS}
    console, rows = Console(width=120), []
    for world in track(worlds, console=Console(stderr=True), transient=True):
        several = seeds[:3] if "480" in world else seeds
        mine = [measure(world, row, *which, several) for row, which in schedulers.items()]
        published = next(row["mean_jct_h"] for row in mine if row["scheduler"] == "hadar")
        rows += [{**row, "jct_ratio_hadar": row["mean_jct_h"] / published} for row in mine]
    table = Table(title=f"held-out seeds {seeds[0]}-{seeds[-1]} (480 jobs: the first 3)")
    for column in rows[0]:
        table.add_column(column, justify="left" if column in ("world", "scheduler") else "right")
    for row in rows:
        table.add_row(*(f"{value:,.2f}" if isinstance(value, float) else str(value) for value in row.values()))
        if row["scheduler"] == "gavel max_min":
            table.add_section()
    console.print(table)
    print(json.dumps({"rows": rows}))


if __name__ == "__main__":
    main()
