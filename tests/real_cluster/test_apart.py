"""A job's code asked in a process of its own: answers in order, and a sentence for whatever goes wrong."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import pytest

pytest.importorskip("torch", reason="needs torch")
pytest.importorskip("sklearn", reason="needs scikit-learn")

from hadoppler.real_system.cluster import apart
from hadoppler.real_system.cluster.apart import Inquiry, SlowAnswers, ask_apart
from hadoppler.real_system.cluster.learner import Learner, pack
from hadoppler.real_system.cluster.task_facts import task_facts
from hadoppler.real_system.cluster.training_job import JobSpec, TrainingJobError


def test_answers_come_in_order_whatever_the_code_does(tmp_path: Path) -> None:
    """Good and bad jobs in one list: figures for the good ones, one sentence each for the others."""
    spec = JobSpec("good", "diabetes", 10)
    path = tmp_path / "state.pt"
    path.write_bytes(pack(Learner(spec).state()))
    bad = [JobSpec(name, f"hopeless_jobs:{name}", 10) for name in ("Deadly", "Broken", "Unjudged", "Sleepy")]
    questions = [
        ("facts", spec, ""),
        ("facts", spec, ""),
        ("seconds", bad[0], ""),
        ("seconds", bad[1], ""),
        ("quality", spec, str(path)),
        ("facts", bad[3], ""),
        ("quality", spec, str(tmp_path / "missing.pt")),
        ("seconds", spec, ""),
    ]
    answers = ask_apart(questions, patience_s=10.0)
    assert answers[0] == answers[1]
    assert answers[0]["flops"] > 0
    assert "'Deadly'" in answers[2]
    assert "ended its process (-9)" in answers[2]
    assert "no such thing" in answers[3]
    assert answers[4]["squared_error"] == pytest.approx(Learner(spec).evaluate()["squared_error"])
    assert "said nothing for 10 s" in answers[5]
    assert "missing.pt" in answers[6]
    assert 0 < answers[7]["seconds"] < 1


def test_an_inquiry_holds_nobody_up() -> None:
    """Begun at once; the answers come later, or a sentence if no process can be started."""
    spec = JobSpec("good", "diabetes", 10)
    begin = time.monotonic()
    inquiry = Inquiry([("facts", spec, "")])
    assert time.monotonic() - begin < 0.5
    while not inquiry.done and time.monotonic() - begin < 60:
        time.sleep(0.05)
    assert inquiry.answers[0]["flops"] > 0
    with patch.object(apart, "start_python", side_effect=OSError("no more processes")):
        inquiry = Inquiry([("facts", spec, "")])
        while not inquiry.done:
            time.sleep(0.01)
    assert "could not be asked (no more processes)" in inquiry.answers[0]
    assert Inquiry([]).done


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="looks at /proc")
@pytest.mark.parametrize("where", ["process", "second pipe"])
def test_what_cannot_be_started_leaves_nothing_open(monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    pipes = [os.pipe(), OSError("too many open files")] if where == "second pipe" else [os.pipe(), os.pipe()]
    before = len(os.listdir("/proc/self/fd"))
    with (
        patch.object(apart.os, "pipe", side_effect=pipes),
        patch.object(apart, "start_python", side_effect=OSError("no more processes")),
        pytest.raises(OSError, match=r"too many open files|no more processes"),
    ):
        ask_apart([("facts", JobSpec("good", "diabetes", 10), "")])
    assert before - len(os.listdir("/proc/self/fd")) == 2 * sum(isinstance(pipe, tuple) for pipe in pipes)


def _children(pid: int) -> list[int]:
    """Processes that a process has started, which are there."""
    return [int(word) for path in Path(f"/proc/{pid}/task").glob("*/children") for word in path.read_text().split()]


def _wait(until: Callable[[], bool], seconds: float) -> bool:
    end = time.monotonic() + seconds
    while not until() and time.monotonic() < end:
        time.sleep(0.05)
    return until()


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="looks at /proc")
def test_code_that_hangs_is_ended_when_nobody_wants_the_answer() -> None:
    """An inquiry that is stopped leaves no process, whatever the job's code is doing."""
    before = set(_children(os.getpid()))
    inquiry = Inquiry([("facts", JobSpec("Sleepy", "hopeless_jobs:Sleepy", 10), "")])
    assert _wait(lambda: bool(set(_children(os.getpid())) - before), 20)
    time.sleep(1.0)
    assert not inquiry.done
    inquiry.stop()
    assert _wait(lambda: inquiry.done and not set(_children(os.getpid())) - before, 5)


PROGRAM = """
import sys, time
sys.path.append({tests!r})
from hadoppler.real_system.cluster.apart import Inquiry
from hadoppler.real_system.cluster.training_job import JobSpec
inquiry = Inquiry([("facts", JobSpec("Sleepy", "hopeless_jobs:Sleepy", 10), "")])
time.sleep(100)
"""


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="looks at /proc")
def test_code_that_hangs_ends_with_the_run() -> None:
    """The coordinator is killed while it asks: the process that was asked notices, and is gone."""
    program = PROGRAM.format(tests=str(Path(__file__).parents[1]))
    process = subprocess.Popen([sys.executable, "-c", program])
    try:
        assert _wait(lambda: bool(_children(process.pid)), 20)
        (asked,) = _children(process.pid)
        time.sleep(4.0)  # it has begun to run the job's code
        assert Path(f"/proc/{asked}").exists()
    finally:
        process.kill()
        process.wait()
    assert _wait(lambda: not Path(f"/proc/{asked}").exists() or _is_zombie(asked), 10)


def _is_zombie(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


def test_who_takes_long_is_named() -> None:
    """While it is asked, the job's name is told; again for the next job."""
    told = list[str]()
    slow = SlowAnswers(told.append)
    for name, seconds in (("a", 1), ("a", 5), ("a", 6), ("a", 10), ("b", 2), ("b", 5)):
        slow(JobSpec(name, "digits", 1), seconds)
    assert [text.split(":")[0] for text in told] == ["job 'a' (task digits)"] * 2 + ["job 'b' (task digits)"]
    assert "5 s" in told[0]


def test_sentences_name_the_job_that_was_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two jobs of one broken task, each is named by its own id."""
    for name in ("first", "second"):
        with pytest.raises(TrainingJobError, match=f"job '{name}'"):
            task_facts(JobSpec(name, "hopeless_jobs:Broken", 10))


def test_nothing_asked_is_nothing_answered() -> None:
    """No process is started for it."""
    assert ask_apart([]) == []
