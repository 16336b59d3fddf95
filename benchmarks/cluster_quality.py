"""What the schedulers reach: TTD, completion times and use of the cluster, beside bounds, rivals and published figures.

python benchmarks/cluster_quality.py [--part headline ...] [--seeds 0 1 2 3 4] [--cache rows.jsonl] [--quick]

Every run is one row of the cache, so a long comparison can be stopped and taken up again.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table
from scipy.optimize import linear_sum_assignment

from hadoppler.baselines.cluster.registry import SCHEDULERS as KNOWN, find_scheduler
from hadoppler.envs.cluster import (
    Allocation,
    Cluster,
    ClusterView,
    Job,
    Scheduler,
    ThroughputTable,
    Workload,
    draw_failures,
    make_workload,
    read_workload,
    simulate,
    ttd_bounds,
)

HOUR = 3600.0
REFERENCE = Path(os.environ.get("HADOPPLER_REFERENCE", "../shared/reference"))
Options = dict[str, Any]
ROWS: dict[str, tuple[str, Options]] = {
    "yarn_cs": ("yarn_cs", {}),
    "tiresias": ("tiresias", {}),
    "srtf": ("srtf", {}),
    "random": ("random", {}),
    "gavel max_min": ("gavel", {"objective": "max_min"}),
    "gavel makespan": ("gavel", {"objective": "makespan"}),
    "gavel finish_time_fairness": ("gavel", {"objective": "finish_time_fairness"}),
    "gavel fifo": ("gavel", {"objective": "fifo"}),
    "gavel max_sum_throughput": ("gavel", {"objective": "max_sum_throughput"}),
    "sia": ("sia", {}),
    "hadar": ("hadar", {}),
    "hadar, no price": ("hadar", {"price": "none"}),
    "hadar horizon": ("hadar", {"mode": "horizon"}),
    "hadar admission": ("hadar", {"mode": "admission"}),
    "hadare": ("hadare", {}),
    "learned": ("learned", {}),
}
FIGURES = (
    "ttd_s",
    "mean_jct_s",
    "median_jct_s",
    "p99_jct_s",
    "queueing_s",
    "ftf",
    "gru",
    "cru",
    "restarts",
    "left_out",
)
ABLATIONS: dict[str, tuple[str, Options]] = {
    "round (default)": ("hadar", {}),
    **{f"price={price}": ("hadar", {"price": price}) for price in ("none", "pre")},
    **{f"beam={beam}": ("hadar", {"beam": beam}) for beam in (1, 4, 8)},
    "backfill off": ("hadar", {"backfill": False}),
    "mixing off": ("hadar", {"mixing": False}),
    **{f"utility={name}": ("hadar", {"utility": name}) for name in ("jct", "makespan", "finish_time_fairness")},
    "utility=makespan, no price": ("hadar", {"utility": "makespan", "price": "none"}),
    "horizon (default)": ("hadar", {"mode": "horizon"}),
    "horizon mixing off": ("hadar", {"mode": "horizon", "mixing": False}),
    "horizon beam=4": ("hadar", {"mode": "horizon", "beam": 4}),
    **{f"horizon slack={slack}": ("hadar", {"mode": "horizon", "slack": slack}) for slack in (-0.05, 0.0, 0.02, 0.05)},
}


class Matching:
    """One job a node, matched anew each round: the most work left goes to the fastest node (for one-GPU nodes)."""

    name, mixes, forks = "matching", False, False

    def reset(self, cluster: Cluster, round_s: float, rng: np.random.Generator) -> None:
        """Nothing is remembered."""

    def schedule(self, view: ClusterView) -> Allocation:
        """A maximum-weight matching of jobs to nodes; the weight is speed times the time that is left."""
        speed = view.rates[:, view.cluster.capacity.argmax(axis=1)] / view.best_rate[:, None]
        left = view.remaining / view.best_rate
        job, node = linear_sum_assignment(speed * left[:, None], maximize=True)
        gpus = [np.where(np.arange(len(view.cluster.nodes))[:, None] == h, view.cluster.capacity, 0) for h in node]
        return Allocation.from_rows([(int(view.job[i]), 0, held) for i, held in zip(job, gpus, strict=True)])


class Cache:
    """Rows that were measured before, one JSON object a line."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        lines = path.read_text().splitlines() if path is not None and path.exists() else []
        self.rows = {json.loads(line)["key"]: json.loads(line) for line in lines}

    def get(self, key: str, measure: Callable[[], Options]) -> Options:
        """The row of this key, measured if it is new."""
        if key not in self.rows:
            self.rows[key] = {"key": key, **measure()}
            if self.path is not None:
                with self.path.open("a") as file:
                    file.write(json.dumps(self.rows[key]) + "\n")
        return self.rows[key]


def run(workload: Workload, cluster: Cluster, scheduler: Scheduler, **rules: Any) -> Options:
    """Figures of one run."""
    metrics = simulate(workload, cluster, scheduler, log=False, **rules).metrics
    return {name: metrics.get(name, float("nan")) for name in (*FIGURES, "lost_steps", "finished")}


def means(found: Sequence[Options]) -> Options:
    """Means over seeds, and the sample deviations of TTD and mean completion time."""
    row = {name: float(np.mean([one[name] for one in found])) for name in FIGURES}
    for name in ("ttd_s", "mean_jct_s"):
        row[f"{name}_sd"] = float(np.std([one[name] for one in found], ddof=1)) if len(found) > 1 else 0.0
    return row


def compare(
    cache: Cache,
    part: str,
    worlds: Iterable[tuple[str, Callable[[int], Workload], Cluster]],
    rows: dict[str, tuple[str, Options]],
    seeds: Sequence[int],
    **rules: Any,
) -> list[Options]:
    """Means of every row in every world."""
    found = []
    for world, make, cluster in worlds:
        for label, (name, options) in track(rows.items(), f"{part}: {world}", console=Console(stderr=True)):
            if name not in KNOWN and name != "matching":
                continue
            runs = []
            for seed in seeds:
                scheduler = Matching() if name == "matching" else find_scheduler(name, options)
                key = f"{part}|{world}|{label}|{seed}"
                runs.append(cache.get(key, lambda: run(make(seed), cluster, scheduler, **rules)))  # noqa: B023
            found.append({"part": part, "world": world, "scheduler": label, "seeds": len(seeds), **means(runs)})
    return found


def add_ratios(rows: list[Options], reference: str = "gavel max_min") -> None:
    """TTD and mean completion time over those of the reference in the same world."""
    base = {row["world"]: row for row in rows if row["scheduler"] == reference}
    for row in rows:
        if row["world"] in base:
            row["ttd_ratio"] = row["ttd_s"] / base[row["world"]]["ttd_s"]
            row["jct_ratio"] = row["mean_jct_s"] / base[row["world"]]["mean_jct_s"]


def headline_worlds(
    kinds: Sequence[tuple[str, int, float | None]],
) -> list[tuple[str, Callable[[int], Workload], Cluster]]:
    """Worlds of headline jobs on the headline cluster: name, jobs, arrivals an hour."""
    return [
        (
            name,
            lambda seed, jobs=jobs, rate=rate: make_workload("headline", jobs=jobs, seed=seed, per_hour=rate),
            Cluster.built_in("headline"),
        )
        for name, jobs, rate in kinds
    ]


def headline(cache: Cache, seeds: Sequence[int], quick: bool) -> list[Options]:
    """All schedulers on the headline workload, beside the bound and the published ratios."""
    worlds = headline_worlds([("headline 160", 160, None)] + ([] if quick else [("headline 480", 480, None)]))
    rows = compare(cache, "headline", worlds, ROWS, seeds)
    add_ratios(rows)
    for world, make, cluster in worlds:
        bound = np.mean([ttd_bounds(make(seed), cluster, spread=True, kinds=["mixing"])["mixing"] for seed in seeds])
        mine = {row["scheduler"]: row for row in rows if row["world"] == world}
        for row in mine.values():
            row["ttd_over_bound"] = row["ttd_s"] / float(bound)
            row["shorter_ttd_than_gavel"] = mine["gavel max_min"]["ttd_s"] / row["ttd_s"]
            row["shorter_jct_than_gavel"] = mine["gavel max_min"]["mean_jct_s"] / row["mean_jct_s"]
            row["shorter_jct_than_yarn"] = mine["yarn_cs"]["mean_jct_s"] / row["mean_jct_s"]
            row["queueing_against_gavel"] = row["queueing_s"] / mine["gavel max_min"]["queueing_s"] - 1
            row["ftf_against_gavel"] = row["ftf"] / mine["gavel max_min"]["ftf"] - 1
    return rows


def poisson(cache: Cache, seeds: Sequence[int], quick: bool) -> list[Options]:
    """250 headline jobs that arrive at 1, 2 and 4 an hour."""
    rates = (2.0,) if quick else (1.0, 2.0, 4.0)
    rows = compare(cache, "poisson", headline_worlds([(f"{rate:g} an hour", 250, rate) for rate in rates]), ROWS, seeds)
    add_ratios(rows)
    return rows


def mixes(cache: Cache, seeds: Sequence[int], quick: bool) -> list[Options]:
    """HadarE and rivals on one to twelve one-GPU jobs and five nodes; published: CRU 1.45x, TTD -50 to -80 %."""
    names = ("hadare", "hadar", "hadar horizon", "srtf", *(name for name in ROWS if name.startswith("gavel")))
    chosen = {name: ROWS[name] for name in names} | {"matching": ("matching", {})}
    worlds = [
        (
            f"{name} {jobs}",
            lambda seed, jobs=jobs: make_workload("physical", jobs=jobs, seed=seed),
            Cluster.built_in(name),
        )
        for name in ("aws_like", "lab_like", "equal5")
        for jobs in ((1, 5) if quick else (1, 3, 4, 5, 8, 10, 12))
    ]
    rows = compare(cache, "mixes", worlds, chosen, seeds)
    add_ratios(rows)
    speeds = {name: np.array([*cluster.relative_speed.values()]) for name, _, cluster in worlds}
    for row in rows:
        counts = {name: cluster.capacity.sum(axis=0) for name, _, cluster in worlds}[row["world"]]
        speed = speeds[row["world"]]
        row["speed_bound"] = float((speed * counts).sum() / speed.max())
    return rows


def odd_gangs(seed: int) -> Workload:
    """Sixty jobs of 3, 5 or 6 workers; a worker adds nine tenths of one alone, spread four fifths of it."""
    rng, table = np.random.default_rng(seed), ThroughputTable.default()
    drawn = make_workload("headline", jobs=60, seed=seed)
    jobs, entries = [], {}
    for job in drawn.jobs:
        workers, row = int(rng.choice([3, 5, 6])), table.rows[job.kind, 1]
        for gpu_type, rate in zip(table.types, table.rates[row], strict=True):
            full = 0.9 * workers * float(rate)
            entries[job.model, job.batch_size, workers, gpu_type] = (full, 0.8 * full)
        hours = rng.uniform(1, 20) / workers
        steps = float(np.ceil(hours * HOUR * 0.9 * workers * table.rates[row][0]))
        jobs.append(Job(job.id, 0.0, workers, steps, f"{job.model}/{job.batch_size}"))
    rates = [(f"{model}/{batch}", workers, kind, *pair) for (model, batch, workers, kind), pair in entries.items()]
    return Workload(tuple(jobs), ThroughputTable.build(rates), name=f"gangs-s{seed}")


def gangs(cache: Cache, seeds: Sequence[int], quick: bool) -> list[Options]:
    """What mixing gains for gangs of 3, 5 and 6 on nodes of two types, by both rules of rates."""
    rows = []
    chosen = {
        "gavel max_min": ROWS["gavel max_min"],
        "hadar, no mixing": ("hadar", {"mixing": False}),
        "hadar": ("hadar", {}),
        "hadar, no price, no mixing": ("hadar", {"price": "none", "mixing": False}),
        "hadar, no price": ("hadar", {"price": "none"}),
        "hadar horizon, no mixing": ("hadar", {"mode": "horizon", "mixing": False}),
        "hadar horizon": ("hadar", {"mode": "horizon"}),
    }
    for rule in ("proportional", "min"):
        for name, text in (
            ("pairs v100:4 + k80:4", "v100:4x4 k80:4x4"),
            ("mixed nodes v100:2+p100:2", "v100:2+p100:2x6"),
        ):
            worlds = [(f"{name}, {rule}", odd_gangs, Cluster.parse(text))]
            rows += compare(cache, "gangs", worlds, chosen, seeds, mixed_rate=rule)
    add_ratios(rows)
    return rows


def failures(cache: Cache, seeds: Sequence[int], quick: bool) -> list[Options]:
    """What every scheduler loses when each node fails once in two days on average, and is away for an hour."""
    cluster, chosen = (
        Cluster.built_in("headline"),
        {name: row for name, row in ROWS.items() if not quick or name in ("srtf", "hadar")},
    )
    rows = []
    for label, (name, options) in track(chosen.items(), "failures", console=Console(stderr=True)):
        if name not in KNOWN:
            continue
        calm, rough = [], []
        for seed in seeds:
            workload = make_workload("headline", jobs=160, seed=seed)
            events = draw_failures(
                cluster, until_s=2000 * HOUR, mean_between_s=48 * HOUR, repair_s=HOUR, rng=np.random.default_rng(seed)
            )
            for found, extra in ((calm, []), (rough, events)):
                key = f"failures|{label}|{seed}|{len(extra) > 0}"
                scheduler = find_scheduler(name, options)
                found.append(cache.get(key, lambda: run(workload, cluster, scheduler, failures=extra)))  # noqa: B023
        row = {"part": "failures", "world": "headline 160", "scheduler": label, "seeds": len(seeds), **means(rough)}
        row["finished"] = float(np.mean([one["finished"] for one in rough]))
        for figure in ("ttd_s", "mean_jct_s"):
            row[f"{figure}_lost"] = row[figure] / means(calm)[figure] - 1
        rows.append(row)
    return rows


def ablations(cache: Cache, seeds: Sequence[int], quick: bool) -> list[Options]:
    """Hadar's switches, one at a time."""
    worlds = headline_worlds([("headline 160", 160, None)] + ([] if quick else [("headline 480", 480, None)]))
    rows = compare(cache, "ablations", worlds, {"gavel max_min": ROWS["gavel max_min"], **ABLATIONS}, seeds)
    add_ratios(rows)
    return rows


def real(cache: Cache, seeds: Sequence[int], quick: bool) -> list[Options]:
    """Recorded traces: 986 and 23 jobs of Philly, and those of Gavel's physical runs."""
    folder = REFERENCE / "gavel" / "real"
    if not folder.is_dir():
        raise SystemExit(f"{folder} is missing; set HADOPPLER_REFERENCE to the folder that holds gavel/real.")
    paths = sorted(folder.glob("physical*.trace" if quick else "*.trace"))
    cluster = Cluster.built_in("headline")
    small = Cluster.parse("v100:4x2 p100:4x4 k80:4x6")
    worlds = [
        (path.stem, lambda seed, path=path: read_workload(path), small if path.stem.startswith("physical") else cluster)
        for path in paths
    ]
    rows = compare(cache, "real", worlds, ROWS, [0])
    add_ratios(rows)
    return rows


PARTS = {
    "headline": headline,
    "poisson": poisson,
    "mixes": mixes,
    "gangs": gangs,
    "failures": failures,
    "ablations": ablations,
    "real": real,
}
SHOWN = (
    *("ttd_h", "ttd_sd_h", "mean_jct_h", "median_jct_h", "p99_jct_h", "queueing_h", "ftf", "gru", "cru", "left_out"),
    *("ttd_ratio", "jct_ratio", "ttd_over_bound", "ttd_s_lost", "mean_jct_s_lost", "speed_bound"),
)


def show(rows: list[Options]) -> None:
    """One table a world."""
    for world in dict.fromkeys((row["part"], row["world"]) for row in rows):
        mine = [dict(row) for row in rows if (row["part"], row["world"]) == world]
        for row in mine:
            for name in ("ttd", "mean_jct", "median_jct", "p99_jct", "queueing"):
                row[f"{name}_h"] = row[f"{name}_s"] / HOUR
            row["ttd_sd_h"] = row["ttd_s_sd"] / HOUR
        columns = [name for name in SHOWN if any(name in row for row in mine)]
        table = Table(title=f"{world[0]}: {world[1]}, means over {mine[0]['seeds']} seeds; ratios to gavel max_min")
        table.add_column("scheduler")
        for name in columns:
            table.add_column(name, justify="right")
        for row in mine:
            table.add_row(row["scheduler"], *(f"{row[name]:.3f}" if name in row else "" for name in columns))
        Console(width=220).print(table)


def main() -> None:
    """Measure, print tables, and the rows as JSON on the last line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--part", nargs="*", choices=list(PARTS), default=None, help="by default all, with --quick two")
    parser.add_argument("--seeds", nargs="*", type=int, default=None, help="of the workloads; 0 to 4 by default")
    parser.add_argument("--cache", type=Path, default=None, help="file of rows that were measured before")
    parser.add_argument("--quick", action="store_true", help="one seed and small worlds")
    arguments = parser.parse_args()
    seeds = arguments.seeds or ([0] if arguments.quick else [0, 1, 2, 3, 4])
    parts = arguments.part or (["mixes", "gangs"] if arguments.quick else list(PARTS))
    cache, rows = Cache(arguments.cache), []
    for part in parts:
        found = PARTS[part](cache, seeds, arguments.quick)
        show(found)
        rows += found
    print(json.dumps({"rows": rows}))


if __name__ == "__main__":
    main()
