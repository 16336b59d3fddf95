"""How cost grows with the graph: build, bounds, HEFT and simulation from 250 to 20,000 operations.

The rival of each line is its own cost per operation at 250 operations.

    python benchmarks/placement_scaling.py [--quick]
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

from hadoppler import place
from hadoppler.envs.placement import DataflowGraph, PlacementProblem, Topology, lower_bounds, make_graph, makespans

WIDTH = 25
MACHINE = Topology.uniform(4, flops_per_s=1e12, bandwidth=1e10)


def layered(operations: int) -> DataflowGraph:
    """A random graph of a fixed width and mean degree, so that only its length grows."""
    return make_graph("layered_random", layers=operations // WIDTH, width=WIDTH, density=2 / WIDTH, seed=0)


GRAPHS: dict[str, Callable[[], DataflowGraph]] = {
    "layered 250": lambda: layered(250),
    "layered 1000": lambda: layered(1000),
    "layered 10000": lambda: layered(10_000),
    "ladder of 30 diamonds": lambda: make_graph("ladder", rungs=30),
    "chain 20000": lambda: make_graph("chain", length=20_000),
}


def measure(name: str, build: Callable[[], DataflowGraph], simulations: int) -> dict[str, Any]:
    """Seconds of each step, and CPU nanoseconds per operation of a simulation without and with contention."""
    ticks = [time.perf_counter()]
    graph = build()
    problem = PlacementProblem(graph, MACHINE)
    ticks.append(time.perf_counter())
    lower_bounds(problem)
    ticks.append(time.perf_counter())
    place("heft", problem)
    ticks.append(time.perf_counter())
    row: dict[str, Any] = {"graph": name, "operations": graph.n, "edges": graph.e}
    row |= dict(zip(("build_s", "bounds_s", "heft_s"), np.diff(ticks).tolist(), strict=True))
    batch = max(simulations // graph.n, 4)
    rows = np.random.default_rng(0).integers(0, problem.d, (batch, graph.n))
    for contention in ("none", "ports"):
        rates = []
        for _ in range(5):
            begin = time.process_time()
            makespans(problem, rows, contention=contention, threads=1)
            rates.append((time.process_time() - begin) / rows.size * 1e9)
        row[f"simulate_{contention}_ns"] = min(rates)
    return row


def main() -> None:
    """Measure, print a table, and the rows as JSON on the last line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer simulations")
    simulations = 200_000 if parser.parse_args().quick else 2_000_000
    measure("warm-up", lambda: layered(250), 1000)  # compiles
    rows = [measure(name, build, simulations) for name, build in GRAPHS.items()]
    for row in rows:
        for contention in ("none", "ports"):
            key = f"simulate_{contention}_ns"
            row[f"ratio_{contention}"] = row[key] / rows[0][key]
    table = Table(title="cost by size; ratios against 250 operations")
    for column in rows[0]:
        table.add_column(column, justify="left" if column == "graph" else "right")
    for row in rows:
        table.add_row(*(f"{value:,.3f}" if isinstance(value, float) else str(value) for value in row.values()))
    Console(width=150).print(table)
    print(json.dumps({"rows": rows}))


if __name__ == "__main__":
    main()
