"""Many episodes of one problem in one compiled step: the vector form of ``DevicePlacementEnv``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from gymnasium import error, spaces
from gymnasium.utils import seeding
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import ArrayLike, NDArray

from ..arguments import check_whole
from ..errors import PlacementError
from . import episode_kernels as kernels
from .episode_rules import EpisodeRules, IllegalAction, RewardMode
from .episodes import EpisodeBatch
from .features import FEATURE_LIMIT, static_features
from .graph import DataflowGraph
from .observation import Observation
from .problem import PlacementProblem
from .problem_source import find_problems, make_layout
from .simulator import Order
from .topology import Contention, Topology

Step = tuple[Observation, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]


class DevicePlacementVectorEnv(VectorEnv[Observation, NDArray[np.int64], NDArray[Any]]):
    """B episodes of one problem at once.

    Made by ``gymnasium.make_vec("hadoppler/DevicePlacement-v0", num_envs=64)``. Actions, rewards, ends and, with
    ``observation="full"``, observations are those of ``DevicePlacementEnv``, stacked: int [B, 2] actions,
    float64 [B] rewards. ``observation="lean"`` is for training; it costs no more for a large graph than for
    a small one but for the mask:

    ==============  ====  =======  =========================================================
    ``candidates``  [N]   int8     1: the operation may be placed now; after the end, number 0
    ``load``        [D]   float32  end of the last operation on each device / bound
    ``memory``      [D]   float32  bytes booked / capacity, as if nothing were ever freed
    ==============  ====  =======  =========================================================

    The policy chooses an operation of each episode, asks ``device_features(operations)`` for what it sees on
    the devices, chooses the device, and steps. Learners that need no Gymnasium may use ``EpisodeBatch``.

    **Info**: ``illegal_action`` [B] after steps; ``makespan`` and ``bound`` [B] for the rows marked in
    ``_makespan``; with full observations ``action_mask`` [B, N, D].

    Args:
        num_envs: B.
        problem: what to place; by default ``graph`` on ``topology``.
        observation: ``full`` or ``lean``.
        autoreset_mode: ``NEXT_STEP`` (an episode that ended starts anew at the next step, which ignores its
            action and brings 0), ``SAME_STEP`` (at once; ``final_obs`` and ``final_info`` hold the end) or
            ``DISABLED`` (by ``reset(options={"reset_mask": bool [B]})``).
        graph, topology, reward, order, contention, noise, illegal_action, illegal_penalty, edges, flat,
            max_operations, max_edges, devices: as of ``DevicePlacementEnv``.

    Raises:
        PlacementError: an option is unknown or of the wrong type, or more than one problem is given (use
            ``vectorization_mode="sync"`` for those); of a step: the actions are not B pairs of whole numbers.
    """

    metadata: dict[str, Any] = {"render_modes": [], "autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012

    def __init__(
        self,
        num_envs: int = 1,
        problem: PlacementProblem | None = None,
        *,
        graph: DataflowGraph | str | None = None,
        topology: Topology | str | None = None,
        observation: Literal["full", "lean"] = "full",
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        reward: RewardMode = "final",
        order: Order = "fifo",
        contention: Contention | None = None,
        noise: float = 0.0,
        illegal_action: IllegalAction = "penalty",
        illegal_penalty: float = 0.1,
        edges: bool = True,
        flat: bool = True,
        max_operations: int | None = None,
        max_edges: int | None = None,
        devices: int | None = None,
        render_mode: None = None,
    ) -> None:
        check_whole("num_envs", num_envs, PlacementError)
        given = find_problems(problem, graph, topology)
        if callable(given) or not isinstance(problem, PlacementProblem | None):
            raise PlacementError("The vector environment takes one problem; use vectorization_mode='sync' for many.")
        chosen = given[0]
        if observation not in ("full", "lean"):
            raise PlacementError(f"observation is {observation!r}; expected full or lean.")
        if render_mode is not None:
            raise PlacementError("The vector environment has no render_mode; render a single environment.")
        self.num_envs = num_envs
        self.lean = observation == "lean"
        self.rules = EpisodeRules(reward, order, contention, noise, illegal_action, illegal_penalty)
        self.layout = make_layout([chosen], max_operations, max_edges, devices, edges=edges, flat=flat)
        self.batch = EpisodeBatch(chosen, num_envs)
        self._static = self.layout.static(chosen, static_features(chosen), 0)
        self.autoreset_mode = AutoresetMode(autoreset_mode)
        self.metadata = {**self.metadata, "autoreset_mode": self.autoreset_mode}
        self.single_observation_space = self._lean_space() if self.lean else self.layout.space()
        self.single_action_space = spaces.MultiDiscrete([self.layout.max_operations, self.layout.devices])
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._random: list[np.random.Generator] | None = None
        self._simulation_seeds = np.zeros(num_envs, np.int64)
        self._ended = np.zeros(num_envs, np.bool_)

    def _lean_space(self) -> spaces.Dict:
        devices = spaces.Box(0.0, FEATURE_LIMIT, (self.layout.devices,), np.float32)
        return spaces.Dict(
            {"candidates": spaces.MultiBinary(self.layout.max_operations), "load": devices, "memory": devices}
        )

    @property
    def problem(self) -> PlacementProblem:
        """The problem of every episode."""
        return self.batch.problem

    @property
    def bound(self) -> float:
        """Lower bound of the makespan, the unit of rewards and times; see ``features.time_scale`` where it is 0."""
        return self.batch.scale

    def device_features(self, operations: ArrayLike) -> NDArray[np.float32]:
        """float32 [B, D, F]: the devices as one candidate of each episode sees them; -1 gives zeros.

        D is the number of the problem's devices. In an episode that has ended give -1.

        Raises:
            PlacementError: an operation is no candidate.
        """
        return self.batch.device_features(operations)

    def action_masks(self) -> NDArray[np.int8]:
        """int8 [B, N, D]: 1 for legal actions; at least one per episode."""
        return self.layout.masks(self.batch)

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Start all episodes, or those marked in ``options["reset_mask"]`` (bool [B]).

        ``seed`` s seeds episode b with s + b; or give one per episode. Only noise and random order draw.
        """
        marked = np.ones(self.num_envs, np.bool_)
        if options is not None and "reset_mask" in options:
            marked = np.asarray(options["reset_mask"], dtype=np.bool_)
        if seed is None or isinstance(seed, int | np.integer):
            seeds = [None if seed is None else int(seed) + b for b in range(self.num_envs)]
        else:
            seeds = list(seed)
        if len(seeds) != self.num_envs:
            raise PlacementError(f"{len(seeds)} seeds were given for {self.num_envs} episodes.")
        if self._random is None:
            self._random = [seeding.np_random(item)[0] for item in seeds]
        else:
            for b in np.flatnonzero(marked):
                if seeds[b] is not None:
                    self._random[b] = seeding.np_random(seeds[b])[0]
        self._start(marked)
        return self._observe(), self._mask_info()

    def step(self, actions: ArrayLike) -> Step:
        """Place one operation in every episode: ``actions`` is int [B, 2], (operation, device) each."""
        if self._random is None:
            raise error.ResetNeeded("Call reset() before the first step.")
        chosen = np.asarray(actions)
        if chosen.shape != (self.num_envs, 2) or chosen.dtype.kind not in "iu":
            raise PlacementError(
                f"the actions have shape {chosen.shape} and type {chosen.dtype}; expected {self.num_envs} x 2 whole "
                "numbers: (operation, device) of each episode."
            )
        active = ~self._ended
        if self.autoreset_mode is AutoresetMode.NEXT_STEP and self._ended.any():
            self._start(self._ended.copy())
        batch, before = self.batch, self.batch.state.planned.copy()
        operations, devices = np.ascontiguousarray(chosen.T, dtype=np.int64)
        replace = self.rules.illegal_action == "penalty"
        if self.rules.illegal_action == "raise":
            self._refuse_illegal(operations, devices, active)
        illegal = batch.advance(operations, devices, active, replace=replace)
        finished = active & batch.done
        rewards, makespan = self._score(before, active, finished)
        if illegal.any():
            rewards[illegal] = rewards[illegal] - self.rules.illegal_penalty if replace else self.rules.forfeit(batch)
        ended = finished if replace else finished | illegal
        if self.autoreset_mode is AutoresetMode.DISABLED:
            self._ended = self._ended | ended
            ended = self._ended.copy()
        else:
            self._ended = ended.copy()
        info: dict[str, Any] = {"illegal_action": illegal, "_illegal_action": active}
        if finished.any():
            info |= {"makespan": makespan, "_makespan": finished}
            info |= {"bound": np.where(finished, self.bound, 0.0), "_bound": finished}
        if self.autoreset_mode is AutoresetMode.SAME_STEP and ended.any():
            info = self._restart(info, ended)
        else:
            info |= self._mask_info()
        return self._observe(), rewards, ended, np.zeros(self.num_envs, np.bool_), info

    def _start(self, marked: NDArray[np.bool_]) -> None:
        """Reset the marked episodes and draw what their simulations will need."""
        self.batch.reset(marked)
        self._ended[marked] = False
        if self.rules.stochastic and self._random is not None:
            for b in np.flatnonzero(marked):
                self._simulation_seeds[b] = self._random[b].integers(2**31)

    def _restart(self, info: dict[str, Any], ended: NDArray[np.bool_]) -> dict[str, Any]:
        """Move the end of the marked episodes into ``final_obs`` and ``final_info`` and start them anew."""
        last, info = self._observe(), info | self._mask_info()
        values = {name: value for name, value in info.items() if not name.startswith("_")}
        final: dict[str, Any] = {}
        for b in np.flatnonzero(ended):
            row = {name: value[b] for name, value in values.items() if info[f"_{name}"][b]}
            row |= {name: value.item() for name, value in row.items() if value.ndim == 0}
            entry = {"final_obs": {name: value[b].copy() for name, value in last.items()}, "final_info": row}
            final = self._add_info(final, entry, int(b))
        self._start(ended)
        kept = {"illegal_action": info["illegal_action"] & ~ended, "_illegal_action": info["_illegal_action"] & ~ended}
        return kept | self._mask_info() | final

    def _refuse_illegal(
        self, operations: NDArray[np.int64], devices: NDArray[np.int64], active: NDArray[np.bool_]
    ) -> None:
        """Raise for the first illegal action of an active episode, before anything is placed."""
        for b in np.flatnonzero(active & ~self.batch.done):
            if not self.batch.is_legal(int(b), int(operations[b]), int(devices[b])):
                raise self.rules.refuse(self.batch, int(operations[b]), int(devices[b]))

    def _score(
        self, before: NDArray[np.float64], active: NDArray[np.bool_], finished: NDArray[np.bool_]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Rewards [B] before penalties, and makespans [B] of the finished episodes (0 elsewhere)."""
        makespan = np.zeros(self.num_envs)
        (rows,) = np.nonzero(finished)
        if rows.size == 0 and self.rules.reward == "final":
            return np.zeros(self.num_envs), makespan
        score = self.batch.state.planned.copy()
        if rows.size and self.rules.stochastic:
            for b in rows:  # each episode draws from its own seed, as a single environment does
                makespan[b] = self.rules.makespans(self.batch, [b], int(self._simulation_seeds[b]))[0]
        elif rows.size:
            makespan[rows] = self.rules.makespans(self.batch, rows)
        score[rows] = makespan[rows]
        if self.rules.reward == "dense":
            return np.where(active, (before - score) / self.bound, 0.0), makespan
        return -makespan / self.bound, makespan

    def _observe(self) -> Observation:
        if not self.lean:
            return self.layout.observe(self._static, self.batch)
        candidates = np.zeros((self.num_envs, self.layout.max_operations), np.int8)
        load = np.zeros((self.num_envs, self.layout.devices), np.float32)
        state = self.batch.state
        kernels.observe_lean(state.candidates, state.candidate, state.free, self.bound, FEATURE_LIMIT, candidates, load)
        return {"candidates": candidates, "load": load, "memory": self.layout.memory(self.batch)}

    def _mask_info(self) -> dict[str, Any]:
        if self.lean:
            return {}
        return {"action_mask": self.action_masks(), "_action_mask": np.ones(self.num_envs, np.bool_)}
