"""Any scheduler acts through an environment: as policy, teacher and reference."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np

from ..replayed import ReplayedStep
from .scheduler import Scheduler, begin


def replay(env: gym.Env, scheduler: Scheduler, *, seed: int = 0) -> Iterator[ReplayedStep]:
    """Reset ``env`` and let ``scheduler`` decide every round of an episode; yields each step.

    ``env`` is a ``ClusterSchedulingEnv``, bare or in ``SequentialAllocation``; the pairs of observations and
    actions then teach a policy with that form of actions. Bare, and with a window for all jobs, the run is that of
    ``simulate(workload, cluster, scheduler, seed=seed)``; see ``SequentialAllocation.actions_for`` for the other.

    Args:
        seed: of the environment, and of the scheduler's own random draws.

    Raises:
        AllocationError: the scheduler forks or mixes, and the environment does not.
    """
    base: Any = env.unwrapped
    observation, _ = env.reset(seed=seed)
    begin(scheduler, base.simulation.workload, base.cluster, base.simulation_rules.round_s, np.random.default_rng(seed))
    ended = base.over
    while not ended:
        for action in env.get_wrapper_attr("actions_for")(scheduler.schedule(base.view)):
            following, reward, terminated, truncated, info = env.step(action)
            yield ReplayedStep(observation, action, float(reward), terminated, truncated, info)
            observation, ended = following, terminated or truncated
