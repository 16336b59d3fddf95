"""Run a workload on a cluster under a scheduler, in simulated time."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, cast

import numpy as np

from ..errors import AllocationError, ClusterError
from .allocation_checks import forks_jobs, mixes_types
from .cluster import Cluster
from .estimator import RateEstimator
from .failures import NodeEvent
from .result import ClusterResult
from .rules import SimulationRules
from .scheduler import Allocation, FractionalPolicy, MixedRate, Scheduler, begin
from .simulation import Simulation
from .throughput import ThroughputTable
from .workload import Workload

MOST_ROUNDS = 2_000_000
"""Rounds that a single job may need; more are taken for a mistake in its steps or in the round's length."""


def simulate(
    workload: Workload,
    cluster: Cluster,
    scheduler: Scheduler | FractionalPolicy,
    *,
    round_s: float = 360.0,
    restart_s: float = 10.0,
    early_refill: bool = False,
    mixed_rate: MixedRate = "proportional",
    consolidation_s: float = 15.0,
    failures: Sequence[NodeEvent] = (),
    estimates: ThroughputTable | None = None,
    mechanism: Literal["gavel"] | None = None,
    seed: int = 0,
    explain: bool = False,
    log: bool = True,
    max_rounds: int | None = None,
) -> ClusterResult:
    """Run a workload on a cluster under a scheduler.

    Args:
        workload: the jobs; those that can never fit are reported and left out, with a count.
        cluster: the nodes.
        scheduler: who decides; with ``mechanism="gavel"`` a ``FractionalPolicy``, or a scheduler that
            has one as its ``policy``.
        round_s, restart_s, early_refill, mixed_rate, consolidation_s: ``SimulationRules``.
        failures: what happens to nodes when.
        estimates: rates that the scheduler is shown at first (``prior_table``); a ``RateEstimator``
            corrects them by what is measured. None: it is shown the true rates.
        mechanism: ``gavel`` follows Gavel's rounds to the letter, with its faults, for comparisons
            with it; the other rules are ignored then.
        seed: of the scheduler's random draws.
        explain: ask the scheduler for its reasons, for the log.
        log: keep every decision for ``rounds.csv``.
        max_rounds: stop after so many decisions; jobs that are not done count as unfinished.

    Raises:
        ClusterError: a rule is out of range.
        AllocationError: the scheduler broke a rule.
        ThroughputError: a GPU type or a model has no rates.
    """
    if mechanism == "gavel":
        from .gavel_mechanism import simulate_gavel

        policy = cast(FractionalPolicy, scheduler.policy if hasattr(scheduler, "policy") else scheduler)
        if estimates is not None:
            raise ClusterError("mechanism=gavel knows no estimates; leave estimates or mechanism out.")
        return simulate_gavel(workload, cluster, policy, round_s=round_s, seed=seed)
    if mechanism is not None:
        raise ClusterError(f"mechanism is {mechanism!r}; expected gavel or none.")
    if not isinstance(scheduler, Scheduler):
        raise ClusterError(
            f"{type(scheduler).__name__} is no scheduler: it lacks name, mixes, forks, reset or schedule."
        )
    rules = SimulationRules(round_s, restart_s, early_refill, mixed_rate, consolidation_s)
    rules.check_forks(scheduler.forks)
    foreseen = workload if estimates is None else replace(workload, throughputs=estimates)
    begin(scheduler, foreseen, cluster, round_s, np.random.default_rng(seed))
    estimator = None if estimates is None else RateEstimator.from_table(estimates, workload, cluster, mixed_rate)
    how = {"mixes": scheduler.mixes, "explain": explain, "log": log}
    if max_rounds is None:
        _check_length(workload, cluster, round_s)
    run = Simulation(workload, cluster, rules, failures=failures, estimator=estimator, **how)
    seconds = drive(run, scheduler, max_rounds)
    return run.result(scheduler.name, seconds)


def drive(run: Simulation, scheduler: Scheduler, max_rounds: int | None) -> float:
    """Decide until nothing is left to decide; wall seconds that the scheduler took."""
    decisions, seconds = 0, 0.0
    while (view := run.next_view()) is not None:
        begin = time.perf_counter()
        allocation = scheduler.schedule(view)
        seconds += time.perf_counter() - begin
        _check_promises(scheduler, allocation)
        run.apply(allocation)
        decisions += 1
        if max_rounds is not None and decisions >= max_rounds:
            break
    return seconds


def _check_length(workload: Workload, cluster: Cluster, round_s: float) -> None:
    """Refuse runs that would take hours because of one number, and name the job."""
    best = workload.rates(cluster)[0].max(axis=1, initial=0.0)
    rounds = np.where(best > 0, workload.steps / np.maximum(best, 1e-300), 0.0) / round_s
    longest = int(np.argmax(rounds))
    if rounds[longest] > MOST_ROUNDS:
        raise ClusterError(
            f"job {workload.jobs[longest].id!r} alone needs {rounds[longest]:.3g} rounds of {round_s:g} s on its "
            f"fastest type, more than {MOST_ROUNDS:,}; give longer rounds, fewer steps, or max_rounds."
        )


def _check_promises(scheduler: Scheduler, allocation: Allocation) -> None:
    """Refuse mixed and forked gangs of schedulers that said they give none: bounds and rejections rely on it."""
    if not isinstance(allocation, Allocation):
        raise AllocationError(
            f"{scheduler.name} returned {type(allocation).__name__}; schedule must return an Allocation."
        )
    if not scheduler.forks and forks_jobs(allocation):
        raise AllocationError(
            f"{scheduler.name} gives a job several gangs although its forks is False; set it to True."
        )
    if not scheduler.mixes and mixes_types(allocation):
        raise AllocationError(
            f"{scheduler.name} puts a gang on several types although its mixes is False; set it to True."
        )
