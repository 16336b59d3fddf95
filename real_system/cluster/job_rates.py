"""How fast jobs are expected to be on a run's nodes: emulated, or by the formula, and corrected by what is measured."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Literal

from ...envs.cluster import Cluster, ThroughputTable
from ...envs.cluster.estimation import estimate_table
from ...envs.cluster.facts import GPUS, GpuFacts
from ...envs.cluster.job import join_kind
from ...envs.errors import ClusterError
from .crew import Pace
from .emulation import HEADROOM, EmulatedPace, OwnPace, node_speeds
from .training_job import JobSpec

Rates = Literal["formula", "table"]
CORE = GpuFacts(50e9, 10e9, 10e9, "one processor core (our choice)")
"""What the formula knows of a node of speed 1 that is emulated."""
MEASURED_STEPS = 10


@dataclass
class JobRates:
    """Rates of tasks on the nodes of a cluster.

    Attributes:
        cluster: the nodes.
        emulated: whether nodes are; their relative speeds are then those of the cluster.
        base_s: seconds of a step at speed 1, where emulated; None: ``HEADROOM`` times what it takes to compute.
        rates: what schedulers are shown first: the ``formula``'s estimates, which measurements correct, or the
            ``table`` of the emulated rates, which nothing corrects.
    """

    cluster: Cluster
    emulated: bool = True
    base_s: float | None = 0.03
    rates: Rates = "formula"
    _base: dict[tuple[str, int], float] = field(default_factory=dict)
    _kinds: dict[tuple[str, int, int], JobSpec] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._speed = node_speeds(self.cluster)
        if self.base_s is not None and not self.base_s > 0:
            raise ClusterError(f"base_s is {self.base_s}; expected seconds above 0, or null to measure.")
        if self.rates == "table" and not self.emulated:
            raise ClusterError("rates=table needs emulated nodes, whose rates are known; use rates=formula.")

    def prepare(self, specs: Iterable[JobSpec]) -> None:
        """Get to know jobs: their kinds, and the base seconds of their steps."""
        for spec in specs:
            self._kinds.setdefault((spec.task, spec.batch_size, spec.workers), spec)
            if self.emulated and (spec.task, spec.batch_size) not in self._base:
                base = HEADROOM * step_seconds(spec) if self.base_s is None else self.base_s
                self._base[spec.task, spec.batch_size] = base

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

    def _formula(self) -> ThroughputTable:
        from .task_facts import task_facts

        models = {spec.task: task_facts(spec) for spec in self._kinds.values()}
        kinds = [(join_kind(task, batch), workers) for task, batch, workers in self._kinds]
        return estimate_table(kinds, self.cluster.types, models=models, gpus=self._gpus())

    def _gpus(self) -> dict[str, GpuFacts]:
        if not self.emulated:
            return dict(GPUS)
        return {
            kind: GpuFacts(
                speed * CORE.flops_per_s, speed * CORE.memory_bytes_per_s, speed * CORE.pcie_bytes_per_s, "emulated"
            )
            for kind, speed in zip(self.cluster.types, self._speed.tolist(), strict=True)
        }


def step_seconds(spec: JobSpec, steps: int = MEASURED_STEPS) -> float:
    """Median seconds that a step takes to compute here, on one thread."""
    import torch

    from .learner import Learner

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        learner = Learner(spec)
        whole = slice(0, spec.batch_size)
        times = []
        for number in range(steps + 3):
            begin = time.perf_counter()
            learner.step(number, 1, whole)
            times.append(time.perf_counter() - begin)
        return median(times[3:])
    finally:
        torch.set_num_threads(threads)


def make_specs(jobs: Sequence, seed: int) -> list[JobSpec]:
    """Specs of a workload's jobs, whose models are names of tasks; each job has its own seed."""
    return [
        JobSpec(job.id, job.model, int(job.steps), job.workers, job.batch_size or 32, seed * 100_003 + number)
        for number, job in enumerate(jobs)
    ]
