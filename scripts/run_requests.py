"""Requests to a run in another process: where it is, and what it answers."""

from __future__ import annotations

import time
from pathlib import Path

from hadoppler.scripts.application import CommandError
from hadoppler.scripts.run_state import RunningError, held

LOOK_S = 0.1


def running_folder(folder: Path) -> Path:
    """The folder of the run itself: the given one, or the one below it whose scheduler is at work.

    Raises:
        CommandError: there is none.
    """
    from hadoppler.real_system.cluster.store import FILE, has_ended

    found = [folder] if (folder / FILE).exists() else sorted(path.parent for path in folder.glob(f"*/{FILE}"))
    if not found:
        raise CommandError(f"run={folder} is no folder of hadoppler run; give the one that it printed, in runs/run.")
    for place in found:
        if not has_ended(place):
            if not (_at_work(place) or _at_work(place.parent)):
                raise CommandError(f"run={folder}: no run is under way there; hadoppler run resume={folder} goes on.")
            return place
    raise CommandError(f"run={folder}: the run has ended; begin another one.")


def _at_work(folder: Path) -> bool:
    """Whether a process holds a run's folder."""
    try:
        with held(folder):
            return False
    except RunningError:
        return True


def wait_for_answer(folder: Path, number: int, seconds: float) -> bool:
    """Whether a run has done what it was asked; False if it says nothing for so long.

    Raises:
        CommandError: it refused.
    """
    from hadoppler.real_system.cluster.store import RunStore

    store, until = RunStore(folder), time.monotonic() + seconds
    try:
        while (answer := store.answer_of(number)) is None and time.monotonic() < until:
            time.sleep(LOOK_S)
    finally:
        store.close()
    if answer is not None and answer != "taken":
        raise CommandError(answer.removeprefix("refused: "))
    return answer is not None
