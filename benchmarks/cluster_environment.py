"""Decisions and rounds a second of the cluster environment, and the bare simulator under the same scheduler.

python benchmarks/cluster_environment.py [--quick]
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from hadoppler import make_scheduler
from hadoppler.envs.cluster import Cluster, ClusterSchedulingEnv, SequentialAllocation, make_workload, replay, simulate


def rate_of(episode: Callable[[], int], repeats: int) -> float:
    """Best units a second, in CPU time, over a few episodes; the first one compiles."""
    episode()
    rates = []
    for _ in range(repeats):
        begin = time.process_time()
        count = episode()
        rates.append(count / (time.process_time() - begin))
    return max(rates)


def measure(jobs: int, repeats: int, decisions: int) -> dict[str, Any]:
    """One row: 60 GPUs, all jobs at 0; random masked decisions, and SRTF through the environment and without it."""
    workload, cluster = make_workload("headline", jobs=jobs, seed=0), Cluster.built_in("headline")
    scheduler = make_scheduler("srtf")
    env = ClusterSchedulingEnv(workload, cluster, window=jobs)
    sequential = SequentialAllocation(ClusterSchedulingEnv(workload, cluster, window=jobs, nodes=False))

    def decide() -> int:
        rng = np.random.default_rng(0)
        _, info = sequential.reset(seed=0)
        for _ in range(decisions):
            legal = np.flatnonzero(info["action_mask"])
            _, _, done, _, info = sequential.step(legal[rng.integers(len(legal))])
            if done:
                _, info = sequential.reset()
        return decisions

    decided = rate_of(decide, repeats)
    ours = rate_of(lambda: sum(1 for _ in replay(env, scheduler)), repeats)
    bare = rate_of(lambda: len(simulate(workload, cluster, scheduler).rounds), repeats)
    return {
        "jobs": jobs,
        "decisions_per_s": decided,
        "env_rounds_per_s": ours,
        "simulate_rounds_per_s": bare,
        "ratio": ours / bare,
    }


def main() -> None:
    """Measure, print a table, and the rows as JSON on the last line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one size, fewer repetitions")
    quick = parser.parse_args().quick
    rows = [measure(jobs, 2 if quick else 5, 3000 if quick else 20000) for jobs in ((60,) if quick else (30, 60, 120))]
    table = Table(title="cluster environment, CPU time")
    for column in rows[0]:
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(*(f"{value:,.2f}" if isinstance(value, float) else str(value) for value in row.values()))
    Console(width=120).print(table)
    print(json.dumps({"rows": rows}))


if __name__ == "__main__":
    main()
