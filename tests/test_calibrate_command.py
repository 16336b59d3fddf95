"""``hadoppler calibrate``: executed, calibrated, checked, written, and placed on again."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import hydra
import numpy as np
import pytest

from hadoppler import place
from hadoppler.envs.placement import DataflowGraph, PlacementProblem, Topology, load_problem, make_graph
from hadoppler.real_system.placement.prediction import agreement, spread_assignments
from hadoppler.scripts import calibrate, place as place_command
from hadoppler.scripts.calibration_report import Check, sentences

FEW = ["runs=4", "checked=8", "repeats=1"]
EMULATED = ["graph=fork_join", "topology=mixed", "executor=emulated", "executor.bound_s=0.01", *FEW]


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")


def results(command: str = "calibrate") -> tuple[dict[str, Any], Path]:
    """What the only run wrote, and its folder."""
    (path,) = Path("runs", command).glob("*/results.json")
    return json.loads(path.read_text()), path.parent


def test_emulated_devices_are_calibrated_and_predicted(capsys: pytest.CaptureFixture[str]) -> None:
    """Devices that are really 3 times slower, with one link more: the given costs err by more than a half."""
    assert calibrate.main([*EMULATED, "executor.slowness=3"]) == 0
    found, folder = results()
    before, after, ceiling = found["rows"]
    assert [row["times"] for row in found["rows"]] == ["before", "after", "repeatability"]
    assert before["median_error"] > 0.4
    assert after["median_error"] < 0.25
    assert after["rank_correlation"] > 0.5
    assert ceiling["median_error"] < 0.25
    assert [item["assignment"] for item in found["checked"]] == ["random"] * 6 + ["heft", "etf"]
    assert found["executions"] >= 4 + 3
    assert (folder / "calibration.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((folder / "run.json").read_text())["seed"] == 0
    printed = capsys.readouterr().out
    few = "Rank correlations of 8 assignments tell little: give checked=10 or more."
    for words in ("rank correlation", "median error", "the ceiling", "Emulated devices compute nothing", few):
        assert words in printed


def test_the_printed_command_places_on_the_measured_costs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """From a folder whose name needs quotes, and of costs whose edges are sent one by one."""
    odd = tmp_path / "it's, [an] odd=folder"
    odd.mkdir()
    monkeypatch.chdir(odd)
    words = ["graph=chainmm", "topology=raw", "executor=emulated", "executor.bound_s=0.004", *FEW, "pictures=false"]
    assert calibrate.main(words) == 0
    _, folder = results()
    told = capsys.readouterr().out.splitlines()[-1]
    command = shlex.split(told)
    assert command[:2] == ["hadoppler", "place"]
    assert place_command.main([*command[2:], "method=[heft,round_robin]", "pictures=false"]) == 0
    measured = load_problem(folder)
    for row in results("place")[0]["rows"]:
        assert row["makespan"] == place(row["method"], measured).makespan
    assert measured.topology.name == "raw, measured"


def test_processors_are_calibrated(capsys: pytest.CaptureFixture[str]) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    torch.set_num_threads(1)
    assert calibrate.main(["graph=chainmm", "graph.size=64", "topology.devices=2", *FEW, "pictures=false"]) == 0
    found, folder = results()
    assert found["rows"][1]["median_error"] is not None
    measured = load_problem(folder)
    assert measured.d == 2
    assert 0 < measured.compute_s.sum() < 10
    assert "Emulated" not in capsys.readouterr().out


@pytest.mark.parametrize(("checked", "devices", "warned"), [(3, 2, True), (9, 2, True), (10, 2, False), (3, 1, False)])
def test_few_assignments_are_told(checked: int, devices: int, warned: bool) -> None:
    """Of one device there are no rank correlations."""
    problem = PlacementProblem(make_graph("chain"), Topology.uniform(devices))
    times = np.arange(1.0, checked + 1)
    check = Check(["random"] * checked, times, True, times, times, times)
    time: Any = SimpleNamespace(dropped=0)
    assert warned == any("tell little" in line for line in sentences(problem, check, 3, time, []))


def test_one_device_and_units_of_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    torch.set_num_threads(1)
    words = ["graph=chainmm", "graph.size=16", "topology=raw", "topology.devices=1", "executor=cpu", *FEW]
    assert calibrate.main(words) == 0
    found, folder = results()
    assert found["rows"][0]["median_error"] is None
    assert found["rows"][1]["median_error"] is not None
    assert load_problem(folder).d == 1
    printed = capsys.readouterr().out
    assert "With one device nothing is sent" in printed
    assert "no error" in printed


def test_the_same_seed_checks_the_same_assignments() -> None:
    problem = PlacementProblem(DataflowGraph.build(flops=[1.0] * 200), Topology.uniform(4))
    first, second, other = (spread_assignments(problem, 6, np.random.default_rng(seed)) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, second)
    assert (first != other).any()


def test_loads_are_spread_and_pins_are_kept() -> None:
    """Small concentrations leave most work on one device, large ones share it; a pinned operation stays."""
    graph = DataflowGraph.build(flops=[1.0] * 400)
    allowed = np.ones((400, 4), dtype=bool)
    allowed[:100, [0, 3]] = False
    problem = PlacementProblem(graph.with_pins(allowed), Topology.uniform(4))
    rng = np.random.default_rng(0)
    uneven, even = (spread_assignments(problem, 40, rng, [value]) for value in (0.2, 50.0))
    for rows in (uneven, even):
        problem.check_assignment(rows)
    largest = [[np.bincount(row[100:], minlength=4).max() / 300 for row in rows] for rows in (uneven, even)]
    assert np.mean(largest[0]) > 0.6
    assert np.mean(largest[1]) < 0.4
    shares = [np.bincount(row[100:], minlength=4) for row in spread_assignments(problem, 3, rng)]
    assert all(share.sum() == 300 for share in shares)


def test_agreement_by_hand() -> None:
    found = agreement([1.0, 2.0, 3.0, 4.0], [1.0, 4.0, 2.0, 5.0])
    assert found.rank_correlation == pytest.approx(0.8)  # 1 - 6 * 2 / 60
    assert found.median_error == pytest.approx(0.35)  # of 0, 0.5, 0.5, 0.2
    for few in (agreement([1, 2], [1, 2]), agreement([1, 1, 1], [1, 2, 3])):
        assert np.isnan(few.rank_correlation)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "graph is missing; give it as graph=VALUE"),
        (["graph=fork_join"], "the graph has no kernels and cannot be executed"),
        (["graph=chain", "~executor"], "executor is missing; give it as executor=VALUE"),
        (["graph=chain", "runs=0"], "runs is 0; expected a whole number from 1 up"),
        (["graph=chain", "checked=2"], "checked is 2; expected a whole number from 3 up"),
        (["graph=chain", "repeats=0"], "repeats is 0; expected a whole number from 1 up"),
        (["graph=chain", "seed=-1"], "seed is -1; expected a whole number from 0 up"),
        (["graph=chain", "run=3"], "there is no setting 'run'; did you mean runs"),
        (["graph=chainmm", "graph.size=4000000"], "less than graph.size=4000000"),
        ([*EMULATED, "executor.timeout=0.001"], "did not end within 0.001 s"),
    ],
)
def test_mistakes_are_one_sentence(words: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert calibrate.main(words) == 2
    err = capsys.readouterr().err
    assert told in err
    assert err.count("\n") == 1
    assert not list(Path().glob("runs/calibrate/*/results.json"))


def test_help_is_readable_and_its_examples_compose(capsys: pytest.CaptureFixture[str]) -> None:
    assert calibrate.main(["--help"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("hadoppler calibrate: execute a graph on devices")
    for line in ("executor: cpu, cuda, emulated", "runs: 12", "checked: 20", "repeats: 5"):
        assert f"\n{line}\n" in text
    examples = [shlex.split(line)[2:] for line in text.splitlines() if line.startswith("  hadoppler calibrate ")]
    assert len(examples) >= 3
    for words in examples:
        words = [re.sub(r"=(\w+),.*", r"=\1", word) for word in words]
        with hydra.initialize_config_module("hadoppler.conf", version_base="1.3"):
            config = hydra.compose("calibrate", words)
            assert config.graph
            assert config.executor._target_.endswith("_executor")
