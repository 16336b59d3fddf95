"""Plans of training that take no time: one that counts, and ones that fail, for tests of what stands around a plan."""

from __future__ import annotations

import json
import os
import random
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hadoppler.agents.metrics import append_line, cut_lines
from hadoppler.envs.errors import TrainingError


class OddError(Exception):
    """A defect that cannot be sent to another process: it does not come back from its own arguments."""

    def __init__(self, left: int, right: int) -> None:
        super().__init__(f"{left} and {right}")


@dataclass
class CountingPlan:
    """A plan of ``rounds`` lines in two stages; ``state.json`` is its checkpoint, written before ``stop_at`` acts.

    Attributes:
        trouble: what happens in round ``stop_at``: ``defect``, ``odd`` (a defect), ``mistake`` or ``interrupt``; with
            ``once`` only if the training has not stopped there before.
    """

    seed: int = 0
    rounds: int = 4
    trouble: str | None = None
    stop_at: int = 2
    once: bool = False

    def train(self, folder: Path, report: Callable[[Mapping[str, Any]], None], resume: bool = False) -> Path:
        folder = Path(folder)
        state, done = folder / "state.json", 0
        if resume:
            done = json.loads(state.read_text())
            cut_lines(folder / "metrics.jsonl", "round", done)
        for number in range(done + 1, self.rounds + 1):
            stage = "first" if number <= self.rounds // 2 else "second"
            loss = random.Random(1000 * self.seed + number).random() / number
            line = {"stage": stage, "round": number, "loss": loss, "done": number / self.rounds}
            append_line(folder / "metrics.jsonl", line)
            if number == self.stop_at and not (self.once and resume):
                self._stop()
            state.write_text(json.dumps(number))
            report(line)
        (folder / "policy.pt").write_text(str(self.seed))
        return folder / "policy.pt"

    def _stop(self) -> None:
        if self.trouble == "defect":
            raise RuntimeError("a defect")
        if self.trouble == "odd":
            raise OddError(1, 2)
        if self.trouble == "mistake":
            raise TrainingError("the loss is nan; give a smaller learning rate.")
        if self.trouble == "interrupt":
            raise KeyboardInterrupt


@dataclass
class ValidatedPlan:
    """A plan of four rounds whose ratio falls and rises again; ``killed`` ends the process as the system does."""

    seed: int = 0
    online: bool = False
    killed: bool = False

    def train(self, folder: Path, report: Callable[[Mapping[str, Any]], None], resume: bool = False) -> Path:
        if self.killed:
            os.kill(os.getpid(), signal.SIGKILL)
        for number, ratio in enumerate((1.5, 1.2, 1.4, 1.3), 1):
            stage = "online" if self.online and number > 2 else "simulation"
            line = {"stage": stage, "update": number, "ratio": ratio + self.seed, "makespan": 10 * ratio}
            append_line(Path(folder) / "metrics.jsonl", line)
            report(line)
        return Path(folder) / "policy.pt"
