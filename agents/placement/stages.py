"""The stages of training: imitation of a teacher, then what the simulator (or a real system) says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, get_args

import numpy as np
import torch

from ...baselines.placement.annealing import improve
from ...baselines.placement.methods import METHODS
from ...baselines.placement.registry import run_method
from ...envs.errors import TrainingError
from ...envs.placement import Placement
from ...envs.placement.graph import Floats
from . import losses
from .policy import Exploration, PlacementPolicy, Trajectories
from .rewards import RewardSource, run_times
from .tasks import Task, Tasks

if TYPE_CHECKING:
    from .online import Online, Phase, RealSource

Algorithm = Literal["expert", "reinforce", "ppo"]
Told = dict[str, float]
LONGEST_GRADIENT = 1.0
"""Gradients are shortened to this norm (our choice)."""


@dataclass(eq=False)
class Learner:
    """What all stages work on; ``real`` and ``phase`` are stage III's: what runs placements, and what that showed."""

    policy: PlacementPolicy
    tasks: Tasks
    reward: RewardSource
    optimizer: torch.optim.Optimizer
    advantage: losses.Advantage
    episodes: int = 0
    max_calls: int | None = None
    real: RealSource | None = None
    phase: Phase | None = None

    @property
    def calls_left(self) -> float:
        """Simulator calls until the limit."""
        return np.inf if self.max_calls is None else max(self.max_calls - self.reward.calls, 0)

    def play(self, task: Task, episodes: int, rng: np.random.Generator, how: Exploration) -> Trajectories:
        """Episodes that count."""
        self.episodes += episodes
        return self.policy.roll_out(task.prepared, episodes, rng, how)

    def step(self, loss: torch.Tensor) -> float:
        """One step of the gradient; returns the loss.

        Raises:
            TrainingError: the loss or a gradient is not finite; the weights are as before.
        """
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        norm = torch.nn.utils.clip_grad_norm_(self.policy.parameters(), LONGEST_GRADIENT)
        if not (torch.isfinite(norm) and torch.isfinite(loss)):
            raise TrainingError(
                f"the gradient is not finite (loss {float(loss.detach()):g}); the last good checkpoint is kept; begin "
                "anew from it with start=policy.pt and a smaller learning rate."
            )
        self.optimizer.step()
        return float(loss.detach())


PAIRS = ("learning_rate", "epsilon", "entropy", "search_heat")
"""Settings with one value at a stage's start and one at its end."""
LEAST = {
    **dict.fromkeys(("updates", "imitations", "student_orders", "search_calls", "repeated", "searched", "samples"), 0),
    **dict.fromkeys(
        ("batch", "placements", "epochs", "search_every", "search_starts", "followed", "problems", "elites"), 1
    ),
    **dict.fromkeys(("refresh", "check_every", "settle"), 1),
}
"""Settings that are whole numbers, and the least of each."""


class Played(NamedTuple):
    """Episodes of a task and their times [B]."""

    task: Task
    episodes: Trajectories
    times: Floats


@dataclass(frozen=True)
class Imitation:
    """Stage I: do as a teacher does.

    Attributes:
        updates: steps of the gradient.
        batch: episodes of each.
        teacher: ``critical_path`` labels every state of the student's own episodes, all ties counting (paper); any
            other method that does not learn, or of another package, gives whole placements, which are followed.
        options: of that method.
        placements: how many of its placements a problem gets, from as many seeds.
        learning_rate: at the start and at the end, linear.
        epsilon: share of random decisions in the student's episodes, at the start and at the end.
    """

    updates: int = 60
    batch: int = 32
    teacher: str = "critical_path"
    options: Mapping[str, Any] = field(default_factory=dict)
    placements: int = 1
    learning_rate: tuple[float, float] = (2e-3, 5e-4)
    epsilon: tuple[float, float] = (1.0, 0.0)
    name: str = "imitation"

    problems: ClassVar[int] = 1

    def __post_init__(self) -> None:
        check_settings(self)

    def update(
        self, learner: Learner, tasks: list[Task], number: int, rng: np.random.Generator, progress: float
    ) -> Told:
        """One update; ``number`` counts the stage's updates, ``progress`` runs from 0 to 1."""
        task = tasks[0]
        rule = getattr(learner.policy, "rule_loss", None)
        if self.teacher == "critical_path" and rule is not None:
            how = Exploration(epsilon=between(self.epsilon, progress))
            return {"loss": learner.step(rule(task.prepared, learner.play(task, self.batch, rng, how)))}
        if not len(task.elites):
            self._ask(learner, task)
        return {"loss": imitate(learner, [task], self.batch, rng, own_order=number % 2 == 0)}

    def _ask(self, learner: Learner, task: Task) -> None:
        """The teacher's placements become the task's elites."""
        for seed in range(self.placements):
            found = run_method(
                self.teacher, task.problem, METHODS, seed=seed, order=learner.reward.execution, options=self.options
            )
            learner.reward.calls += found.calls
            task.elites.add(found.assignment, found.order, found.makespan)


@dataclass(frozen=True)
class Simulation:
    """Stage II (and III): learn from the time that placements take.

    Attributes:
        updates: how many.
        batch: episodes of each.
        algorithm: ``reinforce`` - the published recipe; ``ppo`` - clipped policy gradient; ``expert`` - our default:
            local search improves the policy's samples and the best placements so far, and the policy imitates the
            best, under orders of its own, beside a clipped policy gradient.
        learning_rate, epsilon, entropy: at the start and at the end, linear; ``epsilon`` is the share of random
            decisions, and with ``argmax`` all others are the most probable ones (paper).
        baseline: of the advantage, see ``losses.Advantage``.
        epochs: policy-gradient steps on each batch (``ppo``, ``expert``).
        clip: of the probability ratio.
        gradient: weight of the policy gradient beside imitation (``expert``).
        search_every: visits to a problem between two local searches.
        search_until: progress after which there are none, and what was found is learned; -1 for none at all.
        search_calls: simulator calls of each.
        search_starts: placements that a search starts from: half of them fresh samples, half elites.
        search_heat: temperature of searches at the start and at the end, shares of the makespan.
        imitations: imitation steps after each update.
        student_orders: in how many of them the policy itself draws the orders; see ``imitate``.
        followed: episodes of each, of every problem.
        problems: how many problems an update takes, of several; ``batch`` is shared out among them.
        elites: how many of the best placements are imitated.
        self_imitation: weight of the best placements' log-probability in ``reinforce`` and ``ppo``.
    """

    updates: int = 200
    batch: int = 64
    algorithm: Algorithm = "expert"
    learning_rate: tuple[float, float] = (2e-3, 1e-4)
    epsilon: tuple[float, float] = (0.0, 0.0)
    argmax: bool = False
    entropy: tuple[float, float] = (1e-3, 0.0)
    baseline: losses.Baseline = "batch"
    epochs: int = 1
    clip: float = 0.2
    gradient: float = 0.1
    search_every: int = 10
    search_until: float = 0.5
    search_calls: int = 60_000
    search_starts: int = 8
    search_heat: tuple[float, float] = (3e-3, 5e-4)
    imitations: int = 4
    student_orders: int = 3
    followed: int = 16
    problems: int = 1
    elites: int = 1
    self_imitation: float = 0.0
    name: str = "simulation"

    def __post_init__(self) -> None:
        check_settings(self)
        if self.algorithm not in get_args(Algorithm):
            raise TrainingError(f"algorithm is {self.algorithm!r}; expected {', '.join(get_args(Algorithm))}.")
        if self.baseline not in get_args(losses.Baseline):
            raise TrainingError(f"baseline is {self.baseline!r}; expected {', '.join(get_args(losses.Baseline))}.")

    def update(
        self, learner: Learner, tasks: list[Task], number: int, rng: np.random.Generator, progress: float
    ) -> Told:
        """As of ``Imitation``."""
        temperature = 0.0 if self.argmax else 1.0
        how = Exploration(temperature, temperature, between(self.epsilon, progress))
        batches = []
        for task in tasks:
            played = learner.play(task, max(self.batch // len(tasks), 1), rng, how)
            times = run_times(learner.reward, task.problem, played.assignment, played.order, rng)
            batches.append(Played(task, played, times))
            task.elites.add(played.assignment, played.order, times)
            due = task.visits % self.search_every == 0 and progress <= self.search_until
            if self.algorithm == "expert" and due and learner.calls_left >= 2 * self.search_starts:
                self._search(learner, batches[-1], rng, progress)
            task.visits += 1
        told = {"mean": float(np.mean([batch.times.mean() / batch.task.bound for batch in batches]))}
        told["loss"] = self._gradient(learner, batches, rng, progress)
        if self.algorithm == "expert":
            steps = [
                imitate(
                    learner,
                    tasks,
                    self.followed,
                    rng,
                    own_order=step < self.imitations - self.student_orders,
                    elites=self.elites,
                )
                for step in range(self.imitations)
            ]
            told["imitation"] = float(np.mean(steps)) if steps else 0.0
        return told

    def _gradient(self, learner: Learner, batches: list[Played], rng: np.random.Generator, progress: float) -> float:
        """Policy-gradient steps on what was played; returns the last loss."""
        if self.algorithm == "expert" and self.gradient == 0:
            return 0.0
        advantages = [
            learner.advantage(-batch.times / batch.task.bound, self._reference(learner, batch.task, rng))
            for batch in batches
        ]
        entropy, loss = between(self.entropy, progress), 0.0
        before: list[torch.Tensor] = []
        for _ in range(1 if self.algorithm == "reinforce" else self.epochs):
            objective = torch.zeros(())
            for i, (batch, advantage) in enumerate(zip(batches, advantages, strict=True)):
                scores = learner.policy.score(batch.task.prepared, batch.episodes)
                gained = advantage.to(scores.place.device)
                if len(before) == i:  # the first epoch
                    before.append((scores.select + scores.place).detach())
                if self.algorithm == "reinforce":
                    part = losses.reinforce_loss(scores, gained, entropy)
                else:
                    part = losses.clipped_loss(scores, before[i], gained, self.clip, entropy)
                objective = objective + (part + self._imitated(learner, batch.task)) / len(batches)
            loss = learner.step(objective * (self.gradient if self.algorithm == "expert" else 1.0))
        return loss

    def _reference(self, learner: Learner, task: Task, rng: np.random.Generator) -> float | None:
        """Reward of the greedy episode, if it is the baseline."""
        if self.baseline != "greedy":
            return None
        greedy = learner.play(task, 1, rng, Exploration.greedy())
        return -float(run_times(learner.reward, task.problem, greedy.assignment, greedy.order, rng)[0]) / task.bound

    def _imitated(self, learner: Learner, task: Task) -> torch.Tensor | float:
        """Self-imitation: the loss of the best placement so far."""
        if self.self_imitation == 0:
            return 0.0
        best = learner.policy.follow(task.prepared, task.elites.assignments[:1], task.elites.orders[:1])
        return self.self_imitation * losses.imitation_loss(learner.policy.score(task.prepared, best))

    def _search(self, learner: Learner, batch: Played, rng: np.random.Generator, progress: float) -> None:
        """Local search from the best samples and from elites; what it finds becomes elites."""
        task, assignment = batch.task, batch.episodes.assignment
        fresh = np.argsort(batch.times, kind="stable")[: self.search_starts - self.search_starts // 2]
        starts = [Placement(assignment[b], batch.episodes.order[b]) for b in fresh]
        kept = min(len(task.elites), self.search_starts // 2)
        starts += [task.elites.placement(rank) for rank in range(kept)]
        execution = learner.reward.execution
        found = improve(
            task.problem,
            starts,
            rng=rng,
            execution=execution,
            calls=int(min(self.search_calls, learner.calls_left)),
            hot=between(self.search_heat, progress),
        )
        learner.reward.calls += sum(item.calls for item in found)
        rows, orders = np.stack([item.assignment for item in found]), np.stack([item.order for item in found])
        task.elites.add(rows, orders, run_times(learner.reward, task.problem, rows, orders, rng))


def imitate(
    learner: Learner, tasks: list[Task], episodes: int, rng: np.random.Generator, *, own_order: bool, elites: int = 1
) -> float:
    """One step towards the best placements of some tasks.

    With ``own_order`` the elites are followed in their own orders, and both policies learn. Without, in orders that
    the student draws, and PLC learns where each operation belongs whatever came before it: this, not the orders that
    the elites happen to have, is what makes it find them again (our finding).
    """
    policy, loss = learner.policy, torch.zeros(())
    for task in tasks:
        count = min(elites, len(task.elites))
        pick = rng.integers(count, size=episodes) if count > 1 else np.full(episodes, task.elites.target)
        assignments, orders = task.elites.assignments[pick], task.elites.orders[pick]
        if not own_order:
            how = Exploration(select_temperature=float(rng.integers(2)))
            orders = policy.roll_out(task.prepared, episodes, rng, how).order
        elif count == 1:
            assignments, orders = assignments[:1], orders[:1]
        scores = policy.score(task.prepared, policy.follow(task.prepared, assignments, orders))
        loss = loss + losses.imitation_loss(scores, order=own_order) / len(tasks)
    return learner.step(loss)


def check_settings(stage: Imitation | Simulation | Online) -> None:
    """Refuse numbers that a stage cannot work with.

    Raises:
        TrainingError: a setting is of another type, or out of its range; it is named.
    """
    for item in fields(stage):
        value = getattr(stage, item.name)
        expected = _expected(item.name, value)
        if expected is not None:
            told = list(value) if isinstance(value, tuple) else value
            raise TrainingError(f"stage.{stage.name}.{item.name} is {told!r}; expected {expected}.")


def _expected(name: str, value: Any) -> str | None:
    """What a setting should be, if it is not."""
    if name in LEAST:
        fits = type(value) is int and value >= LEAST[name]
        return None if fits else f"a whole number from {LEAST[name]} up"
    if name in PAIRS:
        most = 1.0 if name == "epsilon" else 1e6
        fits = isinstance(value, tuple) and len(value) == 2 and all(_is_number(end, most) for end in value)
        return None if fits else f"two numbers from 0 to {most:g}, at the start and at the end"
    if name == "safe" and value is not None and not _is_number(value, 1e6):
        return "a share from 0 up such as 0.05, or null for no limit"
    if name == "search_until" and value != -1 and not _is_number(value, 1.0):
        return "a share from 0 to 1, or -1 for no search"
    if name in ("clip", "gradient", "self_imitation") and not _is_number(value, 1e6):
        return "a number from 0 up"
    return None


def _is_number(value: Any, most: float) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= most


def between(ends: tuple[float, float], progress: float) -> float:
    """A setting on its linear way from its value at a stage's start to that at its end."""
    return float(ends[0] + (ends[1] - ends[0]) * progress)
