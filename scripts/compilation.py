"""Says when kernels are compiled, which happens once after an installation and takes long."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

TOLD = "compiling kernels: once after an installation, for a minute or, where the processor is busy, several"
_was_told = False


@contextmanager
def compilation_told() -> Iterator[None]:
    """Print a line when Numba begins to compile what it has not on disk, once in a process."""
    from numba.core import event

    class Teller(event.Listener):
        """Numba tells it of compilations, and not of what it finds compiled."""

        def on_start(self, event: Any) -> None:
            global _was_told
            if not _was_told:
                _was_told = True
                print(TOLD, flush=True)  # not Rich's console: bars that are there put it above themselves

        def on_end(self, event: Any) -> None:
            """Nothing is told."""

    with event.install_listener("numba:compile", Teller()):
        yield
