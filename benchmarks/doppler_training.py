"""CPU time of a training episode on one thread: DOPPLER's, its rivals', the naive form's, and how it grows.

An update of the published recipe (``conf/stage/reinforce.yaml``: roll-out, simulation, log-probabilities, gradients,
Adam's step) and the default recipe, through the stage that ``hadoppler train`` runs. The naive form of the same run
passes messages and keeps a graph for gradients at every step, an episode at a time. What the public code takes is
quoted, not measured. Growth: cost per operation on random graphs of one width, and on chains, against that at 250.

    python benchmarks/doppler_training.py [--quick]
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from importlib.resources import files
from typing import Any

import numpy as np
import torch
import yaml
from rich.console import Console
from rich.table import Table

from hadoppler.agents.placement import losses
from hadoppler.agents.placement.checkpoint import policy_class
from hadoppler.agents.placement.choices import draw, score_choices
from hadoppler.agents.placement.doppler import DopplerPolicy
from hadoppler.agents.placement.policy import Exploration
from hadoppler.agents.placement.rewards import SimulatedTime
from hadoppler.agents.placement.rollout_kernels import ALLOWED_COLUMN
from hadoppler.agents.placement.stages import Learner, Simulation
from hadoppler.agents.placement.stepwise import StepwisePolicy, current_states, device_features
from hadoppler.agents.placement.tasks import Tasks
from hadoppler.envs.placement import DataflowGraph, EpisodeBatch, PlacementProblem, make_graph, makespans

PUBLIC_S = {"chainmm": 1.5, "ffnn": 3.9, "llama_block": 4.0, "llama_layer": 5.0}
"""CPU seconds of a training episode of the public code."""
TARGET_MS = {"chainmm": 3.0, "ffnn": 8.0, "llama_block": 8.0, "llama_layer": 10.0}
RIVALS = {"gdp": (64, 64), "joint": (64, 8), "placeto": (4, 1), "doppler_stepwise": (4, 1)}
"""Policies beside ours, and the episodes of an update, and of a quick one: few where more cost as much each."""
WIDTH, EPISODES, SIZES, GROWTH = 25, 8, (250, 10_000), 1.5
"""Of the graphs that grow: operations side by side, episodes, operations, and the ratio that must not be passed."""


class Stopwatch:
    """CPU seconds spent in calls that were wrapped, by name."""

    def __init__(self) -> None:
        self.spent: dict[str, float] = {}

    def wrap(self, name: str, owner: Any, attribute: str) -> None:
        """Replace a method of an object by one that is timed."""
        call = getattr(owner, attribute)

        def timed(*args: Any, **options: Any) -> Any:
            begin = time.process_time()
            try:
                return call(*args, **options)
            finally:
                self.spent[name] = self.spent.get(name, 0.0) + time.process_time() - begin

        object.__setattr__(owner, attribute, timed)


def published_recipe(**changes: Any) -> Simulation:
    """The stage of ``conf/stage/reinforce.yaml``."""
    text = files("hadoppler.conf").joinpath("stage", "reinforce.yaml").read_text()
    told: dict[str, Any] = yaml.safe_load(text)["simulation"]
    settings: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in told.items()}
    return Simulation(**settings | changes)


def make_learner(policy_name: str, problem: PlacementProblem, stage: Simulation) -> Learner:
    """A learner with a new policy of default size."""
    torch.manual_seed(0)
    policy = policy_class(policy_name)()
    return Learner(
        policy=policy,
        tasks=Tasks(policy, [problem], 1),
        reward=SimulatedTime(),
        optimizer=torch.optim.Adam(policy.parameters(), stage.learning_rate[0]),
        advantage=losses.Advantage(stage.baseline),
    )


def update_parts(policy: str, problem: PlacementProblem, stage: Simulation, updates: int) -> dict[str, float]:
    """CPU milliseconds per episode of the fastest of some updates, and its parts."""
    learner, watch = make_learner(policy, problem, stage), Stopwatch()
    task, rng = learner.tasks[0], np.random.default_rng(0)
    assert task.bound > 0  # computed once a problem, not in an update
    watch.wrap("roll_out", learner.policy, "roll_out")
    watch.wrap("simulation", learner.reward, "times")
    found = []
    for number in range(updates):
        watch.spent = {}
        begin = time.process_time()
        stage.update(learner, [task], number, rng, 0.0)
        total = time.process_time() - begin
        found.append({"total": total} | watch.spent | {"gradient": total - sum(watch.spent.values())})
    best = min(found, key=lambda parts: parts["total"])
    return {name: seconds / stage.batch * 1e3 for name, seconds in best.items()}


def default_recipe(problem: PlacementProblem, updates: int) -> dict[str, float]:
    """CPU milliseconds per played episode of the default recipe over a whole stage, and its searches' part.

    A search and some updates without one are measured and weighted as often as they occur.
    """
    stage = Simulation()
    learner, watch = make_learner("doppler", problem, stage), Stopwatch()
    task, rng = learner.tasks[0], np.random.default_rng(0)
    assert task.bound > 0
    watch.wrap("search", stage, "_search")
    begin = time.process_time()
    for number in range(updates):
        stage.update(learner, [task], number, rng, 0.0)
    searches = -(-updates // stage.search_every)
    without = (time.process_time() - begin - watch.spent["search"]) / learner.episodes
    of_stage = sum(
        number / (stage.updates - 1) <= stage.search_until for number in range(0, stage.updates, stage.search_every)
    )
    search = watch.spent["search"] / searches * of_stage / (stage.updates * stage.batch)
    return {"total": (without + search) * 1e3, "search": search * 1e3}


def compile_everything() -> None:
    """Run all once on a tiny problem."""
    tiny = PlacementProblem.raw(make_graph("chain", length=5))
    for policy in ("doppler", *RIVALS):
        update_parts(policy, tiny, published_recipe(batch=2), 1)
    default_recipe(tiny, 1)
    naive_ms(tiny, 1)


def naive_episode(
    policy: StepwisePolicy, problem: PlacementProblem, optimizer: torch.optim.Optimizer, prepared: Any, seed: int
) -> None:
    """One episode and its update: messages, and a graph for gradients, at every step."""
    inputs, batch, told = prepared.inputs, EpisodeBatch(problem, 1, prepared.inputs.scale), []
    generator = torch.Generator().manual_seed(seed)
    for _ in range(problem.n):
        states = current_states(batch, inputs)
        known = policy.look(inputs, states)
        select = policy.select_logits(inputs, states, known)
        operation = draw(select.detach(), states.candidate, 1.0, 0.2, generator)
        features = torch.from_numpy(device_features(batch, operation.numpy(), inputs))
        place, allowed = policy.device_logits(inputs, states, known, operation, features), features[..., ALLOWED_COLUMN]
        device = draw(place.detach(), allowed > 0, 1.0, 0.2, generator)
        told += [score_choices(select, states.candidate, operation), score_choices(place, allowed > 0, device)]
        batch.step(operation.numpy(), device.numpy())
    advantage = 1.0 - float(makespans(problem, batch.state.assignment)[0]) / batch.scale
    loss = -torch.stack([advantage * choice.log_probability + 1e-2 * choice.entropy for choice in told]).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def naive_ms(problem: PlacementProblem, episodes: int) -> float:
    """CPU milliseconds of the fastest of some naive episodes."""
    torch.manual_seed(0)
    policy = StepwisePolicy()
    prepared = policy.prepare(problem, np.random.default_rng(0))
    optimizer = torch.optim.Adam(policy.parameters(), 1e-4)
    return best_of(lambda: naive_episode(policy, problem, optimizer, prepared, 0), episodes) * 1e3


def best_of(call: Callable[[], Any], repeats: int) -> float:
    """CPU seconds of the fastest of some calls."""
    found = []
    for _ in range(repeats):
        begin = time.process_time()
        call()
        found.append(time.process_time() - begin)
    return min(found)


def measure(name: str, quick: bool) -> dict[str, Any]:
    """One graph's row."""
    problem = PlacementProblem.raw(make_graph(name, costs="published"))
    ours = update_parts("doppler", problem, published_recipe(), 3 if quick else 20)
    recipe = default_recipe(problem, 3 if quick else 20)
    naive = naive_ms(problem, 1 if quick else 5)
    row: dict[str, Any] = {"part": "episode", "graph": name, "operations": problem.n}
    row |= {"reinforce_ms": ours["total"], "target_ms": TARGET_MS[name]}
    row |= {f"{part}_ms": ours[part] for part in ("roll_out", "simulation", "gradient")}
    row |= {"expert_ms": recipe["total"], "search_ms": recipe["search"]}
    row |= {"naive_ms": naive, "naive_ratio": naive / ours["total"]}
    row |= {"public_code_ms": PUBLIC_S[name] * 1e3, "public_code_ratio": PUBLIC_S[name] * 1e3 / ours["total"]}
    for rival, batch in RIVALS.items():
        stage = published_recipe(batch=batch[quick])
        row[f"{rival}_ms"] = update_parts(rival, problem, stage, 1 if quick else 3)["total"]
    return row


def layered(operations: int) -> DataflowGraph:
    """A random graph of one width and mean degree, so that only its length grows."""
    return make_graph("layered_random", layers=operations // WIDTH, width=WIDTH, density=2 / WIDTH, seed=0)


GROWING: dict[str, Callable[[int], DataflowGraph]] = {
    "layered": layered,
    "chain": lambda operations: make_graph("chain", length=operations),
}


def cost_per_operation(graph: DataflowGraph, repeats: int) -> dict[str, float]:
    """CPU microseconds per operation and episode: an update, and a greedy and some sampled placements."""
    problem = PlacementProblem.raw(graph)
    stage, share = published_recipe(batch=EPISODES), 1e3 / graph.n
    torch.manual_seed(0)
    policy, draws = DopplerPolicy(), np.random.default_rng(0)
    prepared = policy.prepare(problem, draws)

    def place() -> None:
        policy.roll_out(prepared, 1, draws, Exploration.greedy(), record=False)
        policy.roll_out(prepared, EPISODES - 1, draws, record=False)

    place()
    return {
        "training_us": update_parts("doppler", problem, stage, repeats)["total"] * share,
        "inference_us": best_of(place, repeats) / EPISODES * share * 1e3,
    }


def measure_growth(quick: bool) -> list[dict[str, Any]]:
    """A row per graph and size, with the ratio to the least size."""
    rows: list[dict[str, Any]] = []
    for name, build in GROWING.items():
        for operations in SIZES:
            graph = build(operations)
            cost = cost_per_operation(graph, max(3, (10_000 if quick else 100_000) // operations))
            row: dict[str, Any] = {"part": "growth", "graph": name, "operations": graph.n, "edges": graph.e, **cost}
            first = next((other for other in rows if other["graph"] == name), row)
            row |= {key.replace("_us", "_ratio"): row[key] / first[key] for key in cost}
            rows.append(row)
    return rows


def print_table(title: str, rows: list[dict[str, Any]], columns: tuple[str, ...]) -> None:
    """One table of some columns."""
    table = Table(title=title)
    for column in columns:
        table.add_column(column, justify="left" if column == "graph" else "right")
    for row in rows:
        table.add_row(*(f"{row[key]:,.2f}" if isinstance(row[key], float) else str(row[key]) for key in columns))
    Console(width=150).print(table)


def main() -> None:
    """Measure, print tables, and the rows as JSON on the last line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer updates, and one episode of the slow rivals")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    compile_everything()
    rows = [measure(name, quick) for name in PUBLIC_S]
    own = ("reinforce_ms", "target_ms", "roll_out_ms", "simulation_ms", "gradient_ms", "expert_ms", "search_ms")
    print_table("CPU milliseconds per training episode, one thread", rows, ("graph", "operations", *own))
    others = ("naive_ms", "naive_ratio", "public_code_ms", "public_code_ratio", *(f"{rival}_ms" for rival in RIVALS))
    print_table("beside ours (public code: quoted)", rows, ("graph", "reinforce_ms", *others))
    growth = measure_growth(quick)
    columns = ("graph", "operations", "edges", "training_us", "training_ratio", "inference_us", "inference_ratio")
    title = (
        f"CPU microseconds per operation and episode, {EPISODES} episodes; at most {GROWTH} times that at {SIZES[0]}"
    )
    print_table(title, growth, columns)
    print(json.dumps({"rows": rows + growth}))


if __name__ == "__main__":
    main()
