"""Sweeps over seeds: centre and interval of every figure, members that fail, sweeps that start at once."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from hadoppler.scripts import place as place_command, simulate, train
from hadoppler.scripts.figure_headings import headings
from hadoppler.scripts.intervals import estimate
from hadoppler.scripts.metrics import best_figures
from hadoppler.scripts.simulation_report import _columns
from hadoppler.scripts.sweep import Member
from hadoppler.scripts.sweep_figures import row_figures
from hadoppler.scripts.sweep_seeds import Line, over_seeds, picture, print_lines

CONF = Path(__file__).resolve().parents[1] / "conf"
PLAN = ["~agent", "+agent={_target_: train_plans.ValidatedPlan, seed: ${seed}, online: false, killed: false}"]
QUICK = ["graph=chain", "method=[round_robin]", "pictures=false"]


@pytest.fixture(autouse=True)
def _other_processes(own_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They find the plans."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))


def told(command: str) -> dict[str, Any]:
    """``sweep.json`` of the only sweep."""
    (path,) = Path("runs", command).glob("*/sweep.json")
    return json.loads(path.read_text())


def member(tmp_path: Path, number: int, words: tuple[str, ...], state: str = "finished", **row: float) -> Member:
    """A member that left one row."""
    folder = tmp_path / str(number)
    folder.mkdir(exist_ok=True)
    (folder / "results.json").write_text(json.dumps({"rows": [{"method": "mine", **row}]}))
    return Member(number, words, state, "why", 1, folder)


# --- figures ------------------------------------------------------------------------------------------


def test_figures_are_pooled_by_setting_and_name(tmp_path: Path) -> None:
    values = [1.0, 2.0, 4.0, 8.0, 100.0]
    members = [member(tmp_path, i, ("graph=a", f"seed={i}"), makespan=value) for i, value in enumerate(values)]
    members.append(member(tmp_path, 5, ("graph=b", "seed=0"), makespan=3.0))
    first, second = over_seeds(members, row_figures("method", ["makespan", "missing"]))
    assert (first.label, first.members, first.failed, second.label) == ("graph=a mine", 5, 0, "graph=b mine")
    found = first.estimates["makespan"]
    assert found.centre == pytest.approx((2 + 4 + 8) / 3), "without the least and the largest quarter"
    assert found == estimate(values)
    assert second.estimates["makespan"].low == 3.0
    assert list(first.values) == ["makespan"]


def test_three_seeds_have_means_and_students_t(tmp_path: Path) -> None:
    members = [member(tmp_path, i, (f"seeds={i}",), makespan=value) for i, value in enumerate((1.0, 2.0, 3.0))]
    (line,) = over_seeds(members, row_figures("method", ["makespan"]))
    found = line.estimates["makespan"]
    assert found.centre == 2.0
    assert found.high - 2.0 == pytest.approx(4.302653 / math.sqrt(3), rel=1e-6)
    assert line.label == "mine"


def test_members_that_failed_are_counted_and_in_no_figure(tmp_path: Path) -> None:
    states = ("finished", "failed", "finished", "interrupted")
    members = [member(tmp_path, i, (f"seed={i}",), state, makespan=float(i)) for i, state in enumerate(states)]
    (line,) = over_seeds(members, row_figures("method", ["makespan"]))
    assert (line.members, line.failed, line.values) == (2, 2, {"makespan": [0.0, 2.0]})
    console = Console(record=True, width=100)
    print_lines(console, [line])
    assert "2 of 4" in console.export_text()


def test_without_two_seeds_of_one_setting_there_is_nothing(tmp_path: Path) -> None:
    figures = row_figures("method", ["makespan"])
    alone = [member(tmp_path, 0, ("graph=a",), makespan=1.0), member(tmp_path, 1, ("graph=b",), makespan=1.0)]
    assert over_seeds(alone, figures) == []
    paired = [member(tmp_path, 0, ("graph=a", "seed=1"), makespan=1.0), member(tmp_path, 1, ("graph=b", "seed=2"))]
    assert over_seeds(paired, figures) == []


def test_undefined_figures_are_left_out(tmp_path: Path) -> None:
    members = [member(tmp_path, i, (f"seed={i}",), makespan=1.0) for i in range(2)]
    (tmp_path / "1" / "results.json").write_text(json.dumps({"rows": [{"method": "mine", "makespan": "nan"}]}))
    (line,) = over_seeds(members, row_figures("method", ["makespan"]))
    assert line.values == {"makespan": [1.0]}


def test_the_best_by_validation_is_told() -> None:
    lines = [
        {"stage": "simulation", "update": 1, "ratio": 1.2, "makespan": 5.0, "calls": 3},
        {"stage": "simulation", "update": 2, "ratio": 1.1, "makespan": 4.0, "loss": 0.1},
        {"stage": "simulation", "update": 3, "ratio": 1.3, "makespan": 6.0},
    ]
    assert best_figures(lines) == {"ratio": 1.1, "makespan": 4.0}
    measured = [*lines, {"stage": "online", "ratio": 1.25, "makespan": 3.0}, {"stage": "online", "runs": 3}]
    assert best_figures(measured) == {"ratio": 1.25, "makespan": 3.0}, "what was simulated is no match for what ran"
    assert best_figures([{"stage": "ppo", "validation": 0.9}, {"validation": 0.8}, {"return": 1.0}]) == {
        "validation": 0.8
    }
    assert best_figures([{"loss": 1.0}]) == {}


def test_the_picture_has_a_panel_per_figure_and_a_row_per_line() -> None:
    lines = [Line("graph=a", name, 2, 0, {"x_s": [1.0, 2.0], "y": [3.0, 4.0]}) for name in ("one", "two")]
    panels = picture(lines).axes
    assert [panel.get_xlabel() for panel in panels] == ["x_s", "y"]
    assert [label.get_text() for label in panels[0].get_yticklabels()] == ["graph=a one", "graph=a two"]


def test_times_are_shown_in_the_units_and_by_the_names_of_a_single_run() -> None:
    values = {"ttd_s": [36000.0, 43200.0], "queueing_s": [0.0, 7200.0], "cru": [0.5, 0.25], "decision_s": [0.5, 0.75]}
    lines = [Line("", "srtf", 2, 0, values)]
    console = Console(record=True, width=200)
    print_lines(console, lines)
    text = console.export_text()
    for words in ("TTD [h]", "queued [h]", "CRU", "decided [s]", "│ 11 [", "│ 1 [0, 13.71]"):
        assert words in text
    assert "Intervals end at 0 where a figure cannot be less." in text
    labels = [panel.get_xlabel() for panel in picture(lines).axes]
    assert labels == ["TTD [h]", "queued [h]", "CRU", "decided [s]"]
    assert lines[0].told()["figures"]["queueing_s"]["low"] == 0
    assert estimate([0.0, 7200.0]).low < 0, "what may be negative stays so"
    headers = {key: " ".join(header.split()) for header, key in _columns("h", {})}
    shown = headings(dict.fromkeys(simulate.SHOWN, (7200.0,)))
    for key in set(simulate.SHOWN) - {"ratio_bound"}:
        assert shown[key].text == headers[key]


@pytest.mark.parametrize(("width", "tables"), [(80, 3), (200, 1)])
def test_narrow_terminals_get_intervals_below_their_centres(width: int, tables: int) -> None:
    figures = {"makespan": 0.002409, "ratio_bound": 1.502, "ratio_best": 1.59, "decision_s": 5.439e-4}
    values = {name: [value, value * 1.1] for name, value in {**figures, "bytes_moved": 1.324e7}.items()}
    console = Console(record=True, width=width)
    print_lines(console, [Line("graph=ladder", name, 2, 0, values) for name in ("heft", "random")])
    text = console.export_text()
    assert text.count("over seeds") == tables
    assert max(map(len, text.splitlines()[:-1])) <= width
    for name, heading in headings(values).items():
        centre, _, interval = str(estimate(values[name], 0.0) / heading.divisor).partition(" ")
        assert text.count(f"{centre} {interval}") == (2 if tables == 1 else 0)
        assert text.count(interval) >= 2
    assert "moved [MB]" in text


# --- commands -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("launcher", ["basic", "joblib"])
def test_place_over_seeds(launcher: str, request: pytest.FixtureRequest, capfd: pytest.CaptureFixture[str]) -> None:
    words = ["-m", "graph=chain,ladder", "seed=0,1,2", "method=[random,heft]", "pictures=false"]
    if launcher == "joblib":
        pytest.importorskip("hydra_plugins.hydra_joblib_launcher", reason="hydra-joblib-launcher is not installed")
        words += ["hydra/launcher=joblib", "hydra.launcher.n_jobs=2"]
        request.getfixturevalue("others_compile_nothing")
    assert place_command.main(words) == 0
    found = told("place")
    assert [item["state"] for item in found["members"]] == ["finished"] * 6
    assert found["command"] == ["hadoppler place", *words]
    lines = found["over_seeds"]
    assert [(line["setting"], line["name"]) for line in lines] == [
        (f"graph={graph}", method) for graph in ("chain", "ladder") for method in ("random", "heft")
    ]
    rows = [json.loads(path.read_text())["rows"][0] for path in sorted(Path("runs").glob("place/*/[0-2]/results.json"))]
    spans = [row["makespan"] for row in rows]
    assert len({row["bound"] for row in rows}) == 1, "seeds are of methods; the graph is the same"
    assert len(set(lines[1]["figures"]["makespan"]["values"])) == 1 < len(set(spans))
    makespan = lines[0]["figures"]["makespan"]
    assert makespan["values"] == spans
    assert (makespan["centre"], makespan["seeds"]) == (pytest.approx(np.mean(spans)), 3)
    out = capfd.readouterr().out
    assert "over seeds" in out
    assert str(estimate(spans)) in out
    assert "different graphs" not in out
    assert not list(Path("runs").glob("**/over_seeds.png"))


def test_seeds_that_draw_graphs_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["-m", *QUICK, "graph.length=3,4", "graph.seed=${seed}", "seed=0,1"]
    assert place_command.main(words) == 0
    told = "Members placed different graphs, so intervals are over problems, too: graph.length=3, graph.length=4.\n"
    assert told in capsys.readouterr().out


@pytest.mark.parametrize("group", ["graph", "topology", "problems", "suite"])
def test_no_choice_draws_what_is_placed_from_the_seed(group: str) -> None:
    """The seed is the noise of methods and trainings only."""
    files = list((CONF / group).glob("*.yaml"))
    assert files
    assert [path.name for path in files if "${seed" in path.read_text(encoding="utf-8")] == []


def test_simulate_over_seeds_draws_them(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["-m", "workload.jobs=4", "seeds=0,1", "scheduler=[srtf]", "rounds=false"]
    assert simulate.main(words) == 0
    (line,) = told("simulate")["over_seeds"]
    assert line["name"] == "srtf"
    assert {"ttd_s", "mean_jct_s", "cru"} <= set(line["figures"])
    (path,) = Path("runs").glob("simulate/*/over_seeds.png")
    assert str(path.absolute()) in capsys.readouterr().out


def test_train_tells_the_best_not_the_last(capsys: pytest.CaptureFixture[str]) -> None:
    assert train.main(["-m", *PLAN, "seed=1,2", "agent.online=false,true", "pictures=false"]) == 0
    out = capsys.readouterr().out
    assert "best by validation" in out
    assert "makespan 12  ratio 2.2" in out
    first, second = told("train")["over_seeds"]
    assert first["figures"]["ratio"]["values"] == [pytest.approx(2.2), pytest.approx(3.2)]
    assert second["figures"]["ratio"]["values"] == [pytest.approx(2.3), pytest.approx(3.3)], "of the stage online"


def test_a_member_that_fails_is_told_everywhere(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["-m", *QUICK, "seed=0,-1,2"]
    assert place_command.main(words) == 2
    found = told("place")
    assert [item["state"] for item in found["members"]] == ["finished", "failed", "finished"]
    failed = found["members"][1]
    assert failed["code"] == 2
    assert failed["reason"].startswith("seed is -1; expected")
    (line,) = found["over_seeds"]
    assert (line["members"], line["failed"]) == (2, 1)
    out, err = capsys.readouterr()
    assert "2 of 3" in out
    assert "seed is -1" in err


@pytest.mark.usefixtures("others_compile_nothing")
def test_a_process_that_is_killed_is_told(capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher", reason="hydra-joblib-launcher is not installed")
    words = ["-m", "hydra/launcher=joblib", "hydra.launcher.n_jobs=2", *PLAN, "pictures=false"]
    assert train.main([*words, "agent.killed=false,true"]) == 1
    states = {item["name"].rpartition("=")[2].lower(): item["state"] for item in told("train")["members"]}
    assert states["true"] == "interrupted"
    err = capfd.readouterr().err
    assert "hadoppler train: a process of the sweep was ended from outside, most likely for lack of memory" in err
    assert "Traceback" not in err


@pytest.mark.usefixtures("others_compile_nothing")
def test_sweeps_that_start_at_once_leave_each_other_alone(tmp_path: Path) -> None:
    """Two processes in one folder: two folders with two members each, of their own settings."""
    code = "import sys; from hadoppler.scripts.place import main; sys.exit(main(sys.argv[1:]))"
    pair = [
        subprocess.Popen(
            [sys.executable, "-c", code, "-m", *QUICK, "seed=0,1", f"graph.length={length}"],
            cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )
        for length in (3, 5)
    ]  # fmt: skip
    for process in pair:
        _, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
    folders = sorted(Path("runs/place").iterdir())
    assert len(folders) == 2
    lengths = []
    for folder in folders:
        found = json.loads((folder / "sweep.json").read_text())
        assert [item["state"] for item in found["members"]] == ["finished"] * 2
        results = [json.loads(path.read_text()) for path in sorted(folder.glob("*/results.json"))]
        assert [result["config"]["seed"] for result in results] == [0, 1]
        (length,) = {result["config"]["graph"]["length"] for result in results}
        assert found["command"][-1] == f"graph.length={length}"
        lengths.append(length)
    assert sorted(lengths) == [3, 5]
