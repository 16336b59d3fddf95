"""The process of a worker: a loop between two threads that read and write its end of a pipe."""

from __future__ import annotations

import os
import sys
import threading
from multiprocessing.connection import Connection

from .pipes import Sender
from .worker import Channel, Worker, prepare_torch

FLUSH_S = 1.0
"""How long the last answers may take to be written."""


def main(number: int) -> None:
    """Work until told to quit, or the coordinator is gone.

    Args:
        number: of the file descriptor of the pipe's end.
    """
    connection = Connection(number)
    channel = Channel()
    sender = Sender(connection, channel.outbox)
    threading.Thread(target=_listen, args=(connection, channel), name="listener", daemon=True).start()
    prepare_torch()
    Worker(channel).run()
    sender.close(FLUSH_S)
    _leave()


def _listen(connection: Connection, channel: Channel) -> None:
    """Take in commands; without a coordinator nothing is left to do, whatever the loop is at."""
    try:
        while True:
            channel.put(connection.recv())
    except (EOFError, OSError):
        _leave()


def _leave() -> None:
    """End now: nothing is to be tidied up, and torch may take long to do so."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
