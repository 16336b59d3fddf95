"""Runs of ``hadoppler simulate``: one scheduler with one seed each, one after the other or in several processes."""

from __future__ import annotations

import math
import multiprocessing
import traceback
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hadoppler import make_scheduler
from hadoppler.envs.cluster import Cluster, ClusterResult, NodeEvent, Scheduler, Workload, simulate, ttd_bounds
from hadoppler.envs.cluster.timeline import Timeline, timeline
from hadoppler.envs.errors import HadopplerError
from hadoppler.scripts.application import CommandError
from hadoppler.scripts.simulation_files import write_parts

METRICS = (
    "ttd_s",
    "mean_jct_s",
    "median_jct_s",
    "p99_jct_s",
    "queueing_s",
    "max_queueing_s",
    "waiting_s",
    "max_waiting_s",
    "ftf",
    "max_ftf",
    "gru",
    "gru_work",
    "cru",
    "cru_work",
    "restarts",
    "lost_steps",
    "finished",
)
LEFT_OUT = {"cannot_fit": "cannot fit", "refused": "refused", "unfinished": ""}
"""Key of the count -> how the status of such a job begins; all others are unfinished."""


@dataclass(frozen=True)
class Choice:
    """One row of the table: a scheduler with its options.

    Attributes:
        row: what the table calls it.
        name: what ``make_scheduler`` calls it.
        options: its own.
    """

    row: str
    name: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def make(self) -> Scheduler:
        """A fresh scheduler."""
        return make_scheduler(self.name, **self.options)


@dataclass(frozen=True)
class Task:
    """One run.

    Attributes:
        choice: who decides.
        seed: of the scheduler's random draws; the workload's and the failures' are drawn from it already.
        workload, cluster, failures: the world.
        rules: further arguments of ``simulate``.
        folder: where the run leaves its part of the tables.
        rounds: whether it keeps its decisions, for ``rounds.csv`` and pictures.
        pictured: whether it tells who held which GPU, for pictures.
    """

    choice: Choice
    seed: int
    workload: Workload
    cluster: Cluster
    failures: Sequence[NodeEvent]
    rules: Mapping[str, Any]
    folder: Path
    rounds: bool = True
    pictured: bool = False

    def part(self, table: str) -> Path:
        """File of the run's part of a table."""
        return self.folder / f"{self.choice.row}.{self.seed}.{table}.csv"


@dataclass(frozen=True)
class Outcome:
    """What a run tells: its row of ``results.json``, or why there is none.

    Attributes:
        row: figures in full precision.
        jct: seconds of every finished job.
        left_out: id -> reason.
        timeline: what the cluster did; None where it is not pictured.
        failure: why it failed, in a sentence.
        defect: the traceback where that was no refusal.
    """

    row: dict[str, Any] = field(default_factory=dict)
    jct: Sequence[float] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)
    timeline: Timeline | None = None
    failure: str = ""
    defect: str = ""


def run_all(tasks: Sequence[Task], processes: int = 1) -> Iterator[tuple[Task, Outcome]]:
    """Run the tasks and give the outcome of each as it comes; what comes does not depend on ``processes``.

    Raises:
        CommandError: a process was ended from outside.
    """
    if processes <= 1 or len(tasks) <= 1:
        for task in tasks:
            yield task, run_one(task)
        return
    context = multiprocessing.get_context("spawn")  # a fork would copy the compiled code's threads half
    with ProcessPoolExecutor(min(processes, len(tasks)), mp_context=context) as pool:
        running = {pool.submit(run_one, task): task for task in tasks}
        try:
            for future in as_completed(running):
                yield running[future], future.result()
        except BrokenProcessPool as error:
            reason = "most likely for lack of memory; give fewer processes, or rounds=false"
            raise CommandError(f"a process was ended from outside, {reason}.") from error
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def run_one(task: Task) -> Outcome:
    """Simulate, write the run's parts of the tables, and sum up."""
    try:
        compile_kernels(task)
        scheduler = task.choice.make()
        result = simulate(
            task.workload,
            task.cluster,
            scheduler,
            failures=task.failures,
            seed=task.seed,
            log=task.rounds,
            **task.rules,
        )
        write_parts(task, result)
        row = make_row(task, scheduler, result)
    except HadopplerError as error:
        return Outcome(failure=str(error))
    except Exception as error:  # a defect, perhaps another package's: the other runs' work is kept
        return Outcome(failure=f"It failed with {type(error).__name__}: {error}.", defect=traceback.format_exc())
    jobs = result.jobs
    drawn = timeline(result) if task.pictured and len(result.rounds) else None
    return Outcome(row, jobs.jct[jobs.finished].tolist(), result.left_out, drawn)


def compile_kernels(task: Task) -> None:
    """Run one tiny job, so that no scheduler's decision time holds its compilation."""
    job = replace(task.workload.jobs[0], arrival=0.0, steps=1.0)
    with suppress(Exception):  # the true run tells what is wrong
        simulate(replace(task.workload, jobs=(job,)), task.cluster, task.choice.make(), log=False, **task.rules)


def make_row(task: Task, scheduler: Scheduler, result: ClusterResult) -> dict[str, Any]:
    """One row of ``results.json``; times in seconds, NaN for what a run without a finished job lacks."""
    metrics = result.metrics
    kind, bound = find_bound(scheduler, result, spread=task.rules.get("mechanism") is None)
    status = list(result.left_out.values())
    counts = {key: sum(text.startswith(start) for text in status) for key, start in LEFT_OUT.items() if start}
    ttd = metrics.get("ttd_s", math.nan)
    return {
        "scheduler": task.choice.row,
        "workload": result.workload.name,
        "cluster": result.cluster.name,
        "seed": task.seed,
        **{key: metrics.get(key, math.nan) for key in METRICS},
        **counts,
        "unfinished": len(status) - sum(counts.values()),
        "rejected_rows": len(task.workload.rejected),
        **_where_asked(task, result),
        "ttd_bound_s": bound,
        "bound": kind,
        "ratio_bound": ttd / bound if 0 < bound < math.inf else math.nan,
        "decision_s": result.decision_s,
        "decisions": int(result.extra.get("solves", len(result.rounds))),
        **{key: result.extra[key] for key in ("makespan_s", "rounds", "utilisation") if key in result.extra},
    }


def _where_asked(task: Task, result: ClusterResult) -> dict[str, Any]:
    """Figures of worlds whose nodes fail, and of jobs with a wanted completion time."""
    found: dict[str, Any] = {}
    if task.failures:
        found["failures"] = sum(event.action == "fail" and event.time < result.rounds.end for event in task.failures)
    if any(job.slo is not None for job in task.workload.jobs):
        found["slo_met"] = result.metrics.get("slo_met", 0.0)
    return found


def find_bound(scheduler: Scheduler, result: ClusterResult, spread: bool) -> tuple[str, float]:
    """Name and seconds of the tightest bound on TTD that holds for a scheduler, over the jobs that it finished."""
    done = result.workload.select(result.jobs.finished.nonzero()[0])
    kind = "forking" if scheduler.forks else "mixing" if scheduler.mixes else "single_type"
    if not len(done):
        return kind, math.nan
    return kind, ttd_bounds(done, result.cluster, mixed_rate=result.mixed_rate, spread=spread, kinds=(kind,))[kind]
