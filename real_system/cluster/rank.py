"""One rank of a gang: its steps, at the speed of its node, until the quota is done or somebody wishes an end."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from statistics import fmean
from typing import TYPE_CHECKING

from .meeting import Meeting
from .messages import Answer, Ended, EndReason, Progress, Saved, Started, Train
from .shares import sample_shares

if TYPE_CHECKING:
    import torch

    from .learner import Learner

Listen = Callable[[float], EndReason | None]
"""Waits until the monotonic clock shows a moment, or there is a reason to end: that reason."""

REPORT_S = 0.1
"""Seconds between two ``Progress``."""
RECENT = 20
"""Steps of the mean loss that is told at the end."""


class Rank:
    """One start of a gang on one worker.

    A step is padded to its pace: alone it is slept after the step; in a gang before the gradients are summed, as a slow
    node's come late. A wish to end cuts the padding, and is known to all ranks with the same sum, so that all end after
    the same step. The step that was cut counts with its whole pace in ``worked_s``.

    Args:
        train: what to do.
        learner: of the job, in the state to begin with.
        meeting: the other ranks, all there; None where there are none.
        listen: waits.
        send: tells the coordinator something.
    """

    def __init__(
        self,
        train: Train,
        learner: Learner,
        meeting: Meeting | None,
        listen: Listen,
        send: Callable[[Answer], None],
    ) -> None:
        self.train, self.learner, self.meeting, self.listen, self.send = train, learner, meeting, listen, send
        self.steps, self.overruns = 0, 0
        self.worked_s, self.compute_s = 0.0, 0.0
        self._begun = self._due = self._told = time.monotonic()
        self._waited = 0.0
        self._wish: EndReason | None = None
        self._losses: deque[float] = deque(maxlen=RECENT)

    def run(self) -> Ended:
        """Do steps until there is a reason to end.

        Raises:
            PeerError: another rank is gone.
            Exception: of the job's own code.
        """
        self.send(Started(self.train.gang, self.train.rank))
        self._begun = self._due = self._told = time.monotonic()
        try:
            while (reason := self._reason_to_end()) is None:
                self._report()
                self._step()
            state = self._state() if self.steps else self.train.state
        except Exception:
            self._tell_progress()
            raise
        return Ended(
            gang=self.train.gang,
            rank=self.train.rank,
            reason=reason,
            steps=self.steps,
            state=state if self.train.rank == 0 else None,
            loss=fmean(self._losses) if self._losses else float("nan"),
            worked_s=self.worked_s,
            compute_s=self.compute_s,
            overruns=self.overruns,
        )

    def _reason_to_end(self) -> EndReason | None:
        return "quota" if self.steps >= self.train.quota else self._wish

    def _step(self) -> None:
        train, ranks = self.train, len(self.train.shares)
        width = min(ranks, train.quota - self.steps)
        part = self._part_of_step(width)
        pace = train.pace_s * width / ranks
        begin = time.monotonic()
        self._due = max(self._due, begin - pace) + pace
        self._waited = 0.0
        loss = self.learner.step(
            train.first + self.steps,
            width,
            part,
            None if self.meeting is None else self._sum_gradients,
            train.counted + self.steps * train.stretch,
        )
        if self.meeting is None:
            self._wait()
        end = time.monotonic()
        computed = end - begin - self._waited
        self.compute_s += computed
        self.overruns += 0 < pace < computed
        self.steps += width
        self.worked_s = max(end, self._due) - self._begun
        self._losses.append(loss)

    def _part_of_step(self, width: int) -> slice:
        """This rank's samples of a step; the last step may be of fewer batches than there are ranks."""
        shares = self.train.shares
        if width < len(shares):
            shares = sample_shares(self.train.spec.batch_size, width, shares)
        begin = sum(shares[: self.train.rank])
        return slice(begin, begin + shares[self.train.rank])

    def _wait(self) -> None:
        """Sleep until the step may end."""
        begin = time.monotonic()
        self._wish = self.listen(self._due)
        self._waited += time.monotonic() - begin

    def _sum_gradients(self, flat: torch.Tensor) -> None:
        """Sum over all ranks in place, when the step may end; wishes to end travel with the gradients."""
        assert self.meeting is not None, "alone nothing is summed"
        self._wait()
        begin = time.monotonic()
        wishes = flat.new_tensor([self._wish == "stopped", self._wish == "time"])
        buffer = flat.new_empty(flat.numel() + len(wishes))
        buffer[: flat.numel()], buffer[flat.numel() :] = flat, wishes
        self.meeting.sum(buffer)
        flat.copy_(buffer[: flat.numel()])
        stopped, late = buffer[flat.numel() :].tolist()
        self._wish = "stopped" if stopped else "time" if late else None
        self._waited += time.monotonic() - begin

    def _report(self) -> None:
        """Between two steps: a state where it is due, and how far it is."""
        every = self.train.save_every
        width = len(self.train.shares)
        if every and self.steps // every > max(0, self.steps - width) // every:
            state = self._state()
            if self.train.rank == 0:
                self.send(Saved(self.train.gang, self.steps, state))
        if time.monotonic() >= self._told + REPORT_S:
            self._tell_progress()

    def _tell_progress(self) -> None:
        if self.train.rank == 0 and self.steps:
            self._told = time.monotonic()
            self.send(Progress(self.train.gang, self.steps, self.worked_s, self._losses[-1]))

    def _state(self) -> bytes:
        """The packed state; all ranks of a gang take it after the same step."""
        from .learner import pack

        if self.meeting is not None:
            shares = self.train.shares
            self.learner.merge_buffers(self.meeting.sum, shares[self.train.rank] / sum(shares))
        return pack(self.learner.state()) if self.train.rank == 0 else b""
