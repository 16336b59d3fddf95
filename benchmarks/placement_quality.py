"""Makespans of every method beside the lower bound: the raw cost model and regimes with real bytes.

Rows that stand in ``--rows`` already are not computed again, so a long run can be stopped and
continued.

    python benchmarks/placement_quality.py [--quick] [--part raw|regimes] [--seconds 30] [--rows quality.jsonl]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

from hadoppler import place
from hadoppler.envs.placement import PlacementProblem, Topology, lower_bounds, make_graph

GRAPHS = ("chainmm", "ffnn", "llama_block", "llama_layer")
LISTS = ("critical_path", "heft", "peft", "etf", "enumerative", "portfolio")
Cell = dict[str, Any]


def regime(bandwidth: float, speeds: tuple[float, ...], contention: str) -> Topology:
    """P100s at these speeds, every pair joined at ``bandwidth`` bytes/s."""
    return Topology.at_speeds("4xP100", speeds, bandwidth=bandwidth, contention=contention)  # type: ignore[arg-type]


def cells(part: str, seconds: float, quick: bool) -> Iterator[Cell]:
    """What to compute: graph, regime, method, order, seed."""
    graphs = GRAPHS[:2] if quick else GRAPHS
    seeds = (0,) if quick else (0, 1, 2)
    if part in ("raw", "all"):
        for graph in graphs:
            for order in ("fifo", "priority"):
                shared = {"graph": graph, "regime": "raw", "order": order}
                yield from ({**shared, "method": name, "seed": 0} for name in LISTS)
                yield from ({**shared, "method": "annealing", "seed": seed, "seconds": seconds} for seed in seeds)
                yield {**shared, "method": "cp_sat", "seed": 0, "seconds": 2 * seconds}
    if part in ("regimes", "all"):
        for bandwidth in (3e9,) if quick else (50e9, 12e9, 3e9):
            for speeds in ((1.0,) * 4, (1.0, 1.0, 0.5, 0.5)):
                for contention in ("ports", "none"):
                    name = f"{bandwidth / 1e9:g} GB/s, {'equal' if speeds[3] == 1 else '1 1 .5 .5'}, {contention}"
                    for graph in graphs:
                        shared = {"graph": graph, "regime": name, "order": "fifo", "seed": 0}
                        shared |= {"bandwidth": bandwidth, "speeds": list(speeds), "contention": contention}
                        yield from ({**shared, "method": method} for method in LISTS)
                        yield {**shared, "method": "annealing", "seconds": seconds}


def compute(cell: Cell) -> Cell:
    """The row of one cell."""
    if cell["regime"] == "raw":
        problem = PlacementProblem.raw(make_graph(cell["graph"], costs="published"))
    else:
        topology = regime(cell["bandwidth"], tuple(cell["speeds"]), cell["contention"])
        problem = PlacementProblem(make_graph(cell["graph"]), topology)
    options = {"seconds": cell["seconds"]} if "seconds" in cell else {}
    placement = place(cell["method"], problem, seed=cell["seed"], order=cell["order"], **options)
    bound = lower_bounds(problem).best
    return {
        **cell,
        "makespan": placement.makespan / problem.time_unit,
        "bound": bound / problem.time_unit,
        "ratio_bound": placement.makespan / bound,
        "planned": placement.planned.makespan / problem.time_unit if placement.planned else None,
        "optimal": bool(placement.notes.get("optimal", False)),
        "calls": placement.calls,
        "decision_s": placement.seconds,
    }


def show(rows: list[Cell]) -> None:
    """One table per regime and order: a line per graph, a column per method, makespan and ratio to the bound."""
    console = Console(width=170)
    for regime_name, order in dict.fromkeys((row["regime"], row["order"]) for row in rows):
        mine = [row for row in rows if (row["regime"], row["order"]) == (regime_name, order)]
        columns = list(dict.fromkeys((row["method"], row["seed"]) for row in mine))
        table = Table(title=f"{regime_name}; order={order}: makespan (ratio to the bound)")
        table.add_column("graph")
        table.add_column("bound", justify="right")
        for method, seed in columns:
            table.add_column(method if method != "annealing" else f"annealing, seed {seed}", justify="right")
        for graph in dict.fromkeys(row["graph"] for row in mine):
            found = {(row["method"], row["seed"]): row for row in mine if row["graph"] == graph}
            bound = next(iter(found.values()))["bound"]
            table.add_row(
                graph,
                f"{bound:.4g}",
                *(
                    f"{found[key]['makespan']:.5g} ({found[key]['ratio_bound']:.3f})" + "*" * found[key]["optimal"]
                    if key in found
                    else ""
                    for key in columns
                ),
            )
        console.print(table)
    console.print("* proven optimal by the solver")


def main() -> None:
    """Compute missing cells, print the tables, and the rows as JSON on the last line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="two graphs, one seed, one second")
    parser.add_argument("--part", choices=("raw", "regimes", "all"), default="all")
    parser.add_argument("--seconds", type=float, default=30.0, help="budget of annealing; the solver gets twice that")
    parser.add_argument("--rows", type=Path, help="file of finished rows, one JSON object a line")
    options = parser.parse_args()
    seconds = 1.0 if options.quick else options.seconds
    done: list[Cell] = []
    if options.rows and options.rows.exists():
        done = [json.loads(line) for line in options.rows.read_text().splitlines()]
    rows = []
    for cell in track(list(cells(options.part, seconds, options.quick)), description="placing"):
        row = next((old for old in done if all(old.get(key) == cell[key] for key in cell)), None)
        if row is None:
            row = compute(cell)
            if options.rows:
                with options.rows.open("a") as file:
                    file.write(json.dumps(row) + "\n")
        rows.append(row)
    show(rows)
    print(json.dumps({"rows": rows}))


if __name__ == "__main__":
    main()
