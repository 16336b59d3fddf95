"""Problems in training: each with what is known of it, and where they come from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ...envs.arguments import check_whole
from ...envs.errors import TrainingError
from ...envs.placement import PlacementProblem, lower_bounds
from ...envs.placement.random_problems import LEAST_OPERATIONS, MOST_OPERATIONS, draw_problem
from .elites import Elites
from .policy import PlacementPolicy

ELITES = 32
"""Placements that are kept of each problem."""
FEATURE_SEED = 0
"""Random node features are drawn from this seed, in training and afterwards: they belong to a problem."""

MakeProblem = Callable[[int], PlacementProblem]


@dataclass(eq=False)
class Task:
    """A problem that is trained on."""

    problem: PlacementProblem
    prepared: Any
    elites: Elites
    visits: int = 0
    """Updates that played it"""

    @cached_property
    def bound(self) -> float:
        """The best lower bound of its makespan, or 1 where that is 0."""
        return lower_bounds(self.problem).best or 1.0


class Tasks:
    """The problems of a training: given ones, or as many as are asked for from a generator.

    Args:
        problems: all of them, or a function that makes problem number i, the same one each time.
        count: how many there are, if they are made.
    """

    def __init__(self, policy: PlacementPolicy, problems: Sequence[PlacementProblem] | MakeProblem, count: int) -> None:
        self.policy, self.problems = policy, problems
        self.count = count if callable(problems) else len(problems)
        self.known: dict[int, Task] = {}

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> Task:
        """Task ``number``, made when it is first asked for."""
        if number not in self.known:
            problem = self.problems(number) if callable(self.problems) else self.problems[number]
            prepared = self.policy.prepare(problem, np.random.default_rng(FEATURE_SEED))
            self.known[number] = Task(problem, prepared, Elites(problem.n, ELITES))
        return self.known[number]

    def draw(self, count: int, rng: np.random.Generator) -> list[Task]:
        """``count`` different tasks, or all if there are fewer."""
        return [self[int(number)] for number in rng.choice(len(self), min(count, len(self)), replace=False)]

    def state(self) -> dict[str, Any]:
        """Visits and elites of all tasks that were made, by number."""
        return {
            str(number): {"visits": task.visits, **task.elites.state()} for number, task in sorted(self.known.items())
        }

    def load(self, state: dict[str, Any]) -> None:
        """What ``state`` gave."""
        for number, told in state.items():
            self[int(number)].elites.load(told)
            self[int(number)].visits = int(told["visits"])


@dataclass(frozen=True)
class GeneratedProblems:
    """Problem number i of an endless list that a seed determines; see ``envs.placement.random_problems``.

    Raises:
        TrainingError: a number is no whole one, or too small; it is named.
    """

    seed: int = 0
    most_operations: int = MOST_OPERATIONS

    def __post_init__(self) -> None:
        check_whole("problems.seed", self.seed, TrainingError, 0)
        check_whole("problems.most_operations", self.most_operations, TrainingError, LEAST_OPERATIONS)

    def __call__(self, number: int) -> PlacementProblem:
        """The same problem for the same number."""
        return draw_problem(np.random.default_rng((self.seed, number)), self.most_operations)
