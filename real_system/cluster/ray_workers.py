"""Workers as Ray actors, on one machine or many."""

from __future__ import annotations

import logging
import os
import sys
import threading
import traceback
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from queue import Queue
from typing import Any

from .backend import Slot, node_names
from .local import host_store, loopback
from .messages import Answer, Command, Lost, Ready, Train
from .ray_nodes import JoinedNodes, Places, PrivateNodes, import_ray
from .worker import ENVIRONMENT, Channel, Worker, drain, prepare_torch

LISTEN_S = 5.0
"""How long one call waits for answers."""
CLOSE_S = 5.0
"""How long a thread may take to notice that its actor is gone."""
LOOK_S = 0.2
"""How often it is looked whether a node has come."""
RETRY_S = 1.0
"""Between two tries to make an actor."""
_log = logging.getLogger(__name__)


class RayWorker:
    """The actor around a worker's loop: a thread works, calls put and take messages.

    Args:
        environment: variables to be set before torch is imported.
        path: where the coordinator finds modules; what is missing here is added.
    """

    def __init__(self, environment: dict[str, str], path: Sequence[str]) -> None:
        os.environ.update(environment)
        sys.path += [folder for folder in path if folder not in sys.path]
        self._channel = Channel()
        threading.Thread(target=self._work, name="worker", daemon=True).start()

    def _work(self) -> None:
        code = 1
        try:
            prepare_torch()
            Worker(self._channel).run()
            code = 0
        except Exception:
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)

    def tell(self, command: Command) -> None:
        """Let the worker hear a command."""
        self._channel.put(command)

    def listen(self, timeout: float) -> list[Answer]:
        """What the worker has said; waits up to ``timeout`` seconds for the first."""
        return drain(self._channel.outbox, timeout)


class RayBackend:
    """``Backend`` of Ray actors, one a slot.

    Args:
        slots: places of the workers.
        address: of a Ray cluster to join (``JoinedNodes`` says how its nodes are chosen); None: a private one on this
            machine, with a Ray node per cluster node.
        nodes: names of the cluster's nodes, by number.

    Attributes:
        slots, meeting: as of ``Backend``.
        places: the Ray nodes, between ``start`` and ``close``.
    """

    def __init__(self, slots: Sequence[Slot], address: str | None = None, nodes: Sequence[str] = ()) -> None:
        self.slots, self.address = tuple(slots), address
        self.meeting = ("", 0)
        self.places: Places | None = None
        self._names = node_names(self.slots, nodes)
        self._answers: Queue[tuple[int, Answer]] = Queue()
        self._actors: list[Actor] = []
        self._store: Any = None

    def start(self) -> None:
        """As of ``Backend``.

        Raises:
            MissingExtraError: Ray is not installed.
            WorkerError: Ray does not start, cannot be joined, or has too few nodes.
        """
        workers = Counter(self._names)
        self.places = PrivateNodes(workers) if self.address is None else JoinedNodes(self.address, workers)
        self._actors = [self._actor(slot) for slot in range(len(self.slots))]
        self._store, port = host_store(self.places.host)
        self.meeting = (self.places.host, port)

    def _actor(self, slot: int) -> Actor:
        assert self.places is not None, "start comes first"
        environment = ENVIRONMENT | ({} if self.address else loopback())
        return Actor(slot, self.slots[slot], self._names[slot], self.places, environment, self._answers)

    def send(self, slot: int, command: Command) -> None:
        """As of ``Backend``."""
        self._actors[slot].send(command)

    def receive(self, timeout: float) -> list[tuple[int, Answer]]:
        """As of ``Backend``."""
        return drain(self._answers, timeout)

    def end(self, slot: int) -> None:
        """As of ``Backend``."""
        self._actors[slot].end()

    def restart(self, slot: int) -> None:
        """As of ``Backend``; waits for a Ray node in the background."""
        self._actors[slot] = self._actor(slot)

    def close(self) -> None:
        """As of ``Backend``."""
        for actor in self._actors:
            actor.close()
        self._actors.clear()
        self._store = None
        if self.places is not None:
            self.places.close()
            self.places = None


class Actor:
    """The coordinator's side of one actor: a thread that makes it, and asks it for answers until it is gone."""

    def __init__(
        self,
        number: int,
        slot: Slot,
        name: str,
        places: Places,
        environment: dict[str, str],
        answers: Queue[tuple[int, Answer]],
    ) -> None:
        self._number, self._slot, self._name, self._places = number, slot, name, places
        self._environment, self._answers = environment, answers
        self._actor: Any = None
        self._ready = False
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._carry, name=f"worker {number}", daemon=True)
        self._thread.start()

    def send(self, command: Command) -> None:
        """Tell it something; the GPU that Ray gave it is the only one that it sees."""
        if isinstance(command, Train):
            command = replace(command, device=command.device.partition(":")[0])
        if self._actor is not None:
            self._actor.tell.options(concurrency_group="commands").remote(command)

    def _carry(self) -> None:
        """Make it, and pass on what it says until it is gone; one that was never ready is made again."""
        while not self._closed.is_set():
            reason = self._serve()
            if self._ready:
                self._answers.put((self._number, Lost(f"its Ray actor on {self._name} is gone: {reason}")))
                return
            _log.warning("a worker on %s did not become ready (%s); another try follows.", self._name, reason)
            self._closed.wait(RETRY_S)

    def _serve(self) -> str:
        """Carry answers of a new actor; why it is gone."""
        try:
            self._actor = self._make()
            listen = self._actor.listen.options(concurrency_group="answers")
            while not self._closed.is_set():
                for answer in import_ray().get(listen.remote(LISTEN_S)):
                    self._ready |= isinstance(answer, Ready)
                    self._answers.put((self._number, answer))
        except import_ray().exceptions.RayError as error:
            return _reason(error)
        return "closed"

    def _make(self) -> Any:
        """The actor, as soon as there is a node for it."""
        while (options := self._places.options(self._name)) is None:
            if self._closed.wait(LOOK_S):
                raise import_ray().exceptions.RayError("closed")
        gpus = 1 if self._slot.device.startswith("cuda") else 0
        # one thread for each, so that commands are heard in their order, and while answers are waited for
        groups = {"commands": 1, "answers": 1}
        kind = import_ray().remote(num_cpus=1, num_gpus=gpus, concurrency_groups=groups, **options)(RayWorker)
        return kind.remote(self._environment, sys.path)

    def end(self) -> None:
        """Kill it."""
        if self._actor is not None:
            import_ray().kill(self._actor)

    def close(self) -> None:
        """Kill it, and wait for the thread."""
        self._closed.set()
        self.end()
        self._thread.join(CLOSE_S)


def _reason(error: Exception) -> str:
    """The last line of what Ray says."""
    return (str(error).strip().splitlines() or [type(error).__name__])[-1].strip()
