"""Files of tables: what they may say, what parts they mean, and by what parts are known."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch_geometric")

from hadoppler.scripts.reproduction.parts import Part, Plan, configurations, plan_of
from hadoppler.scripts.reproduction.table_files import parse_table, read_table, table_names
from hadoppler.scripts.reproduction.tables import TableError
from hadoppler.scripts.settings import setting

TABLE = """
title: A table
source: nowhere
command: place
rows:
  first: {row: main/heft}
  second: {row: main/critical_path, settings: {method.critical_path.runs: 3}}
over: {graph: [chain, fork_join]}
seeds: [0, 1]
reference: first
figures:
  makespan: {key: makespan, label: makespan}
claims:
  - {title: first over second, figure: makespan, of: first, over: second, published: 2.0}
quick: {over: {graph: [chain]}}
"""
NEEDING = """
title: Another
source: nowhere
command: place
rows:
  teacher: {row: main/heft}
  pupil: {row: measured/doppler_sys, needs: {method.file.path: {row: teacher, file: placement.json}}}
figures:
  makespan: {key: makespan, label: makespan}
over: {graph: [chain]}
"""


@pytest.fixture(autouse=True)
def _settings() -> Iterator[None]:
    with configurations():
        yield


def plan(*texts: str, quick: bool = False, short: dict[str, Any] | None = None) -> Plan:
    tables = {f"table{number}": parse_table(f"table{number}", text) for number, text in enumerate(texts)}
    return plan_of(tables, quick=quick, short=short)


def keys(*texts: str, **options: Any) -> list[str]:
    return [part.key for parts in plan(*texts, **options).rows.values() for part in parts]


def test_a_part_for_each_row_setting_and_seed() -> None:
    parts = plan(TABLE).rows["table0"]
    told = [(part.row, part.at["graph"], part.seed) for part in parts]
    assert told == [(r, g, s) for r in ("first", "second") for g in ("chain", "fork_join") for s in (0, 1)]
    assert len({part.key for part in parts}) == 8
    assert parts[4].words(Path("root")) == [
        "place",
        "experiment=main/critical_path",
        "graph=chain",
        "method.critical_path.runs=3",
        "seed=0",
        "pictures=false",
    ]
    assert len(plan(TABLE, quick=True).rows["table0"]) == 2
    rare = plan(TABLE.replace("{row: main/heft}", "{row: main/heft, only: {graph: [fork_join]}}"), quick=True)
    assert [part.at["graph"] for part in rare.rows["table0"]] == ["fork_join", "chain"], "every row has its part"


def test_the_hash_covers_what_is_computed_and_nothing_else() -> None:
    before = keys(TABLE)
    assert keys(TABLE) == before
    assert keys(TABLE.replace("first", "renamed"))[:4] == before[:4], "labels are not computed with"
    longer = keys(TABLE.replace("runs: 3", "runs: 4"))
    assert longer[:4] == before[:4]
    assert not set(longer[4:]) & set(before)
    told = TABLE.replace("{row: main/heft}", "{row: main/heft, settings: {pictures: true}}")
    assert keys(told) == before


def test_parts_that_are_the_same_are_one() -> None:
    both = plan(TABLE, TABLE)
    assert len(both.parts) == 8
    assert [part.table for part in both.rows["table1"]] == ["table1"] * 8


def test_parts_follow_those_that_they_need(tmp_path: Path) -> None:
    found = plan(NEEDING)
    teacher, pupil = found.rows["table0"]
    assert list(found.parts) == [teacher.key, pupil.key]
    assert f"method.file.path={tmp_path}/parts/{teacher.key}/placement.json" in pupil.words(tmp_path)
    other = plan(NEEDING.replace("{row: main/heft}", "{row: main/heft, settings: {order: priority}}"))
    assert other.rows["table0"][1].key != pupil.key, "the hash covers the other part's, not its path"


def test_rows_cannot_need_each_other() -> None:
    text = NEEDING.replace(
        "teacher: {row: main/heft}",
        "teacher: {row: measured/doppler_sys, needs: {method.file.path: {row: pupil, file: placement.json}}}",
    )
    with pytest.raises(TableError, match="rows need each other: teacher -> pupil -> teacher"):
        plan(text)


def test_short_settings_go_to_the_rows_that_have_them() -> None:
    short = {"method.critical_path.runs": 2, "stage.imitation.updates": 1}
    first, second = plan(TABLE, quick=True, short=short).rows["table0"]
    assert "method.critical_path.runs" not in first.settings
    assert second.settings["method.critical_path.runs"] == 2
    assert "stage.imitation.updates" not in second.settings


def test_settings_that_go_with_a_value() -> None:
    text = TABLE + "along: {graph: {chain: {graph.length: 7, graph.width: 3}}}\n"
    by_graph = {part.at["graph"]: part.settings for part in plan(text).rows["table0"]}
    assert by_graph["chain"]["graph.length"] == 7
    assert "graph.width" not in by_graph["chain"], "a chain has none"
    assert "graph.length" not in by_graph["fork_join"]


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("title:", "titel:", "titel"),
        ("title: A table\n", "", "title"),
        ("command: place", "command: plaice", "command is 'plaice'; did you mean 'place'?"),
        ("over: second", "over: secnd", "claims[0], its row is 'secnd'; did you mean 'second'?"),
        ("figure: makespan", "figure: makspan", "claims[0].figure is 'makspan'; did you mean 'makespan'?"),
        ("published: 2.0", "published: {a: 1}", "expected a number, [low, high], or words"),
        (", published: 2.0", "", "published"),
        ("reference: first", "reference: none", "reference is 'none'"),
        ("quick: {over: {graph", "quick: {over: {grph", "names 'grph', over which the table does not range"),
        ("seeds: [0, 1]", "seeds: many", "seeds"),
        ("main/heft", "main/hoft", "its settings cannot be composed"),
        ("runs: 3", "rans: 3", "rans"),
        ("rows:", "rows: {}\nothers:", "others"),
        ("title: A table", "title: [", "it is no YAML"),
    ],
)  # fmt: skip
def test_mistakes_are_told_in_one_sentence(old: str, new: str, sentence: str) -> None:
    assert old in TABLE
    with pytest.raises(TableError, match=re.escape(sentence)) as caught:
        plan(TABLE.replace(old, new, 1))
    assert str(caught.value).startswith("conf/table/table0.yaml: ")
    assert "\n" not in str(caught.value)


def test_an_unknown_table_gets_the_nearest() -> None:
    with pytest.raises(TableError, match=r"there is no table 'headlin'; did you mean headline\?"):
        read_table("headlin")


@pytest.mark.parametrize("name", table_names())
def test_tables_say_what_they_are(name: str) -> None:
    table = read_table(name)
    assert table.place < 99
    assert table.source
    assert all(figure.label for figure in table.figures.values())


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (None, "null"),
        (True, "true"),
        ([1, 1.5], "[1,1.5]"),
        ({"a": "b c"}, "{a:'b c'}"),
        ("it's", r"'it\'s'"),
        (3e9, "3000000000.0"),
    ],
)
def test_settings_are_written_as_hydra_reads_them(value: Any, written: str) -> None:
    from hydra.core.override_parser.overrides_parser import OverridesParser

    assert setting("a.b", value) == f"a.b={written}"
    assert OverridesParser.create().parse_override(setting("a.b", value)).value() == value


def test_parts_are_named_for_people() -> None:
    part: Part = plan(TABLE).rows["table0"][0]
    assert part.name == "table0: first, graph chain, seed 0"
