"""Stage III: learn from placements that are really run, a few at a time, while the system is in use."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
import torch

from ...baselines.placement.annealing import improve
from ...envs.errors import TrainingError
from ...envs.placement import Placement, PlacementProblem
from ...envs.placement.graph import Floats, Integers
from . import losses
from .coarse_costs import coarse
from .decoding import answers, decode
from .elites import Elites
from .policy import Exploration, PlacementPolicy, Trajectories
from .rewards import RewardSource
from .stages import Learner, Told, between, check_settings, imitate
from .tasks import FEATURE_SEED, Task
from .tried import Tried, simulated_seconds

SEARCH_HEAT = 3e-3
"""Temperature at the start of a search, as a share of the makespan (our choice)."""
SEARCH_STARTS = 4
"""A search starts from so many of the best placements that were run, and as many samples of the policy (our choice)."""
SLOWEST = 3.0
"""A run is ended when it takes so many times the best time known, and counts as that long (our choice)."""
CAUTION = 2.0
"""Deviations of a run's time that safe exploration keeps in reserve (our choice)."""
WORTH_IT = 0.01
"""Another placement is imitated if it is faster by this share: it may look quite different (our choice)."""
LEVEL = 32
"""Sampled times against which a new one is judged."""


class RealSource(RewardSource, Protocol):
    """A reward source that runs placements on devices."""

    def run(self, problem: PlacementProblem, assignment: Integers, order: Integers, limit: float) -> float:
        """Seconds of one run; one that is still under way after ``limit`` seconds is ended and took ``limit``."""

    def believed(self, problem: PlacementProblem) -> PlacementProblem | None:
        """The problem with the costs that the runs have shown, in seconds; None if they do not tell."""

    def forget(self) -> None:
        """The system has changed: believe only the latest runs."""


class Proposal(NamedTuple):
    """A placement to be run; ``episode`` is its number among the policy's samples, -1 for others."""

    assignment: Integers
    order: Integers
    expected: float
    episode: int = -1


@dataclass(eq=False)
class Batch:
    """Placements that are run together.

    Attributes:
        proposals: in the order in which they are run.
        task: the problem as the policy saw it.
        episodes: its samples among them, if there are any.
        times: seconds of those episodes that were run, by number.
    """

    proposals: list[Proposal]
    task: Task
    episodes: Trajectories | None = None
    times: dict[int, float] = field(default_factory=dict)


@dataclass(eq=False)
class Phase:
    """What stage III knows while it goes on.

    Attributes:
        real: what runs placements.
        tried: what was run.
        given: the problem.
        task: the problem as the policy sees it, with the placement that is imitated as its elite; devices and links
            have the speeds that the first runs have shown, roughly, see ``coarse``.
        incumbent: the placement that the phase began with.
        believed: the problem with the costs that all runs have shown, for searches.
        settled: whether the policy sees measured costs.
        target: number of the placement that is imitated.
        sampled: times of the latest samples of the policy.
        ran: the batch that was run last.
        following: the batch that is to be run next.
    """

    real: RealSource
    tried: Tried
    given: PlacementProblem
    task: Task
    incumbent: Proposal
    believed: PlacementProblem | None = None
    settled: bool = False
    target: int = 0
    sampled: tuple[float, ...] = ()
    ran: Batch | None = None
    following: Batch | None = None

    def state(self) -> dict[str, Any]:
        """Plain values, for a checkpoint: all but batches under way, and what ``real`` and the simulator believe."""
        return {
            "tried": self.tried.state(),
            "target": self.target,
            "sampled": self.sampled,
            "settled": self.settled,
        }

    @classmethod
    def resumed(
        cls, real: RealSource, state: Mapping[str, Any], task: Task, policy: PlacementPolicy, seen: PlacementProblem
    ) -> Phase:
        """Go on with what ``state`` gave; the simulator is corrected by new runs, the next batch is proposed anew.

        Args:
            task: of the problem as it was given.
            seen: the problem as the policy saw it.
        """
        tried = Tried.load(state["tried"])
        incumbent = Proposal(tried.assignments[0], tried.orders[0], tried.incumbent_s)
        phase = cls(real, tried, task.problem, task, incumbent, target=int(state["target"]))
        phase.sampled = tuple(map(float, state["sampled"]))
        if state["settled"]:
            phase.see(policy, seen)
        phase.aim()
        return phase

    def see(self, policy: PlacementPolicy, problem: PlacementProblem) -> None:
        """From now on the policy sees the problem with these costs."""
        prepared = policy.prepare(problem, np.random.default_rng(FEATURE_SEED))
        self.task, self.settled = Task(problem, prepared, self.task.elites), True

    def aim(self) -> None:
        """Let the placement that is imitated be the task's elite."""
        tried = self.tried
        self.task.elites = Elites(self.task.problem.n, 1)
        self.task.elites.add(tried.assignments[self.target], tried.orders[self.target], tried.expected[self.target])

    def fastest(self) -> Placement:
        """The placement that is expected to be the fastest of all that were run.

        ``makespan`` is simulated, as of every placement; ``notes`` tell what was measured: the mean seconds of its
        runs and their number, the incumbent's mean, and the number of all runs of the phase.
        """
        tried = self.tried
        times = tried.times[tried.best]
        notes = {
            "measured_s": float(np.mean(times)),
            "measured_runs": len(times),
            "incumbent_s": tried.incumbent_s,
            "runs": tried.runs,
        }
        found = Placement(
            tried.assignments[tried.best], tried.orders[tried.best], "online", self.real.execution, notes=notes
        )
        return replace(found, makespan=found.simulate(self.given, memory="off").makespan)


@dataclass(frozen=True)
class Online:
    """Stage III: learn from measured runs.

    Each update runs ``batch`` placements: some that the policy samples, some that local search finds in a simulator
    corrected by what the runs have shown, and again the best ones so far, whose means so become reliable. The policy
    then imitates the best, beside a clipped policy gradient on its own samples. It learns from one batch while the
    next one is being run.

    Attributes:
        updates: how many; there are ``updates * batch`` real runs.
        batch: runs of each.
        repeated: of them, runs of the policy's answer and of the placements that are expected to be the fastest.
        samples: episodes from which the policy's answer is taken, beside the greedy one; see ``answer``.
        searched: of them, placements of the search; with 0 the simulator is not corrected and times alone teach.
        learning_rate, epsilon, entropy: at the start and at the end, linear.
        clip: of the probability ratio.
        gradient: weight of the policy gradient beside imitation.
        refresh: updates between two corrections of the simulator.
        settle: runs after which the policy sees how fast devices and links have shown to be.
        search_calls: simulator calls of each search.
        search_until: progress after which there are none, and what was found is learned; -1 for none at all.
        imitations, student_orders, followed: as of ``Simulation``.
        safe: share above the incumbent's time within which the mean time of all runs stays after every run; None for
            no limit. Placements are then tried only where they are expected to be faster than the incumbent, and where
            what was saved so far covers the risk; else the best placement known is run. A run that exceeds its
            allowance is ended.
        check_every: runs between two of the incumbent.
    """

    updates: int = 100
    batch: int = 5
    repeated: int = 2
    samples: int = 64
    searched: int = 2
    learning_rate: tuple[float, float] = (1e-3, 1e-4)
    epsilon: tuple[float, float] = (0.0, 0.0)
    entropy: tuple[float, float] = (1e-3, 0.0)
    clip: float = 0.2
    gradient: float = 0.1
    refresh: int = 4
    settle: int = 20
    search_calls: int = 8_000
    search_until: float = 0.6
    imitations: int = 4
    student_orders: int = 3
    followed: int = 8
    safe: float | None = None
    check_every: int = 20
    name: str = "online"

    problems: ClassVar[int] = 1

    def __post_init__(self) -> None:
        check_settings(self)
        if self.repeated > self.batch:
            raise TrainingError(
                f"stage.{self.name}.repeated is {self.repeated}, more than the {self.batch} runs of a batch; give a "
                f"larger batch, or at most stage.{self.name}.repeated={self.batch}."
            )

    def update(
        self, learner: Learner, tasks: list[Task], number: int, rng: np.random.Generator, progress: float
    ) -> Told:
        """Run a batch, and learn from the one before meanwhile."""
        if learner.phase is None:
            learner.phase = self._begin(learner, tasks[0], rng)
        phase, real = learner.phase, learner.phase.real
        batch, before = phase.following or self._propose(learner, phase, rng, progress), phase.ran
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(self._run_all, phase, batch)
            told = self._learn(learner, phase, before, rng, progress)
            if self.searched and (phase.believed is None or number % self.refresh == 0):
                self._correct(learner, phase)
            phase.following = self._propose(learner, phase, rng, progress) if len(phase.tried.expected) else None
            ran = running.result()
        phase.ran = batch
        if phase.tried.has_drifted():
            phase.tried.forget()
            real.forget()
            phase.believed, phase.target, phase.settled, phase.following = None, 0, False, None
        phase.tried.estimate(phase.believed, real.execution)
        self._choose_target(phase)
        return told | {
            "seconds_best": float(phase.tried.expected[phase.tried.best]),
            "seconds_mean": float(np.mean(ran)),
            "seconds_incumbent": phase.tried.incumbent_s,
        }

    def answer(self, learner: Learner, phase: Phase, rng: np.random.Generator) -> tuple[Proposal, float]:
        """What the policy would place: the best of its greedy and of sampled episodes in the corrected simulator.

        Without one: the greedy one. The number is what the greedy one is expected to take.
        """
        count = self.samples if phase.believed is not None else 0
        assignments, orders = answers(learner.policy, phase.task.prepared, rng, count)
        expected = self._expect(phase, assignments, orders)
        best = int(np.argmin(expected))
        return Proposal(assignments[best], orders[best], float(expected[best])), float(expected[0])

    def _begin(self, learner: Learner, task: Task, rng: np.random.Generator) -> Phase:
        """The incumbent is the best of what the policy and the earlier stages know, by simulated time."""
        found = decode(learner.policy, task.prepared, task.problem, learner.reward, rng)[0]
        assignment, order = found.assignment, found.order
        if task.elites.best < found.makespan:
            assignment, order = task.elites.assignments[0], task.elites.orders[0]
        assert learner.real is not None, "checked when the training began"
        tried = Tried(ordered=learner.real.execution == "priority")
        return Phase(learner.real, tried, task.problem, task, Proposal(assignment, order, np.inf))

    def _correct(self, learner: Learner, phase: Phase) -> None:
        """Believe what the runs have shown; let the policy see it, roughly, once there are enough of them.

        Without that it could not tell devices apart that are equal on paper.
        """
        phase.believed = phase.real.believed(phase.given)
        if phase.believed is None or phase.settled or phase.tried.runs < self.settle:
            return
        phase.see(learner.policy, coarse(phase.given, phase.believed))

    def _choose_target(self, phase: Phase) -> None:
        """Imitate the placement that is expected to be the fastest, but do not change for next to nothing."""
        tried = phase.tried
        if tried.expected[tried.best] < tried.expected[phase.target] * (1.0 - WORTH_IT):
            phase.target = tried.best
        phase.aim()

    def _propose(self, learner: Learner, phase: Phase, rng: np.random.Generator, progress: float) -> Batch:
        """The next batch: what is run again, what the search found, and samples of the policy."""
        tried, wanted = phase.tried, list[Proposal]()
        if not tried.runs:
            wanted.append(phase.incumbent)
        else:
            wanted.append(self.answer(learner, phase, rng)[0])
            for i in tried.ranked(max(self.repeated - 1, 0)):
                wanted.append(Proposal(tried.assignments[i], tried.orders[i], float(tried.expected[i])))
            wanted += self._search(learner, phase, rng, progress)
        count, played = max(self.batch - len(wanted), 0), None
        if count:
            how = Exploration(epsilon=between(self.epsilon, progress))
            played = learner.play(phase.task, count, rng, how)
            expected = self._expect(phase, played.assignment, played.order)
            rows = zip(played.assignment, played.order, expected.tolist(), strict=True)
            wanted += [Proposal(a, o, e, episode) for episode, (a, o, e) in enumerate(rows)]
        return Batch(wanted[: self.batch], phase.task, played)

    def _expect(self, phase: Phase, assignments: Integers, orders: Integers) -> Floats:
        """[B] seconds that placements may take: measured, or simulated if the simulator was corrected, or infinite."""
        expected = np.full(len(assignments), np.inf)
        if phase.believed is not None and len(phase.tried.expected):
            tried = phase.tried
            simulated = simulated_seconds(phase.believed, assignments, orders, phase.real.execution)
            best = simulated_seconds(
                phase.believed, tried.assignments[tried.best][None], tried.orders[tried.best][None],
                phase.real.execution,
            )  # fmt: skip
            expected = simulated * (tried.expected[tried.best] / best[0])
        for row, (assignment, order) in enumerate(zip(assignments, orders, strict=True)):
            number = phase.tried.find(assignment, order)
            if number is not None and number < len(phase.tried.expected):
                expected[row] = phase.tried.expected[number]
        return expected

    def _search(self, learner: Learner, phase: Phase, rng: np.random.Generator, progress: float) -> list[Proposal]:
        """Placements that local search finds in the corrected simulator and that were not run yet."""
        if not self.searched or phase.believed is None or progress > self.search_until:
            return []
        tried, task, execution = phase.tried, phase.task, phase.real.execution
        played = learner.play(task, SEARCH_STARTS, rng, Exploration())
        starts = [Placement(tried.assignments[i], tried.orders[i]) for i in tried.ranked(SEARCH_STARTS)]
        starts += [Placement(a, o) for a, o in zip(played.assignment, played.order, strict=True)]
        found = improve(phase.believed, starts, rng=rng, execution=execution, calls=self.search_calls, hot=SEARCH_HEAT)
        learner.reward.calls += sum(item.calls for item in found)
        new = [item for item in found if tried.find(item.assignment, item.order) is None]
        distinct = {item.assignment.tobytes(): item for item in sorted(new, key=lambda item: -item.makespan)}
        chosen = sorted(distinct.values(), key=lambda item: item.makespan)[: self.searched]
        if not chosen:
            return []
        assignments, orders = np.stack([c.assignment for c in chosen]), np.stack([c.order for c in chosen])
        expected = self._expect(phase, assignments, orders).tolist()
        return [Proposal(a, o, e) for a, o, e in zip(assignments, orders, expected, strict=True)]

    def _run_all(self, phase: Phase, batch: Batch) -> list[float]:
        """Run proposals one after the other; in the thread that waits for the devices."""
        ran, tried = list[float](), phase.tried
        for proposal in batch.proposals:
            due = tried.runs % self.check_every == 0
            item, limit = (phase.incumbent, np.inf) if due else self._permitted(phase, proposal)
            seconds = phase.real.run(phase.given, item.assignment, item.order, limit)
            tried.record(item.assignment, item.order, seconds)
            ran.append(seconds)
            if item.episode >= 0:
                batch.times[item.episode] = seconds
        return ran

    def _permitted(self, phase: Phase, proposal: Proposal) -> tuple[Proposal, float]:
        """What may be run in the place of a proposal, and after which time it is ended."""
        tried = phase.tried
        limit = SLOWEST * float(min((np.mean(times) for times in tried.times), default=np.inf))
        if self.safe is None:
            return proposal, limit
        spread, usual = tried.deviation, tried.incumbent_s
        certain = usual * (1.0 - CAUTION * spread / np.sqrt(len(tried.times[0])))
        room = (1.0 + self.safe) * certain * (tried.runs + 1) - tried.total - CAUTION * spread * usual
        if proposal.expected <= usual and proposal.expected * (1.0 + CAUTION * spread) <= room:
            return proposal, min(limit, room)
        known = len(tried.expected) and len(tried.times[tried.best]) > 2 and tried.expected[tried.best] <= usual
        if known:
            best = tried.best
            return Proposal(tried.assignments[best], tried.orders[best], float(tried.expected[best])), np.inf
        return phase.incumbent, np.inf

    def _learn(
        self,
        learner: Learner,
        phase: Phase,
        before: Batch | None,
        rng: np.random.Generator,
        progress: float,
    ) -> Told:
        """Imitate the best, and follow the gradient of the samples that were run before."""
        told: Told = {}
        if before is not None and before.times and self.gradient:
            told["loss"] = self._follow_gradient(learner, phase, before, progress)
        if len(phase.task.elites):
            steps = [
                imitate(
                    learner, [phase.task], self.followed, rng, own_order=step < self.imitations - self.student_orders
                )
                for step in range(self.imitations)
            ]
            told["imitation"] = float(np.mean(steps)) if steps else 0.0
        return told

    def _follow_gradient(self, learner: Learner, phase: Phase, before: Batch, progress: float) -> float:
        """A step of the clipped policy gradient; times are judged by the level of the latest samples."""
        times = before.times
        assert before.episodes is not None, "only episodes have such times"
        phase.sampled = (*phase.sampled, *times.values())[-LEVEL:]
        level, spread = float(np.mean(phase.sampled)), float(np.std(phase.sampled))
        rows = list(times)
        episodes = before.episodes.take(rows)
        gained = (level - np.array([times[row] for row in rows])) / max(spread, 1e-3 * level)
        scores = learner.policy.score(before.task.prepared, episodes)
        advantage = torch.from_numpy(gained.astype(np.float32)).to(scores.place.device)
        played_with = (scores.select + scores.place).detach()
        loss = losses.clipped_loss(scores, played_with, advantage, self.clip, between(self.entropy, progress))
        return learner.step(self.gradient * loss)
