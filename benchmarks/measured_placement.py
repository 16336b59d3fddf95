"""Placements on devices: how well the calibrated simulator predicts, what stage III learns, and the table of methods.

Emulated devices differ from what the simulator is told: one transfer at a time per port, times jitter (lognormal 0.2,
not in ``--part calibration``), and the link from device 0 to 1 takes three times as long. Stage II policies are those
of ``learned_placement.py``, read from ``--policies`` and trained where they are missing. Finished rows are kept in
``--folder``.

    python benchmarks/measured_placement.py [--quick] [--part calibration|online|safe|table] [--folder DIR]
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from learned_placement import train_cell
from rich.console import Console
from rich.table import Table
from work_conserving import CPU_SIZES, GRAPHS

from hadoppler import place
from hadoppler.agents.placement.checkpoint import load_policy
from hadoppler.agents.placement.decoding import answers, decode
from hadoppler.agents.placement.rewards import SimulatedTime
from hadoppler.agents.placement.tasks import FEATURE_SEED
from hadoppler.agents.placement.training import PlacementPlan
from hadoppler.envs.placement import PlacementProblem, Topology, load_problem, make_graph, makespans
from hadoppler.envs.placement.graph import Integers
from hadoppler.real_system.placement import Executor, cpu_executor, emulated_executor
from hadoppler.real_system.placement.calibration import calibrated
from hadoppler.real_system.placement.measured_time import MeasuredTime
from hadoppler.real_system.placement.prediction import agreement, spread_assignments

BOUND_S = {"chainmm": 0.015, "ffnn": 0.045, "llama_block": 0.045, "llama_layer": 0.045}
"""Seconds of the lower bound on emulated devices, so that runs take about a tenth of a second."""
DISTURBED = 0.2
"""Repetitions are dropped in which the threads of all devices together waited longer for processors, as a share."""
ARMS = {
    "I + II + III": ("main/doppler", {}),
    "II + III": ("stage_ablation/simulation", {}),
    "I + III": ("stage_ablation/imitation", {}),
    "III": (None, {}),
    "I + II + III, times alone": ("main/doppler", {"searched": 0}),
}
"""Name -> (training that the stage continues, settings of the stage)."""
HEURISTICS = (
    "critical_path", "heft", "peft", "etf", "dls",
    "min_min", "enumerative", "tensor_parallel", "pipeline", "round_robin",
)  # fmt: skip
RIVALS = {"PLACETO": "rivals/placeto", "GDP": "rivals/gdp"}
Row = dict[str, Any]


def raw_problem(name: str) -> PlacementProblem:
    """A published graph on four equal devices."""
    return PlacementProblem.raw(make_graph(name, costs="published"))


def cpu_problem(name: str) -> PlacementProblem:
    """A small form of a workload on two processors."""
    sizes = CPU_SIZES[name] | ({"sequence": 512} if name.startswith("llama") else {})  # else all placements are alike
    return PlacementProblem(make_graph(name, **sizes, devices=2), Topology.this_machine(2))


def calibrated_cpu_problem(name: str) -> PlacementProblem:
    """It with the costs that a dozen executions have shown: what all methods of the table plan with."""
    problem = cpu_problem(name)
    with cpu_executor(problem) as executor:
        source = MeasuredTime(executor, repeats=2)
        for row in spread_assignments(problem, 12, np.random.default_rng(2)):
            source.measure(row, row)
        return calibrated(problem, list(source.recent))


def emulated(name: str, jitter: float) -> Executor:
    """The devices behind the emulated rows."""
    return emulated_executor(
        raw_problem(name), bound_s=BOUND_S[name], jitter=jitter, contention="ports", slow_links=[(0, 1, 3.0)]
    )


def learned_assignments(problem: PlacementProblem, policy: Any, count: int) -> Integers:
    """The best different samples of a policy."""
    prepared = policy.prepare(problem, np.random.default_rng(FEATURE_SEED))
    found = decode(policy, prepared, problem, SimulatedTime(), np.random.default_rng(0), 8 * count)
    rows = np.unique(np.stack([item.assignment for item in found]), axis=0, return_index=True)[1]
    return np.stack([found[row].assignment for row in np.sort(rows)[:count]])


def calibration(kind: str, name: str, policies: Path, quick: bool) -> Row:
    """Simulated against measured times of 60 assignments, before and after calibration."""
    problem = cpu_problem(name) if kind == "2 CPU" else raw_problem(name)
    executor = cpu_executor(problem) if kind == "2 CPU" else emulated(name, 0.0)
    rng, repeats = np.random.default_rng(1), 3 if quick else 5
    path = train_cell("main/doppler", [f"graph={name}", "seed=0"], policies, quick)[0]
    policy = load_policy(path)[0]
    rows = [
        *spread_assignments(problem, 6 if quick else 40, rng),
        *(place(method, problem).assignment for method in HEURISTICS),
        *learned_assignments(problem, policy, 10),
    ]
    with executor:
        source = MeasuredTime(executor, disturbed=DISTURBED, window=1000)
        taught = [*spread_assignments(problem, 12, rng), *rows[-20:-16]]
        known, times = [], np.zeros((repeats, len(rows)))
        for again in range(repeats):  # all in turn, so that a machine that is slower for a while is so for all
            for row in taught:
                source.measure(row, row)
            known += list(source.recent)[-len(taught) :]
            times[again] = [source.measure(row, row)[0] for row in rows]
        believed = calibrated(problem, known)
    median = np.median(times, axis=0)
    halves = [np.median(times[part], axis=0) for part in (slice(0, None, 2), slice(1, None, 2))]
    result: Row = {"part": "calibration", "devices": kind, "graph": name, "assignments": len(rows)}
    result |= {"contention": believed.contention, "dropped": source.dropped, "runs": source.calls}
    result |= {
        "ceiling": agreement(*halves).rank_correlation,
        "repeatability": float(np.median(np.abs(halves[0] / halves[1] - 1))),
    }
    for when, simulator in (("before", problem), ("after", believed)):
        simulated = makespans(simulator, np.stack(rows), memory="off")
        if when == "before":
            simulated = simulated * np.median(median / simulated)  # another unit
        result[f"spearman_{when}"], result[f"error_{when}"] = agreement(simulated, median)
    return result | {"points": [[float(a), float(b)] for a, b in zip(simulated, median, strict=True)]}


def online(name: str, arm: str, seed: int, folder: Path, policies: Path, quick: bool) -> Row:
    """One training by real runs, and what its policy's answer takes before and after."""
    cell, settings = ARMS[arm]
    problem = raw_problem(name)
    start = None if cell is None else train_cell(cell, [f"graph={name}", f"seed={seed}"], policies, quick)[0]
    updates = 6 if quick else 100
    plan = PlacementPlan(
        [problem],
        stages={"online": {"updates": updates, **settings}},
        start=None if start is None else str(start),
        seed=seed,
        validate_every=5,
    )
    target, lines = folder / f"{name}_{arm.replace(' ', '')}_{seed}", list[Row]()
    second = train_cell("main/doppler", [f"graph={name}", f"seed={seed}"], policies, quick)[0]
    before = best_answer(second, problem)
    with emulated(name, 0.2) as executor:
        source = MeasuredTime(executor, disturbed=np.inf, seed=seed)
        begin, cpu = time.perf_counter(), time.process_time()
        path = plan.train(target, lambda line: lines.append(dict(line)), real=source)
        wall, cpu = time.perf_counter() - begin, time.process_time() - cpu
        busy, runs = source.seconds, source.calls
        seen = load_problem(target, "policy") if (target / "policy_graph.json").exists() else problem
        after = best_answer(path, seen, source.believed(problem) if settings.get("searched") != 0 else None)
        judge = MeasuredTime(executor, repeats=3 if quick else 15, disturbed=np.inf, seed=10_000 + seed)
        then, now = (judge.measure(row, row)[1] for row in (before, after))
    return {
        "part": "online",
        "graph": name,
        "arm": arm,
        "seed": seed,
        "stage_two_s": float(then.mean()),
        "after_s": float(now.mean()),
        "ratio": float(now.mean() / then.mean()),
        "running_mean_s": busy / runs,
        "runs": runs,
        "idle": 1.0 - busy / wall,
        "cpu_s": cpu,
        "curve": [
            [line["runs"], line["makespan"] / float(then.mean())]
            for line in lines
            if line["stage"] == "online" and "makespan" in line
        ],
    }


def best_answer(path: Path, problem: PlacementProblem, simulator: PlacementProblem | None = None) -> Integers:
    """A policy's answer: the best of its greedy and 64 sampled placements in a simulator; greedy without one."""
    policy, _ = load_policy(path)
    prepared = policy.prepare(problem, np.random.default_rng(FEATURE_SEED))
    rows = answers(policy, prepared, np.random.default_rng(0), 64)[0]
    return rows[int(np.argmin(makespans(simulator or problem, rows, memory="off")))]


def safe(name: str, seed: int, folder: Path, policies: Path, quick: bool) -> Row:
    """Stage III within 5 % of the incumbent's mean, after every run."""
    problem, log = raw_problem(name), list[tuple[bytes, float]]()
    start = train_cell("main/doppler", [f"graph={name}", f"seed={seed}"], policies, quick)[0]
    stages = {"online": {"updates": 12 if quick else 60, "safe": 0.05}}
    plan = PlacementPlan([problem], stages=stages, start=str(start), seed=seed, validate_every=5)
    with emulated(name, 0.2) as executor:

        class Logged(MeasuredTime):
            """Notes every run."""

            def run(self, problem: Any, assignment: Any, order: Any, limit: float = np.inf) -> float:
                seconds = super().run(problem, assignment, order, limit)
                log.append((np.asarray(assignment).tobytes(), seconds))
                return seconds

        plan.train(folder / f"{name}_safe_{seed}", real=Logged(executor, disturbed=np.inf, seed=seed))
    times, number = np.array([seconds for _, seconds in log]), np.arange(1, len(log) + 1)
    incumbent = np.array([key == log[0][0] for key, _ in log])
    usual, running = times[incumbent].mean(), times.cumsum() / number
    known = (times * incumbent).cumsum() / incumbent.cumsum()  # its first run alone may be off by all of the jitter
    return {
        "part": "safe",
        "graph": name,
        "seed": seed,
        "runs": len(times),
        "incumbent_s": float(usual),
        "worst_running_mean": float((running / known).max()),
        "worst_from_20": float((running / usual)[20:].max()),
        "mean": float(times.mean() / usual),
        "last_50": float(times[-50:].mean() / usual),
    }


def table(kind: str, name: str, folder: Path, policies: Path, quick: bool) -> list[Row]:
    """Measured times of all methods' placements on one kind of devices."""
    problem = calibrated_cpu_problem(name) if kind == "2 CPU" else raw_problem(name)
    rows = {method: place(method, problem).assignment for method in ("critical_path", "enumerative", "portfolio")}
    if kind == "2 CPU":
        rows |= cpu_policies(problem, name, folder, quick)
    else:
        for label, cell in (*RIVALS.items(), ("DOPPLER-SIM", "main/doppler")):
            settings = [f"graph={name}"] + (["seed=0"] if label == "DOPPLER-SIM" else [])
            rows[label] = best_answer(train_cell(cell, settings, policies, quick)[0], problem)
        target = folder / f"{name}_I+II+III_0"
        if not (target / "policy.pt").exists():
            online(name, "I + II + III", 0, folder, policies, quick)
        with emulated(name, 0.2) as executor:
            source = MeasuredTime(executor, disturbed=np.inf, window=64)
            for row in spread_assignments(problem, 8, np.random.default_rng(3)):
                source.measure(row, row)
            believed = source.believed(problem)
        rows["DOPPLER-SYS"] = best_answer(target / "policy.pt", load_problem(target, "policy"), believed)
    with cpu_executor(problem) if kind == "2 CPU" else emulated(name, 0.2) as executor:
        source = MeasuredTime(executor, repeats=5 if quick else 30, disturbed=DISTURBED if kind == "2 CPU" else np.inf)
        measured = {method: source.measure(row, row)[1] for method, row in rows.items()}
    return [
        {
            "part": "table",
            "devices": kind,
            "graph": name,
            "method": method,
            "mean_ms": float(times.mean()) * 1e3,
            "deviation_ms": float(times.std()) * 1e3,
            "runs": len(times),
        }
        for method, times in measured.items()
    ]


def cpu_policies(problem: PlacementProblem, name: str, folder: Path, quick: bool) -> dict[str, Integers]:
    """Placements of policies trained for two processors: in the simulator, and DOPPLER by real runs too."""
    found, short = dict[str, Integers](), 4 if quick else 1
    rival = {"imitation": {"updates": 20}, "simulation": {"updates": 400 // short, "algorithm": "ppo", "epochs": 2}}
    for label, policy in (("PLACETO", "placeto"), ("GDP", "gdp")):
        plan = PlacementPlan([problem], policy=policy, stages=rival, seconds=40 / short, validate_every=10, samples=16)
        found[label] = best_answer(plan.train(folder / f"cpu_{name}_{policy}"), problem)
    first = {"imitation": {"updates": 40}, "simulation": {"updates": 120 // short}}
    path = PlacementPlan([problem], stages=first, validate_every=20).train(folder / f"cpu_{name}_doppler")
    found["DOPPLER-SIM"] = best_answer(path, problem)
    plan = PlacementPlan([problem], stages={"online": {"updates": 60 // short}}, start=str(path), validate_every=5)
    with cpu_executor(problem) as executor:
        source = MeasuredTime(executor)
        last = plan.train(folder / f"cpu_{name}_online", real=source)
        found["DOPPLER-SYS"] = best_answer(last, load_problem(last.parent, "policy"), source.believed(problem))
    return found


def jobs(part: str, quick: bool) -> Iterator[tuple[str, Row]]:
    """(part, what tells the row) of everything that is to be measured."""
    graphs, seeds = (GRAPHS[:1], (0,)) if quick else (GRAPHS, (0, 1, 2))
    for name in graphs:
        for kind in ("4 emulated", "2 CPU"):
            if part in ("calibration", "all"):
                yield "calibration", {"devices": kind, "graph": name}
    for seed in seeds:
        for name in graphs:
            if part in ("online", "all"):
                for arm in ARMS if not quick else ("I + II + III",):
                    yield "online", {"graph": name, "arm": arm, "seed": seed}
            if part in ("safe", "all"):
                yield "safe", {"graph": name, "seed": seed}
    for name in graphs:
        for kind in ("4 emulated", "2 CPU"):
            if part in ("table", "all"):
                yield "table", {"devices": kind, "graph": name}


def compute(part: str, folder: Path, policies: Path, quick: bool) -> list[Row]:
    """All rows; each is written as soon as it is there, and not made again."""
    folder.mkdir(parents=True, exist_ok=True)
    path, console, rows = folder / "rows.jsonl", Console(stderr=True), list[Row]()
    for what, told in jobs(part, quick):
        known = [json.loads(text) for text in path.read_text().splitlines()] if path.exists() else []
        mine = [row for row in known if row["part"] == what and all(row[key] == value for key, value in told.items())]
        if not mine:
            console.print(f"{what} {told}")
            if what == "calibration":
                mine = [calibration(told["devices"], told["graph"], policies, quick)]
            elif what == "online":
                mine = [online(**told, folder=folder, policies=policies, quick=quick)]
            elif what == "safe":
                mine = [safe(**told, folder=folder, policies=policies, quick=quick)]
            else:
                mine = table(told["devices"], told["graph"], folder, policies, quick)
            with path.open("a") as file:
                file.writelines(json.dumps(row) + "\n" for row in mine)
        rows += mine
    return rows


def show(rows: list[Row]) -> None:
    """One table a part."""
    console = Console(width=200)
    for part in dict.fromkeys(row["part"] for row in rows):
        mine = [row for row in rows if row["part"] == part]
        names = [name for name in mine[0] if name not in ("part", "points", "curve")]
        shown = Table(title=part)
        for name in names:
            shown.add_column(name, justify="left" if isinstance(mine[0][name], str) else "right")
        for row in mine:
            shown.add_row(*(f"{row[n]:.4g}" if isinstance(row[n], float) else str(row[n]) for n in names))
        console.print(shown)


def main() -> None:
    """Measure what is missing, print tables, and the rows as JSON on the last line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one graph, few runs")
    parser.add_argument("--part", default="all", choices=("calibration", "online", "safe", "table", "all"))
    parser.add_argument("--folder", type=Path, default=Path("runs/measured_placement"))
    parser.add_argument("--policies", type=Path, default=Path("runs/learned_placement"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    quick = options.quick
    folder = options.folder / "quick" if quick else options.folder
    rows = compute(
        "calibration" if quick else options.part, folder, options.policies / ("quick" if quick else ""), quick
    )
    show(rows)
    print(json.dumps({"rows": rows}))


if __name__ == "__main__":
    main()
