"""Workers as processes of this machine."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing import Pipe
from pickle import UnpicklingError
from queue import Queue
from typing import Any

from . import worker_process
from .backend import Slot, WorkerError, node_names
from .messages import Answer, Command, Lost, Quit, Ready
from .pipes import Sender
from .python_process import start_python
from .worker import drain

HOST = "127.0.0.1"
LOOK_S = 0.5
"""How often it is looked whether a silent process is still there; a closed pipe is noticed at once."""
QUIT_S = 1.0
"""How long workers may take to quit, and then to follow a signal."""
FALSE_STARTS = 5
"""A worker that ends so many times in a row before it is ready will never be."""


class LocalBackend:
    """``Backend`` of processes on this machine, one a slot.

    Args:
        slots: places of the workers; all on this machine, whatever node they stand for.
        nodes: names of the cluster's nodes, by number; for messages.

    Attributes:
        slots, meeting: as of ``Backend``.
    """

    def __init__(self, slots: Sequence[Slot], nodes: Sequence[str] = ()) -> None:
        self.slots = tuple(slots)
        self._names = node_names(self.slots, nodes)
        self.meeting = (HOST, 0)
        self._answers: Queue[tuple[int, Answer]] = Queue()
        self._workers: list[WorkerProcess] = []
        self._false_starts = [0] * len(self.slots)
        self._store: Any = None

    def start(self) -> None:
        """As of ``Backend``.

        Raises:
            WorkerError: a process cannot be started.
        """
        try:
            for number in range(len(self.slots)):
                self._workers.append(WorkerProcess(number, self._answers))
            self._store, port = host_store()
        except OSError as error:
            self.close()
            raise WorkerError(f"workers cannot be started: {error.strerror or error}.") from error
        self.meeting = (HOST, port)

    @property
    def pids(self) -> tuple[int, ...]:
        """Process numbers of the workers."""
        return tuple(worker.process.pid for worker in self._workers)

    def send(self, slot: int, command: Command) -> None:
        """As of ``Backend``."""
        self._workers[slot].send(command)

    def receive(self, timeout: float) -> list[tuple[int, Answer]]:
        """As of ``Backend``.

        Raises:
            WorkerError: a worker cannot be started.
        """
        found = drain(self._answers, timeout)
        for slot, answer in found:
            self._count_starts(slot, answer)
        return found

    def _count_starts(self, slot: int, answer: Answer) -> None:
        if isinstance(answer, Ready):
            self._false_starts[slot] = 0
        elif isinstance(answer, Lost):
            self._false_starts[slot] += 1
            if self._false_starts[slot] > FALSE_STARTS:
                raise WorkerError(
                    f"a worker of node {self._names[slot]} ended {FALSE_STARTS} times before it was ready "
                    f"({answer.reason}); see what it wrote above."
                )

    def end(self, slot: int) -> None:
        """As of ``Backend``."""
        self._workers[slot].process.kill()

    def restart(self, slot: int) -> None:
        """As of ``Backend``."""
        self._workers[slot].close()
        try:
            self._workers[slot] = WorkerProcess(slot, self._answers)
        except OSError as error:
            raise WorkerError(
                f"the worker of node {self._names[slot]} cannot be started again: {error.strerror or error}."
            ) from error

    def close(self) -> None:
        """As of ``Backend``; takes three seconds at most."""
        for worker in self._workers:
            worker.send(Quit())
        self._wait_for_processes()
        for end in (subprocess.Popen.terminate, subprocess.Popen.kill):
            for worker in self._workers:
                end(worker.process)
            self._wait_for_processes()
        for worker in self._workers:
            worker.close()
        self._workers.clear()
        self._store = None

    def _wait_for_processes(self) -> None:
        """Wait until all have ended, for ``QUIT_S`` at most."""
        until = time.monotonic() + QUIT_S
        for worker in self._workers:
            with suppress(subprocess.TimeoutExpired):
                worker.process.wait(max(0.0, until - time.monotonic()))


class WorkerProcess:
    """The coordinator's side of one worker.

    Args:
        slot: its number.
        answers: where what it says is put, and at last that it is gone.

    Raises:
        OSError: the process cannot be started.
    """

    def __init__(self, slot: int, answers: Queue[tuple[int, Answer]]) -> None:
        self.slot, self._answers = slot, answers
        self._connection, theirs = Pipe()
        try:
            # its own end and no other's, or it would not be seen that one is closed
            self.process = start_python(worker_process.main, [theirs.fileno()], loopback())
        except OSError:
            self._connection.close()
            raise
        finally:
            theirs.close()
        self._sender = Sender(self._connection)
        self._reader = threading.Thread(target=self._read, name=f"worker {slot}", daemon=True)
        self._reader.start()

    def send(self, command: Command) -> None:
        """Tell it something, without waiting."""
        self._sender.queue.put(command)

    def _read(self) -> None:
        """Take in all that it says until it is gone."""
        with suppress(EOFError, OSError, UnpicklingError):
            while self._connection.poll(LOOK_S) or self.process.poll() is None:
                if self._connection.poll(0):
                    self._answers.put((self.slot, self._connection.recv()))
        try:
            code = self.process.wait(QUIT_S)
        except subprocess.TimeoutExpired:  # it closed its end, and lives
            self.process.kill()
            code = self.process.wait()
        self._answers.put((self.slot, Lost(_how_it_ended(code))))

    def close(self) -> None:
        """Free everything of a process that is gone."""
        self._reader.join()
        self._sender.close()
        self._connection.close()


def _how_it_ended(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    return signal.Signals(-code).name


def loopback() -> dict[str, str]:
    """What keeps gangs from asking for this machine's name, and from any other network than its own."""
    return {"GLOO_SOCKET_IFNAME": "lo0" if sys.platform == "darwin" else "lo"}


def host_store(host: str = HOST) -> tuple[Any, int]:
    """The store where ranks of gangs meet, reachable under one address only, and its port.

    Raises:
        OSError: there is no free port.
    """
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    listener = socket.create_server((host, 0))
    port = int(listener.getsockname()[1])
    store = TCPStore(host, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach())
    return store, port
