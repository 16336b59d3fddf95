"""A job's code asked in a process of its own: answers in order, and a sentence for whatever goes wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs torch")
pytest.importorskip("sklearn", reason="needs scikit-learn")

from hadoppler.real_system.cluster.apart import ask_apart
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


def test_nothing_asked_is_nothing_answered() -> None:
    """No process is started for it."""
    assert ask_apart([]) == []
