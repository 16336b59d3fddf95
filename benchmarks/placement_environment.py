"""Steps a second of the vector environment against the single one, same problem, same actions, same run.

python benchmarks/placement_environment.py [--quick]
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
from rich.console import Console
from rich.table import Table

import hadoppler  # noqa: F401  registers the environments

NAME = "hadoppler/DevicePlacement-v0"


def rate_of(episode: Callable[[], Any], steps: int, repeats: int) -> float:
    """Best steps a second over a few episodes."""
    seconds = []
    for _ in range(repeats):
        begin = time.perf_counter()
        episode()
        seconds.append(time.perf_counter() - begin)
    return steps / min(seconds)


def measure(graph: str, episodes: int, repeats: int) -> dict[str, Any]:
    """One row: both environments on a graph, with random devices in topological order."""
    single = gym.make(NAME, graph=graph)
    vector = gym.make_vec(NAME, num_envs=episodes, graph=graph, observation="lean")
    single.reset(seed=0)
    vector.reset(seed=0)
    problem = single.get_wrapper_attr("instance")
    rng = np.random.default_rng(0)
    actions = [
        np.stack([np.full(episodes, v), rng.integers(0, problem.d, episodes)], axis=1)
        for v in problem.graph.topological_order
    ]

    def play_single() -> None:
        single.reset()
        for action in actions:
            single.step(action[0])

    def play_vector() -> None:
        for action in actions:
            vector.step(action)
        vector.step(actions[0])  # starts the next episodes

    play_single()
    play_vector()
    ours = rate_of(play_vector, episodes * len(actions), repeats)
    rival = rate_of(play_single, len(actions), repeats)
    return {"graph": graph, "episodes": episodes, "vector_per_s": ours, "single_per_s": rival, "ratio": ours / rival}


def main() -> None:
    """Measure, print a table, and the rows as JSON on the last line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one graph, fewer repetitions")
    quick = parser.parse_args().quick
    rows = [measure(name, 64, 5 if quick else 15) for name in (("chainmm",) if quick else ("chainmm", "ffnn"))]
    table = Table(title="environment steps a second")
    for column in rows[0]:
        table.add_column(column, justify="left" if column == "graph" else "right")
    for row in rows:
        table.add_row(*(f"{value:,.1f}" if isinstance(value, float) else str(value) for value in row.values()))
    Console(width=120).print(table)
    print(json.dumps({"rows": rows}))


if __name__ == "__main__":
    main()
