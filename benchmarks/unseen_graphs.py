"""The shipped policy on graphs that it has never seen, beside the portfolio of heuristics and the best single device.

Wide graphs: sharded programs from held-out seeds with more shards than in training, mixtures of experts, tiled user
modules, the published workloads in other sizes and shard counts. Near-chains: profiles of PipeDream and
dnn-partitioning, if ``--profiles`` (or $HADOPPLER_REFERENCE) points to a folder with them. All on 2 to 8 equal and
unequal P100s with contended links of 3 and 12 GB/s. The policy's answer is judged alone, without falling back.

    python benchmarks/unseen_graphs.py [--quick] [--checkpoint policy.pt] [--rows portfolio.jsonl] [--samples 64]
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import nn

from hadoppler import place
from hadoppler.agents.placement.checkpoint import load_policy
from hadoppler.agents.placement.decoding import decode_on_fewer, refine
from hadoppler.agents.placement.policy import PlacementPolicy
from hadoppler.agents.placement.rewards import SimulatedTime
from hadoppler.envs.placement import (
    DataflowGraph,
    PlacementProblem,
    Topology,
    from_module,
    lower_bounds,
    make_graph,
    read_graph,
)
from hadoppler.envs.placement.tiling import tile
from hadoppler.envs.placement.workloads.llama_cuts import even_cuts
from hadoppler.scripts.example_model import TransformerBlock

DEVICES = ((1.0, 1.0), (1.0,) * 4, (1.0, 1.0, 0.5, 0.5), (1.0, 0.75, 0.5, 0.5, 0.25, 0.25), (1.0,) * 8)
BANDWIDTHS = (3e9, 12e9)
Row = dict[str, Any]


def wide_graphs(quick: bool) -> Iterator[DataflowGraph]:
    """Graphs with something to win."""
    for seed, (operations, pieces) in enumerate(((12, 7), (16, 8), (20, 5), (26, 4), (10, 9), (14, 6))):
        yield make_graph("random_program", operations=operations, size=5040, pieces=pieces, seed=9000 + seed)
    if quick:
        return
    yield make_graph("moe_block")
    yield make_graph("moe_block", tokens=2048, width=2048, experts=6, feedforward=5632, devices=2)
    yield make_graph("moe_block", tokens=8192, width=1024, experts=12, top_k=1, feedforward=4096)
    for cuts, training in ((2, True), (4, False)):
        with torch.device("meta"):
            layers = [part for _ in range(4) for part in (nn.Linear(3072, 3072), nn.ReLU())]
            module, args = nn.Sequential(*layers), (torch.zeros(6144, 3072),)
            block = TransformerBlock(1536, 12), (torch.zeros(4, 768, 1536),)
        yield tile(from_module(module, args, training=training), cuts)
        yield tile(from_module(*block), cuts)
    yield make_graph("chainmm", size=6000, shards=20)
    yield make_graph("chainmm", size=12_000, shards=36)
    yield make_graph("ffnn", batch=12_000, hidden=24_000, outputs=240, features=240, shards=20)
    yield make_graph("ffnn", batch=36_000, hidden=6_000, outputs=600, features=1200, shards=30)
    yield make_graph("llama_layer", sequence=1536, width=3072, heads=24, feedforward=8192, cuts=even_cuts(6))
    yield make_graph("llama_block", sequence=3072, width=2560, heads=20, feedforward=6912, cuts=even_cuts(6))


def near_chains(folder: Path) -> Iterator[DataflowGraph]:
    """Profiles of whole layers."""
    paths = sorted((folder / "graphs" / "pipedream").glob("*.txt"))
    paths += sorted((folder / "graphs" / "dnn-partitioning").glob("*.json"))
    yield from (read_graph(path) for path in paths if "LICENSE" not in path.name)


def problems(graphs: Iterator[DataflowGraph], quick: bool) -> Iterator[PlacementProblem]:
    """Each graph on every set of devices and links."""
    for graph in graphs:
        for speeds in DEVICES[1:3] if quick else DEVICES:
            for bandwidth in BANDWIDTHS:
                yield PlacementProblem(graph, Topology.at_speeds("4xP100", speeds, bandwidth=bandwidth), memory="off")


def compute(
    policy: PlacementPolicy, problem: PlacementProblem, known: list[Row], path: Path | None, samples: int
) -> Row:
    """The row of one problem; the portfolio's part is kept in a file."""
    key = {"graph": problem.graph.title, "operations": problem.n, "edges": problem.graph.e}
    key["topology"] = problem.topology.name
    row = next((old for old in known if all(old[name] == value for name, value in key.items())), None)
    if row is None:
        row = key | {"bound": lower_bounds(problem).best, "portfolio": place("portfolio", problem).makespan}
        row["single_device"] = place("single_device", problem).makespan
        if path is not None:
            with path.open("a") as file:
                file.write(json.dumps(row) + "\n")
    best = min(row["portfolio"], row["single_device"])
    reward, rng = SimulatedTime(), np.random.default_rng(0)
    begin = time.perf_counter()
    found = decode_on_fewer(policy, problem, reward, rng, samples)
    seconds = time.perf_counter() - begin
    refined = refine(problem, found, reward, rng, seconds=1.0)
    return row | {
        "decision_s": seconds,
        "greedy": found[0].notes["greedy"] / best,
        "devices": found[0].notes["devices"],
        "sampled": found[0].makespan / best,
        "refined": refined.makespan / best,
        "portfolio_bound": best / row["bound"],
    }


def show(title: str, rows: list[Row]) -> None:
    """Ratios to the best heuristic: a line per graph, and over all."""
    table = Table(title=f"{title}: ratio to the portfolio and the best single device")
    columns = ("greedy", "sampled", "refined", "worst sampled", "portfolio / bound", "slowest decision [s]")
    for name in ("graph", "problems", *columns):
        table.add_column(name, justify="left" if name == "graph" else "right")
    groups = {f"{row['graph']} ({row['operations']})": [] for row in rows}
    for row in rows:
        groups[f"{row['graph']} ({row['operations']})"].append(row)
    for name, mine in (*groups.items(), ("all", rows)):
        means = [float(np.exp(np.mean([np.log(row[key]) for row in mine]))) for key in ("greedy", "sampled", "refined")]
        bound = float(np.exp(np.mean([np.log(row["portfolio_bound"]) for row in mine])))
        worst, slowest = max(row["sampled"] for row in mine), max(row["decision_s"] for row in mine)
        values = (*(f"{mean:.3f}" for mean in means), f"{worst:.3f}", f"{bound:.3f}", f"{slowest:.2f}")
        table.add_row(name, str(len(mine)), *values, style="bold" if name == "all" else None)
    Console(width=140).print(table)


def main() -> None:
    """Place every problem, print the tables, and the rows as JSON on the last line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="sharded programs on two sets of devices")
    parser.add_argument("--checkpoint", help="policy.pt of a training; by default the shipped policy")
    parser.add_argument("--samples", type=int, default=64)
    parser.add_argument("--rows", type=Path, help="file of the portfolio's makespans, one JSON object a line")
    parser.add_argument("--profiles", type=Path, default=os.environ.get("HADOPPLER_REFERENCE"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    policy, _ = load_policy(options.checkpoint)
    known = []
    if options.rows and options.rows.exists():
        known = [json.loads(line) for line in options.rows.read_text().splitlines()]
    kinds = {"wide graphs": wide_graphs(options.quick)}
    if options.profiles and not options.quick:
        kinds["near-chains"] = near_chains(Path(options.profiles))
    rows = []
    for title, graphs in kinds.items():
        every = list(problems(graphs, options.quick))
        mine = [
            compute(policy, problem, known, options.rows, options.samples) | {"kind": title}
            for problem in track(every, description=title)
        ]
        show(title, mine)
        rows += mine
    print(json.dumps({"rows": rows}))


if __name__ == "__main__":
    main()
