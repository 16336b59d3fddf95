"""What a job's completion is worth: Hadar's utilities, all plug-ins.

The Hadar papers (IPDPS 2024; arXiv 2503.10918) state that other policies can be expressed by the
utility function; the formulas here are our choice. All are non-negative and fall with the projected
completion time d = time since arrival + remaining steps / rate.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ...envs.cluster import ClusterView
from ...envs.errors import unknown_name

Floats = NDArray[np.float64]
Utility = Callable[[ClusterView, Floats], Floats]
"""(view, rates [N, K] in steps/s, all above 0) -> [N, K]: worth of running each job at each rate until
it ends. It must be non-negative and must not fall with the rate."""


def completion_time(view: ClusterView, rates: Floats) -> Floats:
    """[N, K] seconds from arrival to the end, as projected now."""
    return (view.time - view.arrival)[:, None] + view.remaining[:, None] / rates


def jct(view: ClusterView, rates: Floats) -> Floats:
    """Average completion time: t_min / d, t_min = all steps / best rate."""
    return (view.steps / view.best_rate)[:, None] / completion_time(view, rates)


def remaining(view: ClusterView, rates: Floats) -> Floats:
    """Remaining time: 1 / (remaining steps / rate)."""
    return rates / view.remaining[:, None]


def makespan(view: ClusterView, rates: Floats) -> Floats:
    """Makespan: W (remaining / slowest X) (rate / fastest X); much work left and a fast type count."""
    slowest = np.where(view.rates > 0, view.rates, np.inf).min(axis=1)
    return (view.workers * view.remaining / slowest)[:, None] * (rates / view.best_rate[:, None])


def finish_time_fairness(view: ClusterView, rates: Floats) -> Floats:
    """Finish-time fairness: 1 / rho, rho = d / time on an equal share of every type.

    The share is 1/m with m = jobs present now (our choice: a view does not tell how many there were at
    the job's arrival, on which the metric ``ftf`` rests).
    """
    present = len(view) + (len(view.held) if view.mid_round else 0)
    share = view.cluster.gpus_of_type[None, :] / (present * view.workers)[:, None]
    share = share / np.maximum(1.0, share.sum(axis=1, keepdims=True))
    isolated = view.steps / (view.rates * share).sum(axis=1)
    return isolated[:, None] / completion_time(view, rates)


def deadline(view: ClusterView, rates: Floats) -> Floats:
    """Deadlines: 1 / (1 + exp(4 (d / allowed - 1))), allowed = slo times the time on the fastest type.

    A smooth step from 1 to 0 at the deadline, as is usual for time-critical jobs. Jobs without one count by
    ``jct``, at most 1/2, so that they do not go before jobs that can still be in time.
    """
    allowed = (view.slo * view.steps / view.best_rate)[:, None]
    beyond = np.clip(4.0 * (completion_time(view, rates) / allowed - 1.0), -50.0, 50.0)
    return np.where(np.isnan(allowed), 0.5 * np.minimum(jct(view, rates), 1.0), 1.0 / (1.0 + np.exp(beyond)))


def weighted(utility: str | Utility) -> Utility:
    """A utility times the job's priority weight."""
    inner = find_utility(utility)
    return lambda view, rates: view.weight[:, None] * inner(view, rates)


UTILITIES: dict[str, Utility] = {
    "jct": jct,
    "remaining": remaining,
    "makespan": makespan,
    "finish_time_fairness": finish_time_fairness,
    "deadline": deadline,
}
"""Utilities by name, each also as ``weighted_NAME``; where a name is taken, a callable of the same kind will do."""
_WEIGHTED = "weighted_"


def find_utility(utility: str | Utility) -> Utility:
    """A utility by name, times the priority weight for ``weighted_NAME``, or the callable itself.

    Raises:
        UnknownNameError: nothing has the name; the valid ones are listed.
    """
    if callable(utility):
        return utility
    if utility in UTILITIES:
        return UTILITIES[utility]
    inner = str(utility).removeprefix(_WEIGHTED)
    if inner in UTILITIES:
        return weighted(inner)
    raise unknown_name("utility", str(utility), [*UTILITIES, *(_WEIGHTED + name for name in UTILITIES)])
