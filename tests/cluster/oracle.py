"""A plain second look at what the cluster simulator did, and random small worlds to look at."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from hadoppler.envs.cluster import Cluster, ClusterResult, Job, ThroughputTable, Workload

TYPES = ("fast", "middle", "slow")


def audit(result: ClusterResult, *, restart_s: float, mixed_rate: str = "proportional") -> None:
    """Replay the log with plain dictionaries: capacity, gangs, arrivals, work and ends must agree.

    Not for runs with failures or forks.
    """
    workload, cluster, jobs, log = result.workload, result.cluster, result.jobs, result.rounds
    rates, spread = workload.rates(cluster)
    left = dict(enumerate(workload.steps.tolist()))
    running: dict[int, dict[str, Any]] = {}
    restarts = dict.fromkeys(left, 0)
    times = [*log.time, max(log.end, log.time[-1] if log.time else 0.0)]
    for number, (gangs, allocation) in enumerate(log.placements):
        now, later = times[number], times[number + 1]
        dense = allocation.gpus(cluster)
        before = running if not log.mid_round[number] else {}
        chosen = {}
        for gang, job in enumerate(allocation.job.tolist()):
            assert job not in chosen
            assert workload.arrival[job] <= now
            assert dense[gang].sum() == workload.workers[job]
            rate = rate_by_hand(dense[gang], rates[job], spread[job], mixed_rate)
            assert rate > 0
            assert np.isclose(rate, gangs.rate[gang], rtol=1e-12, atol=0)
            old = before.get(job)
            kept = old is not None and np.array_equal(old["gpus"], dense[gang])
            assert kept == gangs.kept[gang]
            restarts[job] += not kept
            ready = old["ready"] if kept and old is not None else now + restart_s
            chosen[job] = {"gpus": dense[gang], "rate": rate, "ready": ready}
        running = {**running, **chosen} if log.mid_round[number] else chosen
        used = np.zeros_like(cluster.capacity)
        for gang in running.values():
            used = used + gang["gpus"]
        assert (used <= cluster.capacity).all()
        for job, gang in list(running.items()):
            end = gang["ready"] + left[job] / gang["rate"] if gang["ready"] > now else now + left[job] / gang["rate"]
            if end <= later * (1 + 1e-9) + 1e-9:
                assert np.isclose(jobs.finish[job], end, rtol=1e-9, atol=1e-9)
                left[job] = 0.0
                del running[job]
            else:
                left[job] -= max(0.0, later - max(now, gang["ready"])) * gang["rate"]
                assert left[job] > 0
    for job in range(len(workload)):
        assert (left[job] == 0) == bool(jobs.finished[job])
        assert restarts[job] == jobs.restarts[job]


def rate_by_hand(gpus: Any, rates: Any, spread: Any, mixed_rate: str = "proportional") -> float:
    """Steps/s of a gang with [H, R] GPUs, of a job with [R] rates in one node and spread."""
    counts, nodes = np.sum(gpus, axis=0), np.count_nonzero(np.sum(gpus, axis=1))
    own = {r: (rates if nodes == 1 else spread)[r] for r in np.flatnonzero(counts)}
    if min(own.values()) <= 0:
        return 0.0
    if mixed_rate == "min":
        return float(min(own.values()))
    return float(sum(counts[r] * rate for r, rate in own.items()) / counts.sum())


def table_of(rates: list[list[float]], spread: float = 0.8) -> ThroughputTable:
    """Model ``m{i}`` with 1 to 8 workers, all at the rates of row i."""
    entries = [
        (f"m{i}", workers, TYPES[r], rate, spread * rate)
        for i, row in enumerate(rates)
        for workers in range(1, 9)
        for r, rate in enumerate(row)
    ]
    return ThroughputTable.build(entries, "test")


@st.composite
def worlds(draw: st.DrawFn, spread: float = 0.8) -> tuple[Workload, Cluster]:
    """A few jobs, some of which may not fit, on a small mixed cluster; rates spread are a share of the others."""
    nodes = draw(st.lists(st.tuples(*[st.integers(0, 4)] * 3).filter(any), min_size=1, max_size=4))
    cluster = Cluster.parse(
        " ".join("+".join(f"{kind}:{n}" for kind, n in zip(TYPES, node, strict=True)) for node in nodes)
    )
    count = draw(st.integers(1, 7))
    speed = st.sampled_from([0.0, 0.25, 1.0, 3.0, 7.5])
    rates = [draw(st.lists(speed, min_size=3, max_size=3).filter(any)) for _ in range(count)]
    jobs = [
        Job(
            id=f"j{i}",
            arrival=draw(st.sampled_from([0.0, 0.0, 10.0, 37.5, 400.0])),
            workers=draw(st.integers(1, 6)),
            steps=float(draw(st.integers(1, 600))),
            model=f"m{i}",
        )
        for i in range(count)
    ]
    return Workload(tuple(jobs), table_of(rates, spread)), cluster
