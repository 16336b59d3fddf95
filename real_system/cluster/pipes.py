"""Sending over a pipe without waiting for who reads it."""

from __future__ import annotations

import threading
from contextlib import suppress
from multiprocessing.connection import Connection
from queue import Queue
from typing import Any


class Sender:
    """A thread that writes to a connection what is put into its queue, until the other side is gone.

    So a coordinator never hangs because a worker has stalled, nor a step because the coordinator is busy.

    Args:
        connection: to write to; others may read from it meanwhile.
        queue: of what is sent, ended by None; a new one by default.
    """

    def __init__(self, connection: Connection, queue: Queue[Any] | None = None) -> None:
        self.queue: Queue[Any] = Queue() if queue is None else queue
        self._thread = threading.Thread(target=self._write, args=(connection,), name="sender", daemon=True)
        self._thread.start()

    def _write(self, connection: Connection) -> None:
        with suppress(OSError):
            while (message := self.queue.get()) is not None:
                connection.send(message)

    def close(self, timeout: float | None = None) -> None:
        """Write what is there, and end; waits for it up to ``timeout`` seconds."""
        self.queue.put(None)
        self._thread.join(timeout)
