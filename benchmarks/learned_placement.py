"""DOPPLER beside its rivals, heuristics and annealing: quality, regimes, ablations and transfer.

Each cell is a row of ``conf/experiment`` with a graph and a seed. Trainings and rows that are in ``--folder``
already are not made again, so that a long run can be stopped and continued, and run in parts.

    python benchmarks/learned_placement.py [--quick] [--part main|regimes|rivals|ablations|transfer] [--folder DIR]
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hydra import compose, initialize_config_module
from omegaconf import DictConfig, OmegaConf
from rich.console import Console
from rich.table import Table

from hadoppler import place
from hadoppler.agents.placement.checkpoint import load_policy
from hadoppler.agents.placement.decoding import decode, refine
from hadoppler.agents.placement.rewards import SimulatedTime
from hadoppler.agents.placement.tasks import FEATURE_SEED
from hadoppler.envs.placement import PlacementProblem, lower_bounds
from hadoppler.scripts import train  # noqa: F401  (the schema of its settings)
from hadoppler.scripts.application import instantiate

GRAPHS = ("chainmm", "ffnn", "llama_block", "llama_layer")
HEURISTICS = ("critical_path", "heft", "peft", "etf", "enumerative", "portfolio")
REGIMES = ("12_equal", "12_unequal", "3_equal", "3_unequal")
RECIPE = (
    "no_random_features", "own_orders", "eight_elites", "no_search", "no_gradient", "ppo", "self_imitation",
)  # fmt: skip
SAMPLES = 64
REFINE_SECONDS = 10.0
QUICK = ["stage.simulation.updates=4", "agent.samples=4"]
Row = dict[str, Any]


def cells(part: str, quick: bool) -> Iterator[tuple[str, list[str]]]:
    """(name, settings of ``hadoppler train``) of each training of a part."""
    graphs, seeds = (GRAPHS[:1], (0,)) if quick else (GRAPHS, (0, 1, 2))
    if part in ("main", "all"):
        for seed in seeds:
            yield from (("main/doppler", [f"graph={graph}", f"seed={seed}"]) for graph in graphs)
            yield "main/doppler_priority", ["graph=llama_block", f"seed={seed}"]
        for row in ("published", "noisy"):
            yield from ((f"main/doppler_{row}", [f"graph={graph}", "seed=0"]) for graph in graphs)
    if part in ("regimes", "all"):
        yield from ((f"regimes/{regime}", [f"graph={graph}"]) for regime in REGIMES for graph in graphs)
    if part in ("rivals", "all"):
        eight = ([f"graph={graph}", "graph.devices=8", "topology.devices=8"] for graph in graphs[2:])
        for settings in [[f"graph={graph}"] for graph in graphs] + list(eight):
            for rival in ("doppler", "placeto", "gdp", "joint", "gdp_expert", "joint_expert"):
                yield f"rivals/{rival}", settings
    if part in ("ablations", "all"):
        for graph in graphs[:2]:
            yield from ((f"policy_ablation/{row}", [f"graph={graph}"]) for row in ("both", "select", "place"))
            rows = ("imitation_simulation", "simulation", "imitation")
            yield from ((f"stage_ablation/{row}", [f"graph={graph}", f"seed={seed}"]) for row in rows for seed in seeds)
        yield from ((f"message_passing/{row}", ["graph=chainmm"]) for row in ("once", "every_step"))
        yield from ((f"recipe/{row}", [f"graph={graph}"]) for row in RECIPE for graph in graphs[1:2])


def transfers(folder: Path, quick: bool) -> Iterator[tuple[str, list[str], str]]:
    """(name, settings, what it is) of pre-training and fine-tuning; each may begin from an earlier one's policy."""
    yield "transfer/pretrained", [], "pre-training"
    start = train_cell("transfer/pretrained", [], folder, quick)[0]
    for graph in GRAPHS[2:]:
        for row in ("fine_tuned_2k", "fine_tuned_4k"):
            yield f"transfer/{row}", [f"graph={graph}", f"agent.start={start}"], graph
    first = train_cell("main/doppler", ["graph=llama_layer", "seed=0"], folder, quick)[0]
    eight = ["graph=llama_layer", "graph.devices=8", "topology=8xV100-slow", f"agent.start={first}"]
    unequal = ["graph=llama_layer", "topology.speeds=[1,1,0.5,0.5]", f"agent.start={first}"]
    for settings, what in ((eight, "8 devices, unequal links"), (unequal, "unequal devices")):
        for row in ("fine_tuned_2k", "fine_tuned_4k"):
            yield f"transfer/{row}", settings, what
        yield "main/doppler", [*settings[:-1], "seed=0"], f"{what}, full training"


def settings_of(name: str, settings: list[str], quick: bool) -> DictConfig:
    """The whole configuration of a training."""
    with initialize_config_module("hadoppler.conf", version_base="1.3"):
        return compose("train", [f"experiment={name}", *settings, *(QUICK if quick else [])])


def train_cell(name: str, settings: list[str], folder: Path, quick: bool) -> tuple[Path, Row, PlacementProblem]:
    """Train unless that was done; returns the policy's file, the last line of its metrics, and the problem."""
    config = settings_of(name, settings, quick)
    told = OmegaConf.to_container(OmegaConf.masked_copy(config, [k for k in config if k != "hydra"]), resolve=True)
    key = hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:16]
    target = folder / f"{name.replace('/', '_')}_{key}"
    plan = instantiate(config.agent, _convert_="all")
    metrics = target / "metrics.jsonl"
    done = metrics.exists() and json.loads(metrics.read_text().splitlines()[-1])["done"] == 1.0
    if not done:
        plan.train(target, resume=(target / "last.pt").exists())
    lines = [json.loads(text) for text in metrics.read_text().splitlines()]
    return target / "policy.pt", lines[-1] | {"lines": lines}, plan.problems[0]


def measure(name: str, settings: list[str], folder: Path, quick: bool) -> Row:
    """The row of one training: its placements without and with local search, exact, noisy, and in its own order."""
    path, last, problem = train_cell(name, settings, folder, quick)
    policy, told = load_policy(path)
    reward = SimulatedTime(told["execution"])
    prepared = policy.prepare(problem, np.random.default_rng(FEATURE_SEED))
    rng, unit, bound = np.random.default_rng(0), problem.time_unit, lower_bounds(problem).best
    found = decode(policy, prepared, problem, reward, rng, SAMPLES)
    refined = refine(problem, found, reward, rng, seconds=0.5 if quick else REFINE_SECONDS)
    other = "fifo" if told["execution"] == "priority" else "priority"
    spread = found[0].spread(problem)
    return {
        "cell": name,
        "settings": settings,
        "graph": problem.graph.title,
        "operations": problem.n,
        "topology": problem.topology.name,
        "devices": problem.d,
        "greedy": found[0].notes["greedy"] / unit,
        "makespan": found[0].makespan / unit,
        "refined": refined.makespan / unit,
        "bound": bound / unit,
        "ratio_bound": found[0].makespan / bound,
        "mean_noisy": float(spread.mean()) / unit,
        "p90_noisy": float(np.quantile(spread, 0.9)) / unit,
        f"order_{other}": place_as(problem, found[0], other) / unit,
        "first_stage": min((line["makespan"] for line in last["lines"] if line["stage"] == "imitation"), default=None)
        if "makespan" in last
        else None,
        "episodes": last["episodes"],
        "calls": last["calls"],
        "cpu_s": last["cpu_s"],
        "curve": [(line["episodes"], line.get("makespan")) for line in last["lines"]],
    }


def place_as(problem: PlacementProblem, placement: Any, order: str) -> float:
    """Makespan of a placement under another order rule."""
    options = {"priority": placement.order} if order == "priority" else {}
    from hadoppler.envs.placement import simulate

    return float(simulate(problem, placement.assignment, order=order, memory="off", **options).makespan)


def heuristics(problem: PlacementProblem, order: str, calls: int, seconds: float) -> Row:
    """Makespans of heuristics, of annealing with as many calls, and of annealing for some seconds."""
    unit = problem.time_unit
    row: Row = {name: place(name, problem, order=order).makespan / unit for name in HEURISTICS}
    row["annealing_equal_calls"] = place("annealing", problem, order=order, calls=calls).makespan / unit
    row["annealing_seconds"] = place("annealing", problem, order=order, seconds=seconds).makespan / unit
    return row


def compute(part: str, folder: Path, quick: bool) -> list[Row]:
    """Rows of a part; each is written as soon as it is there."""
    rows, console = [], Console(stderr=True)
    path = folder / "rows.jsonl"
    folder.mkdir(parents=True, exist_ok=True)
    known = [json.loads(text) for text in path.read_text().splitlines()] if path.exists() else []
    jobs = [(name, settings, "") for name, settings in cells(part, quick)]
    if part in ("transfer", "all"):
        jobs += list(transfers(folder, quick))
    for number, (name, settings, what) in enumerate(jobs):
        row = next((old for old in known if old["cell"] == name and old["settings"] == settings), None)
        if row is None:
            console.print(f"{number + 1} of {len(jobs)}: {name} {' '.join(settings)}")
            row = measure(name, settings, folder, quick) | {"what": what}
            if name.startswith(("main/", "regimes/")):
                problem = train_cell(name, settings, folder, quick)[2]
                order = "priority" if name.endswith("_priority") else "fifo"
                row |= heuristics(problem, order, row["calls"], 1.0 if quick else 20.0 if "regimes" in name else 10.0)
            with path.open("a") as file:
                file.write(json.dumps(row) + "\n")
        rows.append(row)
    return rows


def show(rows: list[Row]) -> None:
    """One table per family of cells."""
    console = Console(width=200)
    columns = ("greedy", "makespan", "refined", "bound", "mean_noisy", "p90_noisy", "episodes", "calls", "cpu_s")
    extra = (*HEURISTICS, "annealing_equal_calls", "annealing_seconds")
    for family in dict.fromkeys(row["cell"].split("/")[0] for row in rows):
        mine = [row for row in rows if row["cell"].startswith(family)]
        shown = [*columns, *(name for name in extra if name in mine[0])]
        table = Table(title=family)
        for name in ("cell", "graph", "settings", *shown):
            table.add_column(name, overflow="fold")
        for row in mine:
            values = [f"{row[name]:.5g}" if row.get(name) is not None else "" for name in shown]
            settings = " ".join(item for item in row["settings"] if not item.startswith(("graph=", "agent.start")))
            table.add_row(row["cell"].split("/")[1], row["graph"], settings, *values)
        console.print(table)


def main() -> None:
    """Train what is missing, print the tables, and the rows as JSON on the last line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one graph, a few updates")
    parser.add_argument("--part", default="all", choices=("main", "regimes", "rivals", "ablations", "transfer", "all"))
    parser.add_argument("--folder", type=Path, default=Path("runs/learned_placement"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    folder = options.folder / "quick" if options.quick else options.folder
    rows = compute("main" if options.quick else options.part, folder, options.quick)
    show(rows)
    print(json.dumps({"rows": rows}))


if __name__ == "__main__":
    main()
