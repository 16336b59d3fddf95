"""``tracking=wandb``: offline without a key, one run per training, the same run when it goes on."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

wandb = pytest.importorskip("wandb", reason="wandb is not installed")

from wandb_files import exit_codes, history, stored, the_run  # noqa: E402

from hadoppler.scripts import train  # noqa: E402
from hadoppler.scripts.metrics import read_metrics  # noqa: E402
from hadoppler.scripts.tracking import NoTracker, TrackingError, WandbTracker, has_key  # noqa: E402

PLAN = ["~agent", "+agent={_target_: train_plans.CountingPlan, seed: ${seed}, trouble: null, once: false}"]
WANDB = [*PLAN, "tracking=wandb", "pictures=false"]


pytestmark = pytest.mark.usefixtures("wandb_service")


@pytest.fixture(autouse=True)
def _other_processes(no_account: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They find the plans."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))


def folders(pattern: str = "*") -> list[Path]:
    return sorted(Path("runs/train").glob(pattern))


def settings(run: Any) -> dict[str, Any]:
    return {item.key: json.loads(item.value_json) for item in run.config.update}


# --- offline ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("launcher", ["basic", "joblib"])
def test_each_member_of_a_sweep_is_a_run_of_its_own(launcher: str, capfd: pytest.CaptureFixture[str]) -> None:
    """H20 (a): three folders, three ids, each with its own seed only, all in one group."""
    seeds, words = [1, 2, 3], [*WANDB, "tracking.project=mine", "tracking.tags=[a,b]"]
    if launcher == "joblib":
        pytest.importorskip("hydra_plugins.hydra_joblib_launcher", reason="hydra-joblib-launcher is not installed")
        seeds, words = [1, 2], [*words, "hydra/launcher=joblib", "hydra.launcher.n_jobs=2"]
    assert train.main(["-m", *words, f"seed={','.join(map(str, seeds))}"]) == 0
    if launcher == "joblib":
        from joblib.externals.loky import get_reusable_executor

        get_reusable_executor().shutdown(wait=True)
    found = folders("*/[0-9]")
    ids = [json.loads((folder / "wandb.json").read_text())["id"] for folder in found]
    assert len(found) == len(set(ids)) == len(seeds)
    for folder, run_id, seed in zip(found, ids, seeds, strict=True):
        (records,) = stored(folder)
        run = the_run(records)
        assert (run.run_id, run.project, list(run.tags)) == (run_id, "mine", ["a", "b"])
        assert run.run_group == folder.absolute().parent.name
        assert settings(run)["seed"] == settings(run)["agent"]["seed"] == seed
        lines = read_metrics(folder)
        assert [{name: line[name] for name in lines[0]} for line in history(records)] == lines
        assert [line["_step"] for line in history(records)] == [1, 2, 3, 4]
        assert exit_codes([records]) == [0]
    assert not Path("wandb").exists(), "all files lie in the runs' folders"
    assert capfd.readouterr().out.count("wandb: offline, run ") == (3 if launcher == "basic" else 0)


def test_without_key_network_and_terminal_it_trains(tmp_path: Path) -> None:
    """H20 (b): exit code 0 and local logs."""
    code = "import sys; from hadoppler.scripts.train import main; sys.exit(main(sys.argv[1:]))"
    nowhere = {"HTTPS_PROXY": "http://127.0.0.1:9", "HTTP_PROXY": "http://127.0.0.1:9", "NUMBA_DISABLE_JIT": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code, *WANDB],
        env={**{key: value for key, value in os.environ.items() if key != "WANDB_SERVICE"}, **nowhere},
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    (folder,) = folders()
    (records,) = stored(folder)
    assert len(history(records)) == len(read_metrics(folder)) == 4
    run_id = the_run(records).run_id
    (told,) = (line for line in done.stdout.splitlines() if line.startswith(f"wandb: offline, run {run_id}; "))
    *_, sync, path = shlex.split(told)
    assert sync == "sync"
    assert Path(path, f"run-{run_id}.wandb").is_file()


def test_a_resumed_training_goes_on_in_its_run() -> None:
    """One id; what was logged before it stopped is not logged again."""
    words = [*WANDB, "agent.trouble=mistake", "agent.once=true", "+agent.stop_at=3"]
    assert train.main(words) == 2
    (folder,) = folders()
    known = (folder / "wandb.json").read_bytes()
    assert exit_codes(stored(folder)) == [1], "failed"
    assert train.main([*words, f"resume={folder}", "tracking.project=another"]) == 0
    assert (folder / "wandb.json").read_bytes() == known
    first, second = stored(folder)
    assert the_run(first).run_id == the_run(second).run_id == json.loads(known)["id"]
    assert the_run(second).project == "hadoppler", "the project that it began in"
    assert [line["_step"] for line in history(first)] == [1, 2]
    assert [(line["_step"], line["round"]) for line in history(second)] == [(3, 3), (4, 4)]
    assert exit_codes([first, second]) == [1, 0]


@pytest.mark.parametrize("trouble", ["defect", "interrupt"])
def test_what_does_not_finish_is_marked_failed(trouble: str) -> None:
    words = [*WANDB, f"agent.trouble={trouble}"]
    if trouble == "defect":
        with pytest.raises(RuntimeError, match="a defect"):
            train.main(words)
    else:
        assert train.main(words) == 130
    assert exit_codes(stored(folders()[0])) == [1]


# --- refusals, before the first step ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["tracking.mode=online"], "wandb is to be online and there is no key; set WANDB_API_KEY, run wandb login, or"),
        (["tracking.mode=of"], "tracking.mode is 'of'; expected one of online, offline, disabled, or null."),
        (["tracking.projekt=x"], "no setting 'tracking.projekt'; did you mean tracking.project?"),
        (["tracking=tensorboard"], "no tracking called 'tensorboard'; choose one of none, wandb."),
    ],
)
def test_mistakes_are_told_before_the_first_step(
    words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train.main([*WANDB, *words]) == 2
    assert sentence in capsys.readouterr().err
    assert not folders("*/metrics.jsonl")


def test_a_missing_package_is_told_before_the_first_step(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    assert train.main(WANDB) == 2
    assert "tracking=wandb needs the package 'wandb'; install it with pip install 'hadoppler[wandb]'" in (
        capsys.readouterr().err
    )
    assert not folders("*/metrics.jsonl")
    assert train.main(PLAN) == 0, "nothing else needs it"


# --- online, with a stand-in --------------------------------------------------------------------------


def test_keys_are_found_where_wandb_finds_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not has_key()
    assert WandbTracker().mode == "offline"
    (tmp_path / "netrc").write_text("machine api.wandb.ai login user password " + "0" * 40)
    assert has_key()
    assert WandbTracker().mode == "online"
    assert WandbTracker(mode="offline").mode == "offline"
    (tmp_path / "netrc").write_text("machine example.org login user password " + "0" * 40)
    assert not has_key()
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    assert has_key()
    for mode, expected in (
        ("offline", "offline"),
        ("dryrun", "offline"),
        ("disabled", "disabled"),
        ("online", "online"),
    ):
        monkeypatch.setenv("WANDB_MODE", mode)
        assert WandbTracker().mode == expected
    monkeypatch.delenv("WANDB_API_KEY")
    with pytest.raises(TrackingError, match="there is no key"):
        WandbTracker()


def test_a_run_that_was_online_must_be_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``resume`` is unset at first, ``allow`` after an offline part, which may not be uploaded, else ``must``."""
    begun: list[dict[str, Any]] = []

    def begin(**given: Any) -> Any:
        begun.append(given)
        return SimpleNamespace(url="there", dir="files")

    monkeypatch.setattr(wandb, "init", begin)
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    WandbTracker(mode="offline", entity="us").start(tmp_path, {"seed": 1}, group="sweep")
    for _ in range(2):
        assert WandbTracker(mode="online").start(tmp_path, {"seed": 1}, resume=True) == "wandb: there"
    WandbTracker(mode="offline").start(tmp_path, {"seed": 1}, resume=True)
    WandbTracker(mode="online").start(tmp_path, {"seed": 1})
    assert [given["resume"] for given in begun] == [None, "allow", "must", None, None]
    ids = [given["id"] for given in begun]
    assert len(set(ids[:4])) == 1
    assert ids[4] not in ids[:4], "a new training is a new run"
    assert [given["group"] for given in begun] == ["sweep"] * 4 + [None]
    assert [given["entity"] for given in begun] == ["us"] * 4 + [None]
    assert {given["reinit"] for given in begun} == {"create_new"}
    assert {given["dir"] for given in begun} == {str(tmp_path)}


def test_a_server_that_refuses_is_told_in_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**given: Any) -> Any:
        raise wandb.errors.CommError("no\nconnection.")

    monkeypatch.setattr(wandb, "init", refuse)
    with pytest.raises(TrackingError, match=r"^wandb did not start \(no connection\); check the key and the network"):
        WandbTracker(mode="offline").start(tmp_path, {})
    NoTracker().finish("failed")
