"""``tracking=wandb`` of every command: artifacts, tables with pictures, groups of sweeps, and runs that fail."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

wandb = pytest.importorskip("wandb", reason="wandb is not installed")

from wandb_files import artifacts, exit_codes, history, stored, summary, the_run  # noqa: E402

from hadoppler.scripts.cli import main  # noqa: E402
from hadoppler.scripts.wandb_results import named_figures, table_columns, tell_results  # noqa: E402

OFFLINE = ["tracking=wandb", "tracking.mode=offline"]
PLACE = ["graph=chain", "method=[round_robin,heft]"]


pytestmark = pytest.mark.usefixtures("no_account", "wandb_service")


class Run:
    """What a run of wandb is told."""

    def __init__(self, **given: Any) -> None:
        self.given, self.id, self.url = given, given.get("id", "id"), "there"
        self.lines: list[dict[str, Any]] = []
        self.artifacts: list[Any] = []
        self.summary: dict[str, Any] = {}
        self.exit_code: int | None = None

    def log(self, line: dict[str, Any], step: int | None = None) -> None:
        self.lines.append(line)

    def log_artifact(self, artifact: Any) -> None:
        self.artifacts.append(artifact)

    def finish(self, exit_code: int) -> None:
        self.exit_code = exit_code

    def files(self) -> dict[str, list[str]]:
        """Kind of an artifact -> its files."""
        return {item.type: sorted(item.manifest.entries) for item in self.artifacts}


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[Run]:
    """Every run that begins, online with a stand-in for the server."""
    begun: list[Run] = []

    def begin(**given: Any) -> Run:
        begun.append(Run(**given))
        return begun[-1]

    monkeypatch.setattr(wandb, "init", begin)
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    return begun


# --- offline ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("launcher", ["basic", "joblib"])
def test_a_sweep_of_three_seeds_and_two_graphs(launcher: str) -> None:
    """Six runs, six ids, one group."""
    words = ["-m", "graph=chain,ladder", "seed=0,1,2", "method=[round_robin]", "pictures=false", *OFFLINE]
    if launcher == "joblib":
        pytest.importorskip("hydra_plugins.hydra_joblib_launcher", reason="hydra-joblib-launcher is not installed")
        words += ["hydra/launcher=joblib", "hydra.launcher.n_jobs=2"]
    assert main(["place", *words]) == 0
    if launcher == "joblib":
        from joblib.externals.loky import get_reusable_executor

        get_reusable_executor().shutdown(wait=True)
    folders = sorted(Path("runs/place").glob("*/[0-9]"))
    found = [stored(folder) for folder in folders]
    assert [len(files) for files in found] == [1] * 6
    told = [the_run(records) for (records,) in found]
    assert len({run.run_id for run in told}) == 6
    assert {run.run_group for run in told} == {folders[0].absolute().parent.name}
    assert [exit_codes(files) for files in found] == [[0]] * 6


def test_a_placement_is_told_with_pictures() -> None:
    assert main(["place", *PLACE, *OFFLINE]) == 0
    (folder,) = Path("runs/place").iterdir()
    (records,) = stored(folder)
    run_id = the_run(records).run_id
    assert artifacts(records) == {f"placement-{run_id}": "placement", f"results-{run_id}": "results"}
    (line,) = history(records)
    table = line["placements"]
    assert (table["_type"], table["nrows"]) == ("table-file", 2)
    stored_table = json.loads(next(folder.glob("wandb/offline-run-*/files/media/table/*.json")).read_text())
    columns, rows = stored_table["columns"], json.loads((folder / "results.json").read_text())["rows"]
    assert [dict(zip(columns, cells, strict=True))["makespan"] for cells in stored_table["data"]] == [
        row["makespan"] for row in rows
    ]
    assert columns[-1] == "gantt"
    waiting = [path.read_bytes() for path in folder.glob("wandb/artifacts/staging/*")]
    assert sum(text.startswith(b"\x89PNG") for text in waiting) == 2, "to be uploaded"
    assert [text.count(b"image-file") >= 2 for text in waiting if text.startswith(b"{")].count(True) >= 1
    assert sorted(path.name for path in (folder / "placements").glob("*.png")) == ["heft.png", "round_robin.png"]
    assert summary(records)["heft/makespan"] == rows[1]["makespan"]
    assert not Path("home").exists() or not list(Path("home").rglob("staging")), "all files lie in the runs' folders"


def test_a_member_that_fails_is_marked_there_too() -> None:
    assert main(["place", "-m", *PLACE, "seed=0,-1", "pictures=false", *OFFLINE]) == 2
    assert [exit_codes(stored(folder)) for folder in sorted(Path("runs/place").glob("*/[01]"))] == [[0], [1]]
    (sweep,) = Path("runs/place").glob("*/sweep.json")
    assert [item["state"] for item in json.loads(sweep.read_text())["members"]] == ["finished", "failed"]


def test_disabled_writes_nothing() -> None:
    assert main(["place", *PLACE, "tracking=wandb", "tracking.mode=disabled", "pictures=false"]) == 0
    (folder,) = Path("runs/place").iterdir()
    assert not (folder / "wandb").exists()
    assert main(["place", *PLACE]) == 0
    assert len(list(Path("runs/place").glob("*/placements/*.png"))) == 0, "nobody looks at them"


# --- online, with a stand-in --------------------------------------------------------------------------


def test_place_online(runs: list[Run], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["place", *PLACE, "tracking=wandb"]) == 0
    (run,) = runs
    assert (run.given["mode"], run.exit_code) == ("online", 0)
    assert "wandb: there" in capsys.readouterr().out
    assert run.files() == {"placement": ["placement.json"], "results": ["gantt.png", "results.json", "run.json"]}
    (line,) = run.lines
    assert len(line["placements"].data) == 2


def test_simulate_online(runs: list[Run]) -> None:
    words = ["workload.jobs=4", "scheduler=[srtf,yarn_cs]", "pictures=false", "rounds=false", "tracking=wandb"]
    assert main(["simulate", *words]) == 0
    (run,) = runs
    assert run.files() == {"results": ["jobs.csv", "results.json", "run.json"]}
    assert len(run.lines[0]["results"].data) == 2
    assert run.summary["srtf/ttd_s"] > 0


def test_evaluate_online(runs: list[Run]) -> None:
    assert main(["evaluate", "graph=chain", "method=[heft]", "pictures=false", "tracking=wandb"]) == 0
    assert runs[0].files() == {"results": ["results.json", "run.json"]}
    assert runs[0].summary["heft/ratio_bound"] == pytest.approx(1)


def test_calibrate_online(runs: list[Run]) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    words = ["graph=chain", "topology=4xP100", "executor=emulated", "executor.bound_s=0.005", "runs=1", "checked=3"]
    assert main(["calibrate", *words, "repeats=1", "pictures=false", "tracking=wandb"]) == 0
    assert len(runs[0].lines[0]["results"].data) == 3
    assert runs[0].exit_code == 0


def test_run_online(runs: list[Run], capfd: pytest.CaptureFixture[str]) -> None:
    """A run of wandb per scheduler; its last line has the final figures."""
    pytest.importorskip("torch", reason="needs torch")
    pytest.importorskip("sklearn", reason="needs scikit-learn")
    words = ["workload.tasks=[diabetes]", "workload.jobs=1", "workload.steps=[60,60]", "base_s=0.01", "round_s=1"]
    words += ["cluster=parse", "cluster.text=node:1", "scheduler=[srtf]", "pictures=false", "tracking=wandb"]
    assert main(["run", *words]) == 0
    (run,) = runs
    (row,) = json.loads(next(Path("runs/run").glob("*/results.json")).read_text())["rows"]
    assert run.lines[-1]["mean_jct_s"] == row["mean_jct_s"]
    assert run.exit_code == 0


# --- what is told -------------------------------------------------------------------------------------


def test_a_training_gives_its_checkpoint_and_placement(tmp_path: Path) -> None:
    for name in ("policy.pt", "placement.json", "results.json", "rounds.csv"):
        (tmp_path / name).write_text("{}")
    lines = [{"update": 1, "ratio": 1.5}, {"update": 2, "ratio": 1.2}, {"update": 3, "ratio": 1.3}]
    (tmp_path / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)))
    run = Run()
    tell_results(run, tmp_path)
    assert run.files() == {"checkpoint": ["policy.pt"], "placement": ["placement.json"], "results": ["results.json"]}
    assert run.summary == {"best/ratio": 1.2}
    assert run.lines == [], "its lines were logged while it went on"
    assert "WANDB_DATA_DIR" not in os.environ


def test_a_trackers_trouble_does_not_keep_the_run_open(runs: list[Run], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Run, artifact: Any) -> None:
        raise wandb.errors.CommError("no\nconnection.")

    monkeypatch.setattr(Run, "log_artifact", refuse)
    assert main(["place", *PLACE, "pictures=false", "tracking=wandb"]) == 2
    assert runs[0].exit_code == 1


def test_columns_are_of_one_kind() -> None:
    rows = [{"a": 1, "b": "x", "c": [1], "d": None}, {"a": "nan", "b": "y", "e": True}]
    assert table_columns(rows) == {"a": [1, None], "b": ["x", "y"], "e": [None, True]}


def test_figures_of_names_that_are_there_once() -> None:
    rows = [{"method": "a", "x": 1.0}, {"method": "b", "x": 2}, {"method": "b", "x": 3}]
    assert named_figures(rows) == {"a/x": 1.0}
