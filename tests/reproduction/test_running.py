"""Parts as processes: run once, go on after a stop, each after those that it needs; failures told, others done."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

pytest.importorskip("torch_geometric")

from hadoppler.scripts import reproduce
from hadoppler.scripts.report import read_json
from hadoppler.scripts.reproduction import parts as parts_module, running, table_files
from hadoppler.scripts.reproduction.parts import Plan, configurations, plan_of
from hadoppler.scripts.reproduction.records import read_record
from hadoppler.scripts.reproduction.table_files import parse_table
from hadoppler.scripts.reproduction.tables import Table

FAKE = (sys.executable, str(Path(__file__).parent / "fake_commands.py"))
TEXT = """
title: A table
source: nowhere
command: place
rows:
  HEFT: {row: main/heft}
  CP: {row: main/critical_path}
  after HEFT: {row: measured/doppler_sys, needs: {method.file.path: {row: HEFT, file: placement.json}}}
over: {graph: [chain]}
figures:
  makespan: {key: makespan, label: makespan}
"""
TRAINED = (
    TEXT.replace("command: place", "command: train").replace("main/heft", "main/doppler").split("  CP")[0]
    + """
figures:
  makespan: {key: makespan, label: makespan}
"""
)


@pytest.fixture(autouse=True)
def _fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(running, "PROGRAM", FAKE)


def make(text: str = TEXT) -> Plan:
    with configurations():
        return plan_of({"a": parse_table("a", text)}, quick=False)


def run(plan: Plan, jobs: int = 2) -> dict[str, str]:
    return running.run_parts(plan.parts, Path("root").absolute(), jobs, Console(quiet=True))


def calls() -> list[dict[str, Any]]:
    """What was called since the last look."""
    path = Path("calls.jsonl")
    found = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    path.unlink(missing_ok=True)
    return found


def test_what_has_finished_is_not_run_again() -> None:
    plan = make()
    assert run(plan) == {}
    first = calls()
    assert {call["row"] for call in first} == {"main/heft", "main/critical_path", "measured/doppler_sys"}
    assert run(plan) == {}
    assert calls() == []
    changed = make(TEXT.replace("{row: main/critical_path}", "{row: main/critical_path, settings: {order: priority}}"))
    assert run(changed) == {}
    assert [call["words"]["order"] for call in calls()] == ["priority"]


def test_a_part_begins_with_the_file_that_it_needs() -> None:
    plan = make()
    run(plan, jobs=3)
    made = {call["row"]: call for call in calls()}
    heft = plan.rows["a"][0].folder(Path("root").absolute())
    assert made["measured/doppler_sys"]["words"]["method.file.path"] == str(heft / "placement.json")
    assert made["measured/doppler_sys"]["begun"] > read_json(heft / "results.json")["ended"]


def test_a_failure_is_told_and_the_others_are_done() -> None:
    plan = make()
    Path("fail").write_text("main/heft")
    failed = run(plan)
    heft, cp, after = plan.rows["a"]
    assert failed == {
        heft.key: "the row main/heft is broken; mend it.",
        after.key: "it needs a: HEFT, graph chain, seed 0, which failed.",
    }
    assert [read_record(part, Path("root").absolute()).state for part in (heft, cp, after)] == [
        "failed", "finished", "failed",
    ]  # fmt: skip
    calls()
    Path("fail").unlink()
    assert run(plan) == {}
    assert [call["row"] for call in calls()] == ["main/heft", "measured/doppler_sys"], "what failed is tried again"


def test_parts_that_measure_seconds_run_alone_and_last() -> None:
    text = TEXT.replace("seeds", "") + "seeds: [0, 1]\nalone: true\n"
    with configurations():
        plan = plan_of(
            {"b": parse_table("b", text), "a": parse_table("a", TEXT.replace("chain]", "fork_join]"))}, quick=False
        )
    assert run(plan, jobs=4) == {}
    told = {key: read_json(part.folder(Path("root").absolute()) / "results.json") for key, part in plan.parts.items()}
    spans = sorted((told[part.key]["begun"], told[part.key]["ended"]) for part in plan.rows["b"])
    assert all(before[1] <= after[0] for before, after in pairwise(spans))
    assert max(told[part.key]["ended"] for part in plan.rows["a"]) <= spans[0][0]


PROGRAM = """
import sys
from pathlib import Path
from rich.console import Console
from hadoppler.scripts.reproduction import running
from hadoppler.scripts.reproduction.parts import configurations, plan_of
from hadoppler.scripts.reproduction.table_files import parse_table
running.PROGRAM = {fake!r}
with configurations():
    plan = plan_of({{"a": parse_table("a", {text!r})}}, quick=False)
try:
    running.run_parts(plan.parts, Path("root").absolute(), 2, Console(quiet=True))
except KeyboardInterrupt:
    sys.exit(130)
"""


def interrupted(text: str, number: int, expected: int) -> None:
    """A call in a process of its own, stopped by a signal once so many parts have begun."""
    process = subprocess.Popen([sys.executable, "-c", PROGRAM.format(fake=FAKE, text=text)])
    deadline = time.monotonic() + 60
    while not Path("calls.jsonl").exists() or len(Path("calls.jsonl").read_text().splitlines()) < expected:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    time.sleep(0.5)  # what does not hang has finished
    process.send_signal(number)
    assert process.wait(30) == 130


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_call_goes_on(number: int) -> None:
    Path("hang").write_text("main/critical_path")
    interrupted(TEXT, number, expected=3)
    plan = make()
    states = [read_record(part, Path("root").absolute()).state for part in plan.rows["a"]]
    assert states == ["finished", "missing", "finished"]
    calls()
    Path("hang").unlink()
    assert run(plan) == {}
    assert [call["row"] for call in calls()] == ["main/critical_path"]


def test_a_stopped_training_goes_on_where_it_was() -> None:
    Path("hang").write_text("main/doppler")
    interrupted(TRAINED, signal.SIGINT, expected=1)
    assert "resume" not in calls()[0]["words"]
    Path("hang").unlink()
    plan = make(TRAINED)
    assert run(plan) == {}
    (again,) = calls()
    assert again["words"]["resume"] == str(plan.rows["a"][0].folder(Path("root").absolute()))
    assert "hydra.run.dir" not in again["words"]


def test_a_process_that_was_left_behind_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    root, (part, *_) = Path("root").absolute(), make().rows["a"]
    lock = running._lock(root / "locks" / part.key)
    assert lock is not None
    assert running.start(part, root) is None
    os.close(lock)
    started = running.start(part, root)
    assert started is not None
    assert started.process.wait(20) == 0


def as_only_table(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    table: Table = parse_table("a", text)
    monkeypatch.setattr(table_files, "table_names", lambda: ["a"])
    monkeypatch.setattr(parts_module, "read_table", lambda name: table)


def test_the_command_fails_after_all_others_are_done(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    as_only_table(monkeypatch, TEXT)
    Path("fail").write_text("main/critical_path")
    assert reproduce.main(["folder=here"]) == 1
    text = Path("here/quick/report.md").read_text()
    assert "2 of 3 parts finished, 1 failed, 0 are missing." in text
    assert "- a: CP, graph chain, seed 0: the row main/critical\\_path is broken; mend it." in text
    assert "the row main/critical_path is broken; mend it." in capsys.readouterr().out
    Path("fail").unlink()
    calls()
    assert reproduce.main(["folder=here", "run=false"]) == 0
    assert calls() == []
    assert reproduce.main(["folder=here"]) == 0
    assert [call["row"] for call in calls()] == ["main/critical_path"]
    assert "3 of 3 parts finished" in Path("here/quick/report.md").read_text()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["mode=half"], "mode is 'half'; expected quick or full."),
        (["jobs=0"], "jobs is 0; expected a whole number from 1 up."),
        (["tables=[]"], "tables is empty; name some, or leave it out for all."),
        (["tables=[headlin]"], "there is no table 'headlin'; did you mean headline?"),
    ],
)
def test_mistakes_are_one_sentence(words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert reproduce.main(words) == 2
    assert capsys.readouterr().err == f"hadoppler reproduce: {sentence}\n"
