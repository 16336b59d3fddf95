"""The Gymnasium environment of cluster scheduling: one step is one round."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import gymnasium as gym
import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..arguments import check_made, read_reward
from ..errors import AllocationError, ClusterError, describe
from .actions import ActionLayout
from .allocation_checks import check_entries
from .cluster import Cluster
from .episode_rules import EpisodeRules, IllegalAction, RewardMode
from .failures import NodeEvent
from .generators import make_workload
from .observation import Observation, ObservationLayout, narrow
from .occupancy import draw_occupancy, write_occupancy
from .result import ClusterResult
from .rules import SimulationRules
from .scheduler import Allocation, ClusterView, MixedRate
from .simulation import Simulation
from .workload import Workload
from .workload_source import WorkloadSource, check_source


class ClusterSchedulingEnv(gym.Env[Observation, NDArray[np.int64]]):
    """Decide, round by round, which job gets which GPUs (``hadoppler/ClusterScheduling-v0``).

    Sizes: J ``window`` (jobs that are seen and served), S slots (pairs of node and type with GPUs, by node, then
    type), R types, F = 17 + 3 R job features, G = 7 + 3 R global ones (their names, ``EpisodeRules`` and
    ``SimulationRules`` are exported by ``hadoppler.envs.cluster``). Jobs beyond the window wait in a queue;
    the window holds those that run, then the oldest.

    **Action**: ``MultiDiscrete`` of J x S numbers, row by row: GPUs that a job gets in a slot, 0 to all of the
    slot's. A row of zeros: the job waits, or is preempted. A gang has exactly the job's W workers. With
    ``forking``, a row with W on each of several nodes is one copy per node. ``env.encode(allocation)`` and
    ``env.decode(action)`` translate. An ``Allocation`` itself is also taken (with shares and refusals).

    **Observation**: a dict of arrays. By default each has one dimension, row by row, as stable-baselines3
    wants it; ``env.unflatten(observation)`` or ``flat=False`` gives these shapes:

    ===================  =========  =======  =============================================================
    ``job_features``     [J, F]     float32  ``job_feature_names``, 0 to 20; padding is 0
    ``global_features``  [G]        float32  ``global_feature_names``, 0 to 20
    ``free``             [S]        int32    GPUs that may be given (not with ``nodes=False``)
    ``held``             [J, S]     int32    GPUs that the jobs hold now (not with ``nodes=False``)
    ``action_mask``      [M]        int8     for each number of an action, in order, its possible values
    ===================  =========  =======  =============================================================

    **Reward**: see ``EpisodeRules.reward``; the sum over an episode is -mean JCT / ``scale`` or -TTD / ``scale``.

    **End**: ``terminated`` when no job is left; jobs that fit nowhere are left out from the start. When nothing
    runs and nothing comes for ``max_idle_rounds``, the waiting jobs are given up. Nothing is ever truncated. A
    step after the end does nothing and brings 0.

    **Illegal actions** (``illegal_action``): under ``penalty`` the rows that break a rule, in order, get
    nothing, the others what they ask; the reward is 0.01 (``illegal_penalty``) lower. Under ``terminate`` nothing
    is done and the episode ends with ``EpisodeRules.forfeit``. Under ``raise`` nothing changes and
    ``AllocationError`` names the job.

    **Masks**: ``action_masks()`` (int8 [M], M the sum of the sizes of ``MultiDiscrete``), ``info["action_mask"]``
    and the observation agree. A value is marked if some legal action has it there; 0 always is. Numbers that
    are possible one by one can be illegal together; ``SequentialAllocation`` asks for decisions that are not.

    **Info**: ``action_mask``, ``time`` (seconds); after steps ``illegal_action``; at the end ``mean_jct_s``,
    ``ttd_s``, ``finished``, ``left_out`` and ``scale``.

    **Subclasses** may override ``workload()`` (what to run next), ``reward()`` and ``observe()`` (with
    ``observation_space`` set accordingly in the constructor).

    Args:
        workload: a workload, a list of them (one is drawn per episode), a picklable function that makes one from
            a generator, or the name of a generator of ``make_workload``, drawn anew for every episode.
        cluster: nodes, or a text for ``Cluster.parse``.
        jobs, per_hour: of a workload by name.
        window: J.
        reward, illegal_action, illegal_penalty: see ``EpisodeRules``.
        mixing: whether a gang may stand on several types.
        forking: whether a job may have several gangs.
        round_s, restart_s, early_refill, mixed_rate, consolidation_s, max_idle_rounds: see ``SimulationRules``; with
            ``early_refill`` a refill in mid-round is a step too, over the jobs that wait.
        failures: what happens to nodes when.
        nodes, flat: see above.
        render_mode: ``rgb_array`` (who holds which GPU, uint8 [H, W, 3]) or ``ansi`` (the same as text).

    Raises:
        AllocationError, ClusterError, TraceError, UnknownNameError: an option is out of range, of the wrong type or
            unknown, or (at a reset or step) a hook returns what is no workload or no reward.

    Example::

        env = gymnasium.make("hadoppler/ClusterScheduling-v0", workload="headline", jobs=20, cluster="headline")
        scheduler = hadoppler.make_scheduler("srtf")
        observation, info = env.reset(seed=0)
        terminated = False
        while not terminated:
            action = env.unwrapped.encode(scheduler.schedule(env.unwrapped.view))
            observation, reward, terminated, truncated, info = env.step(action)
        print(info["mean_jct_s"] / info["scale"])
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array", "ansi"], "render_fps": 4}  # noqa: RUF012

    def __init__(
        self,
        workload: WorkloadSource = "headline",
        cluster: Cluster | str = "headline",
        *,
        jobs: int | None = 64,
        per_hour: float | None = None,
        window: int = 64,
        reward: RewardMode = "mean_jct",
        illegal_action: IllegalAction = "penalty",
        illegal_penalty: float = 0.01,
        mixing: bool = True,
        forking: bool = False,
        round_s: float = 360.0,
        restart_s: float = 10.0,
        early_refill: bool = False,
        mixed_rate: MixedRate = "proportional",
        consolidation_s: float = 15.0,
        max_idle_rounds: int = 1000,
        failures: Sequence[NodeEvent] = (),
        nodes: bool = True,
        flat: bool = True,
        render_mode: str | None = None,
    ) -> None:
        if render_mode not in (None, *self.metadata["render_modes"]):
            raise AllocationError(f"render_mode is {render_mode!r}; expected rgb_array, ansi or None.")
        self.render_mode = render_mode
        self.cluster = Cluster.parse(cluster) if isinstance(cluster, str) else cluster
        if not isinstance(self.cluster, Cluster):
            raise ClusterError(f"cluster is {describe(cluster)}; expected a Cluster, or a text such as v100:4x5 k80:8.")
        self.rules = EpisodeRules(reward, illegal_action, illegal_penalty)
        self.simulation_rules = SimulationRules(
            round_s, restart_s, early_refill, mixed_rate, consolidation_s, max_idle_rounds
        )
        self.simulation_rules.check_forks(forking)
        check_source(workload, jobs, per_hour)
        self._source, self._drawing, self._failures = workload, (jobs, per_hour), tuple(failures)
        self.actions = ActionLayout(self.cluster, window, mixing, forking)
        self.layout = ObservationLayout(self.actions, nodes, flat)
        self.observation_space = cast("gym.Space[Observation]", self.layout.space())
        self.action_space = self.actions.space()
        self._simulation: Simulation | None = None
        self._mask: NDArray[np.int8] | None = None
        self.view: ClusterView | None = None
        """What is to be decided on: the jobs of the window; None after the end."""

    @property
    def simulation(self) -> Simulation:
        """The run under way.

        Raises:
            gymnasium.error.ResetNeeded: before the first reset.
        """
        if self._simulation is None:
            raise gym.error.ResetNeeded("Call reset() before the first step.")
        return self._simulation

    @property
    def over(self) -> bool:
        """Whether the episode has ended."""
        return self.view is None

    def workload(self) -> Workload:
        """Hook: what to run in the next episode; draw only from ``self.np_random``."""
        source = self._source
        if isinstance(source, str):
            jobs, per_hour = self._drawing
            return make_workload(source, jobs=jobs, per_hour=per_hour, seed=int(self.np_random.integers(2**31)))
        if isinstance(source, Workload):
            return source
        if callable(source):
            return source(self.np_random)
        return source[int(self.np_random.integers(len(source)))] if len(source) > 1 else source[0]

    def reward(self) -> float:
        """Hook: reward of the round just passed, a number after every round.

        ``self.cost`` and ``self.last_cost`` are ``EpisodeRules.cost`` after and before it, ``self.scale`` its unit,
        ``self.allocation`` what was decided, ``self.simulation`` the state, ``self.view`` what is next, None at the
        end.

        Illegal actions are paid for outside of it, in the built-in rewards' unit whatever this one's is: under
        ``penalty`` ``illegal_penalty`` is subtracted, so scale that to your rewards; under ``terminate`` the step
        brings ``EpisodeRules.forfeit`` and this is not called.
        """
        return (self.last_cost - self.cost) / self.scale

    def observe(self) -> Observation:
        """Hook: the observation of the present state, in new arrays."""
        return self.layout.observe(self.view, self.origin, self.queue, self.action_masks())

    def unflatten(self, observation: Observation) -> Observation:
        """Views of an observation's arrays in the shapes of the table above."""
        return self.layout.unflatten(observation)

    def action_masks(self) -> NDArray[np.int8]:
        """int8 [M]: for each number of an action, in order, 1 for each value that a legal action can have."""
        if self._mask is None:
            self._mask = self.actions.mask(self.view)
        return self._mask.copy()

    def encode(self, allocation: Allocation) -> NDArray[np.int64]:
        """The action of an allocation to jobs of ``view``; see ``check`` and ``ActionLayout.encode``."""
        check_entries(allocation, self.cluster, self.simulation.workload.jobs)
        return self.actions.encode(self._open_view(), allocation)

    def check(self, allocation: Allocation) -> None:
        """Refuse an allocation that this environment does not carry out.

        Raises:
            AllocationError: a row is no job of ``view``, a node or a type none of the cluster's, a gang stands on
                several types without ``mixing``, or a job has several gangs without ``forking``.
        """
        check_entries(allocation, self.cluster, self.simulation.workload.jobs)
        self.actions.check(self._open_view(), allocation)

    def decode(self, action: ArrayLike) -> Allocation:
        """The allocation of an action; rows that break a rule are left out."""
        return self.actions.decode(self._open_view(), action)[0]

    def actions_for(self, allocation: Allocation) -> list[Any]:
        """The actions that carry out an allocation: here a single one. Wrappers change it."""
        shares = allocation.share is not None and not np.isnan(allocation.share).all()
        return [allocation if shares or len(allocation.refused) else self.encode(allocation)]

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Start an episode on the next workload; ``options`` are not used.

        Raises:
            ClusterError: none of the jobs fits the cluster.
        """
        super().reset(seed=seed)
        workload, mixes = check_made("workload", self.workload(), Workload, ClusterError), self.actions.mixing
        self._simulation = Simulation(
            workload, self.cluster, self.simulation_rules, failures=self._failures, mixes=mixes, log=False
        )
        if not len(self._simulation.state.rows):
            raise ClusterError(f"none of the jobs of {workload.name} fits the cluster {self.cluster.name}.")
        self.scale, self.origin = self.rules.scale(self._simulation), self._simulation.time
        self.allocation = Allocation.empty()
        self.forfeited, self.decisions, self.cost = False, 0, 0.0
        self._look()
        return self.observe(), self._info()

    def step(self, action: ArrayLike | Allocation) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Give the GPUs out, and let time pass until the next decision.

        Raises:
            AllocationError: an ``Allocation`` breaks a rule (``check``, ``Simulation.apply``), or an action does under
                ``illegal_action=raise``; nothing has changed.
        """
        run = self.simulation
        if self.view is None:
            return self.observe(), 0.0, True, False, self._info(illegal=False)
        if isinstance(action, Allocation):
            self.check(action)
            allocation, wrong = action, -1
        else:
            allocation, wrong = self.actions.decode(self.view, action)
        if wrong >= 0 and self.rules.illegal_action == "raise":
            raise self._refuse(wrong)
        if wrong >= 0 and self.rules.illegal_action == "terminate":
            self.forfeited, self.view, self.queue, self._mask = True, None, 0, None
            reward = -self.rules.forfeit(run) / self.scale - self.rules.illegal_penalty
            return self.observe(), reward, True, False, self._info(illegal=True)
        run.apply(allocation)
        self.allocation = allocation
        self.decisions += 1
        self._look()
        reward = read_reward(self.reward(), AllocationError) - (self.rules.illegal_penalty if wrong >= 0 else 0.0)
        return self.observe(), reward, self.over, False, self._info(illegal=wrong >= 0)

    def result(self, scheduler: str = "") -> ClusterResult:
        """Tables and metrics of the ended episode.

        Raises:
            AllocationError: jobs are left.
        """
        if not self.over:
            raise AllocationError("the episode is not over; step on until it is terminated.")
        return self.simulation.result(scheduler)

    def render(self) -> NDArray[np.uint8] | str | None:
        """Who holds which GPU; jobs of the last round that ended are still shown."""
        if self.render_mode is None:
            gym.logger.warn("render() was called on an environment that was made without render_mode.")
            return None
        if self.render_mode == "rgb_array":
            return draw_occupancy(self.cluster, self.allocation)
        return write_occupancy(self.cluster, self.allocation, self.simulation.time, self.queue)

    def _look(self) -> None:
        """See what is next, and what it cost so far."""
        run = self.simulation
        view = run.next_view()
        self.view = None if view is None else narrow(view, self.actions.window)
        self.queue = 0 if view is None or self.view is None else len(view) - len(self.view)
        self._mask = None
        self.last_cost, self.cost = self.cost, self.rules.cost(run)

    def _open_view(self) -> ClusterView:
        if self.view is None:
            raise AllocationError("no episode is under way, so there is nothing to decide; call reset().")
        return self.view

    def _refuse(self, row: int) -> AllocationError:
        view = self._open_view()
        name = f"job {self.simulation.workload.jobs[view.job[row]].id!r}" if row < len(view) else "no job"
        return AllocationError(
            f"row {row} of the action ({name}) is illegal: give exactly its workers, on types that it runs on, out of "
            "free GPUs, or nothing."
        )

    def _info(self, illegal: bool | None = None) -> dict[str, Any]:
        run = self.simulation
        info: dict[str, Any] = {"action_mask": self.action_masks(), "time": run.time}
        if illegal is not None:
            info["illegal_action"] = illegal
        if self.over and not self.forfeited:
            rows = run.state.rows
            finish = run.state.jobs.finish[rows]
            jct = finish - run.workload.arrival[rows]
            done = ~np.isnan(finish)
            info["finished"], info["left_out"] = int(done.sum()), len(run.workload) - int(done.sum())
            info["mean_jct_s"] = float(jct[done].mean()) if done.any() else np.inf
            info["ttd_s"] = float(finish[done].max()) - self.origin if done.any() else np.inf
            info["scale"] = self.scale
        return info
