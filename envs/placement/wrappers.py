"""The placement environment for libraries whose actions, and masks of them, have one dimension."""

from __future__ import annotations

from typing import Any, cast

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.utils import RecordConstructorArgs
from numpy.typing import NDArray

from ..arguments import read_choice
from ..errors import PlacementError
from .env import DevicePlacementEnv
from .features import DEVICE_FEATURES, FEATURE_LIMIT
from .observation import Observation


class FlatAction(gym.Wrapper, RecordConstructorArgs):
    """Both choices in one number: action ``operation * D + device`` of ``Discrete(N * D)``.

    ``action_masks()`` and ``info["action_mask"]`` are int8 [N * D], as MaskablePPO of sb3-contrib and
    ``Discrete.sample`` want them. Observations stay as they are. Without masks (plain PPO) the environment's
    ``illegal_action`` rule applies.
    """

    def __init__(self, env: gym.Env) -> None:
        RecordConstructorArgs.__init__(self)
        super().__init__(env)
        layout = self._base.layout
        self.action_space = spaces.Discrete(layout.max_operations * layout.devices)

    @property
    def _base(self) -> DevicePlacementEnv:
        return cast(DevicePlacementEnv, self.env.unwrapped)

    def action_masks(self) -> NDArray[np.int8]:
        """int8 [N * D]: 1 for legal actions; at least one."""
        return self._base.action_masks().reshape(-1)

    def actions_for(self, operation: int, device: int) -> list[int]:
        """The one action that places ``operation`` on ``device``."""
        return [operation * self._base.layout.devices + device]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """As of the environment; the mask in the info is flat."""
        observation, info = self.env.reset(seed=seed, options=options)
        return observation, info | {"action_mask": info["action_mask"].reshape(-1)}

    def step(self, action: Any) -> Any:
        """Place operation ``action // D`` on device ``action % D``."""
        pair = np.array(divmod(read_choice(action, PlacementError), self._base.layout.devices), np.int64)
        observation, reward, terminated, truncated, info = self.env.step(pair)
        return observation, reward, terminated, truncated, info | {"action_mask": info["action_mask"].reshape(-1)}


class SelectThenPlace(gym.Wrapper, RecordConstructorArgs):
    """Two steps per operation: first select it, then place it; actions ``Discrete(max(N, D))``.

    The observation holds these besides the environment's own:

    =====================  ========  =======  ======================================================
    ``phase``              scalar    int64    0: the action selects an operation; 1: it is a device
    ``selected``           scalar    int64    the selected operation, N in phase 0
    ``selected_features``  [D * F]   float32  its device features, 0 in phase 0 ([D, F] if not flat)
    ``action_mask``        [A]       int8     legal actions of this phase, A = max(N, D)
    =====================  ========  =======  ======================================================

    Selecting brings no reward. An illegal selection or device is treated by the environment's rule: replaced
    by the next legal one upward at the penalty, or the end, or an error. Episodes have 2 N steps.
    """

    def __init__(self, env: gym.Env) -> None:
        RecordConstructorArgs.__init__(self)
        super().__init__(env)
        layout = self._base.layout
        actions = max(layout.max_operations, layout.devices)
        shape: tuple[int, ...] = (layout.devices, len(DEVICE_FEATURES))
        shape = (shape[0] * shape[1],) if layout.flat else shape
        self.action_space = spaces.Discrete(actions)
        self.observation_space = spaces.Dict(
            {
                **cast(spaces.Dict, env.observation_space).spaces,
                "phase": spaces.Discrete(2),
                "selected": spaces.Discrete(layout.max_operations + 1),
                "selected_features": spaces.Box(0.0, FEATURE_LIMIT, shape, np.float32),
                "action_mask": spaces.MultiBinary(actions),
            }
        )
        self._selected: int | None = None
        self._last: Observation = {}

    @property
    def _base(self) -> DevicePlacementEnv:
        return cast(DevicePlacementEnv, self.env.unwrapped)

    def action_masks(self) -> NDArray[np.int8]:
        """int8 [A]: the candidates in phase 0, the devices that the selected operation may use in phase 1."""
        pairs = self._base.action_masks()
        legal: NDArray[np.int8] = pairs.max(axis=1) if self._selected is None else pairs[self._selected]
        mask = np.zeros(cast(spaces.Discrete, self.action_space).n, np.int8)
        mask[: len(legal)] = legal
        return mask

    def actions_for(self, operation: int, device: int) -> list[int]:
        """The two actions that select ``operation`` and place it on ``device``."""
        return [operation, device]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """As of the environment, in phase 0."""
        self._selected = None
        self._last, info = self.env.reset(seed=seed, options=options)
        return self._observe(), info | {"action_mask": self.action_masks()}

    def step(self, action: Any) -> Any:
        """Select operation ``action``, or place the selected one on device ``action``."""
        number = read_choice(action, PlacementError)
        if self._selected is None:
            return self._select(number)
        return self._forward(np.array([self._selected, number], np.int64))

    def _select(self, operation: int) -> Any:
        base = self._base
        candidates: NDArray[np.int8] = base.action_masks().max(axis=1)
        legal = 0 <= operation < len(candidates) and bool(candidates[operation])
        over = base.makespan is not None or base.forfeited
        if over or (not legal and base.rules.illegal_action != "penalty"):
            return self._forward(np.array([operation, 0], np.int64))
        if not legal:
            operation = base.batch.legal_action(0, operation, 0)[0]
        self._selected = operation
        reward = 0.0 if legal else -base.rules.illegal_penalty
        return self._observe(), reward, False, False, {"action_mask": self.action_masks(), "illegal_action": not legal}

    def _forward(self, pair: NDArray[np.int64]) -> Any:
        """Step the environment and return to phase 0."""
        self._last, reward, terminated, truncated, info = self.env.step(pair)
        self._selected = None
        return self._observe(), reward, terminated, truncated, info | {"action_mask": self.action_masks()}

    def _observe(self) -> Observation:
        base, layout = self._base, self._base.layout
        features = np.zeros((layout.devices, len(DEVICE_FEATURES)), np.float32)
        if self._selected is not None:
            features[: base.instance.d] = base.batch.device_features([self._selected])[0]
        phase: Any = np.int64(self._selected is not None)
        selected: Any = np.int64(layout.max_operations if self._selected is None else self._selected)
        return {
            **{name: np.copy(value) for name, value in self._last.items()},
            "phase": phase,
            "selected": selected,
            "selected_features": features.reshape(-1) if layout.flat else features,
            "action_mask": self.action_masks(),
        }
