"""The table of ``hadoppler simulate``, and what was left out of it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from hadoppler.envs.cluster import Cluster, Workload
from hadoppler.envs.cluster.render import time_unit
from hadoppler.scripts.report import pack_columns, say
from hadoppler.scripts.simulation_runs import LEFT_OUT, METRICS, Outcome, Task

Row = Mapping[str, Any]
AVERAGED = (*METRICS, "ttd_bound_s", "decision_s", "decisions")
SHOWN = 5
"""Lines and reasons of one kind that are printed; files hold all."""


def summarise(rows: Sequence[Row], reference: str) -> list[dict[str, Any]]:
    """One line of the table per scheduler: means over its seeds, sample standard deviations, ratios.

    A ratio to the reference is one of means over the seeds that both of them have; a ratio to the
    bound is one of means over the seeds that have both.
    """
    lines = []
    for name in dict.fromkeys(row["scheduler"] for row in rows):
        mine = {row["seed"]: row for row in rows if row["scheduler"] == name}
        theirs = {row["seed"]: row for row in rows if row["scheduler"] == reference}
        both = [seed for seed in mine if seed in theirs]
        bounded = [row for row in mine.values() if math.isfinite(row["ratio_bound"])]
        lines.append(
            {
                "scheduler": name,
                "reference": reference,
                "seeds": list(mine),
                **{key: fmean(row[key] for row in mine.values()) for key in AVERAGED},
                **{key: fmean(row[key] for row in mine.values()) for key in WHERE_ASKED if key in rows[0]},
                **{f"{key}_deviation": _deviation([row[key] for row in mine.values()]) for key in SPREAD},
                "ratio_ttd": _ratio(both, mine, theirs, "ttd_s"),
                "ratio_jct": _ratio(both, mine, theirs, "mean_jct_s"),
                "bound": next(iter(mine.values()))["bound"],
                "ratio_bound": _divide([row["ttd_s"] for row in bounded], [row["ttd_bound_s"] for row in bounded]),
                "left_out": sum(row[key] for row in mine.values() for key in LEFT_OUT),
            }
        )
    return lines


WHERE_ASKED = ("failures", "slo_met")
"""Figures that a world may have; all rows have them then, and none otherwise."""
SPREAD = ("ttd_s", "mean_jct_s")
"""Figures whose standard deviation over the seeds is given."""


def _deviation(values: Sequence[float]) -> float | None:
    return stdev(values) if len(values) > 1 and all(map(math.isfinite, values)) else None


def _ratio(seeds: Sequence[int], mine: Mapping[int, Row], theirs: Mapping[int, Row], key: str) -> float:
    return _divide([mine[seed][key] for seed in seeds], [theirs[seed][key] for seed in seeds])


def _divide(above: Sequence[float], below: Sequence[float]) -> float:
    return fmean(above) / fmean(below) if below and fmean(below) > 0 else math.nan


def print_table(console: Console, worlds: Sequence[tuple[Workload, Cluster]], lines: Sequence[Row]) -> None:
    """One line per scheduler, in as many tables as the terminal's width asks for."""
    longest = max((line["ttd_s"] for line in lines if math.isfinite(line["ttd_s"])), default=0.0)
    unit, label = time_unit(longest)
    names = [escape(line["scheduler"]) + " *" * bool(line["left_out"]) for line in lines]
    columns = [(header, [_cell(line, key, unit) for line in lines]) for header, key in _columns(label, lines[0])]
    say(console, _title(worlds))
    for group in pack_columns(columns, console.width - max(map(len, ["scheduler", *names])) - 4):
        table = Table()
        table.add_column("scheduler", no_wrap=True)
        for header, _ in group:
            table.add_column(escape(header), justify="right", no_wrap=True)
        for number, name in enumerate(names):
            best = lines[number]["ttd_s"] == min(line["ttd_s"] for line in lines)
            table.add_row(name, *(cells[number] for _, cells in group), style="bold" if best else None)
        console.print(table)
    _print_legend(console, lines)


def _title(worlds: Sequence[tuple[Workload, Cluster]]) -> str:
    """Jobs, nodes, GPUs."""
    workload, cluster = worlds[0]
    counts = zip(cluster.types, cluster.gpus_of_type.tolist(), strict=True)
    types = ", ".join(f"{count} {kind}" for kind, count in counts)
    names = _some(dict.fromkeys(jobs.name for jobs, _ in worlds), 2)
    title = f"{names}: {len(workload)} jobs on {len(cluster.nodes)} nodes, {types}"
    return title + (f"; means over {len(worlds)} seeds" if len(worlds) > 1 else "")


def _columns(unit: str, line: Row) -> list[tuple[str, str]]:
    """Header and key of every column; those of failures and of wanted completion times where a line has them."""
    failed = [("node\nfailures", "failures"), ("lost\nsteps", "lost_steps")] if "failures" in line else []
    wanted = [("SLO\nmet", "slo_met")] if "slo_met" in line else []
    return [
        (f"TTD\n[{unit}]", "ttd_s"),
        ("TTD\n/ ref", "ratio_ttd"),
        ("TTD\n/ bound", "ratio_bound"),
        (f"mean JCT\n[{unit}]", "mean_jct_s"),
        ("JCT\n/ ref", "ratio_jct"),
        (f"median\n[{unit}]", "median_jct_s"),
        (f"p99\n[{unit}]", "p99_jct_s"),
        (f"queued\n[{unit}]", "queueing_s"),
        (f"longest\nwait [{unit}]", "max_waiting_s"),
        ("FTF\n", "ftf"),
        ("worst\nFTF", "max_ftf"),
        *wanted,
        ("GRU\n", "gru"),
        ("CRU\n", "cru"),
        ("restarts\n", "restarts"),
        *failed,
        ("decision\n[ms]", "decision_ms"),
    ]


def _cell(line: Row, key: str, unit: float) -> str:
    if key == "decision_ms":
        value = 1e3 * line["decision_s"] / line["decisions"] if line["decisions"] else math.nan
    else:
        value = line[key] / unit if key.endswith("_s") else line[key]
    if not math.isfinite(value):
        return "-"
    if key in ("restarts", "failures", "lost_steps"):
        return f"{value:.0f}"
    shares = ("ftf", "max_ftf", "gru", "cru", "slo_met")
    text = f"{value:.3f}" if key.startswith("ratio_") or key in shares else f"{value:.4g}"
    deviation = line.get(f"{key}_deviation")
    return text if deviation is None else f"{text} ±{deviation / unit:.2g}"


def _print_legend(console: Console, lines: Sequence[Row]) -> None:
    """What the columns refer to."""
    seeds = max(len(line["seeds"]) for line in lines)
    kinds = _by((line["bound"], line["scheduler"]) for line in lines)
    bounds = "; ".join(f"{kind}: {', '.join(names)}" for kind, names in kinds.items())
    reference = lines[0]["reference"]
    known = any(line["scheduler"] == reference for line in lines)
    say(console, f"ref: {reference}" + ("." if known else ", which has no result."))
    say(console, f"bound: linear programs that no schedule beats ({bounds}).")
    if seeds > 1:
        say(console, "±: standard deviation over the seeds; ratios are of means over the same seeds.")
    say(console, "FTF: completion time / time on an equal share of every GPU type; below 1 is better than that.")
    if any("slo_met" in line for line in lines):
        say(console, "SLO met: part of the jobs with a wanted completion time that kept it; unfinished ones did not.")
    if any(line["left_out"] for line in lines):
        say(console, "* some jobs are in no figure; the list below says which.")


def print_remarks(console: Console, world: tuple[Workload, Cluster], outcomes: Sequence[tuple[Task, Outcome]]) -> None:
    """Where rates come from, rows of the trace that were rejected, jobs that were left out, runs that failed."""
    workload, cluster = world
    say(console, f"Throughputs: {workload.throughputs.source}.")
    for note in workload.throughputs.speed_notes(cluster):
        say(console, f"Cluster: {note}.")
    estimates = outcomes[0][0].rules.get("estimates")
    if estimates is not None:
        say(console, f"Schedulers were shown estimates ({estimates.source}), corrected by what was measured.")
    for note in workload.notes:
        say(console, f"Trace: {note}.")
    if workload.rejected:
        say(console, f"Trace: {len(workload.rejected)} of {workload.rows_read} rows rejected, all in rejected.csv:")
        for reason, rejected in _by((row.reason, row.line) for row in workload.rejected).items():
            say(console, f"  {len(rejected)}: {reason} (line {_some(rejected)})")
    remarks = [remark for task, outcome in outcomes for remark in _left_out(task, outcome)]
    for text, who in _by(remarks).items():
        say(console, f"{_some(dict.fromkeys(who), 100)}: {text}")
    for task, outcome in outcomes:
        if outcome.failure:
            say(console, f"{task.choice.row}, seed {task.seed}: no result. {outcome.failure}")


def _left_out(task: Task, outcome: Outcome) -> list[tuple[str, str]]:
    """(what happened, to which scheduler), one per kind of reason."""
    found = []
    for key, ids in _by((_kind(reason), name) for name, reason in outcome.left_out.items()).items():
        kind = (reason for reason in outcome.left_out.values() if _kind(reason) == key)
        reasons = dict.fromkeys(reason.partition(": ")[2] or reason for reason in kind)
        text = f"seed {task.seed}: {len(ids)} of {len(task.workload)} jobs {key.replace('_', ' ')}"
        found.append((f"{text} (jobs {_some(ids)}; {'; '.join(list(reasons)[:SHOWN])})", task.choice.row))
    return found


def _kind(reason: str) -> str:
    return next((key for key, start in LEFT_OUT.items() if start and reason.startswith(start)), "unfinished")


def _by(pairs: Iterable[tuple[str, Any]]) -> dict[str, list[Any]]:
    """Values by key, in order of appearance."""
    groups: dict[str, list[Any]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups


def _some(values: Iterable[Any], most: int = SHOWN) -> str:
    """The first of them, and that there are more."""
    texts = [str(value) for value in values]
    return ", ".join(texts[:most]) + (", ..." if len(texts) > most else "")
