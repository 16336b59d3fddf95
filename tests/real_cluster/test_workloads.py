"""Workloads of real jobs: drawn from a seed, read from a CSV, paired with what workers must know."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs torch")
pytest.importorskip("sklearn", reason="needs scikit-learn")

from hadoppler.envs.cluster import Cluster
from hadoppler.envs.errors import ClusterError, TraceError
from hadoppler.real_system.cluster.job_rates import JobRates
from hadoppler.real_system.cluster.slots import slots_of
from hadoppler.real_system.cluster.training_job import JobSpec, TrainingJobError
from hadoppler.real_system.cluster.workloads import file_workload, pair_jobs, task_workload


def test_a_seed_draws_the_same_jobs() -> None:
    """Same seed, same jobs; another seed, others; steps and gangs within their ranges."""
    options = {"jobs": 40, "steps": (10, 20), "workers": (1, 4), "per_minute": 60.0}
    first, second = task_workload(seed=3, **options), task_workload(seed=3, **options)
    assert first.jobs == second.jobs
    assert first.jobs != task_workload(seed=4, **options).jobs
    assert first.steps.min() >= 10
    assert first.steps.max() <= 20
    assert set(first.workers.tolist()) == {1, 4}
    assert (np.diff(first.arrival) > 0).all()


@pytest.mark.parametrize(
    "options",
    [{"jobs": 0}, {"steps": (5, 2)}, {"steps": (0, 2)}, {"tasks": ()}, {"workers": (0,)}, {"per_minute": 0.0}],
)
def test_numbers_out_of_range_are_named(options: dict) -> None:
    """Each is refused with what was expected."""
    with pytest.raises(TraceError, match="expected"):
        task_workload(**options)


def test_jobs_of_a_file(tmp_path: Path) -> None:
    """Tasks with and without a batch size; rows that cannot be used are listed."""
    path = tmp_path / "tasks.csv"
    path.write_text("id,arrival,workers,model,batch_size,steps\na,0,1,digits,,100\nb,2,2,digits,16,50\nc,3,1,,,5\n")
    workload = file_workload(path, seed=1)
    assert [row.line for row in workload.rejected] == [4]
    pairs = pair_jobs(workload, seed=1)
    assert [(spec.id, spec.batch_size, spec.steps, spec.workers) for _, spec in pairs] == [
        ("a", 32, 100, 1),
        ("b", 16, 50, 2),
    ]
    assert [job.batch_size for job, _ in pairs] == [32, 16]
    path.write_text("id,arrival,workers,model,steps\na,0,1,nonsense,100\n")
    with pytest.raises(TraceError, match=r"none of its 1 rows .* line 2: no training task is called 'nonsense'"):
        file_workload(path)
    with pytest.raises(TrainingJobError, match=r"job '0-nonsense': no training task is called 'nonsense'"):
        pair_jobs(task_workload(tasks=("nonsense",)))
    for text in ("arrival,workers\n0,1\n", ""):
        path.write_text(text)
        with pytest.raises(TraceError, match=r"the column '(model|arrival)' is missing"):
            file_workload(path)
    path.write_text("arrival,workers,model,steps\n")
    with pytest.raises(TraceError, match="none of its 0 rows"):
        file_workload(path)


def test_rows_that_real_jobs_cannot_be_made_of(tmp_path: Path) -> None:
    """Each is left out with its line and the reason, all at once; the others are run under their own names."""
    path = tmp_path / "tasks.csv"
    bad = {
        "half,0,1,digits,,10.5": "its steps is '10.5'; expected a whole number from 1 up",
        "none,0,1,digits,,": "its steps is ''",
        "empty,0,1,digits,0,10": "its batch_size is '0'; expected a whole number from 1 up, or nothing",
        "good,0,1,digits,,20": "its id 'good' stands in line 2, too",
        "nameless,0,1,,,20": "it has no model; name a task",
        "wrong,0,1,nonsense,,20": "no training task is called 'nonsense'",
        "other,0,1,pathlib:Path,,20": "expected a TrainingJob",
        "late,x,1,digits,,20": "its arrival is 'x'",
    }
    path.write_text("\n".join(["id,arrival,workers,model,batch_size,steps", "good,0,1,digits,,10", "# no job", *bad]))
    workload = file_workload(path)
    assert [(job.id, job.steps) for job in workload.jobs] == [("good", 10)]
    assert [row.line for row in workload.rejected] == [4 + number for number in range(len(bad))]
    for row, reason in zip(workload.rejected, bad.values(), strict=True):
        assert reason in row.reason
    assert (workload.rows_read, workload.rows_used) == (9, 1)


def test_emulated_rates_and_first_estimates() -> None:
    """A table of rates in proportion to speed; estimates that know the ratio of speeds."""
    cluster = Cluster.built_in("lab_like")
    rates = JobRates(cluster, base_s=0.05)
    rates.prepare([JobSpec("a", "diabetes", 10), JobSpec("b", "diabetes", 10, workers=2)])
    one, _ = rates.table().job_rates("diabetes (batch size 32)", 1)
    two, _ = rates.table().job_rates("diabetes (batch size 32)", 2)
    np.testing.assert_allclose(one, np.array([1, 0.9, 0.5, 0.35, 0.15]) / 0.05)
    np.testing.assert_allclose(two, 2 * one)
    estimates = rates.estimates()
    assert estimates is not None
    guessed, _ = estimates.job_rates("diabetes (batch size 32)", 1)
    np.testing.assert_allclose(guessed / guessed[0], one / one[0])
    assert JobRates(cluster, rates="table").estimates() is None


def test_a_base_that_is_measured_leaves_room() -> None:
    """``base_s=None``: several times what a step takes to compute."""
    rates = JobRates(Cluster.built_in("equal5"), base_s=None)
    spec = JobSpec("a", "diabetes", 10)
    rates.prepare([spec])
    assert 1e-4 < rates.pace.seconds(spec, 0, 1.0) < 1.0


def test_clusters_that_cannot_be_run_are_refused() -> None:
    """Half of the speeds given; a GPU that this machine does not have."""
    partly = Cluster.parse("a:1 b:1")
    object.__setattr__(partly, "relative_speed", {"a": 1.0})
    with pytest.raises(ClusterError, match="b has no relative_speed"):
        JobRates(partly)
    with pytest.raises(ClusterError, match=r"it has 1 nosuch, this machine 1 cpu"):
        slots_of(Cluster.parse("nosuch:1"), emulated=False)
    assert len(slots_of(Cluster.parse("v100:4x2 k80:1"))) == 9
    assert len(slots_of(Cluster.parse("cpu:3"), emulated=False)) == 3
