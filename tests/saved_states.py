"""What a run has saved of its jobs."""

from __future__ import annotations

from pathlib import Path

from hadoppler.real_system.cluster.checkpoints import Checkpoints
from hadoppler.real_system.cluster.learner import State, unpack
from hadoppler.real_system.cluster.store import RunStore


def saved_states(folder: Path) -> list[tuple[int, State | None]]:
    """Steps and state of each job, by row, as last saved; 0 and None without one. All that is kept can be read."""
    store, checkpoints, found = RunStore(folder), Checkpoints(folder / "checkpoints"), []
    for row in range(len(store.jobs())):
        states = [(saved.done, unpack(checkpoints.read(saved))) for saved in store.checkpoints(row)]
        found.append(states[0] if states else (0, None))
    store.close()
    return found
