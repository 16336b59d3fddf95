"""Where the ranks of a gang meet, and sum their gradients: torch.distributed with gloo, one group per start."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from .messages import EndReason, Train

if TYPE_CHECKING:
    import torch

LOOK_S = 0.005
"""Seconds between two looks whether all are there."""
PATIENCE_S = 10.0
"""Seconds that a peer may be silent, at least; one whose process is gone is noticed at once."""
PACES = 5
"""Steps at their pace that a peer may be silent, if that is longer."""
UNPACED_S = 25.0
"""Seconds that a peer may be silent where nobody knows how long a step takes."""
GATHERING_S = 120.0
"""Seconds that ranks wait for each other before the first step; some may have to read their data."""


class PeerError(RuntimeError):
    """Another rank of the gang is gone, or does not answer."""


class Meeting:
    """The ranks of one start of a gang; a context that leaves nothing open.

    Args:
        train: names the store's host and port, the gang, this rank, and its peers.

    Raises:
        PeerError: the store does not answer.
    """

    def __init__(self, train: Train) -> None:
        assert train.meeting is not None, "several ranks meet somewhere"
        self._gang, self._rank, self._ranks = train.gang, train.rank, len(train.shares)
        self._patience = max(PATIENCE_S, PACES * train.pace_s) if train.pace_s else UNPACED_S
        self._host, self._port = train.meeting
        self._store: Any = None
        self._group: Any = None

    def __enter__(self) -> Meeting:
        from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

        timeout = timedelta(seconds=PATIENCE_S)
        with _Peers(self._gang, self._rank):
            store = TCPStore(self._host, self._port, is_master=False, timeout=timeout, wait_for_workers=False)
            self._store = PrefixStore(f"gang {self._gang}", store)
        return self

    def __exit__(self, *error: object) -> None:
        self._group = self._store = None

    def gather(self, listen: Callable[[float], EndReason | None]) -> EndReason | None:
        """Wait for all ranks; None if all begin, else why none does.

        All ranks come to the same conclusion: the first that sees all there, or wishes an end, writes it down.

        Raises:
            PeerError: they do not come, or cannot be reached.
        """
        with _Peers(self._gang, self._rank):
            verdict = self._agree(listen)
            if verdict != "go":
                return "stopped" if verdict == "stopped" else "time"
            self._join()
        return None

    def _agree(self, listen: Callable[[float], EndReason | None]) -> str:
        """``go``, ``stopped`` or ``time``."""
        give_up = time.monotonic() + GATHERING_S
        self._store.add("here", 1)
        wish: EndReason | None = None
        while not self._store.check(["verdict"]):
            if self._store.add("here", 0) == self._ranks:
                self._store.compare_set("verdict", "", "go")
            elif wish is not None:
                self._store.compare_set("verdict", "", wish)
            elif time.monotonic() > give_up:
                raise PeerError(f"rank {self._rank} of gang {self._gang}: its peers did not come in {GATHERING_S:g} s.")
            else:
                wish = listen(time.monotonic() + LOOK_S)
        return str(self._store.get("verdict").decode())

    def _join(self) -> None:
        """Connect to all peers; not as the default group of torch: a failed start would leave traces in it."""
        from torch.distributed import ProcessGroupGloo

        timeout = timedelta(seconds=self._patience)
        self._group = ProcessGroupGloo(self._store, self._rank, self._ranks, timeout)

    def sum(self, tensor: torch.Tensor) -> None:
        """Sum over all ranks, in place.

        Raises:
            PeerError: another rank is gone.
        """
        with _Peers(self._gang, self._rank):
            self._group.allreduce([tensor]).wait()


class _Peers:
    """Turns what torch raises when a peer is gone into a ``PeerError``."""

    def __init__(self, gang: int, rank: int) -> None:
        self._who = f"rank {rank} of gang {gang}"

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, RuntimeError) and not isinstance(error, PeerError):
            reason = (str(error).strip().splitlines() or [""])[0]
            reason = re.sub(r"^\[[^]]*\] *", "", reason).partition(". ")[0].rstrip(".")  # without gloo's own file names
            raise PeerError(f"{self._who}: a peer is gone or does not answer ({reason}).") from error
