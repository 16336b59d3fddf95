"""How an episode of cluster scheduling is scored, and what an illegal action brings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from ..arguments import is_number
from ..errors import AllocationError
from .simulation import Simulation

RewardMode = Literal["mean_jct", "ttd"]
IllegalAction = Literal["penalty", "terminate", "raise"]


@dataclass(frozen=True)
class EpisodeRules:
    """The rules that rounds and their decisions share.

    Attributes:
        reward: ``mean_jct`` - minus the seconds that jobs were present, per job; ``ttd`` - minus the
            seconds that passed; both in units of ``scale``, so that their sums over an episode are minus the
            mean job completion time, and minus the total time duration.
        illegal_action: ``penalty`` - something legal is done instead and ``illegal_penalty`` is subtracted from
            the reward; ``terminate`` - the episode ends with a reward that no schedule without idle rounds goes
            below; ``raise`` - ``AllocationError``, nothing changes.
        illegal_penalty: in units of ``scale``.
    """

    reward: RewardMode = "mean_jct"
    illegal_action: IllegalAction = "penalty"
    illegal_penalty: float = 0.01

    def __post_init__(self) -> None:
        for name, choices in (("reward", RewardMode), ("illegal_action", IllegalAction)):
            value, valid = getattr(self, name), get_args(choices)
            if value not in valid:
                raise AllocationError(f"{name} is {value!r}; expected {', '.join(valid)}.")
        if not (is_number(self.illegal_penalty) and 0 <= self.illegal_penalty < 1e6):
            raise AllocationError(f"illegal_penalty is {self.illegal_penalty!r}; expected a number from 0 to 1e6.")

    def scale(self, run: Simulation) -> float:
        """Seconds: the mean over the jobs of each alone on its fastest type, one restart included; for ``ttd`` the
        larger of the longest such job and all jobs' GPU-seconds / GPUs."""
        rows, jobs = run.state.rows, run.state.jobs
        alone = run.workload.steps[rows] / jobs.rates[rows].max(axis=1) + run.rules.restart_s
        if self.reward == "mean_jct":
            return float(alone.mean())
        return max(float((alone * jobs.workers[rows]).sum()) / run.cluster.gpus, float(alone.max()))

    def cost(self, run: Simulation) -> float:
        """Seconds per job that jobs were present so far, or that passed since the first arrival.

        Jobs that are never finished count as present to the end.
        """
        rows, finish = run.state.rows, run.state.jobs.finish
        arrival = run.workload.arrival[rows]
        if self.reward == "ttd":
            done = not np.isnan(finish[rows]).any()
            return (run.state.last_finish if done else run.time) - float(arrival[0])
        end = np.where(np.isnan(finish[rows]), run.time, finish[rows])
        return float(np.maximum(end - arrival, 0.0).sum()) / len(rows)

    def forfeit(self, run: Simulation) -> float:
        """Seconds of ``cost`` added where an episode ends under ``terminate``: as if the jobs ran one after another,
        on their slowest types, each losing a round and a restart, after the last arrival."""
        state, jobs = run.state, run.state.jobs
        rows = state.rows[np.isnan(jobs.finish[state.rows])]
        slowest = np.where(jobs.spread[rows] > 0, jobs.spread[rows], np.inf).min(axis=1)
        slowest = np.minimum(slowest, np.where(jobs.rates[rows] > 0, jobs.rates[rows], np.inf).min(axis=1))
        arrival = run.workload.arrival[rows]
        lost = run.rules.round_s + run.rules.restart_s
        end = max(run.time, float(arrival.max())) + float((jobs.remaining[rows] / slowest + lost).sum())
        if self.reward == "ttd":
            return end - run.time
        return float((end - np.maximum(arrival, run.time)).sum()) / len(state.rows)
