"""Figures of merit of a simulation. Times in seconds; means over finished jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .cluster import Cluster
from .scheduler import Floats
from .workload import Workload

if TYPE_CHECKING:
    from .result import ClusterResult


def summarise(result: ClusterResult) -> dict[str, Any]:
    """The metrics of one run.

    ``ttd_s``: total time duration, last finish - first arrival. ``mean_jct_s``, ``median_jct_s``,
    ``p99_jct_s``: job completion times. ``queueing_s``: mean of first start - arrival, ``max_queueing_s``
    its largest. ``waiting_s``: mean completion time without running time, ``max_waiting_s`` its
    largest. ``ftf``: mean finish-time fairness (completion / isolated time; below 1 is better than an
    equal share), ``max_ftf`` its worst. ``gru``: GPU-seconds held / (GPUs x span). ``cru``: node-seconds
    in use / (nodes x span), over nodes with GPUs. ``gru_work``, ``cru_work``: without restarts and
    consolidations. The span is TTD, longer only where jobs that were not finished held GPUs
    before or after it: their use counts, too, so none of the four exceeds 1. ``restarts``: starts on new GPUs.
    ``slo_met``: part of the jobs with a wanted completion time that kept it (if there are any). ``finished``,
    ``left_out``: jobs. ``decision_s``: wall seconds of the scheduler.
    """
    jobs = result.jobs
    done = jobs.finished
    values: dict[str, Any] = {
        "scheduler": result.scheduler,
        "workload": result.workload.name,
        "finished": int(done.sum()),
        "left_out": int((~done).sum()),
        "rejected_rows": len(result.workload.rejected),
        "restarts": int(jobs.restarts.sum()),
        "decision_s": result.decision_s,
    }
    if not done.any():
        return values
    ttd = float(jobs.finish[done].max() - jobs.arrival[done].min())
    jct, queueing, ftf = jobs.jct[done], jobs.queueing[done], jobs.ftf[done]
    nodes = int((result.cluster.capacity.sum(axis=1) > 0).sum())
    span = _span(result)
    gpu_s, node_s = result.cluster.gpus * span, nodes * span
    wanted = result.workload.slo * jobs.best_s
    if (asked := ~np.isnan(wanted)).any():
        values["slo_met"] = float((jobs.jct[asked & done] <= wanted[asked & done]).sum() / asked.sum())
    return values | {
        "ttd_s": ttd,
        "mean_jct_s": float(jct.mean()),
        "median_jct_s": float(np.median(jct)),
        "p99_jct_s": float(np.percentile(jct, 99)),
        "queueing_s": float(queueing.mean()),
        "max_queueing_s": float(queueing.max()),
        "waiting_s": float(jobs.waiting[done].mean()),
        "max_waiting_s": float(jobs.waiting[done].max()),
        "ftf": float(ftf.mean()),
        "max_ftf": float(ftf.max()),
        "gru": float(jobs.gpu_s.sum() / gpu_s),
        "gru_work": float((jobs.gpu_s - jobs.overhead_gpu_s).sum() / gpu_s),
        "cru": float(result.node_held_s.sum() / node_s),
        "cru_work": float(result.node_worked_s.sum() / node_s),
        "lost_steps": float(jobs.lost_steps.sum()),
    }


def _span(result: ClusterResult) -> float:
    """Seconds from the first arrival to the last end of a job that was finished, or that held GPUs at all."""
    jobs = result.jobs
    begin = float(jobs.arrival[jobs.finished | ~np.isnan(jobs.start)].min())
    return max(float(jobs.finish[jobs.finished].max()), result.last_use) - begin


def isolated_seconds(
    workload: Workload, cluster: Cluster, rates: Floats, finish: Floats, simulated: NDArray[np.bool_]
) -> Floats:
    """[J] seconds that each job would take with a 1/m share of every GPU type.

    m: jobs that have arrived by its arrival, itself included, and end later. As in Gavel, a share
    is N_r / (m W) of the time on type r, scaled down where the sum exceeds all of the time.
    """
    arrival = workload.arrival
    came = np.cumsum(simulated)
    present = came[np.searchsorted(arrival, arrival, side="right") - 1]
    ends = np.sort(finish[~np.isnan(finish)])
    present = np.maximum(1, present - np.searchsorted(ends, arrival, side="right"))
    share = cluster.gpus_of_type[None, :] / (present * workload.workers)[:, None]
    share /= np.maximum(1.0, share.sum(axis=1, keepdims=True))
    rate = (rates * share).sum(axis=1)
    with np.errstate(divide="ignore"):
        return np.where(rate > 0, workload.steps / rate, np.inf)
