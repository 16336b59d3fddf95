"""How long a large job waits in an endless stream of small ones: the bound that each policy's definition gives.

The stream of case H10, of any length: a small job (1 GPU, 100 s) every 25 s, which alone fills 4 GPUs, and at
1 s a job that wants all 4 of them for 100 s. Waiting is either bounded by what was there before the large
job and by equal shares, whatever comes later, or lasts as long as the stream, and then no longer.
"""

from __future__ import annotations

import pytest
from cluster.test_cases import read

from hadoppler.baselines.cluster.registry import find_scheduler
from hadoppler.envs.cluster import Cluster, ClusterResult, Job, Workload, simulate

ROUND_S = 25.0
LARGE_S = 100.0
"""What the large job takes alone."""
LENGTHS = (40, 160)
"""Small jobs in a stream."""


def stream(name: str, small: int, **options: object) -> ClusterResult:
    """A scheduler on a stream; the large job is row 1, and nothing arrives at ``small`` x 25 s any more."""
    jobs = [Job(f"small{i}", 25.0 * i, 1, 100.0, "unit") for i in range(small)]
    workload = Workload((*jobs, Job("large", 1.0, 4, LARGE_S, "unit")), read("H10_starvation.trace").throughputs)
    rules = {"round_s": ROUND_S, "restart_s": 0.0, "consolidation_s": 0.0}
    result = simulate(workload, Cluster.parse("v100:4"), find_scheduler(name, options), **rules)
    assert workload.jobs[1].id == "large"
    assert result.jobs.finished.all()
    return result


def present(result: ClusterResult, begin: float, end: float) -> int:
    """The most jobs that had arrived and were not finished at one time between two."""
    jobs = result.jobs
    moments = [begin, *(time for time in jobs.arrival.tolist() if begin < time < end)]
    return max(int(((jobs.arrival <= now) & (jobs.finish > now)).sum()) for now in moments)


@pytest.mark.parametrize("small", LENGTHS)
def test_yarn_cs_waits_for_those_before_it_only(small: int) -> None:
    result = stream("yarn_cs", small)
    assert result.jobs.start[1] == 100.0  # when the one job that came before it ends
    assert result.jobs.jct[1] == 100.0 - 1.0 + LARGE_S
    # and the others wait for it: each no longer than its remaining work and one round of work before them
    assert result.metrics["max_queueing_s"] <= 2 * LARGE_S


@pytest.mark.parametrize("small", LENGTHS)
def test_tiresias_lets_nobody_overtake_below_the_threshold(small: int) -> None:
    result = stream("tiresias", small)
    assert (result.jobs.start[1], result.jobs.jct[1]) == (100.0, 199.0)


@pytest.mark.parametrize("small", LENGTHS)
def test_tiresias_lets_all_young_jobs_overtake_above_it(small: int) -> None:
    result = stream("tiresias", small, threshold_gpu_s=150.0)
    # it gets its 150 GPU-seconds (two rounds of 4 GPUs) at once, the rest at the latest when the stream has ended
    assert result.jobs.start[1] <= 100.0
    assert small * 25.0 < result.jobs.finish[1] <= (small + 4) * 25.0 + LARGE_S


@pytest.mark.parametrize("small", LENGTHS)
@pytest.mark.parametrize("objective", ["max_min", "finish_time_fairness"])
def test_equal_shares_bound_the_wait_whatever_comes(objective: str, small: int) -> None:
    result = stream("gavel", small, objective=objective)
    finish = result.jobs.finish[1]
    shares = present(result, 1.0, finish)
    # with m jobs at once the large one has at least a part 1 / m of the time, but for a round at either end
    assert finish - 1.0 <= shares * LARGE_S + 2 * ROUND_S
    assert (
        result.jobs.jct[1] == stream("gavel", min(LENGTHS), objective=objective).jobs.jct[1]
    )  # later ones add nothing


@pytest.mark.parametrize("small", LENGTHS)
@pytest.mark.parametrize(("name", "options"), [("hadar", {"mode": "horizon"}), ("hadare", {})])
def test_cheap_jobs_overtake_as_long_as_they_come_and_no_longer(name: str, options: dict, small: int) -> None:
    """Each small job moves the due date of all (horizon), or is shorter than what is left of the large one (hadare)."""
    result = stream(name, small, **options)
    last = 25.0 * (small - 1)
    # no GPU idles for it, so with those that arrived last it starts within their 100 s and a round, ...
    assert last <= result.jobs.start[1] <= last + 100.0 + ROUND_S
    # ... and all is done as early as if it had started first
    assert result.metrics["ttd_s"] <= 25.0 * (small + 4) + LARGE_S + ROUND_S
    assert result.metrics["max_queueing_s"] == result.jobs.start[1] - 1.0  # the report shows it


@pytest.mark.parametrize(("name", "options"), [("hadar", {"mode": "horizon"}), ("hadare", {})])
def test_without_new_arrivals_nobody_waits_longer_than_the_work_takes(name: str, options: dict) -> None:
    workload = read("H10_starvation.trace")
    at_once = Workload(
        tuple(Job(job.id, 0.0, job.workers, job.steps, job.model) for job in workload.jobs), workload.throughputs
    )
    rules = {"round_s": ROUND_S, "restart_s": 0.0, "consolidation_s": 0.0}
    result = simulate(at_once, Cluster.parse("v100:4"), find_scheduler(name, options), **rules)
    # 41 small jobs are 1025 s of work for 4 GPUs, but 11 gangs of 100 s where none is interrupted
    assert result.bounds["single_type"] == pytest.approx(1025.0 + LARGE_S)
    assert result.metrics["ttd_s"] <= 1100.0 + LARGE_S
