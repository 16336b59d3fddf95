"""Does HadarE train better models? Held-out quality after equal total steps, with copies on unequal nodes and without.

In one process and without real time: each round every copy does its part of the round's steps from the same weights on
its own batches, and the states are averaged as the Job Tracker does. Four ways to do the same number of steps:

- ``one node``: un-forked, one step after the other;
- ``HadarE``: copies on nodes of unequal speed, averaged every round by their steps;
- ``equal nodes``: the same on nodes of equal speed;
- ``no averaging``: copies on the unequal nodes that never meet; the mean copy, and (``best``) the one that looks best
  on the held-out samples, which nobody could pick beforehand.

Verdicts are by a paired t-test over the seeds at 5 %; Wilcoxon's signed-rank test stands beside it, but with five seeds
its smallest possible p is 1/16. Finished rows are kept in ``--folder``.

    python benchmarks/fork_quality.py [--quick] [--task NAME] [--folder DIR]
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from scipy import stats

from hadoppler.envs.cluster.forks import split_steps
from hadoppler.real_system.cluster.averaging import average
from hadoppler.real_system.cluster.learner import Learner, State
from hadoppler.real_system.cluster.training_job import JobSpec

STEPS = {"digits": 1000, "language": 1500, "translation": 2000, "recommendation": 2000, "diabetes": 1500}
"""Task -> steps in all, of 32 samples each."""
UNEQUAL, EQUAL = (1.0, 0.9, 0.5, 0.35, 0.15), (1.0,) * 5
"""Speeds of nodes; the first are those of ``lab_like``."""
ARMS = {"one node": (), "HadarE": UNEQUAL, "equal nodes": EQUAL, "no averaging": UNEQUAL}
Row = dict[str, Any]


def train(learner: Learner, first: int, steps: int, counted: float, stretch: float) -> None:
    """Steps on consecutive batches; ``counted`` and ``stretch`` are the learning rate's position, as in a real run."""
    whole = slice(0, learner.spec.batch_size)
    for number in range(steps):
        learner.step(first + number, 1, whole, rate_at=counted + number * stretch)


def rounds_of(total: int, rounds: int, speeds: Sequence[float]) -> list[list[int]]:
    """Steps of each copy in each round; together ``total``."""
    shares, left = list[list[int]](), total
    for number in range(rounds):
        steps = round(left / (rounds - number))
        shares.append([round(share) for share in split_steps(steps, speeds, [2 * steps / sum(speeds)] * len(speeds))])
        left -= steps
    return shares


def forked(learner: Learner, total: int, rounds: int, speeds: Sequence[float]) -> list[dict[str, float]]:
    """Rounds of copies, averaged after each; quality at the end."""
    state, done = learner.state(), 0
    for shares in rounds_of(total, rounds, speeds):
        ends, first = list[State](), done
        for steps in shares:
            learner.load(state)
            train(learner, first, steps, done, sum(shares) / max(1, steps))
            ends.append(learner.state())
            first += steps
        state, done = average(ends, shares), first
    learner.load(state)
    return [learner.evaluate()]


def apart(learner: Learner, total: int, speeds: Sequence[float]) -> list[dict[str, float]]:
    """Copies that never meet; the quality of each."""
    begin, first, found = learner.state(), 0, []
    for steps in rounds_of(total, 1, speeds)[0]:
        learner.load(begin)
        train(learner, first, steps, 0, total / max(1, steps))
        found.append(learner.evaluate())
        first += steps
    return found


def measure(task: str, arm: str, seed: int, total: int, rounds: int) -> Row:
    """One training and its held-out quality."""
    learner = Learner(JobSpec("quality", task, total, seed=seed))
    if arm == "one node":
        train(learner, 0, total, 0, 1.0)
        found = [learner.evaluate()]
    elif arm == "no averaging":
        found = apart(learner, total, ARMS[arm])
    else:
        found = forked(learner, total, rounds, ARMS[arm])
    name, better = learner.job.quality, max if learner.job.higher_is_better else min
    values = [row[name] for row in found]
    return {
        "task": task, "arm": arm, "seed": seed, "steps": total, "rounds": rounds,
        "quality": name, "higher_is_better": learner.job.higher_is_better,
        "value": float(np.mean(values)), "best": better(values),
    }  # fmt: skip


def compute(tasks: Sequence[str], folder: Path, quick: bool) -> list[Row]:
    """All rows; each is written as soon as it is there, and not made again."""
    folder.mkdir(parents=True, exist_ok=True)
    path, console, rows = folder / "rows.jsonl", Console(stderr=True), list[Row]()
    known = [json.loads(text) for text in path.read_text().splitlines()] if path.exists() else []
    rounds, seeds = (3, (0, 1)) if quick else (20, (0, 1, 2, 3, 4))
    for task in tasks:
        total = 60 if quick else STEPS[task]
        for seed in seeds:
            for arm in ARMS:
                told = {"task": task, "arm": arm, "seed": seed, "steps": total, "rounds": rounds}
                mine = [row for row in known if all(row[key] == value for key, value in told.items())]
                if not mine:
                    console.print(f"{task}, {arm}, seed {seed}")
                    mine = [measure(task, arm, seed, total, rounds)]
                    with path.open("a") as file:
                        file.write(json.dumps(mine[0]) + "\n")
                rows += mine[:1]
    return rows


def compared(rows: Sequence[Row]) -> list[Row]:
    """Per task: each way to train against one node, and HadarE against equal nodes; differences paired by seed."""
    found = []
    for task in dict.fromkeys(row["task"] for row in rows):
        mine = [row for row in rows if row["task"] == task]
        values = {arm: np.array([row["value"] for row in mine if row["arm"] == arm]) for arm in ARMS}
        values["best without averaging"] = np.array([row["best"] for row in mine if row["arm"] == "no averaging"])
        for arm, rival in [(arm, "one node") for arm in values] + [("HadarE", "equal nodes")]:
            told = {"task": task, "quality": mine[0]["quality"], "trained": arm, "against": rival}
            found.append(told | verdict(values[arm], values[rival], mine[0]["higher_is_better"]))
    return found


def verdict(ours: np.ndarray, theirs: np.ndarray, higher_is_better: bool) -> Row:
    """Mean and spread, mean of the paired differences, both tests, and better, worse or undecided at 5 %."""
    differences = ours - theirs
    row: Row = {
        "mean": float(ours.mean()),
        "deviation": float(ours.std(ddof=1)),
        "difference": float(differences.mean()),
    }
    if not differences.any():
        return row | {"p_t": 1.0, "p_wilcoxon": 1.0, "verdict": "the same"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # few seeds, equal differences
        p_t = float(stats.ttest_rel(ours, theirs).pvalue)
        p_wilcoxon = float(stats.wilcoxon(ours, theirs).pvalue)
    better = (row["difference"] > 0) == higher_is_better
    word = "undecided" if not p_t < 0.05 else "better" if better else "worse"
    return row | {"p_t": p_t, "p_wilcoxon": p_wilcoxon, "verdict": word}


def show(rows: list[Row]) -> None:
    """The comparisons as one table."""
    shown = Table(title="Held-out quality after equal total steps")
    for name in rows[0]:
        shown.add_column(name, justify="left" if isinstance(rows[0][name], str) else "right")
    for row in rows:
        cells = (f"{value:.4g}" if isinstance(value, float) else str(value) for value in row.values())
        shown.add_row(*cells, end_section=row["against"] == "equal nodes")
    Console(width=160).print(shown)


def main() -> None:
    """Train what is missing, print the table, and the rows as JSON on the last line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="60 steps, 3 rounds, 2 seeds")
    parser.add_argument("--task", choices=(*STEPS, "all"), default="all")
    parser.add_argument("--folder", type=Path, default=Path("runs/fork_quality"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    tasks = list(STEPS) if options.task == "all" else [options.task]
    folder = options.folder / "quick" if options.quick else options.folder
    rows = compared(compute(tasks, folder, options.quick))
    show(rows)
    print(json.dumps({"rows": rows}))


if __name__ == "__main__":
    main()
