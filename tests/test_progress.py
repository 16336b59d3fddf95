"""What commands tell of long work where there is no terminal, and of kernels that are compiled."""

from __future__ import annotations

import io
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from numba import njit
from rich.console import Console

from hadoppler.scripts import compilation, evaluate, place, simulate, suite_runs
from hadoppler.scripts.progress import PlainProgress


def test_long_work_is_told_of_once_and_short_work_not() -> None:
    screen = io.StringIO()
    with PlainProgress(Console(file=screen, width=40), every_s=0.2) as progress:
        progress.at("short")
        progress.at("long, with [brackets] and more words than a line has")
        time.sleep(0.5)
        progress.at("also long")
        time.sleep(0.3)
        progress.at("again short")
    assert screen.getvalue() == "long, with [brackets] and more words than a line has ...\nalso long ...\n"


def test_terminals_have_bars_instead() -> None:
    screen = io.StringIO()
    with PlainProgress(Console(file=screen, force_terminal=True), every_s=0.01) as progress:
        progress.at("long")
        time.sleep(0.1)
    assert screen.getvalue() == ""


SLOW = {
    "place": (place, "placing with heft (1 of 2) ..."),
    "simulate": (simulate, "simulating yarn_cs, seed 0 (1 of 1) ..."),
    "evaluate": (place, "placing with heft (1 of 1) ..."),
    "policy": (evaluate, "chain on 4xdevice (1 of 1): "),
    "cluster suite": (suite_runs, "simulating 0: "),
}


@pytest.mark.parametrize("name", SLOW)
def test_commands_tell_what_they_are_at(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from hadoppler.scripts import simulation_runs

    monkeypatch.chdir(tmp_path)
    where, told = SLOW[name]
    at_once = partial(PlainProgress, every_s=0.05)
    for module in {where, place}:
        monkeypatch.setattr(module, "PlainProgress", at_once)

    def slowly(work: Any) -> Any:
        def slow(*args: Any, **kwargs: Any) -> Any:
            done = work(*args, **kwargs)
            time.sleep(0.15)
            return done

        return slow

    monkeypatch.setattr(place, "place", slowly(place.place))
    monkeypatch.setattr(evaluate, "evaluate", slowly(evaluate.evaluate))
    monkeypatch.setattr(simulation_runs, "run_one", slowly(simulation_runs.run_one))
    world = "{workload:headline,jobs:4,seed:0,cluster:headline}"
    words = {
        "place": ["graph=chain", "topology=uniform", "method=[heft,random]"],
        "simulate": ["workload.jobs=3", "scheduler=[yarn_cs]"],
        "evaluate": ["graph=chain", "topology=uniform", "problems=one", "count=1", "method=[heft]"],
        "policy": ["graph=chain", "topology=uniform", "problems=one", "count=1", "samples=2"],
        "cluster suite": [
            "suite=cluster_test",
            "scheduler=[srtf]",
            f"suite.worlds=[{world}]",
            "suite.sha256=null",
        ],
    }[name]
    command: Any = {"place": place, "simulate": simulate}.get(name, evaluate)
    assert command.main([*words, "pictures=false"]) == 0
    assert told in capsys.readouterr().out


def test_a_compilation_is_told_once(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(compilation, "_was_told", False)
    with compilation.compilation_told():
        assert capsys.readouterr().out == ""
        assert njit(lambda x: x + 1)(1) == 2
        assert njit(lambda x: x + 2)(1) == 3
    assert capsys.readouterr().out == compilation.TOLD + "\n"
    assert njit(lambda x: x + 3)(1) == 4
    assert capsys.readouterr().out == ""


def test_commands_tell_of_compilations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(compilation, "_was_told", False)

    def compiles(*_: Any, **__: Any) -> None:
        njit(lambda x: x + 4)(1)

    monkeypatch.setattr(place, "compile_kernels", compiles)
    assert place.main(["graph=chain", "topology=uniform", "method=[heft]", "pictures=false"]) == 0
    assert capsys.readouterr().out.count(compilation.TOLD) == 1
