"""``hadoppler train`` around any plan: records, progress, curves, sweeps whose members fail, resuming, runs at once."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from train_plans import CountingPlan

from hadoppler.agents.metrics import append_line, cut_lines
from hadoppler.scripts import place as place_command, train
from hadoppler.scripts.curves import axis, draw_learning_curve, families, learning_curve
from hadoppler.scripts.metrics import describe, read_metrics, telling
from hadoppler.scripts.progress import TrainingProgress
from hadoppler.scripts.run_state import held, read_status, recorded

PLAN = ["~agent", "+agent={_target_: train_plans.CountingPlan, seed: ${seed}, rounds: 4, trouble: null, once: false}"]


@pytest.fixture(autouse=True)
def _other_processes(own_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They find the plans."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))


def folders() -> list[Path]:
    return sorted(Path("runs/train").glob("*"))


def members() -> list[Path]:
    return sorted(Path("runs/train").glob("*/[0-9]"))


def lines_of(seed: int, rounds: int = 4) -> list[dict[str, Any]]:
    """What an unbroken training of the plan writes."""
    told: list[dict[str, Any]] = []
    CountingPlan(seed=seed, rounds=rounds).train(Path.cwd(), lambda line: told.append(dict(line)))
    return told


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# --- one run ------------------------------------------------------------------------------------------


def test_a_run_leaves_its_record(capsys: pytest.CaptureFixture[str]) -> None:
    assert train.main([*PLAN, "seed=3"]) == 0
    (folder,) = folders()
    assert read_metrics(folder) == lines_of(3)
    results = json.loads((folder / "results.json").read_text())
    assert results["rows"] == lines_of(3)
    assert Path(results["policy"]) == folder.absolute() / "policy.pt"
    assert (folder / "learning_curve.png").read_bytes().startswith(b"\x89PNG")
    status = read_status(folder)
    assert (status["state"], status["process"]) == ("finished", os.getpid())
    assert status["begun"] <= status["ended"]
    assert not [path for path in folder.rglob(".*") if path.is_file()], "no temporary file stays"
    printed = capsys.readouterr().out.splitlines()
    begins = [line.partition("  loss")[0] for line in printed]
    assert begins[:3] == ["stage first  round 1", "stage first  round 2", "stage second  round 4"], "few plain lines"
    assert printed[2].endswith("  100%")
    assert printed[3:] == [f"  {folder.absolute() / name}" for name in ("policy.pt", "learning_curve.png")]


def test_pictures_can_be_left_out() -> None:
    assert train.main([*PLAN, "pictures=false"]) == 0
    assert not list(folders()[0].glob("*.png"))


def test_a_mistake_is_told_and_recorded(capsys: pytest.CaptureFixture[str]) -> None:
    assert train.main([*PLAN, "agent.trouble=mistake"]) == 2
    sentence = "the loss is nan; give a smaller learning rate."
    assert capsys.readouterr().err == f"hadoppler train: {sentence}\n"
    (folder,) = folders()
    status = read_status(folder)
    assert (status["state"], status["code"], status["reason"]) == ("failed", 2, sentence)
    assert "TrainingError: the loss is nan" in (folder / "traceback.txt").read_text()
    assert (folder / "learning_curve.png").exists(), "the picture may show why"


def test_a_defect_keeps_its_traceback_and_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Any:
        raise OSError("no picture")

    monkeypatch.setattr(train, "draw_learning_curve", broken)
    with pytest.raises(RuntimeError, match="a defect"):
        train.main([*PLAN, "agent.trouble=defect"])
    status = read_status(folders()[0])
    assert (status["state"], status["code"]) == ("failed", 1)
    assert status["reason"].startswith("it failed with RuntimeError: a defect; the traceback is in ")
    assert (folders()[0] / "traceback.txt").read_text().endswith("RuntimeError: a defect\n")


def test_ctrl_c_is_recorded(capsys: pytest.CaptureFixture[str]) -> None:
    assert train.main([*PLAN, "agent.trouble=interrupt"]) == 130
    assert capsys.readouterr().err == "hadoppler train: stopped.\n"
    assert read_status(folders()[0])["state"] == "interrupted"
    assert train.main(["-m", *PLAN, "agent.trouble=null,interrupt", "agent.rounds=2,4"]) == 130
    out, err = capsys.readouterr()
    assert err == "hadoppler train: stopped.\n"
    assert [read_status(folder)["state"] for folder in members()] == ["finished", "finished", "interrupted"]
    assert "interrupted" in out, "the table tells how far it came"


def test_a_run_whose_process_is_gone_is_interrupted(tmp_path: Path) -> None:
    code = "import sys, pathlib; from hadoppler.scripts.run_state import recorded\n"
    code += "with recorded(pathlib.Path('.'), lambda error: (1, '')): print('begun', flush=True); sys.stdin.read()"
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    assert read_status(tmp_path)["state"] == "running"
    assert read_status(tmp_path)["process"] == process.pid
    process.kill()
    process.communicate()
    assert read_status(tmp_path)["state"] == "interrupted"
    assert read_status(tmp_path / "none") == {}


# --- sweeps -------------------------------------------------------------------------------------------


@pytest.fixture(params=["basic", "joblib"])
def launcher(request: pytest.FixtureRequest) -> Iterator[list[str]]:
    """Arguments for each launcher; joblib's processes end with the test."""
    if request.param == "joblib":
        pytest.importorskip("hydra_plugins.hydra_joblib_launcher", reason="hydra-joblib-launcher is not installed")
        from joblib.externals.loky import get_reusable_executor

        yield ["hydra/launcher=joblib", "hydra.launcher.n_jobs=2"]
        get_reusable_executor().shutdown(wait=True)
    else:
        yield []


def test_every_member_of_a_sweep_runs_whatever_befalls_others(
    launcher: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    """A defect, an error that cannot be sent between processes, and a mistake, between members that finish."""
    arguments = ["-m", *launcher, *PLAN, "agent.trouble=null,defect,odd,mistake", "pictures=false", "seed=7,8"]
    assert train.main(arguments) == 1
    found = [read_status(folder) for folder in members()]
    assert [status["state"] for status in found] == ["finished"] * 2 + ["failed"] * 6
    assert [status.get("code") for status in found] == [None, None, 1, 1, 1, 1, 2, 2]
    for folder, status in zip(members(), found, strict=True):
        error = {"defect": "RuntimeError", "odd": "OddError", "mistake": "TrainingError"}
        trouble = status["overrides"][2].removeprefix("agent.trouble=")
        if trouble in error:
            assert error[trouble] in (folder / "traceback.txt").read_text()
            assert "_stop" in (folder / "traceback.txt").read_text()
        else:
            assert not (folder / "traceback.txt").exists()
            assert read_metrics(folder) == lines_of(7 + status["number"] % 2)
        assert json.loads((folder / "run.json").read_text())["command"] == ["hadoppler train", *arguments]
    out, err = capfd.readouterr()
    sentences = [line for line in err.splitlines() if line.startswith("hadoppler train: ")]
    assert len(sentences) == 6
    assert "Traceback" not in err
    assert sentences[0].startswith("hadoppler train: it failed with RuntimeError: a defect; the traceback is in ")
    assert sentences[0].endswith("/2/traceback.txt. (member 2: agent.trouble=defect seed=7)")
    assert sentences[5] == (
        "hadoppler train: the loss is nan; give a smaller learning rate. (member 7: agent.trouble=mistake seed=8)"
    )
    rows = [line.split("│") for line in out.splitlines() if line.startswith("│")]
    assert [row[1].strip() for row in rows][:2] == ["agent.trouble=null seed=7", "agent.trouble=null seed=8"]
    assert [row[2].strip() for row in rows] == [status["state"] for status in found]
    assert rows[0][3].strip() == f"loss {lines_of(7)[-1]['loss']:.4g}"
    assert [row[4].strip() for row in rows] == list("01234567")
    assert out.count("stage first  round 1") == (0 if launcher else 8), "quiet where members run side by side"


def test_mistakes_alone_give_2_and_none_gives_0(launcher: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    quick = [*PLAN, "pictures=false"]
    assert train.main(["-m", *launcher, *quick, "agent.trouble=null,mistake", "seed=-1,0"]) == 2
    err = capfd.readouterr().err
    assert "seed is -1; expected a whole number from 0 up. (member 0: agent.trouble=null seed=-1)\n" in err
    assert train.main(["-m", *launcher, *quick, "seed=1,2"]) == 0


def test_a_sweep_in_a_folder_that_held_another_tells_only_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    where = ["hydra.sweep.dir=runs/train/mine", "pictures=false"]
    assert train.main(["-m", *PLAN, *where, "agent.trouble=null,null,defect"]) == 1
    capsys.readouterr()
    assert train.main(["-m", *PLAN, *where, "seed=1,2"]) == 0
    assert capsys.readouterr().out.count("│") == 10


def test_other_commands_too(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def job(config: Any) -> None:
        if config.seed == 1:
            raise ZeroDivisionError("a defect")
        if config.seed == 2:
            Path("none.json").read_text()

    monkeypatch.setattr(place_command, "run", job)
    assert place_command.main(["-m", "graph=chain", "seed=0,1,2,3"]) == 1
    found = sorted(Path("runs/place").glob("*/[0-9]"))
    assert [read_status(folder)["state"] for folder in found] == ["finished", "failed", "failed", "finished"]
    assert "ZeroDivisionError: a defect" in (found[1] / "traceback.txt").read_text()
    out, err = capsys.readouterr()
    assert "(member 1: seed=1)" in err
    assert "hadoppler place: none.json: No such file or directory; check the path" in err
    assert "last figures" not in out
    assert place_command.main(["graph=chain"]) == 0
    assert not list(Path("runs/place").glob("*/status.json")), "single runs that cannot be resumed leave none"


# --- resuming -----------------------------------------------------------------------------------------


def test_a_stopped_training_goes_on_in_its_folder(capsys: pytest.CaptureFixture[str]) -> None:
    """A round after the checkpoint was written, one more half: both are cut off, none is doubled or missing."""
    stopped = [*PLAN, "agent.trouble=interrupt", "agent.once=true", "seed=5"]
    assert train.main(stopped) == 130
    (folder,) = folders()
    before = (folder / "run.json").read_bytes()
    assert [line["round"] for line in read_metrics(folder)] == [1, 2]
    assert json.loads((folder / "state.json").read_text()) == 1
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"stage": "second", "rou')
    assert train.main([*stopped, f"resume={folder}"]) == 0
    assert folders() == [folder], "no second folder"
    assert read_metrics(folder) == lines_of(5)
    assert (folder / "metrics.jsonl").read_text().count("\n") == 4
    assert json.loads((folder / "results.json").read_text())["rows"] == lines_of(5)
    assert read_status(folder)["state"] == "finished"
    assert (folder / "learning_curve.png").exists()
    assert (folder / "run.json").read_bytes() == before, "how it began stays"
    assert "stage first  round 2" in capsys.readouterr().out
    assert train.main([*stopped, f"resume={folder.absolute()}"]) == 0, "nothing is left to do"
    assert read_metrics(folder) == lines_of(5)


def test_a_resumed_training_forgets_its_earlier_failure() -> None:
    words = [*PLAN, "agent.trouble=mistake", "agent.once=true"]
    assert train.main(words) == 2
    (folder,) = folders()
    assert train.main([*words, f"resume={folder}", "pictures=false"]) == 0, "pictures may change"
    assert read_status(folder)["state"] == "finished"
    assert not (folder / "traceback.txt").exists()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["seed=1"], "seed is 1, but the training in {} began with 0; give the settings it began with."),
        (["agent.rounds=5"], "agent.rounds is 5, but the training in {} began with 4; give"),
        (["+agent.stop_at=3"], "agent.stop_at is 3, but the training in {} began without it; give"),
        (["~agent.once"], "agent.once is not given, but the training in {} began with False; give"),
        (["seed=-1"], "seed is -1; expected a whole number from 0 up."),
    ],
)
def test_other_settings_are_refused_and_nothing_is_touched(
    words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train.main(PLAN) == 0
    (folder,) = folders()
    before = contents(folder)
    assert train.main([*PLAN, *words, f"resume={folder}"]) == 2
    assert f"hadoppler train: {sentence.format(folder)}" in capsys.readouterr().err
    assert contents(folder) == before


def test_the_folder_alone_is_enough() -> None:
    """Its settings are taken from it, but for those that are given."""
    assert train.main([*PLAN, "agent.trouble=interrupt", "agent.once=true", "seed=5"]) == 130
    (folder,) = folders()
    assert train.main([f"resume={folder}", "pictures=false"]) == 0
    assert folders() == [folder]
    assert read_metrics(folder) == lines_of(5)
    assert not (folder / "learning_curve.png").exists()


def test_a_group_that_is_missing_is_named_by_what_it_held(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train.main(PLAN) == 0
    (folder,) = folders()
    record = json.loads((folder / "run.json").read_text())
    record["config"]["executor"] = {"timeout": 3.0, "isolate": "thread"}
    (folder / "run.json").write_text(json.dumps(record))
    assert train.main([*PLAN, f"resume={folder}"]) == 2
    told = (
        f"executor is None, but the training in {folder} began with executor.timeout=3.0, executor.isolate=thread; give"
    )
    assert told in capsys.readouterr().err


def test_what_is_no_training_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "run.json").write_text('{"config": {"graph": {}}}')
    for name in ("nowhere", "empty", "other"):
        before = contents(tmp_path / name)
        assert train.main([*PLAN, f"resume={name}"]) == 2
        sentence = f"resume={name} is no folder of hadoppler train; give one that holds its run.json."
        assert f"hadoppler train: {sentence}\n" in capsys.readouterr().err
        assert contents(tmp_path / name) == before
    assert not (tmp_path / "nowhere").exists()
    assert train.main(["-m", *PLAN, "resume=empty,other"]) == 2
    assert "resume goes on with one training; give it without -m" in capsys.readouterr().err


def test_a_training_that_is_under_way_is_not_resumed(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("fcntl", reason="folders cannot be locked")
    assert train.main(PLAN) == 0
    (folder,) = folders()
    before = contents(folder)
    with held(folder):
        assert train.main([*PLAN, f"resume={folder}"]) == 2
    assert f"hadoppler train: {folder}: a run is under way there; wait" in capsys.readouterr().err
    assert contents(folder) == before
    assert train.main([*PLAN, f"resume={folder}"]) == 0


def test_the_clusters_plan_tells_how_much_is_done_and_loses_no_round(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from hadoppler.agents.cluster.training import TrainingPlan

    plan = TrainingPlan(
        imitation_rounds=2, ppo_rounds=0, jobs=(3, 5), clusters=("v100:8 k80:4",), episodes=1, steps=2, width=8,
        validate_every=2, validation=((3, None, 0),),
    )  # fmt: skip
    told: list[Any] = []
    plan.train(tmp_path / "whole", told.append)
    assert [line["done"] for line in told] == [0.5, 1.0]

    def stop(line: Any) -> None:
        raise KeyboardInterrupt

    folder = tmp_path / "parts"
    with pytest.raises(KeyboardInterrupt):
        plan.train(folder, stop)
    append_line(folder / "metrics.jsonl", {"stage": "imitation", "round": 2, "loss": 9.0})
    plan.train(folder, resume=True)
    whole, parts = (read_metrics(tmp_path / name) for name in ("whole", "parts"))
    assert [line["loss"] for line in whole] == [line["loss"] for line in parts]
    assert torch.load(folder / "last.pt", weights_only=True)["rounds"] == 2


def test_lines_after_a_checkpoint_are_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    cut_lines(path, "update", 3)
    assert not path.exists()
    for number in range(1, 6):
        append_line(path, {"update": number})
    cut_lines(path, "update", 3)
    assert path.read_text() == '{"update": 1}\n{"update": 2}\n{"update": 3}\n'
    assert [file.name for file in tmp_path.iterdir()] == ["metrics.jsonl"]


# --- progress and pictures ----------------------------------------------------------------------------


def test_the_bar_shows_how_much_is_done_and_what_tells_most() -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=120, color_system=None)
    with TrainingProgress(console) as progress:
        for number in range(1, 5):
            stage = "one" if number < 3 else "two"
            line = {"stage": stage, "update": number, "policy_loss": 0.5, "makespan_best": 12.345, "done": number / 4}
            progress.update(line)
            progress._bar.refresh()
    shown = screen.getvalue()
    assert "one update 1  makespan_best 12.35  policy_loss 0.5" in shown
    assert " 25%" in shown
    assert "100%" in shown
    assert "left" in shown
    assert "stage one  update 2  policy_loss 0.5  makespan_best 12.35  50%\n" in shown, "the last of a stage stays"
    assert "stage one  update 1  " not in shown


def test_plain_lines_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("hadoppler.scripts.progress.time.monotonic", lambda: now[0])
    screen = io.StringIO()
    with TrainingProgress(Console(file=screen, width=120)) as progress:
        for number in range(20):
            now[0] = number + 1
            progress.update({"stage": "one" if number < 13 else "two", "round": number})
    rounds = [int(line.split()[-1]) for line in screen.getvalue().splitlines()]
    assert rounds == [0, 5, 10, 12, 18, 19]
    with TrainingProgress(Console(file=screen, width=120), quiet=True) as progress:
        progress.update({"stage": "one", "round": 100})
    assert "100" not in screen.getvalue()


def test_what_of_a_line_tells_most() -> None:
    line = {"stage": "x", "round": 3, "kl": 0.1, "loss": 2.0, "ok": True, "validation": 0.9, "return": 4, "done": 0.25}
    assert list(telling(line)) == ["validation", "return", "loss"]
    assert describe(line) == "stage x  round 3  kl 0.1  loss 2  ok True  validation 0.9  return 4  25%"


def test_measured_figures_are_told_as_such() -> None:
    """The stage online gives seconds and shares of the incumbent's, where the others give what is simulated."""
    figures = {"update": 1, "ratio": 0.9, "makespan": 0.079574, "seconds_best": 0.07}
    simulated, online = ({"stage": stage, **figures} for stage in ("simulation", "online"))
    assert describe(simulated) == "stage simulation  update 1  ratio 0.9  makespan 0.07957  seconds_best 0.07"
    shown = "of the incumbent's 0.9  measured 0.07957 s  seconds_best 0.07"
    assert describe(online) == f"stage online  update 1  {shown}"
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=120, color_system=None)
    with TrainingProgress(console) as progress:
        progress.update(online)
        progress._bar.refresh()
    assert "online update 1  measured 0.07957 s  of the incumbent's 0.9" in screen.getvalue()


def test_curves_have_a_panel_per_family_and_mark_stages(tmp_path: Path) -> None:
    lines: list[dict[str, Any]] = [
        {"stage": "one", "update": 1, "loss": 3.0, "makespan_mean": 9.0, "note": "x", "seconds": 1.0, "done": 0.25},
        {"stage": "one", "update": 2, "loss": float("nan"), "makespan_mean": 8.0, "makespan_best": 7.0},
        {"stage": "two", "update": 3, "makespan_mean": 7.0, "makespan_best": 6.0},
        {"stage": "two", "update": 4, "makespan_mean": 5.0, "makespan_best": 5.0, "flag": True},
    ]
    assert families(lines) == {"makespan": ["makespan_mean", "makespan_best"], "loss": ["loss"]}
    assert axis(lines) == ("update", [1.0, 2.0, 3.0, 4.0])
    figure = learning_curve(lines)
    first, second = figure.axes
    curves: list[Any] = first.get_lines()
    assert [panel.get_ylabel() for panel in figure.axes] == ["makespan", "loss"]
    assert [list(curve.get_xdata()) for curve in curves] == [[1, 2, 3, 4], [2, 3, 4]]
    assert list(curves[1].get_ydata()) == [7, 6, 5]
    assert [text.get_text() for text in second.texts] == ["one", "two"]
    shaded: Any = first.patches[0]
    assert (shaded.get_x(), shaded.get_width()) == (2.5, 1.5)
    assert draw_learning_curve(tmp_path, lines) == tmp_path / "learning_curve.png"
    assert [path.name for path in tmp_path.iterdir()] == ["learning_curve.png"]
    assert draw_learning_curve(tmp_path, [{"stage": "one", "update": 1}]) is None
    assert draw_learning_curve(tmp_path, []) is None


def test_counters_that_begin_anew_are_no_axis() -> None:
    lines = [{"stage": stage, "update": number, "loss": 1.0} for stage in "ab" for number in (1, 2)]
    assert axis(lines) == ("line", [1.0, 2.0, 3.0, 4.0])


# --- runs at once -------------------------------------------------------------------------------------


def test_two_trainings_at_the_same_moment_never_share_a_folder() -> None:
    """H19: five times two processes give ten folders, each with its own result."""
    code = "import sys; from hadoppler.scripts.train import main; sys.exit(main(sys.argv[1:]))"
    for first in range(0, 10, 2):
        pair = [
            subprocess.Popen(
                [sys.executable, "-c", code, *PLAN, f"seed={seed}", "pictures=false"],
                env={**os.environ, "NUMBA_DISABLE_JIT": "1"}, text=True,
                stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            )
            for seed in (first, first + 1)
        ]  # fmt: skip
        for process in pair:
            _, err = process.communicate(timeout=60)
            assert process.returncode == 0, err
    assert len(folders()) == 10
    found = {json.loads((folder / "run.json").read_text())["seed"]: folder for folder in folders()}
    assert sorted(found) == list(range(10))
    for seed, folder in found.items():
        assert read_metrics(folder) == lines_of(seed)
        assert json.loads((folder / "results.json").read_text())["rows"] == lines_of(seed)
        assert (folder / "policy.pt").read_text() == str(seed)


def test_two_in_one_folder_are_refused(tmp_path: Path) -> None:
    pytest.importorskip("fcntl", reason="folders cannot be locked")
    refused = pytest.raises(ValueError, match="a run is under way there")
    with recorded(tmp_path, lambda error: (1, "")), refused, recorded(tmp_path, lambda error: (2, "")):
        pass
    assert read_status(tmp_path)["state"] == "finished"


def test_sweeps_from_two_folders_in_one_process(
    launcher: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Processes that a launcher keeps do not go on in the folder of the first sweep."""
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        assert train.main(["-m", *launcher, *PLAN, "pictures=false", "seed=1,2"]) == 0
        assert len(list((tmp_path / name).rglob("status.json"))) == 2
