"""How fast jobs are expected to be on a run's nodes: emulated, or by the formula, and corrected by what is measured."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from ...envs.cluster import Cluster, ThroughputTable, Workload
from ...envs.cluster.estimation import estimate_table
from ...envs.cluster.estimator import RateEstimator
from ...envs.cluster.facts import GPUS, GpuFacts, ModelFacts
from ...envs.cluster.job import join_kind
from ...envs.cluster.scheduler import MixedRate
from ...envs.errors import ClusterError
from .apart import ask_apart
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

    def prepare(self, specs: Iterable[JobSpec]) -> None:
        """Get to know jobs: their kinds, what a step of theirs computes, and how long it takes.

        A job's code is asked in a process of its own; what cannot be learned is guessed, and told in ``problems``.
        """
        new = [spec for spec in specs if (spec.task, spec.batch_size, spec.workers) not in self._kinds]
        self._kinds |= {(spec.task, spec.batch_size, spec.workers): spec for spec in new}
        unknown = {(spec.task, spec.batch_size): spec for spec in new}
        asked = [spec for key, spec in unknown.items() if key not in self._base]
        if self.emulated and self.base_s is not None:
            self._base |= dict.fromkeys(((spec.task, spec.batch_size) for spec in asked), self.base_s)
        elif self.emulated:
            for spec, answer in zip(asked, ask_apart([("seconds", spec, "") for spec in asked]), strict=True):
                self._note(answer)
                took = HEADROOM * answer["seconds"] if isinstance(answer, dict) else GUESSED_S
                self._base[spec.task, spec.batch_size] = took
        if self.rates == "formula":
            missing = [spec for spec in unknown.values() if spec.task not in self._facts]
            for spec, answer in zip(missing, ask_apart([("facts", spec, "") for spec in missing]), strict=True):
                self._note(answer)
                self._facts[spec.task] = ModelFacts(**answer) if isinstance(answer, dict) else GUESSED

    def _note(self, answer: dict[str, Any] | str) -> None:
        if isinstance(answer, str):
            self.problems.append(answer)

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
