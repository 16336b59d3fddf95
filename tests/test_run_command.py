"""``hadoppler run``, ``submit`` and ``cancel``, with real workers that train for seconds."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs torch")
pytest.importorskip("sklearn", reason="needs scikit-learn")

from hadoppler.real_system.cluster.store import FILE, FINISHED, RunStore
from hadoppler.scripts.cli import main

SMALL = ["workload.tasks=[diabetes]", "base_s=0.01", "round_s=1", "cluster=parse", "cluster.text=node:1x2"]


def _results(folder: Path) -> dict:
    return json.loads((folder / "results.json").read_text())


def test_two_schedulers_measured_and_simulated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Rows, tables, pictures and the log of decisions of two schedulers on the same workers."""
    words = [*SMALL, "workload.jobs=2", "workload.steps=[100,150]", "scheduler=[srtf,hadare]"]
    assert main(["run", *words, f"hydra.run.dir={tmp_path}"]) == 0
    results = _results(tmp_path)
    assert [row["scheduler"] for row in results["rows"]] == ["srtf", "hadare"]
    for row in results["rows"]:
        assert row["finished"] == 2
        assert row["ttd_s"] > 0.5
        assert row["simulated_ttd_s"] == pytest.approx(row["ttd_s"], rel=0.5)
        assert (tmp_path / row["scheduler"] / "decisions.jsonl").exists()
    assert {job["id"] for job in results["jobs"]} == {"0-diabetes", "1-diabetes"}
    assert all("squared_error" in str(job["quality"]) for job in results["jobs"])
    assert (tmp_path / "nodes_hadare.png").exists()
    assert "emulated speeds, by sleeping" in capsys.readouterr().out


def test_a_run_that_is_killed_goes_on_and_takes_jobs(tmp_path: Path) -> None:
    """Killed while its workers train, resumed, and given one more job: steps are exact, nothing is left running."""
    words = [*SMALL, "workload.jobs=2", "workload.steps=[600,600]", "scheduler=[hadare]", "save_every=50", "linger_s=4"]
    program = "import sys; from hadoppler.scripts.cli import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", program, "run", *words, f"hydra.run.dir={tmp_path}"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    until = time.monotonic() + 60
    while time.monotonic() < until and not _checkpoints(tmp_path):
        time.sleep(0.1)
    workers = [int(word) for word in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
    assert len(workers) >= 2
    process.kill()
    process.wait()
    again = subprocess.Popen([*command[:3], "run", f"resume={tmp_path}"], stdout=subprocess.DEVNULL)
    time.sleep(3.0)
    for pid in workers:
        assert (
            not Path(f"/proc/{pid}").exists() or "Z" in Path(f"/proc/{pid}/status").read_text().split("State:")[1][:5]
        )
    assert main(["submit", f"run={tmp_path}", "task=diabetes", "steps=120", "id=late"]) == 0
    assert main(["submit", f"run={tmp_path}", "task=nonsense", "steps=120"]) == 2
    assert main(["cancel", f"run={tmp_path}", "id=nobody"]) == 2
    assert again.wait(60) == 0
    store = RunStore(tmp_path)
    assert [(stored.status, store.checkpoints(row)[0].done) for row, stored in enumerate(store.jobs())] == [
        (FINISHED, 600),
        (FINISHED, 600),
        (FINISHED, 120),
    ]
    assert _results(tmp_path)["rows"][0]["finished"] == 3
    assert main(["submit", f"run={tmp_path}", "task=diabetes", "steps=120"]) == 2
    assert main(["run", f"resume={tmp_path}"]) == 2
    assert main(["run", f"resume={tmp_path}", "seed=5"]) == 2


def test_bad_jobs_do_not_end_the_run_of_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Code that raises, ends its process, or fails in evaluate: each is told, the good job is finished and judged."""
    monkeypatch.setenv("COLUMNS", "80")
    text = "arrival,workers,model,steps\n0,1,diabetes,60\n0,1,hopeless_jobs:Broken,60\n0,1,hopeless_jobs:Deadly,60\n"
    (tmp_path / "tasks.csv").write_text(text + "0,1,hopeless_jobs:Unjudged,20\n")
    words = ["workload=jobs_file", f"workload.path={tmp_path / 'tasks.csv'}", *SMALL[1:], "scheduler=[srtf]"]
    assert main(["run", *words, "cluster=parse", "cluster.text=v100:1 k80:1", f"hydra.run.dir={tmp_path / 'run'}"]) == 0
    jobs = {job["kind"].split()[0]: job for job in _results(tmp_path / "run")["jobs"]}
    assert jobs["diabetes"]["status"] == "finished"
    assert "squared_error" in jobs["diabetes"]["quality"]
    assert "no such thing" in jobs["hopeless_jobs:Broken"]["status"]
    assert "SIGKILL" in jobs["hopeless_jobs:Deadly"]["status"]
    said = capsys.readouterr().out
    assert "no figures" in said
    assert "a gang was lost" in said
    row = next(line for line in said.splitlines() if "measured" in line)
    assert [cell.strip() for cell in row.split("│")][-3] == "2"  # finished jobs, under their header


def test_schedulers_that_have_ended_are_not_run_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of two schedulers the second is taken away as if it had not begun: it alone is run, and both are in the table."""
    words = [*SMALL, "workload.jobs=1", "workload.steps=[40,40]", "scheduler=[srtf,hadare]", "pictures=false"]
    assert main(["run", *words, f"hydra.run.dir={tmp_path}"]) == 0
    before = _results(tmp_path)["rows"]
    shutil.rmtree(tmp_path / "hadare")
    assert main(["run", f"resume={tmp_path}"]) == 0
    after = _results(tmp_path)["rows"]
    assert [row["scheduler"] for row in after] == ["srtf", "hadare"]
    assert {key: after[0][key] for key in OWN} == {key: before[0][key] for key in OWN}
    assert after[1]["finished"] == 1
    capsys.readouterr()
    assert main(["run", f"resume={tmp_path}"]) == 2
    assert "the run has ended" in capsys.readouterr().err
    (tmp_path / "results.json").unlink()  # killed after the last job, before it was told
    assert main(["run", f"resume={tmp_path}"]) == 0
    assert [row["ttd_s"] for row in _results(tmp_path)["rows"]] == [row["ttd_s"] for row in after]
    (tmp_path / "hadare" / FILE).unlink()
    capsys.readouterr()
    assert main(["run", f"resume={tmp_path}"]) == 2
    assert "is gone, and with it what was done" in capsys.readouterr().err


OWN = ("ttd_s", "mean_jct_s", "cru", "restart_s", "overruns", "restarts", "finished", "decision_s")
"""Figures of a run that must not change when it is told again."""


def test_a_sweep_of_two_seeds(tmp_path: Path) -> None:
    """Each member has its own folder and results."""
    words = [*SMALL, "workload.jobs=1", "workload.steps=[20,20]", "scheduler=[srtf]", "pictures=false", "seed=0,1"]
    assert main(["run", "-m", *words, f"hydra.sweep.dir={tmp_path}"]) == 0
    assert [_results(tmp_path / str(number))["rows"][0]["seed"] for number in (0, 1)] == [0, 1]


def _alive(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _checkpoints(folder: Path) -> bool:
    if not (folder / FILE).exists():
        return False
    try:
        store = RunStore(folder)
        found = bool(store.jobs() and store.checkpoints(0))
        store.close()
    except ValueError:
        return False
    return found


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["clock=nominal"], "give rates=table with it"),
        (["clock=never"], "expected wall or nominal"),
        (["resume=nowhere"], "is no folder of hadoppler run"),
        (["workload.tasks=[nonsense]"], "no training task is called 'nonsense'"),
        (["workload=jobs_file", "workload.path=missing.csv"], "missing.csv"),
        (["base_s=-1"], "base_s is -1"),
        (["round_s=0"], "round_s is 0"),
        (["emulate=false", "rates=table"], "use rates=formula"),
        (["workload.steps=[5,2]"], "steps [5, 2]"),
        (["cluster=parse", "cluster.text=v100:1", "emulate=false"], "v100"),
    ],
)
def test_mistakes_are_one_sentence(
    words: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No traceback, exit code 2, and the setting is named."""
    monkeypatch.chdir(tmp_path)
    assert main(["run", *words]) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert "Traceback" not in said


def test_rows_that_cannot_be_used_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A CSV of one's own: good rows are run, bad ones are listed with their line."""
    monkeypatch.chdir(tmp_path)
    text = "arrival,workers,model,steps\n0,1,diabetes,60\n0,x,diabetes,60\n0,1,diabetes,many\n"
    (tmp_path / "tasks.csv").write_text(text)
    words = ["workload=jobs_file", "workload.path=tasks.csv", *SMALL[1:], "scheduler=[srtf]"]
    assert main(["run", *words, f"hydra.run.dir={tmp_path / 'run'}"]) == 0
    results = _results(tmp_path / "run")
    assert [row["line"] for row in results["rejected"]] == [3, 4]
    assert results["rows"][0]["finished"] == 1
    assert "line 3 was not used" in capsys.readouterr().out
