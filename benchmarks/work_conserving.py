"""Work-conserving execution against level barriers, measured: how much time each graph's placements save.

A level is the longest path from an entry; bulk-synchronous execution begins one when all operations of the level
before have ended everywhere and all transfers into it have arrived. Four emulated devices (raw costs scaled so that the
lower bound takes ``--bound`` seconds, and real bytes on contended links), and two real CPU devices.

    python benchmarks/work_conserving.py [--quick]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from hadoppler import place
from hadoppler.envs.placement import Placement, PlacementProblem, Topology, lower_bounds, make_graph
from hadoppler.real_system.placement import Executor, cpu_executor, emulated_executor

PUBLISHED = {"chainmm": 139 / 185.3, "ffnn": 50.2 / 76.9}
METHODS = ("annealing", "critical_path", "round_robin")
GRAPHS = ("chainmm", "ffnn", "llama_block", "llama_layer")
CPU_SIZES: dict[str, dict[str, Any]] = {
    "chainmm": {"size": 1024},
    "ffnn": {"batch": 2048, "features": 64, "hidden": 2048, "outputs": 256},
    "llama_block": {"sequence": 256, "width": 512, "heads": 8, "feedforward": 1376},
    "llama_layer": {"sequence": 256, "width": 512, "heads": 8, "feedforward": 1376, "vocabulary": 4000},
}
"""Sizes whose operations take about a millisecond on one core."""
DISTURBED = 0.1
Row = dict[str, Any]


def problems(quick: bool) -> Iterator[tuple[str, PlacementProblem]]:
    """(devices, problem) of each part."""
    for name in GRAPHS[: 2 if quick else 4]:
        yield "4 emulated, raw", PlacementProblem.raw(make_graph(name, costs="published"))
    if not quick:
        for name in GRAPHS:
            yield "4 emulated, 12 GB/s", PlacementProblem(make_graph(name), Topology.preset("4xP100"))
        for name in GRAPHS:
            yield "2 CPU", PlacementProblem(make_graph(name, **CPU_SIZES[name], devices=2), Topology.this_machine(2))


def executor_for(kind: str, problem: PlacementProblem, bound: float) -> Executor:
    """CPU devices, or emulated ones whose lower bound takes ``bound`` seconds."""
    return cpu_executor(problem) if kind == "2 CPU" else emulated_executor(problem, bound_s=bound)


def measure(executor: Executor, placement: Placement, mode: Any, repeats: int) -> tuple[np.ndarray, int]:
    """Seconds of clean repetitions (of all, if none is clean), and how many were dropped."""
    executor.run(placement.assignment, mode=mode)
    runs = [executor.run(placement.assignment, mode=mode) for _ in range(repeats)]
    clean = [done.makespan for done in runs if not done.interference > DISTURBED * done.makespan]
    return np.array(clean or [done.makespan for done in runs]), repeats - len(clean)


def compare(kind: str, problem: PlacementProblem, bound: float, repeats: int, calls: int) -> list[Row]:
    """Rows of one problem: a row per placement."""
    rows, best = list[Row](), lower_bounds(problem).best
    with executor_for(kind, problem, bound) as executor:
        for method in METHODS:
            placement = place(method, problem, **({"calls": calls} if method == "annealing" else {}))
            free, dropped = measure(executor, placement, "work_conserving", repeats)
            held, also = measure(executor, placement, "bulk_synchronous", repeats)
            published = PUBLISHED.get(problem.graph.title) if method == "annealing" and "raw" in kind else None
            rows.append(
                {
                    "devices": kind,
                    "graph": problem.graph.title,
                    "method": method,
                    "work_conserving_ms": float(np.median(free)) * 1e3,
                    "deviation_ms": float(free.std()) * 1e3,
                    "bulk_synchronous_ms": float(np.median(held)) * 1e3,
                    "ratio": float(np.median(free) / np.median(held)),
                    "published": published,
                    "simulated_ratio_bound": placement.makespan / best,
                    "dropped": dropped + also,
                }
            )
    return rows


def main() -> None:
    """Measure, print a table, and the rows as JSON on the last line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="two graphs on emulated devices, few repetitions")
    parser.add_argument("--bound", type=float, default=0.1, help="seconds of the lower bound on emulated devices")
    options = parser.parse_args()
    repeats, calls = (3, 20_000) if options.quick else (9, 400_000)
    rows = [
        row
        for kind, problem in problems(options.quick)
        for row in compare(kind, problem, options.bound, repeats, calls)
    ]
    table = Table(title="work-conserving / bulk-synchronous time, medians")
    for name in rows[0]:
        table.add_column(name, justify="left" if name in ("devices", "graph", "method") else "right")
    for row in rows:
        values = ["" if value is None else value for value in row.values()]
        table.add_row(*(f"{value:.3f}" if isinstance(value, float) else str(value) for value in values))
    Console(width=200).print(table)
    print(json.dumps({"rows": rows}))


if __name__ == "__main__":
    main()
