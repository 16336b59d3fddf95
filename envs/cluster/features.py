"""What a policy sees of a round: bounded numbers per job and of the whole, free of the unit of time."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .held import Held
from .scheduler import ClusterView, Floats

FEATURE_LIMIT = 20.0
"""All features lie between 0 and this."""

JOB_FEATURES = (
    "present",
    "remaining",
    "total",
    "progress",
    "workers",
    "gpu_share",
    "waiting",
    "attained",
    "age",
    "weight",
    "running",
    "held_rate",
    "spread",
    "copies",
    "rank_remaining",
    "rank_work",
    "critical",
)
"""Columns of every job, before those per GPU type (``job_feature_names``). Seconds are in rounds, as
log(1 + x); ``remaining`` and ``total`` are alone on the fastest type; ``progress`` is the part done;
``workers`` log2(1 + W); ``gpu_share`` W / GPUs; ``waiting`` and ``age`` since arrival; ``attained`` GPU-seconds
per worker; ``weight`` log(1 + weight); ``held_rate`` steps/s now / fastest; ``spread``: held on several
nodes; ``copies``: log(1 + gangs); ``rank_*``: part of the window's jobs with less left (seconds; GPU-seconds);
``critical``: ``remaining`` / the seconds in which the window could at best be done."""

GLOBAL_FEATURES = ("elapsed", "mid_round", "restart", "jobs", "queue", "demand", "backlog")
"""Columns before those per type: seconds since the first arrival in rounds, log(1 + x); 1 in a refill; restart
cost / round; log(1 + jobs in the window, and waiting outside); log(1 + workers / GPUs); log(1 + rounds in which
the window could at best be done)."""


def job_feature_names(types: tuple[str, ...]) -> tuple[str, ...]:
    """``JOB_FEATURES``; then per type: gang rate / fastest, spread rate / fastest, held GPUs / W."""
    per_type = [f"{name}[{kind}]" for name in ("rate", "spread_rate", "held") for kind in types]
    return (*JOB_FEATURES, *per_type)


def global_feature_names(types: tuple[str, ...]) -> tuple[str, ...]:
    """``GLOBAL_FEATURES``; then per type: GPUs that may be given, and all, / the cluster's GPUs; mean rate."""
    per_type = [f"{name}[{kind}]" for name in ("free", "gpus", "mean_rate") for kind in types]
    return (*GLOBAL_FEATURES, *per_type)


def observe_round(
    view: ClusterView, held: Held, origin: float, queue: int
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """[N, F] features of the view's jobs, and [G] of the whole.

    Args:
        view: of at least one job.
        held: what they hold.
        origin: seconds of the first arrival.
        queue: jobs that wait outside the view.
    """
    best, workers, gpus = view.best_rate, view.workers, view.cluster.gpus
    seconds = view.remaining / best
    work = seconds * workers
    backlog = max(float(work.sum()) / gpus, float(seconds.max()))
    relative = view.gang_rates / best[:, None]
    columns = [
        np.ones(len(view)),
        _rounds(seconds, view),
        _rounds(view.steps / best, view),
        1.0 - view.remaining / view.steps,
        np.log2(1.0 + workers),
        workers / gpus,
        _rounds(view.waiting_s, view),
        _rounds(view.attained_s / workers, view),
        _rounds(view.time - view.arrival, view),
        np.log1p(view.weight),
        held.gangs > 0,
        held.rate / best,
        held.nodes > 1,
        np.log1p(held.gangs),
        _rank(seconds),
        _rank(work),
        seconds / backlog if backlog > 0 else seconds,
    ]
    jobs = np.concatenate(
        (np.stack(columns, axis=1), relative, view.spread_rates / best[:, None], held.counts / workers[:, None]), axis=1
    )
    whole = np.array(
        [
            np.log1p(max(0.0, view.time - origin) / view.round_s),
            view.mid_round,
            view.restart_s / view.round_s,
            np.log1p(len(view)),
            np.log1p(queue),
            np.log1p(workers.sum() / gpus),
            np.log1p(backlog / view.round_s),
            *(view.free.sum(axis=0) / gpus),
            *(view.cluster.gpus_of_type / gpus),
            *((relative * workers[:, None]).sum(axis=0) / workers.sum()),
        ]
    )
    return np.clip(jobs, 0, FEATURE_LIMIT).astype(np.float32), np.clip(whole, 0, FEATURE_LIMIT).astype(np.float32)


def _rounds(seconds: Floats, view: ClusterView) -> Floats:
    return np.log1p(np.maximum(seconds, 0.0) / view.round_s)


def _rank(values: Floats) -> Floats:
    """[N] part of the values that is smaller, ties by position."""
    rank = np.empty(len(values))
    rank[np.argsort(values, kind="stable")] = np.arange(len(values))
    return rank / len(values)
