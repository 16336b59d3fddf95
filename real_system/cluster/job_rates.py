"""How fast jobs are expected to be on a run's nodes: emulated, or by the formula, and corrected by what is measured."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from ...envs.cluster import Cluster, ThroughputTable, Workload
from ...envs.cluster.estimation import estimate_table
from ...envs.cluster.estimator import RateEstimator
from ...envs.cluster.facts import GPUS, GpuFacts, ModelFacts
from ...envs.cluster.job import join_kind
from ...envs.cluster.scheduler import MixedRate
from ...envs.errors import ClusterError
from .apart import Answer, Question, Waiting, ask_apart
from .crew import Pace
from .emulation import HEADROOM, EmulatedPace, OwnPace, node_speeds
from .training_job import JobSpec

Rates = Literal["formula", "table"]
CORE = GpuFacts(50e9, 10e9, 10e9, "one processor core (our choice)")
"""What the formula knows of a node of speed 1 that is emulated."""
GUESSED_S = 0.05
GUESSED = ModelFacts(1e6, 1e5, 1e3, 1e5, source="a guess: the job's code could not be asked")
"""For jobs whose code fails before it trains: it will tell itself what is wrong."""


@dataclass
class JobRates:
    """Rates of tasks on the nodes of a cluster.

    Attributes:
        cluster: the nodes.
        emulated: whether nodes are; their relative speeds are then those of the cluster.
        base_s: seconds of a step at speed 1, where emulated; None: ``HEADROOM`` times what it takes to compute.
        rates: what schedulers are shown first: the ``formula``'s estimates, which measurements correct, or the
            ``table`` of the emulated rates, which nothing corrects.
        problems: sentences about jobs whose code could not be asked.
    """

    cluster: Cluster
    emulated: bool = True
    base_s: float | None = 0.03
    rates: Rates = "formula"
    problems: list[str] = field(default_factory=list)
    _base: dict[tuple[str, int], float] = field(default_factory=dict)
    _facts: dict[str, ModelFacts] = field(default_factory=dict)
    _kinds: dict[tuple[str, int, int], JobSpec] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._speed = node_speeds(self.cluster)
        if self.base_s is not None and not 0 < self.base_s < float("inf"):
            raise ClusterError(f"base_s is {self.base_s}; expected seconds above 0, or null to measure.")
        if self.rates == "table" and not self.emulated:
            raise ClusterError("rates=table needs emulated nodes, whose rates are known; use rates=formula.")

    def prepare(self, specs: Iterable[JobSpec], waiting: Waiting | None = None) -> None:
        """Get to know jobs: their kinds, what a step of theirs computes, and how long it takes.

        A job's code is asked in a process of its own; what cannot be learned is guessed, and told in ``problems``.

        Args:
            specs: of the jobs.
            waiting: told now and then which job is being asked.
        """
        known = list(specs)
        questions = self.questions(known)
        self.learn(known, questions, ask_apart(questions, waiting=waiting))

    def questions(self, specs: Iterable[JobSpec]) -> list[Question]:
        """What must be asked of jobs' code before their rates can be told; nothing of kinds that are known."""
        kinds = {(spec.task, spec.batch_size): spec for spec in specs}
        asked: list[Question] = []
        if self.emulated and self.base_s is None:
            asked += [("seconds", spec, "") for kind, spec in kinds.items() if kind not in self._base]
        if self.rates == "formula":
            tasks = {spec.task: spec for spec in kinds.values() if spec.task not in self._facts}
            asked += [("facts", spec, "") for spec in tasks.values()]
        return asked

    def learn(self, specs: Iterable[JobSpec], questions: Sequence[Question], answers: Sequence[Answer]) -> None:
        """Take in jobs, and what was answered about them."""
        for spec in specs:
            self._kinds.setdefault((spec.task, spec.batch_size, spec.workers), spec)
            if self.emulated and self.base_s is not None:
                self._base[spec.task, spec.batch_size] = self.base_s
        for (kind, spec, _), answer in zip(questions, answers, strict=True):
            if isinstance(answer, str):
                self.problems.append(answer)
            if kind == "seconds":
                took = HEADROOM * answer["seconds"] if isinstance(answer, dict) else GUESSED_S
                self._base[spec.task, spec.batch_size] = took
            else:
                self._facts[spec.task] = ModelFacts(**answer) if isinstance(answer, dict) else GUESSED

    @property
    def pace(self) -> Pace:
        """How long steps last."""
        return EmulatedPace(self._base, self._speed) if self.emulated else OwnPace(self._speed)

    def table(self) -> ThroughputTable:
        """Rates of all known kinds: emulated ones, or the formula's."""
        if not self.emulated:
            return self._formula()
        entries = [
            (join_kind(task, batch), workers, kind, rate, rate)
            for task, batch, workers in self._kinds
            for kind, speed in zip(self.cluster.types, self._speed.tolist(), strict=True)
            for rate in [workers * speed / self._base[task, batch]]
        ]
        return ThroughputTable.build(entries, "emulated nodes")

    def estimates(self) -> ThroughputTable | None:
        """What schedulers are shown at first; None: the table."""
        return None if self.rates == "table" else self._formula()

    def estimator(self, workload: Workload, mixed_rate: MixedRate) -> RateEstimator | None:
        """What corrects the estimates of a workload's rates; None where they are known."""
        estimates = self.estimates()
        if estimates is None:
            return None
        return RateEstimator.from_table(estimates, workload, self.cluster, mixed_rate)

    def _formula(self) -> ThroughputTable:
        kinds = [(join_kind(task, batch), workers) for task, batch, workers in self._kinds]
        return estimate_table(kinds, self.cluster.types, models=self._facts, gpus=self._gpus())

    def _gpus(self) -> dict[str, GpuFacts]:
        if not self.emulated:
            return {**GPUS, "cpu": CORE}
        return {
            kind: GpuFacts(
                speed * CORE.flops_per_s, speed * CORE.memory_bytes_per_s, speed * CORE.pcie_bytes_per_s, "emulated"
            )
            for kind, speed in zip(self.cluster.types, self._speed.tolist(), strict=True)
        }
