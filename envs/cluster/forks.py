"""Copies of one job that train at the same time: who does how many steps, and what is counted.

Pure functions over plain numbers; the simulator, forking schedulers and a real job tracker share them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..errors import AllocationError


def split_steps(remaining: float, rates: Sequence[float], seconds: Sequence[float]) -> list[float]:
    """Steps of each copy in one round: in proportion to rate x seconds, in whole steps.

    Together they are min(remaining, whole steps that all copies can do), exactly: largest remainders
    first, ties by copy. A broken step at the end of ``remaining`` goes to the copy with the most. A round
    in which not even one whole step can be done is split into broken ones, so that it is not lost.

    Args:
        remaining: steps of the job still to do.
        rates: steps/s of each copy.
        seconds: of each copy in this round, restart and consolidation taken off.

    Raises:
        AllocationError: a rate or a time is negative, or the two differ in length.
    """
    if len(rates) != len(seconds):
        raise AllocationError(f"a fork has {len(rates)} rates and {len(seconds)} times; expected one of each per copy.")
    if any(not value >= 0 for value in (*rates, *seconds)):
        raise AllocationError("a fork has a negative rate or time; expected numbers from 0 up.")
    reach = [rate * time for rate, time in zip(rates, seconds, strict=True)]
    total = sum(reach)
    if total <= 0 or remaining <= 0:
        return [0.0] * len(rates)
    reachable = math.floor(total * (1 + 1e-12))
    if reachable < 1:
        return [min(remaining, total) * amount / total for amount in reach]
    goal = min(remaining, float(reachable))
    whole = math.floor(goal)
    exact = [whole * amount / total for amount in reach]
    steps = [float(math.floor(amount)) for amount in exact]
    by_rest = sorted(range(len(steps)), key=lambda c: (steps[c] - exact[c], c))
    for copy in by_rest[: int(whole - sum(steps))]:
        steps[copy] += 1.0
    steps[max(range(len(steps)), key=lambda c: (steps[c], -c))] += goal - whole
    return steps


@dataclass
class ForkLedger:
    """Counts one job's steps over rounds and copies; no step counts twice, none beyond the last.

    Attributes:
        steps: of the job in all.
        done: counted so far.
        round: the round that runs, from 0; reports of other rounds are late.
        ignored: reports that were not counted, with the reason.
    """

    steps: float
    done: float = 0.0
    round: int = 0
    ignored: list[str] = field(default_factory=list)
    _shares: dict[int, float] = field(default_factory=dict)
    _reported: dict[int, float] = field(default_factory=dict)

    @property
    def remaining(self) -> float:
        """Steps still to do."""
        return max(0.0, self.steps - self.done)

    @property
    def reported(self) -> float:
        """Steps that copies have reported in the round that runs; not counted yet."""
        return sum(self._reported.values())

    @property
    def finished(self) -> bool:
        """Whether all steps are counted."""
        return self.done >= self.steps

    def begin(self, shares: Mapping[int, float]) -> None:
        """Start a round: copy -> steps that it is to do.

        Raises:
            AllocationError: the shares exceed the steps left, or the round before is still open.
        """
        if self._shares:
            raise AllocationError(f"round {self.round} of a forked job is still open; close it first.")
        if sum(shares.values()) > self.remaining * (1 + 1e-12):
            raise AllocationError(
                f"the copies' shares {sum(shares.values()):g} exceed the {self.remaining:g} steps left; split again."
            )
        self._shares = dict(shares)

    def report(self, copy: int, steps: float, round: int) -> bool:
        """Take a copy's report; whether it counts. Late, unknown and repeated reports do not."""
        reason = ""
        if round != self.round or not self._shares:
            reason = f"copy {copy} reported for round {round}, now is round {self.round}"
        elif copy not in self._shares:
            reason = f"copy {copy} has no share in round {round}"
        elif copy in self._reported:
            reason = f"copy {copy} reported twice in round {round}"
        if reason:
            self.ignored.append(reason)
            return False
        self._reported[copy] = min(max(steps, 0.0), self._shares[copy])
        return True

    def close(self) -> dict[int, float]:
        """End the round: copy -> weight in the average of the parameters (its part of the steps).

        Copies without a report count 0 and are left out.
        """
        counted = {copy: steps for copy, steps in sorted(self._reported.items()) if steps > 0}
        total = sum(counted.values())
        self.done = min(self.steps, self.done + total)
        self._shares, self._reported = {}, {}
        self.round += 1
        return {copy: steps / total for copy, steps in counted.items()}
