"""CPU seconds of the cluster simulator on one thread, after compilation.

``mechanism``: Gavel's rounds, compiled, against the same rounds in plain Python, fed with the same
fractions; every completion time of the two is compared. ``programs``: all linear programs of one run,
re-solved from the last basis, against SciPy's HiGHS from scratch on the same programs. ``rounds``: our
own simulator under simple schedulers, CPU microseconds a decision. Where the folder of reference
data is at hand the traces are Gavel's own and its recorded CPU seconds stand beside ours.

    python benchmarks/cluster_simulator.py [--quick]
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from scipy.optimize import linprog

from hadoppler.baselines.cluster.registry import find_scheduler
from hadoppler.envs.cluster import Cluster, ClusterView, Workload, make_workload, read_workload, simulate

ROUND, MIN_RESET = 360.0, 1920.0
REFERENCE = Path(os.environ.get("HADOPPLER_REFERENCE", Path(__file__).parents[2] / "shared" / "reference"))


class Timed:
    """A policy with its CPU seconds counted and its answers kept, or played back."""

    def __init__(self, policy: Any, answers: list[np.ndarray] | None = None) -> None:
        self.inner, self.answers, self.playing = policy, answers or [], answers is not None
        self.name, self.work_conserving, self.shuffles_types = "timed", policy.work_conserving, policy.shuffles_types
        self.views: list[ClusterView] = []
        self.seconds = 0.0

    def reset(self, *arguments: Any) -> None:
        self.inner.reset(*arguments)
        self.seconds, self.asked = 0.0, 0

    def fractions(self, view: ClusterView) -> np.ndarray:
        if self.playing:
            self.asked += 1
            return self.answers[self.asked - 1]
        begin = time.process_time()
        answer = self.inner.fractions(view)
        self.seconds += time.process_time() - begin
        self.answers.append(answer)
        self.views.append(view)
        return answer


class PlainMechanism:
    """Gavel's rounds in plain Python, the types in their given order."""

    def __init__(self, workload: Workload, cluster: Cluster, answers: list[np.ndarray]) -> None:
        self.rates = workload.rates(cluster)[0].tolist()
        self.gpus, self.workers = cluster.gpus_of_type.tolist(), workload.workers.tolist()
        self.steps, self.arrival = [int(steps) for steps in workload.steps], workload.arrival.tolist()
        count, self.types, self.answers = len(workload), range(len(self.gpus)), answers
        self.done, self.failures, self.jct = [0] * count, [0] * count, {}
        self.active: list[int] = []
        self.running: list[tuple[float, int, int, int]] = []
        self.share: dict[int, list[float]] = {}
        self.spent = {job: [ROUND / 2] * len(self.gpus) for job in range(count)}
        self.deficit = {job: [0.0] * len(self.gpus) for job in range(count)}
        self.total = [0.0] * len(self.gpus)

    def run(self) -> dict[int, float]:
        """Row -> completion time."""
        now = last_reset = self.round_end = 0.0
        arrived, asked, self.need = 0, 0, False
        while True:
            if self.running:
                now = max(end for end, *_ in self.running)
                self.book()
                self.round_end = now
            elif arrived < len(self.steps):
                now = max(now, self.arrival[arrived])
            else:
                last_reset = 0.0
            while arrived < len(self.steps) and self.arrival[arrived] <= now:
                self.active.append(arrived)
                self.total = [value + ROUND / 2 for value in self.total]
                arrived, self.need = arrived + 1, True
            if not self.active and arrived == len(self.steps):
                return self.jct
            if self.need and (now - last_reset >= MIN_RESET or last_reset == 0):
                self.begin_period(now - last_reset, self.answers[asked].tolist())
                last_reset, asked, self.need = now, asked + 1, False
            self.fill(now)

    def book(self) -> None:
        """Count what ran."""
        for end, job, r, count in sorted(self.running, key=lambda task: -task[0]):
            if count // self.workers[job] == 0:
                self.failures[job] += 1
                self.need = True
                if self.failures[job] == 5:
                    self.active.remove(job)
                continue
            self.failures[job] = 0
            self.done[job] += count
            self.spent[job][r] += end - self.round_end
            self.total[r] += end - self.round_end
            if self.done[job] >= self.steps[job]:
                self.jct[job] = end - self.arrival[job]
                self.active.remove(job)
                self.need = True

    def begin_period(self, elapsed: float, answer: list[list[float]]) -> None:
        """Settle who is owed what, and take the new fractions."""
        self.total = [0.0] * len(self.gpus)
        for job in self.active:
            for r in self.types:
                had = self.share[job][r] if job in self.share else 0.0
                self.deficit[job][r] += had * elapsed - (self.spent[job][r] - ROUND / 2)
                self.spent[job][r] = ROUND / 2
                self.total[r] += ROUND / 2
        self.share = dict(zip(self.active, answer, strict=True))

    def key(self, job: int, r: int) -> tuple[float, float, float]:
        """Priority, deficit, fraction."""
        fraction = self.share[job][r] if job in self.share else 0.0
        wanted = fraction if self.rates[job][r] > 0 else 0.0
        had = self.spent[job][r] / self.total[r] if self.total[r] else 0.0
        return (wanted / had if had else wanted * 1e9), self.deficit[job][r], fraction

    def fill(self, now: float) -> None:
        """Choose the round's jobs."""
        self.running, taken = [], set()
        for r in self.types:
            left = self.gpus[r]
            for job in sorted(self.active, key=lambda job, r=r: self.key(job, r), reverse=True):  # type: ignore[misc]
                rate = self.rates[job][r]
                if job in taken or rate <= 0 or self.workers[job] > left:
                    continue
                taken.add(job)
                left -= self.workers[job]
                if job in self.share:
                    count = min(int(rate * ROUND), self.steps[job] - self.done[job])
                    self.running.append((now + count / rate, job, r, count))


def cold_program(view: ClusterView, gpus: np.ndarray) -> None:
    """Max-min fairness for one view from scratch, as a script would write it with SciPy."""
    count, types = view.rates.shape
    scale = view.workers / (view.weight * (view.rates * gpus).sum(axis=1) / gpus.sum())
    fair, budget, load = np.zeros((count, count * types + 1)), np.zeros((count, count * types + 1)), []
    for i in range(count):
        fair[i, i * types : (i + 1) * types] = -view.rates[i] * scale[i]
        budget[i, i * types : (i + 1) * types] = 1.0
    fair[:, -1] = 1.0
    for r in range(types):
        row = np.zeros(count * types + 1)
        row[r:-1:types] = view.workers
        load.append(row)
    cost = np.zeros(count * types + 1)
    cost[-1] = -1.0
    limits = np.concatenate((np.zeros(count), np.ones(count), gpus))
    linprog(cost, A_ub=np.concatenate((fair, budget, np.array(load))), b_ub=limits, method="highs")


def trace(name: str, cluster: str, recorded: str, jobs: int) -> tuple[Workload, Cluster, dict[str, float]]:
    """One of Gavel's static traces with its recorded CPU seconds, or a workload like it without them."""
    spec = Cluster.parse(cluster)
    path = REFERENCE / "gavel" / "traces" / f"{name}.trace"
    if not path.exists():
        return make_workload("gavel_trace", jobs=jobs, seed=0), spec, {}
    run = json.loads((REFERENCE / "gavel" / "runs" / f"{recorded}.json").read_text())
    figures = {"mechanism": run["cpu_s"] - run["policy_cpu_s"], "programs": run["policy_cpu_s"]}
    return read_workload(path), spec, figures


def measure_gavel(
    name: str, cluster: str, recorded: str, jobs: int, objective: str, rival: bool
) -> list[dict[str, Any]]:
    """Rows for the mechanism and the programs of one run."""
    workload, spec, figures = trace(name, cluster, recorded, jobs)
    policy = find_scheduler("gavel", {"objective": objective}).policy  # type: ignore[attr-defined]
    simulate(workload, spec, policy, mechanism="gavel")  # compiles
    timed = Timed(policy)
    simulate(workload, spec, timed, mechanism="gavel")
    begin = time.process_time()
    result = simulate(workload, spec, Timed(policy, timed.answers), mechanism="gavel")
    mechanism = time.process_time() - begin
    rows = [
        {"what": f"mechanism, {name}, {objective}", "ours_s": mechanism, "gavel_s": figures.get("mechanism")},
        {"what": f"programs, {name}, {objective}", "ours_s": timed.seconds, "gavel_s": figures.get("programs")},
    ]
    if rival:
        begin = time.process_time()
        theirs = PlainMechanism(workload, spec, timed.answers).run()
        rows[0]["rival_s"] = time.process_time() - begin
        ours = {row: float(value) for row, value in enumerate(result.jobs.jct) if not np.isnan(value)}
        if ours.keys() != theirs.keys() or any(abs(ours[row] - theirs[row]) > 1e-6 for row in ours):
            raise SystemExit(f"{name}: the plain rounds disagree with ours")
        views, gpus = timed.views[:: max(1, len(timed.views) // 10)], spec.gpus_of_type.astype(float)
        begin = time.process_time()
        for view in views:
            cold_program(view, gpus)
        rows[1]["rival_s"] = (time.process_time() - begin) * len(timed.views) / len(views)
    return rows


def measure_rounds(name: str, options: dict[str, Any], jobs: int) -> dict[str, Any]:
    """One row: our own simulator, CPU seconds and microseconds a decision."""
    workload, cluster = make_workload("headline", jobs=jobs), Cluster.built_in("headline")
    scheduler = find_scheduler(name, options)
    simulate(make_workload("headline", jobs=20), cluster, scheduler)  # compiles
    begin = time.process_time()
    result = simulate(workload, cluster, scheduler)
    seconds = time.process_time() - begin
    label = " ".join([name, *map(str, options.values())])
    return {
        "what": f"rounds, headline {jobs} jobs, {label}",
        "ours_s": seconds,
        "us_a_decision": seconds / len(result.rounds) * 1e6,
    }


def main() -> None:
    """Measure, print a table, and the rows as JSON on the last line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer runs of our own simulator")
    quick = parser.parse_args().quick
    big = (
        "static_n480_multi_s0",
        "v100:4x5 p100:4x5 k80:4x5",
        "static_n480_multi_s0__max_min_fairness_perf__c20-20-20__gps4",
    )
    small = (
        "static_n120_multi_s0",
        "v100:4 p100:4 k80:4",
        "static_n120_multi_s0__finish_time_fairness_perf__c4-4-4__gps4",
    )
    rows = measure_gavel(*big, 480, "max_min", True) + measure_gavel(*small, 120, "finish_time_fairness", False)
    runs: list[tuple[str, dict[str, Any]]] = [("srtf", {}), ("gavel", {"objective": "max_min"})]
    if not quick:
        runs += [("yarn_cs", {}), ("tiresias", {}), ("random", {}), ("gavel", {"objective": "makespan"})]
    rows += [measure_rounds(name, options, 160 if quick else 480) for name, options in runs]
    for row in rows:
        if row.get("rival_s"):
            row["ratio"] = row["rival_s"] / row["ours_s"]
    columns = ("what", "ours_s", "rival_s", "ratio", "gavel_s", "us_a_decision")
    table = Table(title="CPU seconds on one thread")
    for column in columns:
        table.add_column(column, justify="left" if column == "what" else "right")
    for row in rows:
        cells = [row.get(column) for column in columns[1:]]
        table.add_row(row["what"], *("" if cell is None else f"{cell:,.3f}" for cell in cells))
    Console(width=150).print(table)
    print(json.dumps({"rows": rows}))


if __name__ == "__main__":
    main()
