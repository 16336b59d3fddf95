"""What came out: figures and claims against values by hand, and a report that holds every row and stands alone."""

from __future__ import annotations

import csv
import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch_geometric")

from hadoppler.scripts.intervals import estimate
from hadoppler.scripts.reproduction.evidence import Evidence, figure_of, find, over_reference
from hadoppler.scripts.reproduction.figures import write_figures
from hadoppler.scripts.reproduction.page import page
from hadoppler.scripts.reproduction.parts import Plan, configurations, plan_of
from hadoppler.scripts.reproduction.placement_pictures import curves
from hadoppler.scripts.reproduction.records import write_record
from hadoppler.scripts.reproduction.report import _commit, write_report
from hadoppler.scripts.reproduction.table_files import parse_table
from hadoppler.scripts.reproduction.tables import Figure, Picture

TEXT = """
title: Times | and <more>
source: nowhere
command: place
rows:
  ours_1: {row: main/heft}
  theirs: {row: main/critical_path}
over: {graph: [chain, fork_join]}
seeds: [0, 1, 2]
reference: theirs
figures:
  time: {key: makespan, label: time, unit: ms, divide: 0.001}
published: {figure: time, unit: ms, over: graph, values: {chain: {ours_1: 3.0, theirs: 6.0}}}
claims:
  - {title: faster, figure: time, of: theirs, over: ours_1, at: {graph: chain}, published: 4.0, note: "A remark."}
  - title: less
    figure: time
    of: ours_1
    over: theirs
    how: reduction
    at: {graph: [chain, fork_join]}
    published: 0.5
    unit: "%"
  - {title: range, figure: time, of: theirs, over: ours_1, published: [2.0, 4.0]}
  - {title: at best, figure: time, of: theirs, over: ours_1, across: best, published: above 1}
  - {title: alone, figure: time, of: ours_1, how: value, at: {graph: chain}, published: 500, unit: ms}
"""
TIMES = {
    ("ours_1", "chain"): [1.0, 2.0, 3.0],
    ("theirs", "chain"): [4.0, 4.0, 6.0],
    ("ours_1", "fork_join"): [1.0, 1.0, 1.0],
    ("theirs", "fork_join"): [8.0, 2.0, 2.0],
}
"""Row and graph -> makespans of the seeds."""


def evidence(root: Path, without: tuple[tuple[str, str, int], ...] = ()) -> Evidence:
    """Results of all parts as if they had been run, except some."""
    with configurations():
        plan: Plan = plan_of({"a": parse_table("a", TEXT)}, quick=False)
    for part in plan.rows["a"]:
        name = (part.row, part.at["graph"])
        if (*name, part.seed) not in without:
            folder = part.folder(root)
            folder.mkdir(parents=True, exist_ok=True)
            row = {"makespan": TIMES[name][part.seed], "method": "x"}
            (folder / "results.json").write_text(json.dumps({"rows": [row], "config": {}}))
            write_record(part, root, begun="2030-01-01T00:00:00+00:00", code=0, reason="", seconds=3.0)
    return Evidence(plan, root)


def test_claims_are_computed_seed_by_seed(tmp_path: Path) -> None:
    told = evidence(tmp_path)
    faster, chain, fork_join, ranged, best, alone = find(told, told.plan.tables["a"])
    ratios = [4.0, 2.0, 2.0]
    assert faster.ours == estimate(ratios)
    assert faster.ours is not None
    assert faster.ours.centre == pytest.approx(8 / 3)
    half = 4.302652729911275 * (math.sqrt(4 / 3)) / math.sqrt(3)  # Student's t, two degrees of freedom
    assert faster.ours.high == pytest.approx(8 / 3 + half)
    assert faster.ratios == [pytest.approx(2 / 3)]
    assert chain.ours is not None
    assert chain.ours.centre == pytest.approx((0.75 + 0.5 + 0.5) / 3)
    assert chain.setting == "graph chain"
    assert fork_join.ours is not None
    assert fork_join.ours.centre == pytest.approx((0.875 + 0.5 + 0.5) / 3)
    assert ranged.ours is not None
    assert ranged.ours.centre == pytest.approx((6.0 + 2.0 + 2.0) / 3), "mean of both graphs, then over the seeds"
    assert ranged.setting == "mean over graph"
    assert ranged.ratios == [pytest.approx(10 / 6), pytest.approx(10 / 12)]
    assert best.ours is not None
    assert best.ours.centre == pytest.approx((8.0 + 2.0 + 2.0) / 3)
    assert best.ratios == []
    assert alone.ours is not None
    assert alone.ours.centre == pytest.approx(2000.0)


def test_claims_use_the_seeds_that_both_rows_have(tmp_path: Path) -> None:
    told = evidence(tmp_path, without=(("ours_1", "chain", 0), ("theirs", "chain", 1)))
    faster = find(told, told.plan.tables["a"])[0]
    assert faster.ours is not None
    assert (faster.ours.centre, faster.ours.seeds) == (2.0, 1)
    ratio = over_reference(told, told.plan.tables["a"], "time", "ours_1", {"graph": "chain"})
    assert ratio is not None
    assert ratio.centre == 0.5


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"key": "a"}, 1.0),
        ({"key": "a", "better": "higher"}, 4.0),
        ({"key": "a", "take": "first"}, 4.0),
        ({"key": "a", "take": "last"}, 1.0),
        ({"key": "a", "take": "mean"}, 2.5),
        ({"key": "a", "divide": "b"}, 0.5),
        ({"key": "a", "where": {"name": "x"}}, 4.0),
        ({"key": ["none", "b"], "take": "last"}, 2.0),
        ({"key": "q.r", "inside": "jobs"}, 7.0),
        ({"key": "a", "inside": "best"}, 9.0),
        ({"key": "odd"}, None),
        ({"key": "none"}, None),
    ],
)
def test_figures_are_read_from_results(settings: dict[str, Any], expected: float | None) -> None:
    results = {
        "rows": [{"a": 4.0, "b": 8.0, "name": "x", "odd": "nan"}, {"a": 1.0, "b": 2.0, "name": "y"}],
        "jobs": [{"q": {"r": 7.0}}],
        "best": {"a": 9.0},
    }
    assert figure_of(Figure(label="", **settings), results) == expected


class Sources(HTMLParser):
    """Everything that a page refers to, and its headings."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.found += [value or "" for name, value in attributes if name in ("src", "href", "srcset", "data")]


def test_the_report_holds_every_row_and_stands_alone(tmp_path: Path) -> None:
    told = evidence(tmp_path, without=(("theirs", "fork_join", 2),))
    markdown, html = (path.read_text(encoding="utf-8") for path in write_report(told, tmp_path))
    assert "11 of 12 parts finished, 0 failed, 1 are missing." in markdown
    assert "1 of a" in markdown
    lines = [line for line in markdown.splitlines() if line.startswith(("| chain |", "| fork\\_join |"))]
    assert [line.split(" | ")[1:3] for line in lines] == [
        ["ours\\_1", "3"], ["theirs", "3"], ["ours\\_1", "3"], ["theirs", "2 of 3"],
    ]  # fmt: skip
    ratio = str(estimate([0.25, 0.5, 0.5]))
    assert lines[0].split(" | ")[4] == ratio.replace("[", "\\[").replace("]", "\\]")
    assert lines[0].endswith("| 3 | 0.500 |"), "published, and over the reference row's"
    assert "| seeds | remark |" in markdown
    assert "| faster | 4 × | 2.667 \\[" in markdown
    assert "| less | 50 % | 58.3 \\[" in markdown
    assert "| range | 2–4 × |" in markdown
    assert "| at best | above 1 |" in markdown
    for row in ("main/heft", "main/critical_path"):
        assert re.search(
            rf"^hadoppler place experiment={row} graph=chain .*hydra.run.dir=", markdown, flags=re.MULTILINE
        )
    sources = Sources()
    sources.feed(html)
    assert all(source.startswith("data:image/png;base64,") for source in sources.found)
    assert not re.search(r"https?:|@import|url\(", html)
    assert "script" not in sources.tags
    assert "Times | and &lt;more&gt;" in html
    assert html.count('<div class="box"') == sources.tags.count("table") == 2


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ({"git": {"commit": "b" * 40, "changed": True}, "hadoppler_git": {"commit": "a" * 40, "changed": False}}, "a"),
        ({"git": {"commit": "b" * 40}, "hadoppler_git": None}, ""),
        ({"git": {"commit": "b" * 40}}, "b"),
        ({"hadoppler_git": {"commit": "a" * 40, "changed": True}}, "a changed"),
        ({}, ""),
    ],
)
def test_the_commit_is_the_packages(told: dict[str, Any], expected: str) -> None:
    letter, _, changed = expected.partition(" ")
    assert _commit(told) == (f", commit {letter * 10}" if letter else "") + (", with changes" if changed else "")


def test_pictures_become_part_of_the_page(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"\x89PNG")
    html = page("# Title\n\n![What it shows](a.png)\n\n<b>no</b>\n", tmp_path)
    assert '<img src="data:image/png;base64,iVBORw==" alt="What it shows"' in html
    assert "&lt;b&gt;no&lt;/b&gt;" in html
    assert "<title>Title</title>" in html


@pytest.mark.parametrize(("longest", "scale"), [(900, "linear"), (2000, "log")])
def test_curves_of_very_different_lengths_are_all_seen(tmp_path: Path, longest: int, scale: str) -> None:
    """A curve of 100 episodes beside one of 2,000 would be a stroke at the edge."""
    told = evidence(tmp_path)
    for part in told.plan.rows["a"]:
        last = longest if part.row == "theirs" else 100
        lines = [{"episodes": episodes, "ratio": 1.0 + 1.0 / (1 + episodes)} for episodes in (0, last // 2, last)]
        (part.folder(tmp_path) / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    pictures = list(curves(told, told.plan.tables["a"], Picture("curves", figure="ratio")))
    assert len(pictures) == 2, "one for each graph"
    (axes,) = pictures[0].figure.axes
    assert axes.get_xscale() == scale
    ends = {line.get_label(): line.get_xdata()[-1] for line in axes.get_lines()}
    assert ends == {"ours_1": pytest.approx(100), "theirs": pytest.approx(longest)}


def test_every_figure_of_every_part_is_a_row(tmp_path: Path) -> None:
    told = evidence(tmp_path, without=(("theirs", "fork_join", 2),))
    with write_figures(told, tmp_path).open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 11
    assert {(row["table"], row["figure"], row["unit"]) for row in rows} == {("a", "time", "ms")}
    found = {(row["row"], row["settings"], int(row["seed"])): float(row["value"]) for row in rows}
    for (row, graph), times in TIMES.items():
        for seed, value in enumerate(times):
            if (row, graph, seed) != ("theirs", "fork_join", 2):
                assert found[row, f"graph={graph}", seed] == 1000 * value
    assert {row["part"] for row in rows} == {part.key for part in told.plan.rows["a"]} - {
        part.key for part in told.parts("a", "theirs", {"graph": "fork_join"}) if part.seed == 2
    }
