"""``hadoppler demo``: both levels and a real run, in under three minutes, with a report at the end."""

from __future__ import annotations

import secrets
import shlex
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from rich.console import Console

from hadoppler.scripts.reproduction.page import page
from hadoppler.scripts.sweep_figures import read_results


@dataclass(frozen=True)
class Step:
    """One command of the demonstration.

    Attributes:
        name: of its folder, and of its part of the report.
        title, told: what it shows.
        command, words: the command and its settings.
        columns: keys of its rows in ``results.json``, with a header and what to divide by; None for texts.
        pictures: files of its folder.
    """

    name: str
    title: str
    told: str
    command: str
    words: tuple[str, ...]
    columns: Mapping[str, tuple[str, float | None]]
    pictures: tuple[str, ...]


STEPS = (
    Step(
        "cluster",
        "Which job gets which GPUs",
        "24 jobs on ten unequal GPUs, simulated: Gavel, Hadar as published, Hadar's horizon mode, and HadarE, which "
        "forks jobs over nodes.",
        "simulate",
        (
            "workload.jobs=24",
            "cluster=parse",
            "cluster.text=v100:4 p100:4 k80:2",
            "scheduler=[gavel_max_min,hadar,hadar_horizon,hadare]",
        ),
        {
            "scheduler": ("scheduler", None),
            "ttd_s": ("total time [h]", 3600),
            "mean_jct_s": ("mean completion time [h]", 3600),
            "gru": ("GPUs in use", 1),
        },
        ("completion_times.png", "use.png"),
    ),
    Step(
        "placement",
        "Which operation runs on which device",
        "A mixture-of-experts block on unequal GPUs with slow links, simulated: heuristics, the best of them all, "
        "and the shipped DOPPLER policy, which has never seen this graph.",
        "place",
        ("graph=moe_block", "topology=mixed-slow", "method=[single_device,critical_path,heft,portfolio,doppler]"),
        {
            "method": ("method", None),
            "makespan": ("makespan [ms]", 1e-3),
            "ratio_bound": ("over the lower bound", 1),
            "decision_s": ("seconds to decide", 1),
        },
        ("gantt.png",),
    ),
    Step(
        "training",
        "The same scheduler on real workers",
        "Two real PyTorch trainings under HadarE on three unequal nodes that are emulated on this machine: copies "
        "train at once, their weights are averaged every round; measured beside simulated.",
        "run",
        (
            "workload.jobs=2",
            "workload.tasks=[digits,diabetes]",
            "workload.steps=[250,350]",
            "cluster=parse",
            "cluster.text=v100:1 p100:1 k80:1",
            "base_s=0.03",
            "round_s=2",
            "scheduler=[hadare]",
        ),
        {
            "scheduler": ("scheduler", None),
            "ttd_s": ("total time [s]", 1),
            "simulated_ttd_s": ("simulated [s]", 1),
            "cru": ("nodes in use", 1),
            "consolidations": ("times that weights were averaged", 1),
        },
        ("nodes_hadare.png",),
    ),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the steps one after the other, then write the report; returns the first exit code that is not 0."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words:
        print(
            "hadoppler demo takes no arguments: it simulates a cluster, places a graph, and trains two jobs for real."
        )
        return 0 if words[0] in ("-h", "--help") else 2
    console = Console()
    folder = Path("runs", "demo", f"{time.strftime('%Y-%m-%d_%H-%M-%S')}_{secrets.token_hex(3)}").absolute()
    for number, step in enumerate(STEPS, 1):
        console.rule(f"{number} of {len(STEPS)}: {step.title}")
        console.print(step.told)
        command = import_module(f"hadoppler.scripts.{step.command}")
        code = int(command.main([*step.words, f"hydra.run.dir={folder / step.name}"]))
        if code:
            return code
    console.rule("done")
    console.print(f"Report: {write_report(folder)}", highlight=False, markup=False, soft_wrap=True)
    return 0


def write_report(folder: Path) -> Path:
    """``report.md`` and ``report.html`` of all steps; returns the path of the latter."""
    from hadoppler.envs.placement.readers.files import write_text

    text = "\n".join(report_lines(folder)) + "\n"
    write_text(folder / "report.md", text)
    write_text(folder / "report.html", page(text, folder))
    return folder / "report.html"


def report_lines(folder: Path) -> Iterator[str]:
    """The report in Markdown: of each step what it shows, its command, its table and its pictures."""
    yield "# Hadoppler: a demonstration"
    for step in STEPS:
        rows = read_results(folder / step.name)["rows"]
        command = shlex.join(["hadoppler", step.command, *step.words])
        yield from ("", f"## {step.title}", "", step.told, "", "```sh", command, "```", "")
        yield from table_lines(step, rows)
        for picture in step.pictures:
            yield from ("", f"![{step.title}: {picture.removesuffix('.png')}]({step.name}/{picture})")
    yield from (
        "",
        "Every folder beside this file holds the whole run: configuration, versions, seed, figures, pictures.",
    )


def table_lines(step: Step, rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """A table in Markdown, texts to the left and numbers to the right."""
    yield "| " + " | ".join(header for header, _ in step.columns.values()) + " |"
    yield "|" + "|".join("---" if unit is None else "---:" for _, unit in step.columns.values()) + "|"
    for row in rows:
        cells = (str(row[key]) if unit is None else f"{row[key] / unit:.4g}" for key, (_, unit) in step.columns.items())
        yield "| " + " | ".join(cells) + " |"


if __name__ == "__main__":
    sys.exit(main())
