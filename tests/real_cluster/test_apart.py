"""A job's code asked in a process of its own: answers in order, and a sentence for whatever goes wrong."""

from __future__ import annotations

import time
from pathlib import Path
from unittest.mock import patch

import pytest

pytest.importorskip("torch", reason="needs torch")
pytest.importorskip("sklearn", reason="needs scikit-learn")

from hadoppler.real_system.cluster import apart
from hadoppler.real_system.cluster.apart import Inquiry, ask_apart
from hadoppler.real_system.cluster.learner import Learner, pack
from hadoppler.real_system.cluster.training_job import JobSpec


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


def test_nothing_asked_is_nothing_answered() -> None:
    """No process is started for it."""
    assert ask_apart([]) == []
