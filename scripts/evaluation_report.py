"""The tables and the picture of ``hadoppler evaluate``."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from textwrap import fill
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from hadoppler.scripts.evaluation_runs import METHODS, NOISE, RUNS, ratio

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Row = Mapping[str, Any]
SHOWN = {
    "greedy": "greedy",
    "sampled": "best sample",
    "refined": "refined",
    "portfolio": "portfolio",
    "single_device": "one device",
    "annealing": "annealing",
    "annealing_trained": "annealing, training's calls too",
}
"""Names of ``METHODS`` for people."""
WIDEST = 24.0
"""Inches of the picture at most."""
LABEL_WIDTH = 18
"""Letters of a line below its bars."""


def summarise(rows: Sequence[Row]) -> dict[str, dict[str, float]]:
    """Of each method over all problems: geometric mean and worst of its ratios to the bound and to the portfolio.

    A problem counts for a ratio if both of its makespans are known and above 0.
    """
    found: dict[str, dict[str, float]] = {}
    for method in METHODS:
        for key, below in (("bound", "bound"), ("portfolio", "portfolio")):
            ratios = [row[method] / row[below] for row in rows if row[method] and row[below]]
            if ratios:
                told = found.setdefault(method, {})
                told[f"ratio_{key}_mean"] = math.exp(fmean(map(math.log, ratios)))
                told[f"ratio_{key}_worst"] = max(ratios)
    return found


def print_evaluation(
    console: Console, rows: Sequence[Row], summary: Mapping[str, Mapping[str, float]], failures: Mapping[str, str]
) -> None:
    """Makespans, how they hold, ratios over all problems if there are several, and what failed."""
    methods = [method for method in METHODS if any(row[method] is not None for row in rows)]
    console.print(_makespans(rows, methods))
    console.print(_robustness(rows))
    if len(rows) > 1:
        console.print(_ratios(summary, len(rows)))
    calls = sorted({row["calls"] for row in rows})
    spent = f"{calls[0]:,}" if len(calls) == 1 else f"{calls[0]:,} to {calls[-1]:,}"
    lines = [f"Annealing had as many simulator calls as the policy's placement took: {spent}."]
    if any(row["trained_on"] for row in rows):
        lines.append("+ the policy was trained on this problem.")
    if not all(row["repeatable"] for row in rows):
        lines.append("Local search was stopped by a budget in seconds; another run may differ.")
    lines += [f"{title}: no placement. {reason}" for title, reason in failures.items()]
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _makespans(rows: Sequence[Row], methods: Sequence[str]) -> Table:
    table = Table(title=f"{rows[0]['method']}: makespan, order={rows[0]['order']}")
    _columns(table, "bound", *(SHOWN[method] for method in methods), "", "/ bound", "/ portfolio", "decided [s]")
    for row in rows:
        unit, label = time_axis(row)
        least = min(row[method] for method in methods if row[method] is not None)
        times = [
            f"[bold]{_number(row[method], unit)}[/]" if row[method] == least else _number(row[method], unit)
            for method in methods
        ]
        table.add_row(
            problem_name(row), _number(row["bound"], unit), *times, label, f"{row['ratio_bound']:.3f}",
            _number(row["ratio_portfolio"]), f"{row['decision_s']:.3f}",
        )  # fmt: skip
    return table


def _robustness(rows: Sequence[Row]) -> Table:
    tuned = any(row["fine_tune_calls"] for row in rows)
    table = Table(title=f"{RUNS} runs in random order with {NOISE:.0%} noise; the best sample in both orders; costs")
    names = ["mean", "90 %", "portfolio's mean", "90 %", "fifo", "priority", "", "calls"]
    _columns(table, *names, *(["fine-tuning's", "seconds"] if tuned else []))
    for row in rows:
        unit, label = time_axis(row)
        keys = ("random_mean", "random_p90", "portfolio_random_mean", "portfolio_random_p90")
        times = [_number(row[key], unit) for key in (*keys, "sampled_fifo", "sampled_priority")]
        costs = [f"{row['fine_tune_calls']:,}", f"{row['fine_tune_s']:.1f}"] if tuned else []
        table.add_row(problem_name(row), *times, label, f"{row['calls']:,}", *costs)
    return table


def _ratios(summary: Mapping[str, Mapping[str, float]], count: int) -> Table:
    table = Table(title=f"Ratios over {count} problems: geometric mean and worst")
    _columns(table, "/ bound", "worst", "/ portfolio", "worst", first="method")
    for method, told in summary.items():
        keys = ("ratio_bound_mean", "ratio_bound_worst", "ratio_portfolio_mean", "ratio_portfolio_worst")
        table.add_row(SHOWN[method], *(_number(told.get(key)) for key in keys))
    return table


def _columns(table: Table, *names: str, first: str = "graph on devices") -> None:
    table.add_column(first)
    for name in names:
        table.add_column(escape(name), justify="right" if name else "left")


def problem_name(row: Row) -> str:
    """The graph and the devices of a row; a plus where the policy was trained on them."""
    return escape(f"{row['graph']} on {row['topology']}") + " +" * bool(row["trained_on"])


def time_axis(row: Row) -> tuple[float, str]:
    """A divisor and its name so that the row's makespans read well."""
    if row["topology"] == "raw":
        return row["time_unit"], "raw"
    return next(((unit, label) for unit, label in ((1.0, "s"), (1e-3, "ms")) if row["makespan"] >= unit), (1e-6, "µs"))


def _number(value: float | None, unit: float = 1.0) -> str:
    """Four digits; a dash for what is not there."""
    return "-" if value is None else f"{value / unit:.4g}"


def draw_evaluation(folder: str | Path, rows: Sequence[Row]) -> Path:
    """``evaluation.png``: see ``evaluation``."""
    from hadoppler.envs.pictures import save_figure

    path = Path(folder) / "evaluation.png"
    save_figure(path, evaluation(rows))
    return path


def evaluation(rows: Sequence[Row]) -> Figure:
    """A group of bars per problem: every method's makespan, as a ratio to the lower bound."""
    from matplotlib.figure import Figure

    from hadoppler.envs.pictures import COLOURS, verbatim

    methods = [method for method in METHODS if any(row[method] is not None for row in rows)]
    figure = Figure(figsize=(min(3.0 + 0.22 * len(rows) * len(methods), WIDEST), 4.5), layout="constrained")
    panel = figure.subplots()
    width = 0.8 / len(methods)
    for number, method in enumerate(methods):
        places = [group + (number + 0.5) * width - 0.4 for group in range(len(rows))]
        heights = [ratio(row[method], row["bound"]) or math.nan for row in rows]
        panel.bar(places, heights, width, color=COLOURS[METHODS.index(method)], label=SHOWN[method])
    panel.axhline(1.0, color="0.4", linewidth=1)
    names = [verbatim(f"{row['graph']}\n{fill(row['topology'], LABEL_WIDTH)}") for row in rows]
    slanted: dict[str, Any] = {"rotation": 45, "ha": "right", "rotation_mode": "anchor"} if len(rows) > 4 else {}
    panel.set_xticks(range(len(rows)), names, fontsize="small", **slanted)
    panel.set_ylabel("makespan / lower bound")
    figure.legend(loc="outside upper center", ncols=4, fontsize="small")
    return figure
