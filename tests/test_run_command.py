"""``hadoppler run``, ``submit`` and ``cancel``, with real workers that train for seconds."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs torch")
pytest.importorskip("sklearn", reason="needs scikit-learn")

from rich.console import Console

from hadoppler.real_system.cluster.store import FILE, FINISHED, RunStore
from hadoppler.real_system.cluster.tracker import TrackedJob
from hadoppler.real_system.cluster.training_job import JobSpec
from hadoppler.scripts.cli import main
from hadoppler.scripts.run_display import ReadyLine, done
from hadoppler.scripts.run_report import counted
from hadoppler.scripts.run_state import read_status

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


def test_a_run_that_is_killed_goes_on_and_takes_jobs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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
    until = time.monotonic() + 60
    while time.monotonic() < until and read_status(tmp_path).get("state") != "running":
        time.sleep(0.1)
    for pid in workers:
        assert (
            not Path(f"/proc/{pid}").exists() or "Z" in Path(f"/proc/{pid}/status").read_text().split("State:")[1][:5]
        )
    capsys.readouterr()
    assert main(["submit", f"run={tmp_path}", "task=diabetes", "steps=120", "id=late"]) == 0
    assert main(["submit", f"run={tmp_path}", "task=diabetes", "steps=100", "wait_s=0"]) == 0
    said = capsys.readouterr().out
    assert "job late (diabetes, 120 steps): the run has" in said
    assert "job job-2 (diabetes, 100 steps): the run has" in said
    assert main(["submit", f"run={tmp_path}", "task=nonsense", "steps=120"]) == 2
    assert main(["cancel", f"run={tmp_path}", "id=nobody", "wait_s=60"]) == 2
    assert again.wait(60) == 0
    store = RunStore(tmp_path)
    assert [(stored.status, store.checkpoints(row)[0].done) for row, stored in enumerate(store.jobs())] == [
        (FINISHED, 600),
        (FINISHED, 600),
        (FINISHED, 120),
        (FINISHED, 100),
    ]
    assert [stored.job.id for stored in store.jobs()][2:] == ["late", "job-2"]
    assert _results(tmp_path)["rows"][0]["finished"] == 4
    assert main(["submit", f"run={tmp_path}", "task=diabetes", "steps=120"]) == 2
    assert main(["run", f"resume={tmp_path}"]) == 2
    assert main(["run", f"resume={tmp_path}", "seed=5"]) == 2


def test_bad_jobs_do_not_end_the_run_of_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Code that raises, ends its process, or fails in evaluate: each is told, the good job is finished and judged."""
    monkeypatch.setenv("COLUMNS", "80")
    text = "arrival,workers,model,steps\n0,1,diabetes,60\n0,1,hopeless_jobs:Broken,60\n0,1,hopeless_jobs:Deadly,60\n"
    more = "0,1,hopeless_jobs:Unjudged,20\n0,1,hopeless_jobs:Undecided,20\n"
    (tmp_path / "tasks.csv").write_text(text + more)
    words = ["workload=jobs_file", f"workload.path={tmp_path / 'tasks.csv'}", *SMALL[1:], "scheduler=[srtf]"]
    assert main(["run", *words, "cluster=parse", "cluster.text=v100:1 k80:1", f"hydra.run.dir={tmp_path / 'run'}"]) == 0
    jobs = {job["kind"].split()[0]: job for job in _results(tmp_path / "run")["jobs"]}
    assert jobs["diabetes"]["status"] == "finished"
    assert "squared_error" in jobs["diabetes"]["quality"]
    assert "no such thing" in jobs["hopeless_jobs:Broken"]["status"]
    assert "SIGKILL" in jobs["hopeless_jobs:Deadly"]["status"]
    said = capsys.readouterr().out
    assert "a gang was lost" in said
    assert said.count("no such thing") == 2  # as it happened, and as the verdict
    row = next(line for line in said.splitlines() if "measured" in line)
    assert [cell.strip() for cell in row.split("│")][-3] == "3"  # finished jobs, under their header
    assert "mean JCT" in said
    assert "…" not in said
    assert said.count("not judged") == 4  # in their cells, and with the reason
    failed = _results(tmp_path / "run")["failed"]
    assert {name.removeprefix("srtf: "): why for name, why in failed.items()} == {
        job["id"]: job["status"] for job in jobs.values() if job["status"] != "finished"
    } | {"job5": failed["srtf: job5"], "job6": failed["srtf: job6"]}
    assert "no figures" in failed["srtf: job5"]
    assert "accuracy of its quality is nan" in failed["srtf: job6"]


def test_a_job_that_hangs_at_the_start_ends_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its data never come: no worker waits for them before the run begins, the other job is finished, it is named."""
    (tmp_path / "tasks.csv").write_text(
        "id,arrival,workers,model,steps\nslow,0,1,hopeless_jobs:Sleepy,60\ngood,0,1,diabetes,60\n"
    )
    words = ["workload=jobs_file", f"workload.path={tmp_path / 'tasks.csv'}", *SMALL[1:], "scheduler=[srtf]"]
    words += ["rates=table", "quiet_s=4", "tries=1", "pictures=false"]
    begin = time.monotonic()
    assert main(["run", *words, f"hydra.run.dir={tmp_path / 'run'}"]) == 0
    assert time.monotonic() - begin < 45
    results = _results(tmp_path / "run")
    assert {job["id"]: job["status"] == "finished" for job in results["jobs"]} == {"slow": False, "good": True}
    assert "said nothing for 4 s" in results["failed"]["srtf: slow"]
    assert results["rows"][0]["cru"] <= 1
    assert "job slow: failed: 1 times" in capsys.readouterr().out


def test_what_is_said_of_workers_and_jobs() -> None:
    """Workers: nothing if all are there soon, else the count, up to all. Jobs: never 100 % before the last step."""
    console = Console(file=io.StringIO(), width=80)
    line = ReadyLine(console)
    line(3, 3)
    assert console.file.getvalue() == ""
    line._next = 0.0
    for ready in (1, 2, 3, 3):
        line(ready, 3)
    assert console.file.getvalue() == "1 of 3 workers are ready\n3 of 3 workers are ready\n"
    spec = JobSpec("a", "digits", 1000)
    assert [done(TrackedJob(spec, steps)) for steps in (0, 9, 999, 1000)] == ["0%", "0%", "99%", "100%"]
    assert [counted(number, "job") for number in (1, 2)] == ["1 job", "2 jobs"]


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
        (["workload.steps=[5,2]"], "steps is [5, 2]"),
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
    said = capsys.readouterr().out
    assert "line 3 was not used" in said
    assert "tasks: 1 job on" in said
