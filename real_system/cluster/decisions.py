"""Every decision of a run in a file: what the scheduler saw, and what it answered; both can be played again."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...envs.cluster import Allocation, Cluster, ClusterView, Scheduler
from ...envs.cluster.scheduler import Floats
from ...envs.errors import HadopplerError

FILE = "decisions.jsonl"
_ALLOCATION = ("job", "copy", "ptr", "node", "gpu_type", "count")
_WHOLE = ("free", "job", "workers", "held_gang")
_BROKEN = (
    "arrival", "steps", "remaining", "attained_s", "running_s", "weight", "slo", "rates", "spread_rates",
)  # fmt: skip
_PLAIN = ("time", "round_s", "restart_s", "mixed_rate", "mid_round", "explain", "consolidation_s")


class DecisionError(HadopplerError):
    """A file of decisions cannot be read, or a scheduler decides otherwise than it did."""


@dataclass(frozen=True)
class Decision:
    """What the scheduler saw and answered; then the gangs that ran, and their measured rates [A], if any were."""

    view: ClusterView
    allocation: Allocation
    gangs: Allocation | None = None
    measured: Floats | None = None


class DecisionLog:
    """Appends decisions to ``decisions.jsonl``; a line is there whole, or is ignored by ``read_decisions``."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE
        if self.path.exists():
            _cut_broken_line(self.path)
        self._file = self.path.open("a", encoding="utf-8")

    def add(self, view: ClusterView, allocation: Allocation) -> None:
        """Note a decision, on the disk before it is carried out."""
        self._write({"view": _view_to(view), "allocation": _allocation_to(allocation)})

    def add_measured(self, gangs: Allocation, rates: Floats) -> None:
        """Note what gangs did after the last decision: [A] steps/s; NaN: nothing."""
        self._write({"gangs": _allocation_to(gangs), "measured": rates.tolist()})

    def _write(self, content: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(content) + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_decisions(folder: Path, cluster: Cluster) -> Iterator[Decision]:
    """Decisions in order.

    Raises:
        DecisionError: there is no such file, or a line in it is not one.
    """
    path = folder / FILE
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except OSError as error:
        raise DecisionError(f"{path}: cannot be read ({error.strerror or error}); give the folder of a run.") from error
    last: Decision | None = None
    for number, line in enumerate(lines[:-1], 1):  # what stands behind the last line's end was not written to the end
        try:
            content = json.loads(line)
            if "measured" in content and last is not None:
                rates = np.array(content["measured"], dtype=np.float64)
                last = Decision(last.view, last.allocation, _allocation_from(content["gangs"]), rates)
                continue
            if last is not None:
                yield last
            last = Decision(_view_from(content["view"], cluster), _allocation_from(content["allocation"]))
        except (ValueError, KeyError, TypeError) as error:
            raise DecisionError(f"{path}, line {number}: is no decision ({error!r}).") from error
    if last is not None:
        yield last


def replay(scheduler: Scheduler, decisions: Iterable[Decision]) -> int:
    """Feed a scheduler that was just reset with the views of a run; how many decisions were the same.

    A scheduler that remembers is then where it was at the run's end.

    Raises:
        DecisionError: it decides otherwise; the decision is named.
    """
    number = 0
    for number, decision in enumerate(decisions, 1):
        answer = scheduler.schedule(decision.view)
        if not same_allocation(answer, decision.allocation):
            raise DecisionError(
                f"decision {number} at {decision.view.time:.3f} s: {scheduler.name} now answers "
                f"{len(answer)} gangs otherwise than it did; it, or the seed, is another."
            )
    return number


def same_allocation(first: Allocation, second: Allocation) -> bool:
    """Whether two decisions are the same."""
    return all(np.array_equal(getattr(first, name), getattr(second, name)) for name in _ALLOCATION) and list(
        first.refused
    ) == list(second.refused)


def _view_to(view: ClusterView) -> dict[str, Any]:
    content = {name: getattr(view, name) for name in _PLAIN}
    content |= {name: getattr(view, name).tolist() for name in (*_WHOLE, *_BROKEN)}
    guessed = None if view.guessed is None else view.guessed.tolist()
    return content | {"held": _allocation_to(view.held), "guessed": guessed}


def _view_from(content: Mapping[str, Any], cluster: Cluster) -> ClusterView:
    types, count = len(cluster.types), len(content["job"])
    arrays: dict[str, Any] = {name: np.array(content[name], dtype=np.int64) for name in _WHOLE}
    arrays |= {name: np.array(content[name], dtype=np.float64) for name in _BROKEN}
    for name in ("rates", "spread_rates"):
        arrays[name] = arrays[name].reshape(count, types)
    plain = {name: content[name] for name in _PLAIN}
    guessed = None if content["guessed"] is None else np.array(content["guessed"], dtype=np.bool_)
    return ClusterView(cluster=cluster, held=_allocation_from(content["held"]), guessed=guessed, **plain, **arrays)


def _allocation_to(allocation: Allocation) -> dict[str, Any]:
    content: dict[str, Any] = {name: getattr(allocation, name).tolist() for name in _ALLOCATION}
    if allocation.share is not None:
        content["share"] = allocation.share.tolist()
    return content | {"refused": [int(row) for row in allocation.refused]}


def _allocation_from(content: Mapping[str, Any]) -> Allocation:
    arrays: dict[str, Any] = {name: np.array(content[name], dtype=np.int64) for name in _ALLOCATION}
    share = np.array(content["share"], dtype=np.float64) if "share" in content else None
    return Allocation(**arrays, share=share, refused=tuple(content["refused"]))


def _cut_broken_line(path: Path) -> None:
    """Take away what was being written when the process died."""
    with path.open("rb+") as file:
        content = file.read()
        file.truncate(content.rfind(b"\n") + 1)
