"""What a run keeps on the disk: whole or not at all, and the last good state found again."""

from __future__ import annotations

import errno
import os
import sqlite3
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch")

import torch

from hadoppler.envs.cluster import Job
from hadoppler.envs.errors import CheckpointError
from hadoppler.real_system.cluster.checkpoints import Checkpoints
from hadoppler.real_system.cluster.learner import pack, unpack
from hadoppler.real_system.cluster.store import FINISHED, RunStore, StoreError
from hadoppler.real_system.cluster.tracker import JobTracker
from hadoppler.real_system.cluster.training_job import JobSpec


def _state(value: float, steps: int = 1) -> bytes:
    weights = {"w": torch.full((3,), value)}
    return pack({"model": weights, "optimizer": {"state": {}, "param_groups": []}, "steps": steps})


def _tracker(folder: Path, *steps: int, create: bool = True) -> JobTracker:
    store = RunStore(folder, create=create)
    specs = [JobSpec(f"j{row}", "digits", count) for row, count in enumerate(steps)]
    if create:
        store.add_jobs(0, [(Job(spec.id, 0.0, 1, float(spec.steps), "digits"), spec) for spec in specs])
    return JobTracker(Checkpoints(folder / "checkpoints"), store, specs)


@pytest.mark.parametrize("damage", ["cut", "empty", "altered", "missing"])
def test_a_broken_checkpoint_falls_back_to_the_one_before(tmp_path: Path, damage: str) -> None:
    """The latest file is damaged: the one before is taken up, with its steps, and it is told."""
    tracker = _tracker(tmp_path, 1000)
    for done in (100, 200, 300):
        tracker.save(0, done, done, _state(float(done)))
    files = sorted((tmp_path / "checkpoints").iterdir())
    assert len(files) == 2  # the third last is not needed any more
    content = files[-1].read_bytes()
    {
        "cut": lambda: files[-1].write_bytes(content[: len(content) // 2]),
        "empty": lambda: files[-1].write_bytes(b""),
        "altered": lambda: files[-1].write_bytes(content[:-1] + bytes([content[-1] ^ 1])),
        "missing": files[-1].unlink,
    }[damage]()
    again = _tracker(tmp_path, 1000, create=False)
    (sentence,) = again.recover()
    assert "j0" in sentence
    assert str(files[-1]) in sentence
    assert again.jobs[0].done == 200
    assert unpack(again.jobs[0].state)["model"]["w"][0] == 200
    again.save(0, 300, 300, _state(301.0))
    assert again.jobs[0].done == 300


def test_a_full_disk_is_one_sentence_and_the_old_state_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full while a state is written: job and path are named, nothing half-written stays."""
    tracker = _tracker(tmp_path, 1000)
    tracker.save(0, 100, 100, _state(1.0))
    real = os.fsync

    def full(number: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("hadoppler.real_system.cluster.checkpoints.os.fsync", full)
    with pytest.raises(CheckpointError, match=r"job_0000_000000200.*job 'j0' after 200 steps.*No space left.*resume="):
        tracker.save(0, 200, 200, _state(2.0))
    monkeypatch.setattr("hadoppler.real_system.cluster.checkpoints.os.fsync", real)
    assert [path.suffix for path in (tmp_path / "checkpoints").iterdir()] == [".pt"]
    assert tracker.jobs[0].done == 100
    again = _tracker(tmp_path, 1000, create=False)
    assert again.recover() == []
    assert again.jobs[0].done == 100


def test_a_state_counts_only_with_its_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Death between file and database: the file is an orphan, the state before counts."""
    tracker = _tracker(tmp_path, 1000)
    tracker.save(0, 100, 100, _state(1.0))
    monkeypatch.setattr(RunStore, "add_checkpoint", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        tracker.save(0, 200, 200, _state(2.0))
    again = _tracker(tmp_path, 1000, create=False)
    again.recover()
    assert again.jobs[0].done == 100


def test_the_last_step_and_the_end_are_one_transaction(tmp_path: Path) -> None:
    """A job whose last state is in the database is finished there, too."""
    tracker = _tracker(tmp_path, 300)
    tracker.save(0, 300, 300, _state(1.0))
    assert tracker.jobs[0].finished
    assert RunStore(tmp_path).jobs()[0].status == FINISHED


def test_steps_never_go_back_or_beyond(tmp_path: Path) -> None:
    """A report of fewer or of more steps than there are is a defect, and told."""
    tracker = _tracker(tmp_path, 300)
    tracker.save(0, 200, 200, _state(1.0))
    for wrong in (100, 301):
        with pytest.raises(CheckpointError, match=f"after {wrong} steps was reported"):
            tracker.save(0, wrong, wrong, _state(1.0))


def _fork(folder: Path, reports: dict[int, tuple[int, float] | None]) -> JobTracker:
    """A round of copies with 60, 30 and 10 steps of 1000, and what each reports: (steps, weight)."""
    tracker = _tracker(folder, 1000)
    tracker.save(0, 100, 100, _state(7.0, 100))
    first = tracker.fork(0, {0: 60, 1: 30, 2: 10})
    assert first == {0: 100, 1: 160, 2: 190}
    for copy, told in reports.items():
        if told is not None:
            tracker.report(0, copy, told[0], _state(told[1], told[0]))
    tracker.consolidate(0)
    return tracker


@pytest.mark.parametrize(
    ("reports", "done", "weight"),
    [
        ({0: (60, 1.0), 1: (30, 2.0), 2: (10, 3.0)}, 200, 1.5),
        ({0: (60, 1.0), 1: (30, 2.0), 2: (0, 99.0)}, 190, 4 / 3),  # a copy without steps
        ({0: (60, 1.0), 1: None, 2: (10, 3.0)}, 170, 9 / 7),  # a copy lost
        ({0: (60, float("nan")), 1: (30, 2.0), 2: (10, 3.0)}, 140, 2.25),  # a copy that is not finite
        ({0: (0, 5.0), 1: None, 2: (0, 5.0)}, 100, 7.0),  # none has done anything: as before
    ],
)
def test_copies_are_averaged_by_their_steps(tmp_path: Path, reports: dict[int, Any], done: int, weight: float) -> None:
    """Whatever happened to copies, the average is that of those that count, and never NaN."""
    tracker = _fork(tmp_path, reports)
    assert tracker.jobs[0].done == done
    assert unpack(tracker.jobs[0].state)["model"]["w"][0].item() == pytest.approx(weight)


def test_a_copy_whose_state_cannot_be_read_is_left_out(tmp_path: Path) -> None:
    """It is cut, or no state at all: told in a sentence, and the others are averaged."""
    tracker = _tracker(tmp_path, 1000)
    tracker.fork(0, {0: 60, 1: 30, 2: 10})
    for copy, state in enumerate((_state(1.0)[:-40], b"", _state(3.0))):
        sentence = tracker.report(0, copy, 10, state)
        assert ("left out" in sentence) == (copy < 2)
    tracker.consolidate(0)
    assert tracker.jobs[0].done == 10
    assert unpack(tracker.jobs[0].state)["model"]["w"][0].item() == 3.0


def test_batches_of_a_round_are_given_out_once(tmp_path: Path) -> None:
    """What a copy did not do of its share is left out: the next round begins behind all shares."""
    tracker = _fork(tmp_path, {0: (60, 1.0), 1: None, 2: (10, 3.0)})
    assert tracker.jobs[0].issued == 200
    assert tracker.fork(0, {0: 5, 1: 5}) == {0: 200, 1: 205}


def test_late_and_double_reports_do_not_count(tmp_path: Path) -> None:
    """After the round is closed, and a second time, a copy's report changes nothing."""
    tracker = _fork(tmp_path, {0: (60, 1.0), 1: (30, 2.0), 2: (10, 3.0)})
    tracker.report(0, 1, 30, _state(50.0))
    assert tracker.jobs[0].done == 200
    tracker.fork(0, {0: 10})
    tracker.report(0, 0, 10, _state(1.0))
    tracker.report(0, 0, 10, _state(9.0))
    tracker.consolidate(0)
    assert tracker.jobs[0].done == 210
    assert unpack(tracker.jobs[0].state)["model"]["w"][0] == 1.0


def test_folders_that_are_no_runs(tmp_path: Path) -> None:
    """No file, a file of something else, and a folder that holds a run already: one sentence each."""
    with pytest.raises(StoreError, match="no folder of a run"):
        RunStore(tmp_path)
    RunStore(tmp_path, create=True).close()
    with pytest.raises(StoreError, match="holds a run already"):
        RunStore(tmp_path, create=True)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "run.sqlite").write_text("something else, long enough to be no header of a database file")
    with pytest.raises(StoreError, match="is not the file of a run"):
        RunStore(tmp_path / "other")


def test_another_process_sees_all_of_a_transaction_or_nothing(tmp_path: Path) -> None:
    """While a transaction is open, readers see what was before."""
    store = RunStore(tmp_path, create=True)
    store.write_facts(clock="wall")
    with store._transaction() as base:
        base.execute("UPDATE facts SET content = '\"nominal\"' WHERE name = 'clock'")
        other = sqlite3.connect(tmp_path / "run.sqlite")
        assert other.execute("SELECT content FROM facts WHERE name = 'clock'").fetchone() == ('"wall"',)
        other.close()
    assert RunStore(tmp_path).fact("clock") == "nominal"
