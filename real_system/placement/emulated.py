"""Emulated devices: real threads and real messages, but operations only take their time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter, sleep
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from ...envs.errors import PlacementError
from ...envs.placement import PlacementProblem, lower_bounds
from ...envs.placement.graph import Floats
from ...envs.placement.topology import Contention
from . import settings
from .links import Links, TimedLinks, wake_up_on_time
from .run_plan import RunPlan
from .threads import ThreadExecutor

if TYPE_CHECKING:
    import torch

LONGEST_NAP_S = 0.2
"""An operation looks that often whether the execution has been ended."""


@dataclass(eq=False)
class EmulatedDevices:
    """Devices that behave as a problem says: its costs, its links and their contention.

    Attributes:
        truth: graph and devices; may differ from the problem that placements are made for.
        unit_s: seconds that a unit of the problem's time takes, 1 unless its costs are raw or to be scaled.
        jitter: deviation of the logarithm of a lognormal factor of mean 1 on every operation and transfer.
        slowness: [D] factor on the times of each device's operations; change it to let a device drift.
    """

    truth: PlacementProblem
    unit_s: float = 1.0
    jitter: float = 0.0
    slowness: Floats = field(default_factory=lambda: np.ones(1))

    def __post_init__(self) -> None:
        if not 0 < self.unit_s < np.inf:
            raise PlacementError(f"unit_s is {self.unit_s}; expected seconds above 0.")
        self.jitter = settings.deviation("jitter", self.jitter)
        self.slowness = settings.factors("slowness", self.slowness, self.truth.d)

    def job(self, plan: RunPlan, inputs: Mapping[str, Any] | None, seed: int) -> EmulatedJob:
        """As of ``DeviceKind``; inputs have no meaning here."""
        rng = np.random.default_rng(seed)
        placed, truth = np.array(plan.assignment), self.truth
        seconds = truth.compute_s[np.arange(truth.n), placed] * self.unit_s * self.slowness[placed]
        size = np.array([item.bytes for item in plan.transfers])
        source = np.array([item.source for item in plan.transfers], dtype=np.int64)
        target = np.array([item.target for item in plan.transfers], dtype=np.int64)
        moved = truth.seconds_per_byte[source, target] * size * self.unit_s
        if self.jitter:
            seconds = seconds * self._factors(rng, len(seconds))
            moved = moved * self._factors(rng, len(moved))
        latency = truth.latency[source, target] * self.unit_s
        return EmulatedJob(seconds.tolist(), list(zip(moved.tolist(), latency.tolist(), strict=True)))

    def _factors(self, rng: np.random.Generator, count: int) -> Floats:
        return np.exp(self.jitter * rng.standard_normal(count) - 0.5 * self.jitter**2)

    def links(self) -> Links:
        """As of ``DeviceKind``."""
        assert self.truth.contention is not None, "problems always have one"
        return TimedLinks(self.truth.contention, self.truth.topology.channels)

    def enter_thread(self) -> None:
        """As of ``DeviceKind``."""
        wake_up_on_time()


@dataclass(eq=False)
class EmulatedJob:
    """Times of one execution: [N] seconds of operations, [K] seconds and latency of transfers."""

    seconds: list[float]
    moved: list[tuple[float, float]]
    ended: bool = False

    def compute(self, v: int) -> None:
        """Sleep until the operation is over."""
        until = perf_counter() + self.seconds[v]
        while (left := until - perf_counter()) > 0 and not self.ended:
            sleep(min(left, LONGEST_NAP_S))

    def payload(self, transfer: int) -> None:
        """Nothing is carried."""

    def copy(self, transfer: int, payload: Any) -> tuple[float, float]:
        """Seconds and latency of a transfer."""
        return self.moved[transfer]

    def arrive(self, transfer: int, payload: Any) -> None:
        """Nothing is kept."""

    def release(self, v: int) -> None:
        """Nothing is held."""

    def outputs(self, phase: int) -> dict[str, torch.Tensor]:
        """Nothing is computed."""
        return {}

    def provide(self, inputs: Mapping[int, torch.Tensor]) -> None:
        """Nothing is read."""

    def stop(self) -> None:
        """End operations that sleep."""
        self.ended = True


def emulated_executor(
    problem: PlacementProblem,
    *,
    truth: PlacementProblem | None = None,
    unit_s: float | None = None,
    bound_s: float | None = None,
    jitter: float = 0.0,
    contention: Contention | None = None,
    slow_links: Sequence[tuple[int, int, float]] = (),
    slowness: ArrayLike = 1.0,
    timeout: float = 60.0,
) -> ThreadExecutor:
    """An executor of emulated devices.

    Args:
        truth: how devices really are; by default as the problem says.
        unit_s: seconds that a unit of the problem's time takes; 1 by default.
        bound_s: seconds that the problem's lower bound takes, instead of ``unit_s``; 0.05 by default where costs are
            in the public files' units.
        jitter: deviation of the logarithm of a lognormal factor of mean 1 on every operation and transfer.
        contention: how transfers really wait for each other.
        slow_links: (from, to, factor): links that really take so many times as long.
        slowness: one factor, or [D], on the times of operations.

    Raises:
        PlacementError: the truth is of another graph or another number of devices, or a number is not usable.
    """
    actual = truth or problem
    if (actual.n, actual.d) != (problem.n, problem.d):
        raise PlacementError(
            f"{problem.graph.title}: the truth has {actual.n} operations and {actual.d} devices, the problem "
            f"{problem.n} and {problem.d}; make them equal."
        )
    unit_s = seconds_per_unit(problem, unit_s, bound_s)
    bandwidth = actual.topology.bandwidth.copy()
    for source, target, factor in settings.links("slow_links", slow_links, problem.d):
        bandwidth[source, target] /= factor
    rule = contention or actual.contention
    actual = replace(actual, contention=rule, topology=actual.topology.with_links(bandwidth=bandwidth))
    factors = settings.factors("slowness", slowness, problem.d)
    return ThreadExecutor(problem, EmulatedDevices(actual, unit_s, jitter, factors), timeout)


def seconds_per_unit(problem: PlacementProblem, unit_s: float | None = None, bound_s: float | None = None) -> float:
    """Seconds that a unit of a problem's time takes on emulated devices; see ``emulated_executor``.

    Raises:
        PlacementError: one of them is not usable, or both are given.
    """
    if unit_s is not None and bound_s is not None:
        raise PlacementError(f"unit_s is {unit_s!r} and bound_s {bound_s!r}; each tells how long all takes: give one.")
    if unit_s is not None:
        return settings.seconds("unit_s", unit_s)
    if bound_s is not None:
        settings.seconds("bound_s", bound_s)
    usual = 0.05 if problem.topology.name == "raw" else None
    wanted = usual if bound_s is None else bound_s
    return 1.0 if wanted is None else wanted / (lower_bounds(problem).best or 1.0)
