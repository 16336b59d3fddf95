"""Any placement acts through an environment: heuristics as policies, teachers and references."""

from __future__ import annotations

from collections.abc import Iterator

import gymnasium as gym

from ..errors import PlacementError
from ..replayed import ReplayedStep
from .placement import Placement, is_topological


def replay(env: gym.Env, placement: Placement, *, seed: int | None = None) -> Iterator[ReplayedStep]:
    """Reset ``env`` and place every operation as ``placement`` does, in its order; yields each step.

    The last step's ``info["makespan"]`` is that of ``simulate`` under the environment's options (under
    ``order="priority"`` with ``priority=placement.order``). ``env`` is a ``DevicePlacementEnv``, bare or
    in ``FlatAction`` or ``SelectThenPlace``; the pairs of observations and actions then teach a policy with
    that form of actions.

    Raises:
        PlacementError: the placement does not belong to the graph that the environment drew.
    """
    observation, _ = env.reset(seed=seed)
    problem = env.get_wrapper_attr("instance")
    assignment = problem.check_assignment(placement.assignment)
    if not is_topological(problem.graph, placement.order):
        raise PlacementError(f"{problem.graph.title}: the placement's order does not put producers before consumers.")
    actions_for = env.get_wrapper_attr("actions_for")
    for operation in placement.order:
        for action in actions_for(int(operation), int(assignment[operation])):
            following, reward, terminated, truncated, info = env.step(action)
            yield ReplayedStep(observation, action, float(reward), terminated, truncated, info)
            observation = following
