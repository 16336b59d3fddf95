"""The cluster environment one decision at a time, for libraries with masked discrete actions."""

from __future__ import annotations

from typing import Any, cast

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.utils import RecordConstructorArgs
from numpy.typing import NDArray

from ..arguments import read_choice
from ..errors import AllocationError
from .env import ClusterSchedulingEnv
from .features import FEATURE_LIMIT, global_feature_names, job_feature_names
from .observation import Observation
from .round_choices import KEEP, RoundChoices, option_names
from .scheduler import Allocation, ClusterView


class SequentialAllocation(gym.Wrapper, RecordConstructorArgs):
    """A round as decisions: give a job one of O options, or close the round (``Discrete(J * O + 1)``).

    **Action**: ``position * O + option`` for the job at a position of the window; the last one closes the round.
    ``options`` names them: ``keep`` the GPUs that the job holds (of all its copies); a GPU type: its whole gang
    there, in one node if it fits, else spread; ``mixed``: over several types, fastest first (where the
    environment mixes); ``skip``: nothing in this round, and no further question. With ``forking`` a type may be
    chosen again for a job that has something: one more copy, on a node of its own.

    Nodes are found when the round is closed (``RoundChoices.allocation``). A round is closed by itself once
    no job can be given anything more; a round in which none can from the start passes without a decision. So does,
    with ``every_round=False``, a round with the same jobs and free GPUs as at the last decision: all goes on.

    **Observation**: the environment's, with these instead; F, G as there:

    ===================  ==============  =======  ====================================================
    ``job_features``     [J, F + 2]      float32  also whether the job was decided on, and the rate of a mixed
                                                  gang, if it were chosen now, / fastest
    ``global_features``  [G + R]         float32  also GPUs of each type that are left / the cluster's GPUs
    ``action_mask``      [J * O + 1]     int8     legal actions
    ===================  ==============  =======  ====================================================

    The first two are flat unless the environment is not. Make it with ``nodes=False`` to leave out what is
    free and held per node.

    **Reward**: 0 for a choice; closing brings the round's.

    **Illegal actions**: under ``penalty`` the next legal action upward, cyclic, is taken, at the penalty; under
    ``terminate`` and ``raise`` as in the environment. After the end only closing is marked, and does nothing.

    **Info**: ``action_mask``, ``illegal_action``; when a round was closed also the environment's, and ``unplaced``:
    chosen gangs that found no nodes.

    Args:
        env: a ``ClusterSchedulingEnv``, or wrappers around one that leave actions and observations as they are.
        every_round: decide in every round, or only when jobs came or ended, or nodes did.
    """

    def __init__(self, env: gym.Env, *, every_round: bool = True) -> None:
        RecordConstructorArgs.__init__(self, every_round=every_round)
        super().__init__(env)
        base = self._base
        actions, types = base.actions, base.cluster.types
        self.options = option_names(types, actions.mixing)
        self.shapes = {
            "job_features": (actions.window, len(job_feature_names(types)) + 2),
            "global_features": (len(global_feature_names(types)) + len(types),),
        }
        self.action_space = spaces.Discrete(actions.window * len(self.options) + 1)
        flat = {name: (int(np.prod(shape)),) for name, shape in self.shapes.items()}
        boxes = {
            name: spaces.Box(0.0, FEATURE_LIMIT, shape, np.float32)
            for name, shape in (flat if base.layout.flat else self.shapes).items()
        }
        inner = cast(spaces.Dict, env.observation_space).spaces
        mask = {"action_mask": spaces.MultiBinary(int(self.action_space.n))}
        self.observation_space = spaces.Dict({**inner, **boxes, **mask})
        self.every_round = every_round
        self._round: RoundChoices | None = None
        self._decided: tuple[ClusterView, NDArray[np.int64]] | None = None
        self._last: Observation = {}

    @property
    def _base(self) -> ClusterSchedulingEnv:
        return cast(ClusterSchedulingEnv, self.env.unwrapped)

    @property
    def _close(self) -> int:
        return int(cast(spaces.Discrete, self.action_space).n) - 1

    def action_masks(self) -> NDArray[np.int8]:
        """int8 [J * O + 1]: 1 for legal actions; closing always is."""
        if self._round is not None:
            return self._round.mask.copy()
        mask = np.zeros(self._close + 1, np.int8)
        mask[-1] = 1
        return mask

    def actions_for(self, allocation: Allocation) -> list[int]:
        """The decisions that come nearest to an allocation, up to the end of the round.

        Kept gangs first, then the others, largest first. Exact: who stays, and gangs on one type that are on
        the nodes where ``RoundChoices.allocation`` puts them. Not told: other nodes (a gang that moves within
        its type stays), a mixed gang's counts per type (``mixed`` takes the fastest that are left; a type or
        nothing where ``mixed`` is not legal), shares of steps, refusals.

        Raises:
            AllocationError: a job has several gangs, or a gang several types, in an environment without; or a job
                is outside the window.
        """
        if self._round is None:
            return [self._close]
        self._base.check(allocation)
        choices, actions = self._round.copy(), []
        for position, wishes in _wishes(choices, allocation):
            if not choices.open:
                break
            number = len(self.options)
            legal = [o for o in wishes if choices.mask[position * number + o]]
            if legal:
                actions.append(position * number + legal[0])
                choices.choose(position, legal[0])
        return actions if not choices.open else [*actions, self._close]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """As of the environment, before the first decision."""
        self._last, info = self.env.reset(seed=seed, options=options)
        self._decided = None
        self._owed, _, _, more = self._pass_quiet_rounds()
        return self._observe(), info | more | {"action_mask": self.action_masks()}

    def step(self, action: Any) -> Any:
        """Choose for a job, or close the round."""
        base, number = self._base, read_choice(action, AllocationError)
        if self._round is None:
            return self._forward(base.actions.nothing(), {"illegal_action": False})
        legal = 0 <= number <= self._close and bool(self._round.mask[number])
        if not legal and base.rules.illegal_action == "raise":
            raise AllocationError(f"decision {action} is illegal now; take one that the mask allows.")
        if not legal and base.rules.illegal_action == "terminate":
            return self._forward(base.actions.nothing() - 1, {"illegal_action": True})
        if not legal:
            (allowed,) = np.nonzero(self._round.mask)
            number = int(allowed[np.searchsorted(allowed, number) % len(allowed)])
        penalty = 0.0 if legal else base.rules.illegal_penalty
        if number != self._close:
            self._round.choose(*divmod(number, len(self.options)))
            if self._round.open:
                info = {"action_mask": self.action_masks(), "illegal_action": not legal}
                return self._observe(), -penalty, False, False, info
        return self._close_round(penalty, not legal)

    def _close_round(self, penalty: float, illegal: bool) -> Any:
        assert self._round is not None
        allocation, unplaced = self._round.allocation()
        action = self._base.encode(allocation)
        self._decided = self._round.view, action
        answer = self._forward(action, {"illegal_action": illegal, "unplaced": unplaced})
        observation, reward, terminated, truncated, info = answer
        return observation, reward - penalty, terminated, truncated, info

    def _forward(self, action: NDArray[np.int64], told: dict[str, Any]) -> Any:
        """Step the environment, and on through rounds without a decision."""
        self._last, reward, terminated, truncated, info = self.env.step(action)
        more = self._pass_quiet_rounds(terminated, truncated)
        # rounds that passed before the first decision of the episode count, too: nobody could take their reward yet
        reward, terminated, truncated = float(reward) + more[0] + self._owed, more[1], more[2]
        self._owed = 0.0
        info = info | more[3] | told | {"action_mask": self.action_masks()}
        return self._observe(), reward, terminated, truncated, info

    def _pass_quiet_rounds(
        self, terminated: bool = False, truncated: bool = False
    ) -> tuple[float, bool, bool, dict[str, Any]]:
        """Let rounds pass in which nothing can be given, or nothing is asked; then make ready for a decision."""
        base, total = self._base, 0.0
        info: dict[str, Any] = {}
        self._round = None
        while base.view is not None and not (terminated or truncated):
            if not self.every_round and (same := self._as_decided(base.view)) is not None:
                action = same
            else:
                self._round = RoundChoices(base.view, base.actions.window, base.actions.mixing, base.actions.forking)
                if self._round.open:
                    break
                self._round, action = None, base.actions.nothing()
            self._last, reward, terminated, truncated, info = self.env.step(action)
            total += float(reward)
        self._extend_observation()
        return total, terminated, truncated, info

    def _as_decided(self, view: ClusterView) -> NDArray[np.int64] | None:
        """The last action, if it gave something and this round is as the one that it was decided in."""
        if self._decided is None:
            return None
        before, action = self._decided
        return action if action.any() and view.goes_on_from(before) else None

    def _extend_observation(self) -> None:
        """What does not change within a round, with room for what does."""
        jobs, whole = (np.zeros(shape, np.float32) for shape in self.shapes.values())
        jobs[:, :-2] = self._last["job_features"].reshape(len(jobs), -1)
        whole[: self._last["global_features"].size] = self._last["global_features"]
        self._static = jobs, whole

    def _observe(self) -> Observation:
        jobs, whole = self._static[0].copy(), self._static[1].copy()
        if self._round is not None:
            n = len(self._round.status)
            jobs[:n, -2] = self._round.status > 0
            jobs[:n, -1] = self._round.mixed_rate
            whole[-len(self._round.left) :] = self._round.left / self._base.cluster.gpus
        if self._base.layout.flat:
            jobs = jobs.reshape(-1)
        observation = {name: value.copy() for name, value in self._last.items()}
        return observation | {"job_features": jobs, "global_features": whole, "action_mask": self.action_masks()}


def _wishes(choices: RoundChoices, allocation: Allocation) -> list[tuple[int, list[int]]]:
    """(position, options from the nearest on) of each gang of an allocation: those that stay first, then by size."""
    view, held, types = choices.view, choices.held, len(choices.left)
    places = allocation.gpus(view.cluster)
    before = view.held.gpus(view.cluster)
    wishes: list[tuple[int, int, list[int]]] = []
    for job in dict.fromkeys(allocation.job.tolist()):
        position = int(np.searchsorted(view.job, job))
        gangs, old = places[allocation.job == job], before[held.owner == position]
        same = [any(np.array_equal(gang, other) for other in old) for gang in gangs]
        stays = len(old) > 0 and sum(same) == len(old)
        if stays:
            wishes.append((0, position, [KEEP]))
        for gang in gangs[~np.array(same)] if stays else gangs:
            counts = gang.sum(axis=0)
            by_count = [1 + int(r) for r in np.argsort(-counts, kind="stable") if counts[r] > 0]
            mixed = [types + 1] if choices.mixing and len(by_count) > 1 else []
            size = -int(counts.sum()) if len(by_count) == 1 else 0
            wishes.append((size, position, [*mixed, *by_count, KEEP]))
    staying = [wish[1:] for wish in wishes if wish[2] == [KEEP]]
    others = sorted((wish for wish in wishes if wish[2] != [KEEP]), key=lambda wish: wish[0])
    return [*staying, *((position, options) for _, position, options in others)]
