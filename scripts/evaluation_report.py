"""The tables and the picture of ``hadoppler evaluate``."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import geometric_mean
from textwrap import fill
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from hadoppler.scripts.evaluation_runs import METHODS, NOISE, RUNS, ratio
from hadoppler.scripts.report import Column, print_columns

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
    "annealing_trained": "annealing, trained",
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
                told[f"ratio_{key}_mean"] = geometric_mean(ratios)
                told[f"ratio_{key}_worst"] = max(ratios)
    return found


def print_evaluation(
    console: Console, rows: Sequence[Row], summary: Mapping[str, Mapping[str, float]], failures: Mapping[str, str]
) -> None:
    """A row per problem, in as many tables as the terminal's width asks for; ratios over all of them; what failed."""
    methods = [method for method in METHODS if any(row[method] is not None for row in rows)]
    names = [f"{problem_name(row)} [{time_axis(row)[1]}]" for row in rows]
    title = f"{rows[0]['method']}: makespans, order={rows[0]['order']}"
    print_columns(console, names, [*_makespans(rows, methods), *_robustness(rows), *_costs(rows)], title=title)
    if len(rows) > 1:
        title = f"Ratios over {len(rows)} problems: geometric mean and worst"
        print_columns(console, [SHOWN[method] for method in summary], _ratios(summary), title=title)
    for line in [*_legend(rows), *(f"{problem}: no placement. {reason}" for problem, reason in failures.items())]:
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _makespans(rows: Sequence[Row], methods: Sequence[str]) -> list[Column]:
    """The bound, and every method's makespan, the least of a row in bold."""
    columns: list[Column] = [("bound\n", [_number(row["bound"], time_axis(row)[0]) for row in rows])]
    least = [min(row[method] for method in methods if row[method] is not None) for row in rows]
    for method in methods:
        cells = [
            Text(_number(row[method], time_axis(row)[0]), style="bold" if row[method] == best else "")
            for row, best in zip(rows, least, strict=True)
        ]
        columns.append((SHOWN[method].replace(" ", "\n", 1) if " " in SHOWN[method] else f"{SHOWN[method]}\n", cells))
    columns.append(("ours\n/ bound", [f"{row['ratio_bound']:.3f}" for row in rows]))
    columns.append(("ours\n/ portfolio", [_number(row["ratio_portfolio"]) for row in rows]))
    return columns


def _robustness(rows: Sequence[Row]) -> list[Column]:
    """In random order with noise, and the best sample in both orders."""
    headers = {
        "random_mean": "random,\nours",
        "random_p90": "90 %,\nours",
        "portfolio_random_mean": "random,\nportfolio",
        "portfolio_random_p90": "90 %,\nportfolio",
        "sampled_fifo": "sample,\nfifo",
        "sampled_priority": "sample,\npriority",
    }
    return [(header, [_number(row[key], time_axis(row)[0]) for row in rows]) for key, header in headers.items()]


def _costs(rows: Sequence[Row]) -> list[Column]:
    """Seconds and simulator calls, of fine-tuning too if there was any."""
    columns: list[Column] = [
        ("decided\n[s]", [f"{row['decision_s']:.3f}" for row in rows]),
        ("calls\n", [f"{row['calls']:,}" for row in rows]),
    ]
    if any(row["fine_tune_calls"] for row in rows):
        columns.append(("training's\ncalls", [f"{row['fine_tune_calls']:,}" for row in rows]))
        columns.append(("training\n[s]", [f"{row['fine_tune_s']:.1f}" for row in rows]))
    return columns


def _ratios(summary: Mapping[str, Mapping[str, float]]) -> list[Column]:
    headers = {
        "ratio_bound_mean": "/ bound,\nmean",
        "ratio_bound_worst": "/ bound,\nworst",
        "ratio_portfolio_mean": "/ portfolio,\nmean",
        "ratio_portfolio_worst": "/ portfolio,\nworst",
    }
    return [(header, [_number(told.get(key)) for told in summary.values()]) for key, header in headers.items()]


def _legend(rows: Sequence[Row]) -> list[str]:
    """What the columns mean."""
    calls = sorted({row["calls"] for row in rows})
    spent = f"{calls[0]:,}" if len(calls) == 1 else f"{calls[0]:,} to {calls[-1]:,}"
    lines = [
        f"Annealing searched with as many simulator calls as the policy's placement took, {spent}, from the "
        "portfolio's placements, whose calls are not counted."
    ]
    if any(row["fine_tune_calls"] for row in rows):
        lines.append("Annealing, trained: with the calls of our training on top.")
    lines.append(
        f"Random: mean of {RUNS} runs in random order with {NOISE:.0%} noise, 90 %: what nine of ten stay below."
    )
    lines.append("Sample: our best sample, run first come first served or in the order in which the policy chose.")
    if any(row["trained_on"] for row in rows):
        lines.append("+ the policy was trained on this problem.")
    if not all(row["repeatable"] for row in rows):
        lines.append("Local search was stopped by a budget in seconds; another run may differ.")
    return lines


def problem_name(row: Row) -> str:
    """The graph and the devices of a row; a plus where the policy was trained on them."""
    return f"{row['graph']} on {row['topology']}" + " +" * bool(row["trained_on"])


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

    from hadoppler.envs.pictures import COLOURS, HATCHES, verbatim

    methods = [method for method in METHODS if any(row[method] is not None for row in rows)]
    figure = Figure(figsize=(min(3.0 + 0.22 * len(rows) * len(methods), WIDEST), 4.5), layout="constrained")
    panel = figure.subplots()
    width = 0.8 / len(methods)
    for number, method in enumerate(methods):
        places = [group + (number + 0.5) * width - 0.4 for group in range(len(rows))]
        heights = [ratio(row[method], row["bound"]) or math.nan for row in rows]
        look = METHODS.index(method)
        panel.bar(
            places, heights, width, color=COLOURS[look], hatch=HATCHES[look], edgecolor="white", label=SHOWN[method]
        )
    panel.axhline(1.0, color="0.4", linewidth=1)
    names = [verbatim(f"{row['graph']}\n{fill(row['topology'], LABEL_WIDTH)}") for row in rows]
    slanted: dict[str, Any] = {"rotation": 45, "ha": "right", "rotation_mode": "anchor"} if len(rows) > 4 else {}
    panel.set_xticks(range(len(rows)), names, fontsize="small", **slanted)
    panel.set_ylabel("makespan / lower bound")
    figure.legend(loc="outside upper center", ncols=4, fontsize="small")
    return figure
