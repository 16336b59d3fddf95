"""The Gymnasium environment of device placement: one episode assigns one graph."""

from __future__ import annotations

from typing import Any, cast

import gymnasium as gym
import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..arguments import check_made, read_reward
from ..errors import PlacementError
from .episode_rules import EpisodeRules, IllegalAction, RewardMode
from .episodes import EpisodeBatch
from .gantt import draw_gantt, write_gantt
from .graph import DataflowGraph
from .observation import Observation
from .placement import Placement
from .problem import PlacementProblem
from .problem_source import (
    PreparedProblem,
    ProblemFactory,
    ProblemSource,
    find_problems,
    make_layout,
)
from .simulator import Order
from .topology import Contention, Topology


class DevicePlacementEnv(gym.Env[Observation, NDArray[np.int64]]):
    """Assign the operations of a dataflow graph to devices, one at a time (``hadoppler/DevicePlacement-v0``).

    Sizes: N ``max_operations``, E ``max_edges``, D ``devices``; F = 15 device features. The names of features,
    and ``EpisodeRules``, are exported by ``hadoppler.envs.placement``.

    **Action**: ``MultiDiscrete([N, D])``, an operation whose producers are all placed, and its device.

    **Observation**: a dict of arrays. By default each has one dimension, row by row, as stable-baselines3
    wants it; ``env.unflatten(observation)`` or ``flat=False`` gives these shapes:

    ==================  =============  =======  ==========================================================
    ``node_features``   [N, 6]         float32  ``NODE_FEATURES``, standardised per graph
    ``edge_index``      [2, E]         int32    sources and targets; padding is 0 (see ``counts``)
    ``edge_features``   [E, 1]         float32  ``EDGE_FEATURES``, standardised per graph
    ``graph_id``        [1]            int32    with ``edges=False``, in place of the two above
    ``counts``          [3]            int32    operations, edges and devices of this graph
    ``candidates``      [N]            int8     1: the operation may be placed now
    ``action_mask``     [N, D]         int8     1: legal action
    ``device_features`` [N, D, F]      float32  ``DEVICE_FEATURES`` for every candidate, 0 for the others
    ``assignment``      [N]            int32    device, -1 while not placed
    ``memory``          [D]            float32  bytes booked / capacity, as if nothing were ever freed
    ==================  =============  =======  ==========================================================

    **Reward**: see ``EpisodeRules.reward``; the sum over an episode is -makespan / lower bound, at best -1.

    **End**: ``terminated`` after as many steps as the graph has operations; nothing is ever truncated. A
    placement that overflows a device's memory gets the simulator's penalty. A step after the end does
    nothing and brings 0.

    **Illegal actions** (``illegal_action``): under ``penalty`` the next candidate from the given operation
    upward takes its place, and the next allowed device from the given one upward, both cyclic; the reward is
    0.1 (``illegal_penalty``) lower. So every episode has the same length, whatever the policy does. Under
    ``terminate`` nothing is placed and the episode ends with ``EpisodeRules.forfeit``. Under ``raise``
    nothing changes and ``PlacementError`` says what was wrong.

    **Masks**: ``action_masks()`` (int8 [N, D]), ``info["action_mask"]`` and the observation agree, and always
    hold a 1. After the end it stands at (0, 0). MaskablePPO of sb3-contrib, whose masks have one dimension,
    works through ``FlatAction`` and ``SelectThenPlace``.

    **Info**: ``action_mask``; after steps ``illegal_action``; at the end ``makespan`` (seconds, or raw
    units) and ``bound``.

    **Subclasses** may override ``problem()`` (what to place next), ``reward()`` and ``observe()`` (with
    ``observation_space`` set accordingly in the constructor).

    Args:
        problem: a problem, a list of them (one is drawn per episode), or a picklable function that makes
            one from a generator; by default ``graph`` on ``topology``, which do not go with it.
        graph: a graph or the name of a workload; ``chainmm`` by default.
        topology: devices or the name of a preset; ``4xP100`` by default.
        reward, order, contention, noise, illegal_action, illegal_penalty: see ``EpisodeRules``. Under
            ``order="priority"`` the order of the steps is the priority at execution.
        edges: whether to send the static edges with every observation, or ``graph_id`` alone: the number
            of the problem in the list, or how many were drawn before it since the last seeding.
        flat: observations in one dimension per array.
        max_operations, max_edges, devices: sizes of the spaces; by default the largest of the given
            problems. With a function they are needed.
        render_mode: ``rgb_array`` (a Gantt chart, uint8 [H, 640, 3]) or ``ansi`` (the same as text).

    Raises:
        PlacementError: an option is unknown or of the wrong type, a problem is larger than the spaces, or (at a
            reset or step) a hook returns what is no problem or no reward.

    Example::

        env = gymnasium.make("hadoppler/DevicePlacement-v0", graph="ffnn", topology="8xV100", reward="dense")
        observation, info = env.reset(seed=0)
        terminated = False
        while not terminated:
            legal = np.argwhere(info["action_mask"])
            observation, reward, terminated, truncated, info = env.step(legal[env.np_random.integers(len(legal))])
        print(info["makespan"] / info["bound"])
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array", "ansi"], "render_fps": 4}  # noqa: RUF012

    def __init__(
        self,
        problem: ProblemSource | None = None,
        *,
        graph: DataflowGraph | str | None = None,
        topology: Topology | str | None = None,
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
        render_mode: str | None = None,
    ) -> None:
        if render_mode not in (None, *self.metadata["render_modes"]):
            raise PlacementError(f"render_mode is {render_mode!r}; expected rgb_array, ansi or None.")
        self.render_mode = render_mode
        self.rules = EpisodeRules(reward, order, contention, noise, illegal_action, illegal_penalty)
        self._factory: ProblemFactory | None = None
        self._prepared: list[PreparedProblem] = []
        given = find_problems(problem, graph, topology)
        if callable(given):
            self._factory = given
        else:
            self._prepared = [PreparedProblem(item) for item in given]
        self.layout = make_layout(self.problems, max_operations, max_edges, devices, edges=edges, flat=flat)
        self.observation_space = cast("gym.Space[Observation]", self.layout.space())
        self.action_space = gym.spaces.MultiDiscrete([self.layout.max_operations, self.layout.devices])
        self._drawn = 0
        self._simulation_seed = 0
        self._current: PreparedProblem | None = None

    @property
    def problems(self) -> list[PlacementProblem]:
        """The problems that were given; empty with a function."""
        return [prepared.problem for prepared in self._prepared]

    @property
    def batch(self) -> EpisodeBatch:
        """The episode under way, a batch of one.

        Raises:
            gymnasium.error.ResetNeeded: before the first reset.
        """
        if self._current is None:
            raise gym.error.ResetNeeded("Call reset() before the first step.")
        return self._current.batch

    @property
    def instance(self) -> PlacementProblem:
        """The problem of the episode under way."""
        return self.batch.problem

    @property
    def bound(self) -> float:
        """Lower bound of the makespan, the unit of rewards and times; see ``features.time_scale`` where it is 0."""
        return self.batch.scale

    def problem(self) -> PlacementProblem:
        """Hook: what to place in the next episode; draw only from ``self.np_random``."""
        if self._factory is not None:
            return self._factory(self.np_random)
        if len(self._prepared) == 1:
            return self._prepared[0].problem
        return self._prepared[int(self.np_random.integers(len(self._prepared)))].problem

    def reward(self) -> float:
        """Hook: reward of the step just taken, a number at every step.

        ``self.batch`` holds the state, ``self.score`` the end of the partial schedule after the step (the
        simulated makespan after the last one), ``self.last_score`` before it, ``self.makespan`` the makespan
        after the last step and None earlier.

        Illegal actions are paid for outside of it, in the built-in rewards' unit whatever this one's is: under
        ``penalty`` ``illegal_penalty`` is subtracted, so scale that to your rewards; under ``terminate`` the step
        brings ``EpisodeRules.forfeit`` and this is not called.
        """
        if self.rules.reward == "dense":
            return (self.last_score - self.score) / self.bound
        return 0.0 if self.makespan is None else -self.makespan / self.bound

    def observe(self) -> Observation:
        """Hook: the observation of the present state, in new arrays."""
        assert self._current is not None
        batched = self.layout.observe(self._static, self._current.batch)
        return {name: array[0] for name, array in batched.items()}

    def unflatten(self, observation: Observation) -> Observation:
        """Views of an observation's arrays in the shapes of the table above."""
        return self.layout.unflatten(observation)

    def action_masks(self) -> NDArray[np.int8]:
        """int8 [N, D]: 1 for legal actions; at least one."""
        return self.layout.masks(self.batch)[0]

    def actions_for(self, operation: int, device: int) -> list[Any]:
        """The actions that place ``operation`` on ``device``: here a single one. Wrappers change it."""
        return [np.array([operation, device], np.int64)]

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Start an episode on the next problem; ``options`` are not used."""
        super().reset(seed=seed)
        if seed is not None:
            self._drawn = 0
        problem = check_made("problem", self.problem(), PlacementProblem, PlacementError)
        number = next((i for i, known in enumerate(self._prepared) if known.problem is problem), None)
        self.layout.check(problem)
        self._current = PreparedProblem(problem) if number is None else self._prepared[number]
        self._static = self._current.observe_static(self.layout, self._drawn if number is None else number)
        self._current.batch.reset()
        self._drawn += 1
        self._simulation_seed = int(self.np_random.integers(2**31)) if self.rules.stochastic else 0
        self.makespan: float | None = None
        self.score = self.last_score = 0.0
        self.forfeited = False
        return self.observe(), {"action_mask": self.action_masks()}

    def step(self, action: ArrayLike) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Place an operation: ``action`` is (operation, device)."""
        batch = self.batch
        if self.forfeited or self.makespan is not None:
            return self.observe(), 0.0, True, False, self._info(illegal=False)
        chosen = np.asarray(action)
        if chosen.shape != (2,) or not np.issubdtype(chosen.dtype, np.integer):
            raise PlacementError(f"the action is {action!r}; expected two whole numbers, (operation, device).")
        chosen = chosen.astype(np.int64)
        illegal = bool(
            batch.advance(chosen[:1], chosen[1:], np.ones(1, np.bool_), replace=self.rules.illegal_action == "penalty")[
                0
            ]
        )
        if illegal and self.rules.illegal_action == "raise":
            raise self.rules.refuse(batch, int(chosen[0]), int(chosen[1]))
        if illegal and self.rules.illegal_action == "terminate":
            self.forfeited = True
            return self.observe(), self.rules.forfeit(batch), True, False, self._info(illegal)
        finished = bool(batch.state.candidates[0] == 0)
        self.last_score, self.score = self.score, float(batch.state.planned[0])
        if finished:
            self.score = self.makespan = float(self.rules.makespans(batch, [0], self._simulation_seed)[0])
        reward = read_reward(self.reward(), PlacementError) - (self.rules.illegal_penalty if illegal else 0.0)
        return self.observe(), reward, finished, False, self._info(illegal)

    def placement(self) -> Placement:
        """The placement of the finished episode, with its makespan.

        Raises:
            PlacementError: operations are left.
        """
        more = {"execution": self.rules.order, "makespan": self.makespan if self.makespan is not None else np.nan}
        return self.batch.placement(0, **more)

    def render(self) -> NDArray[np.uint8] | str | None:
        """Gantt chart of the booked schedule; after the last step, of the simulated one."""
        if self.render_mode is None:
            gym.logger.warn("render() was called on an environment that was made without render_mode.")
            return None
        state, problem = self.batch.state, self.instance
        assignment, start, end = state.assignment[0], state.start[0], state.end[0]
        if self.makespan is not None:
            options: dict[str, Any] = {"contention": self.rules.contention, "noise": self.rules.noise}
            options |= {"seed": self._simulation_seed, "memory": "off"}
            schedule = self.placement().simulate(problem, **options)
            start, end = schedule.start, schedule.end
        draw = draw_gantt if self.render_mode == "rgb_array" else write_gantt
        return draw(problem, assignment, start, end, self.bound)

    def _info(self, illegal: bool) -> dict[str, Any]:
        info: dict[str, Any] = {"action_mask": self.action_masks(), "illegal_action": illegal}
        if self.makespan is not None:
            info |= {"makespan": self.makespan, "bound": self.bound}
        return info
