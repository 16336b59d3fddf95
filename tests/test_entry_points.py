"""Another package, built and installed beside ours, adds a scheduler and a placement method to the command line."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from hadoppler.scripts.cli import main
from hadoppler.scripts.info import EXTRAS, print_info

PROJECT = """
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "theirs"
version = "1.0"

[project.entry-points."hadoppler.schedulers"]
shortest = "theirs_hadoppler:Shortest"
odd = "theirs_hadoppler:odd"
absent = "theirs_hadoppler_absent:Absent"
hadar = "theirs_hadoppler:Shortest"

[project.entry-points."hadoppler.placements"]
one-of = "theirs_hadoppler:one_of"
five = "theirs_hadoppler:FIVE"
heft = "theirs_hadoppler:one_of"

[tool.setuptools]
py-modules = ["theirs_hadoppler"]
"""
MODULE = '''
import numpy as np
from hadoppler.baselines.cluster.srtf import SRTF
from hadoppler.envs.placement import Placement

FIVE = 5


class Shortest(SRTF):
    """SRTF that starts no job of more than ``most_workers``."""

    def __init__(self, most_workers: int = 8, weights=(1, 2), note: str = None):
        super().__init__()
        self.most_workers = most_workers

    def schedule(self, view):
        if self.most_workers < 1:
            raise RuntimeError("nobody may start")
        return super().schedule(view)


def odd():
    return 5


def one_of(problem, *, rng, execution, device: int):
    """All operations on one device."""
    return Placement(np.full(problem.n, device), problem.graph.topological_order)
'''
OPTIONS = ["--quiet", "--no-deps", "--no-index", "--disable-pip-version-check", "--no-build-isolation"]
PIP = [sys.executable, "-m", "pip", "install", *OPTIONS]
EXTEND = Path(__file__).resolve().parents[1] / "docs" / "extend.md"
SIMULATE = ["simulate", "workload.jobs=4", "rounds=false", "pictures=false"]
PLACE = ["place", "graph=chain", "pictures=false"]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder where the package is installed."""
    source, target = tmp_path_factory.mktemp("theirs"), tmp_path_factory.mktemp("site")
    (source / "pyproject.toml").write_text(PROJECT)
    (source / "theirs_hadoppler.py").write_text(MODULE)
    subprocess.run([*PIP, "--target", target, source], check=True, timeout=120)
    return target


@pytest.fixture(autouse=True)
def _beside_ours(site: Path, own_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(site)
    monkeypatch.delitem(sys.modules, "theirs_hadoppler", raising=False)


def results() -> dict[str, Any]:
    (path,) = Path("runs").glob("*/*/results.json")
    return json.loads(path.read_text())


def test_they_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--help"]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("scheduler: ")]
    assert {"shortest", "hadar", "odd"} <= set(line.removeprefix("scheduler: ").split(", "))
    assert main(["place", "--help"]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("method: ")]
    names = line.removeprefix("method: ").split(", ")
    assert "one-of" in names
    assert names.count("heft") == 1


def test_info_tells_whose_they_are_and_what_is_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info"]) == 0
    out = capsys.readouterr().out
    assert "shortest (theirs)" in out
    assert "one-of (theirs)" in out
    for sentence in (
        "the scheduler 'absent' of the package theirs cannot be loaded from theirs_hadoppler_absent:Absent (No module",
        "the scheduler 'hadar' of the package theirs is left out: the name stands for Hadoppler's own; that package",
        "the placement method 'five' of the package theirs is of the type int; expected a class or function at",
        "the placement method 'heft' of the package theirs is left out",
    ):
        assert sentence in out


def test_info_breaks_no_name(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """On a terminal of 80 columns every name, version and command stands in one line."""
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["info", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    told["extras"]["cluster"] = {"a-package": None}
    print_info(Console(), told)
    lines = capsys.readouterr().out.splitlines()
    versions = {**told["versions"], **{key: value for item in told["extras"].values() for key, value in item.items()}}
    names = [f"{name} {number or '(missing)'}" for name, number in versions.items()]
    names += [item["name"] for group in ("schedulers", "methods") for item in told[group] if not item["trouble"]]
    for text in [*names, "one-of (theirs)", "(hydra/launcher=joblib)"]:
        assert any(text in line for line in lines), text
    assert any(line.startswith("To install what is missing: pip install 'hadoppler[") for line in lines)
    assert all(len(line) <= 80 for line in lines if "of the package" not in line)


def test_info_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert {"name": "shortest", "package": "theirs", "trouble": None} in told["schedulers"]
    assert told["versions"]["python"] == sys.version.split()[0]
    assert told["devices"]["cpus"] >= 1
    assert list(told["extras"]) == list(EXTRAS)
    assert main(["info", "all"]) == 2
    assert main(["info", "--help"]) == 0


def test_info_knows_every_extra() -> None:
    import tomllib

    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    assert set(project["optional-dependencies"]) - {"all", "test", "dev"} == set(EXTRAS)


def test_info_is_quick_and_needs_no_torch(site: Path, tmp_path: Path) -> None:
    """Nothing heavy but torch, which is asked for GPUs."""
    code = (
        "import sys, hadoppler.scripts.info as info; info.gpus = lambda: None; info.main([]); "
        "print([name for name in ('torch', 'numba', 'scipy', 'matplotlib') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert done.stdout.splitlines()[-1] == "[]", done.stderr
    assert "GPUs: unknown without torch" in done.stdout


def test_their_scheduler_runs_like_our_own() -> None:
    assert main([*SIMULATE, "scheduler=[shortest,srtf]", "scheduler.shortest.most_workers=9"]) == 0
    told = results()
    assert [row["scheduler"] for row in told["rows"]] == ["shortest", "srtf"]
    assert told["rows"][0]["ttd_s"] == told["rows"][1]["ttd_s"]
    assert told["config"]["scheduler"]["shortest"] == {"most_workers": 9, "note": None}


def test_their_method_runs_like_our_own() -> None:
    assert main([*PLACE, "method=[one-of,round_robin]", "method.one-of.device=2"]) == 0
    assert [row["method"] for row in results()["rows"]] == ["one-of", "round_robin"]


def test_they_run_in_other_processes(site: Path) -> None:
    """From a shell, as members of a sweep by joblib."""
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher", reason="hydra-joblib-launcher is not installed")
    words = ["place", "-m", *PLACE[1:], "hydra/launcher=joblib", "hydra.launcher.n_jobs=2", "method=[one-of]"]
    done = subprocess.run(
        [sys.executable, "-m", "hadoppler.scripts.cli", *words, "method.one-of.device=0,1"],
        env={**os.environ, "PYTHONPATH": str(site), "NUMBA_DISABLE_JIT": "1"}, capture_output=True, text=True,
        timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert len(list(Path("runs/place").glob("*/*/results.json"))) == 2


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([*PLACE, "method=[one-of]"], "method.one-of.device is missing; give it as method.one-of.device=VALUE."),
        ([*PLACE, "method=[one-of]", "method.one-of.devise=1"], "'method.one-of.devise'; did you mean method.one-of."),
        (
            [*SIMULATE, "scheduler=[odd]"],
            "the scheduler 'odd' of the package theirs is of the type int; expected an",
        ),
        ([*SIMULATE, "scheduler=[absent]"], "the scheduler 'absent' of the package theirs cannot be loaded from"),
        (
            [*PLACE, "method=[five]"],
            "method 'five' of the package theirs is of the type int; expected a class",
        ),
        ([*SIMULATE, "scheduler=[shortish]"], "no scheduler called 'shortish'; choose one of absent, "),
        *[
            ([*words, choice], f"by an entry point in the group {group}, as docs/extend.md shows.\n")
            for words, choices, group in (
                (PLACE, ["method=[mine:best]", "method=[mine.best]", "+method.best={}"], "hadoppler.placements"),
                (SIMULATE, ["scheduler=[mine:Best]", "scheduler=[mine.py]", "+scheduler.x={}"], "hadoppler.schedulers"),
            )
            for choice in choices
        ],
    ],
)
def test_mistakes_are_one_sentence(words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    err = capsys.readouterr().err
    assert sentence in err
    assert "Traceback" not in err


def test_plain_files_become_choices_as_the_page_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files and commands of docs/extend.md; installed for this test only."""
    source, target = tmp_path / "mine", tmp_path / "installed"
    source.mkdir()
    blocks = re.findall(r"^```\w+\n(.*?)^```", EXTEND.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    for text in blocks:
        if found := re.match(r"# (pyproject\.toml|first_fit\.py|all_on_fastest\.py)\n", text):
            (source / found[1]).write_text(text)
    (commands,) = [text for text in blocks if text.startswith("pip install --editable .\n")]
    subprocess.run([*PIP, "--target", target, source], check=True, timeout=120)
    monkeypatch.syspath_prepend(target)
    for command in commands.splitlines()[1:]:
        words = command.split()
        short = ["graph=chain"] if words[1] == "place" else SIMULATE[1:]
        assert main([*words[1:], *short, "pictures=false"]) == 0
    rows = [row for path in Path("runs").glob("*/*/results.json") for row in json.loads(path.read_text())["rows"]]
    assert {"all_on_fastest", "first_fit"} < {row.get("method") or row.get("scheduler") for row in rows}


def test_a_name_that_is_ours_stays_ours_and_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*PLACE, "method=[heft,round_robin]"]) == 0
    assert [row["method"] for row in results()["rows"]] == ["heft", "round_robin"]
    assert capsys.readouterr().err == (
        "hadoppler place: the placement method 'heft' of the package theirs is left out: the name stands for "
        "Hadoppler's own; that package must give it another name.\n"
    )


def test_what_is_broken_troubles_no_other_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*PLACE, "method=[round_robin]"]) == 0
    assert capsys.readouterr().err == ""


def test_of_two_packages_with_one_name_the_first_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    metadata = tmp_path / "late" / "late-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: late\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[hadoppler.placements]\none-of = late:one_of\n")
    monkeypatch.setattr(sys, "path", [*sys.path, str(metadata.parent)])
    assert main([*PLACE, "method=[one-of]", "method.one-of.device=1"]) == 0
    sentence = "the placement method 'one-of' of the package late is left out: the name stands for that of the package"
    assert sentence in capsys.readouterr().err
