"""How long one decision takes: Hadar and its rivals over hundreds to thousands of jobs, CPU seconds on one thread.

The rival is the same decision in plain Python: the queue by utility per GPU, and for each job FIND_ALLOC
over single types and the mix of them, at integral prices, with one state.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from dataclasses import replace
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from hadoppler.baselines.cluster.registry import find_scheduler
from hadoppler.envs.cluster import Cluster, ClusterView, Scheduler, Simulation, make_workload

CLUSTER = "v100:4x86 p100:4x85 k80:4x85"
SCHEDULERS: list[tuple[str, dict[str, Any]]] = [
    ("hadar", {}),
    ("hadar", {"mode": "horizon"}),
    ("hadare", {}),
    ("sia", {}),
    ("gavel", {"objective": "max_min"}),
    ("tiresias", {}),
    ("srtf", {}),
]


def view_of(jobs: int) -> ClusterView:
    """The first round of a headline workload on 1,024 GPUs."""
    view = Simulation(make_workload("headline", jobs=jobs, seed=1), Cluster.parse(CLUSTER)).next_view()
    assert view is not None
    return view


def first_and_next(scheduler: Scheduler, view: ClusterView, repeats: int) -> tuple[float, float]:
    """CPU seconds of the first decision of a run, and of one a round later in which nobody came or went."""
    firsts, nexts = [], []
    for _ in range(repeats):
        scheduler.reset(view.cluster, view.round_s, np.random.default_rng(0))
        begin = time.process_time()
        allocation = scheduler.schedule(view)
        firsts.append(time.process_time() - begin)
        gang = np.full(len(view), -1, dtype=np.int64)
        gang[np.searchsorted(view.job, allocation.job[::-1])] = np.arange(len(allocation))[::-1]
        later = replace(view, time=view.time + view.round_s, held=allocation, held_gang=gang)
        begin = time.process_time()
        scheduler.schedule(later)
        nexts.append(time.process_time() - begin)
    return min(firsts), min(nexts)


def plain_decision(view: ClusterView) -> int:
    """Hadar's decision over Python lists; the number of gangs."""
    capacity = view.cluster.capacity.tolist()
    free = [list(row) for row in capacity]
    rates, spread, workers = view.gang_rates.tolist(), view.spread_rates.tolist(), view.workers.tolist()
    remaining, types = view.remaining.tolist(), range(len(capacity[0]))
    worth = [[rate / left for rate in row] for row, left in zip(rates, remaining, strict=True)]
    per_gpu = [[value / gpus for value in row] for row, gpus in zip(worth, workers, strict=True)]
    high = [max(row[r] for row in per_gpu) for r in types]
    low = [min(row[r] for row in per_gpu if row[r] > 0) / 4 for r in types]

    def price(h: int, r: int, count: int) -> float:
        given, rho = capacity[h][r] - free[h][r], high[r] / low[r]
        steps = [rho ** (used / capacity[h][r]) for used in (given, given + count)]
        return low[r] * capacity[h][r] / math.log(rho) * (steps[1] - steps[0])

    def gather(r: int, wanted: int) -> list[tuple[int, int, int]]:
        fitting = [h for h in range(len(free)) if free[h][r] >= wanted]
        if fitting:
            return [(max(fitting, key=lambda h: free[h][r]), r, wanted)]
        entries = []
        for h in sorted(range(len(free)), key=lambda h: -free[h][r]):
            if wanted and free[h][r]:
                entries.append((h, r, min(wanted, free[h][r])))
                wanted -= entries[-1][2]
        return entries

    def best_of(i: int) -> tuple[float, list[tuple[int, int, int]]]:
        found: list[list[tuple[int, int, int]]] = [gather(r, workers[i]) for r in types if rates[i][r] > 0]
        if workers[i] > 1:
            mix: list[tuple[int, int, int]] = []
            for r in sorted(types, key=lambda r: -rates[i][r]):
                mix += gather(r, workers[i] - sum(count for *_, count in mix))
            found.append([entry for entry in mix if entry[2]])
        best: tuple[float, list[tuple[int, int, int]]] = (0.0, [])
        for entries in found:
            if sum(count for *_, count in entries) == workers[i]:
                own = rates if len(entries) == 1 else spread
                rate = sum(count * own[i][r] for _, r, count in entries) / workers[i]
                payoff = rate / remaining[i] - sum(price(*entry) for entry in entries)
                best = max(best, (payoff, entries))
        return best

    gangs = 0
    for i in sorted(range(len(view)), key=lambda i: -max(per_gpu[i])):
        for h, r, count in best_of(i)[1]:
            free[h][r] -= count
            gangs += 1
    return gangs


def main() -> None:
    """Measure, print a table, and the rows as JSON on the last line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="two sizes and no integer programs")
    quick = parser.parse_args().quick
    sizes = (256, 2048) if quick else (256, 512, 1024, 2048, 4096)
    rows: list[dict[str, Any]] = []
    for name, options in SCHEDULERS:
        if quick and name == "sia":
            continue
        scheduler = find_scheduler(name, options)
        first_and_next(scheduler, view_of(20), 1)  # compiles
        for jobs in sizes:
            slow = name in ("sia", "gavel") or "mode" in options
            first, following = first_and_next(scheduler, view_of(jobs), 1 if slow else 5)
            label = " ".join([name, *map(str, options.values())])
            rows.append(
                {"scheduler": label, "jobs": jobs, "gpus": 1024, "first_ms": first * 1e3, "next_ms": following * 1e3}
            )
    for row in rows:
        if row["scheduler"] == "hadar" and row["jobs"] in (256, 2048):
            begin = time.process_time()
            plain_decision(view_of(row["jobs"]))
            row["plain_ms"] = (time.process_time() - begin) * 1e3
            row["ratio"] = row["plain_ms"] / row["first_ms"]
    columns = ("scheduler", "jobs", "gpus", "first_ms", "next_ms", "plain_ms", "ratio")
    table = Table(title="One decision, CPU milliseconds: first of a run, next round, plain Python")
    for column in columns:
        table.add_column(column, justify="left" if column == "scheduler" else "right")
    for row in rows:
        cells = [row.get(column) for column in columns[3:]]
        text = ["" if cell is None else f"{cell:,.2f}" for cell in cells]
        table.add_row(row["scheduler"], str(row["jobs"]), str(row["gpus"]), *text)
    Console(width=120).print(table)
    print(json.dumps({"rows": rows}))


if __name__ == "__main__":
    main()
