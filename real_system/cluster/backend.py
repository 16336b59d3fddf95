"""Where workers live: one process per GPU of each node, whatever starts it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ...envs.errors import HadopplerError
from .messages import Answer, Command


class WorkerError(HadopplerError):
    """Workers cannot be started, or do not answer."""


@dataclass(frozen=True)
class Slot:
    """A place for one worker: a GPU of a node.

    Attributes:
        node, gpu_type: numbers in the cluster.
        device: of torch.
    """

    node: int
    gpu_type: int
    device: str = "cpu"


def node_names(slots: Sequence[Slot], nodes: Sequence[str]) -> tuple[str, ...]:
    """Name of each slot's node; by its number where the nodes have none."""
    return tuple(nodes[slot.node] if nodes else f"node{slot.node}" for slot in slots)


class Backend(Protocol):
    """Persistent workers, one a slot; a worker takes commands until it is told to quit, or is gone.

    Attributes:
        slots: places of the workers; commands and answers name them by number.
        meeting: host and port of the store where the ranks of gangs meet.
    """

    slots: tuple[Slot, ...]
    meeting: tuple[str, int]

    def start(self) -> None:
        """Start all workers; each sends ``Ready`` when it can take commands."""

    def send(self, slot: int, command: Command) -> None:
        """Tell a worker something; a worker that is gone does not hear it."""

    def receive(self, timeout: float) -> list[tuple[int, Answer]]:
        """All (slot, answer) that are there; waits up to ``timeout`` seconds for the first.

        ``Lost`` comes once for a worker that is gone, after all that it said before.

        Raises:
            WorkerError: a worker cannot be started.
        """

    def end(self, slot: int) -> None:
        """End a worker that does not answer; ``Lost`` follows."""

    def restart(self, slot: int) -> None:
        """Start a new worker in the place of one that is gone; ``Ready`` follows when its node is there.

        Raises:
            WorkerError: it cannot be started.
        """

    def close(self) -> None:
        """End all workers and free everything; nothing is left running."""
