"""Rounds as masked decisions: options, nodes found at the close, teachers, forks; and proof that a policy learns."""

from __future__ import annotations

import copy
import itertools
import pickle
import warnings
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from cluster.oracle import table_of, worlds
from cluster.scripted import Scripted, fork_everywhere, greedy_mix
from cluster.test_cases import read
from cluster.test_env import ALL, NAME, OPTIONS, equal, few_gavel, unit
from hypothesis import assume, given, settings, strategies as st

from hadoppler import make_scheduler
from hadoppler.envs.cluster import (
    Allocation,
    Cluster,
    ClusterSchedulingEnv,
    Job,
    NodeEvent,
    SequentialAllocation,
    ThroughputTable,
    Workload,
    make_workload,
    replay,
    simulate,
)
from hadoppler.envs.cluster.features import job_feature_names
from hadoppler.envs.errors import AllocationError, ClusterError

CHOOSE_TYPES = ("yarn_cs", "tiresias", "srtf", "random", "gavel")


def wrapped(workload: Any, cluster: Any, *, every_round: bool = True, **options: Any) -> SequentialAllocation:
    return SequentialAllocation(ClusterSchedulingEnv(workload, cluster, **options), every_round=every_round)


def base(env: gym.Env) -> ClusterSchedulingEnv:
    assert isinstance(env.unwrapped, ClusterSchedulingEnv)
    return env.unwrapped


def drive(env: SequentialAllocation, masked: bool, steps: int, seed: int = 0) -> list[dict[str, Any]]:
    """Random decisions; checks masks, spaces and what is given out; infos of the episodes that ended."""
    env.action_space.seed(seed)
    observation, info = env.reset(seed=seed)
    total, ended, before = 0.0, [], base(env).decisions
    for _ in range(steps):
        mask = env.action_masks()
        assert mask.dtype == np.int8
        assert mask[-1] == 1, "closing is always legal"
        assert mask[:-1].any(), "a decision is only asked where there is one"
        np.testing.assert_array_equal(mask, info["action_mask"])
        np.testing.assert_array_equal(mask, observation["action_mask"])
        assert observation in env.observation_space
        action = env.action_space.sample(mask) if masked else env.action_space.sample()
        view = base(env).view
        observation, reward, done, truncated, info = env.step(action)
        assert info["illegal_action"] is (not mask[action])
        assert not truncated
        total += reward + base(env).rules.illegal_penalty * info["illegal_action"]
        if base(env).decisions == before + 1:
            assert (base(env).allocation.gpus(base(env).cluster).sum(axis=0) <= view.free).all()
        before = base(env).decisions
        if done:
            assert info["action_mask"].tolist() == [0] * (len(mask) - 1) + [1]
            assert observation in env.observation_space
            if info.get("left_out") == 0:
                assert total * info["scale"] == pytest.approx(-info["mean_jct_s"], rel=1e-9)
            ended.append(info)
            total = 0.0
            observation, info = env.reset()
            before = base(env).decisions
    return ended


@pytest.mark.parametrize("options", [options for options in OPTIONS if options.get("flat", True)])
def test_stable_baselines3_accepts_it(options: dict) -> None:
    checker = pytest.importorskip("stable_baselines3.common.env_checker")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        checker.check_env(SequentialAllocation(gym.make(NAME, **options)))


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("options", OPTIONS)
def test_h17_masks_are_never_empty_and_nothing_crashes(options: dict, masked: bool) -> None:
    drive(SequentialAllocation(gym.make(NAME, **options)), masked, 1000)


@pytest.mark.parametrize("masked", [True, False])
def test_h17_the_case_itself(masked: bool) -> None:
    env = wrapped(read("H17_no_fit.trace"), "v100:1", window=3, round_s=100, restart_s=0)
    ended = drive(env, masked, 1000)
    assert len(ended) > 5
    assert all((info["finished"], info["left_out"]) == (2, 1) for info in ended)


@pytest.mark.parametrize("options", OPTIONS[1:])
def test_h18_three_episodes_repeat(options: dict) -> None:
    runs = []
    for disturb in (1, 2):
        np.random.seed(disturb)  # noqa: NPY002
        env, rng, told = SequentialAllocation(gym.make(NAME, **options)), np.random.default_rng(0), []
        for episode in range(3):
            observation, info = env.reset(seed=123 if episode == 0 else None)
            told.append((observation, 0.0, False))
            for _ in range(150):
                legal = np.flatnonzero(info["action_mask"])
                observation, reward, done, _, info = env.step(legal[rng.integers(len(legal))])
                told.append((observation, reward, done))
                if done:
                    break
        runs.append(told)
    assert len(runs[0]) == len(runs[1])
    for (first, *more), (second, *others) in zip(*runs, strict=True):
        equal(first, second)
        assert more == others


def test_what_passes_before_the_first_decision_counts() -> None:
    """The only node is down when the job arrives: the wait is part of the episode's reward."""
    workload = make_workload("headline", jobs=1, seed=0)
    late = replace(workload, jobs=(replace(workload.jobs[0], arrival=37.5, workers=1),))
    cluster = Cluster.parse("v100:4")
    failures = [NodeEvent(20.0, cluster.nodes[0].name, "fail"), NodeEvent(300.0, cluster.nodes[0].name, "restore")]
    env = wrapped(late, cluster, round_s=60, failures=failures)
    env.reset(seed=0)
    total, done = 0.0, False
    while not done:
        _, reward, done, _, info = env.step(int(np.argmax(env.action_masks())))
        total += reward
    assert info["mean_jct_s"] > 262.5
    assert total * info["scale"] == pytest.approx(-info["mean_jct_s"], rel=1e-9)


@given(worlds(), st.booleans(), st.booleans(), st.booleans(), st.integers(0, 1000))
@settings(max_examples=60)
def test_whatever_is_chosen_is_legal(
    world: tuple[Workload, Cluster], mixing: bool, forking: bool, refill: bool, seed: int
) -> None:
    """Narrow windows, refills, failures: the simulator takes every closed round (illegal rows would raise)."""
    workload, cluster = world
    failures = [NodeEvent(20.0, cluster.nodes[-1].name, "fail"), NodeEvent(300.0, cluster.nodes[-1].name, "restore")]
    options = {"mixing": mixing, "forking": forking, "early_refill": refill, "failures": failures}
    env = wrapped(workload, cluster, window=5, round_s=60, illegal_action="raise", **options)
    try:
        drive(env, True, 60, seed)
    except ClusterError:
        assume(False)


def test_golden_decisions() -> None:
    """Two fast GPUs in one node, one and one on two nodes of slow; W = 1, 2, 3."""
    env = wrapped(unit([900.0, 900.0, 900.0], [1, 2, 3]), "fast:2 slow:1x2", window=4, flat=False)
    assert env.options == ("keep", "fast", "slow", "mixed", "skip")
    assert env.action_space.n == 4 * 5 + 1
    observation, _ = env.reset(seed=0)
    rows = observation["action_mask"][:-1].reshape(4, 5).tolist()
    assert rows == [[0, 1, 1, 0, 1], [0, 1, 1, 0, 1], [0, 0, 0, 1, 1], [0] * 5]
    # Mixed: 2 fast and 1 slow workers, spread, at 0.8 of (2 x 4 + 1 x 1) / 3 steps/s, of 4 at best.
    np.testing.assert_allclose(observation["job_features"][:, -1], [0, 0, 0.8 * 3 / 4, 0], rtol=1e-6)
    np.testing.assert_allclose(observation["global_features"][-2:], [2 / 4, 2 / 4])
    observation, reward, done, _, info = env.step(0 * 5 + 1)
    assert (reward, done, info["illegal_action"]) == (0.0, False, False)
    rows = observation["action_mask"][:-1].reshape(4, 5).tolist()
    assert rows == [[0] * 5, [0, 0, 1, 1, 1], [0, 0, 0, 1, 1], [0] * 5]
    assert observation["job_features"][:, -2].tolist() == [1, 0, 0, 0]
    np.testing.assert_allclose(observation["job_features"][2, -1], 0.8 * (4 + 2) / 3 / 4, rtol=1e-6)
    observation, reward, *_, info = env.step(1 * 5 + 2)  # nothing else can be given: the round is closed
    assert base(env).allocation.gpus(base(env).cluster).tolist() == [[[1, 0], [0, 0], [0, 0]], [[0, 0], [0, 1], [0, 1]]]
    assert (info["unplaced"], reward * base(env).scale) == (0, pytest.approx(-(235 + 360 + 360) / 3))
    rows = observation["action_mask"][:-1].reshape(4, 5).tolist()
    assert rows == [[1, 1, 0, 0, 1], [0, 0, 0, 1, 1], [0] * 5, [0] * 5]


def test_skipping_and_closing() -> None:
    env = wrapped(unit([9000.0, 9000.0]), "fast:1", window=2, round_s=100, mixing=False)
    assert env.options == ("keep", "fast", "skip")
    _, info = env.reset(seed=0)
    _, reward, *_, info = env.step(0 * 3 + 2)
    assert (reward, info["action_mask"].tolist()) == (0.0, [0, 0, 0, 0, 1, 1, 1])
    _, reward, *_ = env.step(6)
    assert (base(env).decisions, len(base(env).allocation)) == (1, 0)
    assert reward * base(env).scale == pytest.approx(-100)
    env.step(1 * 3 + 1)
    assert base(env).allocation.job.tolist() == [1]
    *_, info = env.step(0 * 3 + 1)  # takes the GPU from the one that ran
    assert base(env).allocation.job.tolist() == [0]


def test_gangs_stay_and_the_largest_finds_a_whole_node() -> None:
    """Chosen last, the gang of 4 still gets a node for itself; the order of choices decides types only."""
    env = wrapped(unit([9000.0] * 4, [1, 2, 1, 4]), "fast:4x2", window=4, mixing=False)
    env.reset(seed=0)
    for position in range(4):
        env.step(position * 3 + 1)
    used = base(env).allocation.gpus(base(env).cluster)[:, :, 0]
    assert used.tolist() == [[0, 1], [0, 2], [0, 1], [4, 0]]
    for position in (3, 2, 1, 0):
        env.step(position * 3)
    assert base(env).allocation.gpus(base(env).cluster)[:, :, 0].tolist() == used.tolist()
    assert base(env).simulation.state.jobs.restarts.tolist() == [1, 1, 1, 1]


def test_a_gang_that_is_torn_can_be_put_together() -> None:
    """The gang of 2 starts on two nodes; when the others end, its type is offered beside keeping."""
    env = wrapped(unit([900.0, 900.0, 1e5], [1, 1, 2]), "fast:2x2", window=3, mixing=False, round_s=300)
    env.reset(seed=0)
    one, two, torn = np.zeros((3, 2, 1), np.int64)
    one[0], two[1], torn[:] = 1, 1, 1
    held = base(env)
    held.step(Allocation.from_rows([(0, 0, one), (1, 0, two), (2, 0, torn)]))
    env._pass_quiet_rounds()
    assert held.view.job.tolist() == [2]
    assert env.action_masks().tolist() == [1, 1, 1, 0, 0, 0, 0, 0, 0, 1]
    env.step(1)
    assert sorted(held.allocation.gpus(held.cluster)[0, :, 0].tolist()) == [0, 2]
    assert env.action_masks()[:3].tolist() == [1, 0, 1], "now its type is the same as keeping"


def test_a_gang_that_cannot_be_spread_waits() -> None:
    """Spread it has no rate: two free GPUs on two nodes do not help, though there are enough of the type."""
    table = ThroughputTable.build([("a", 1, "fast", 1.0, np.nan), ("b", 2, "fast", 1.0, 0.0)])
    jobs = (Job("x", 0, 1, 1e4, "a"), Job("y", 0, 1, 1e4, "a"), Job("z", 1, 2, 1e4, "b"))
    env = wrapped(Workload(jobs, table), "fast:2x2", window=3, mixing=False)
    env.reset(seed=0)
    one, two = np.zeros((2, 2, 1), np.int64)
    one[0] = two[1] = 1
    base(env).step(Allocation.from_rows([(0, 0, one), (1, 0, two)]))
    env._pass_quiet_rounds()
    for action in (0, 3, 7):
        *_, info = env.step(action)
    assert info["unplaced"] == 1
    assert base(env).allocation.job.tolist() == [0, 1]


@pytest.mark.parametrize(("name", "options"), ALL)
def test_every_scheduler_decides_through_it(name: str, options: dict) -> None:
    """Those that choose types alone do exactly what they do in the simulator; those that choose nodes, nearly."""
    workload, cluster = make_workload("headline", jobs=14, seed=4, per_hour=4), Cluster.parse("v100:4x2 p100:4 k80:4x2")
    rules: dict[str, Any] = {"round_s": 1200.0, "failures": [NodeEvent(9000.0, "n0", "fail")]}
    scheduler = make_scheduler(name, **options)
    expected = simulate(workload, cluster, scheduler, seed=5, **rules).metrics["mean_jct_s"]
    env = pickle.loads(
        pickle.dumps(wrapped(workload, cluster, mixing=scheduler.mixes, forking=scheduler.forks, nodes=False, **rules))
    )
    steps = list(replay(env, scheduler, seed=5))
    assert not any(step.info["illegal_action"] for step in steps)
    assert all(step.observation["action_mask"][step.action] for step in steps)
    reached = steps[-1].info["mean_jct_s"]
    assert sum(step.reward for step in steps) * steps[-1].info["scale"] == pytest.approx(-reached, rel=1e-9)
    assert reached == pytest.approx(expected, rel=0 if name in CHOOSE_TYPES else 0.05)


@given(worlds(), st.booleans())
@settings(max_examples=40)
def test_any_allocation_is_told_in_legal_decisions(world: tuple[Workload, Cluster], refill: bool) -> None:
    workload, cluster = world
    env = wrapped(workload, cluster, round_s=60, early_refill=refill, illegal_action="raise")
    try:
        env.reset(seed=0)
    except ClusterError:
        assume(False)
    steps = list(replay(env, Scripted(greedy_mix)))
    assert not steps or steps[-1].terminated


def test_forks_stand_on_nodes_of_their_own() -> None:
    """Five nodes, five types: what HadarE does can be told exactly."""
    workload, cluster = make_workload("physical", jobs=3, seed=2), Cluster.parse("v100:1 p100:1 k80:1 v100:1")
    forking = Scripted(fork_everywhere, forks=True)
    env = wrapped(workload, cluster, forking=True)
    steps = list(replay(env, forking))
    assert not any(step.info.get("unplaced", 0) for step in steps)
    expected = simulate(workload, cluster, forking).metrics["mean_jct_s"]
    assert steps[-1].info["mean_jct_s"] == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize("every_round", [True, False])
def test_what_no_decisions_can_tell_is_refused(every_round: bool) -> None:
    """As bare: copies without forking, and gangs on several types without mixing."""
    workload, cluster = make_workload("physical", jobs=3, seed=2), Cluster.parse("v100:1 p100:1 k80:1 v100:1")
    for scheduler in (Scripted(fork_everywhere, forks=True), make_scheduler("hadare")):
        for env in (ClusterSchedulingEnv(workload, cluster), wrapped(workload, cluster, every_round=every_round)):
            with pytest.raises(
                AllocationError, match="a job has several gangs; that needs an environment with forking"
            ):
                list(replay(env, scheduler))
    mixed = wrapped(unit([900.0] * 2, [1, 2]), "fast:2 slow:1", every_round=every_round, mixing=False)
    with pytest.raises(AllocationError, match="a gang stands on several GPU types; that needs an environment with mix"):
        list(replay(mixed, Scripted(greedy_mix)))


def test_copies_one_by_one() -> None:
    env = wrapped(unit([9e5, 9e5], [2, 1]), "fast:2x2 slow:2+fast:1", window=2, forking=True, mixing=False)
    _, info = env.reset(seed=0)
    moves = []
    for action in (1, 1, 2):  # job 0: two copies on fast, one on slow
        assert info["action_mask"][action] == 1
        moves.append(base(env).decisions)
        *_, info = env.step(action)
    assert info["action_mask"].tolist() == [0, 0, 0, 0, 0, 1, 0, 1, 1], "no node of its own is left for a fourth"
    *_, info = env.step(5)
    assert base(env).allocation.copy.tolist() == [0, 1, 2, 0]
    dense = base(env).allocation.gpus(base(env).cluster)
    assert dense[:, :, 0].tolist() == [[2, 0, 0], [0, 2, 0], [0, 0, 0], [0, 0, 1]]
    assert dense[2, 2].tolist() == [0, 2]
    assert (info["action_mask"][0], info["action_mask"][4]) == (1, 1), "both may keep all that they have"
    *_, info = env.step(0)
    assert info["action_mask"][:4].tolist() == [0, 0, 0, 0]
    env.step(4)
    assert base(env).simulation.state.jobs.restarts.tolist() == [3, 1]


def test_illegal_decisions() -> None:
    options: dict[str, Any] = {"workload": unit([4000.0] * 2), "cluster": "fast:2", "window": 3, "mixing": False}
    env = wrapped(**options, illegal_penalty=0.5)
    env.reset(seed=0)
    _, reward, *_, info = env.step(0)  # keep nothing: the next legal one is fast
    assert (reward, info["illegal_action"]) == (-0.5, True)
    _, reward, _, _, info = env.step(-7)
    assert (reward, info["illegal_action"]) == (pytest.approx(-0.5 - 360 / base(env).scale), True)
    assert base(env).allocation.job.tolist() == [0, 1]
    *_, info = env.step(10**6)
    assert info["illegal_action"]
    ending = wrapped(**options, illegal_action="terminate")
    ending.reset(seed=0)
    _, reward, done, _, info = ending.step(0)
    assert (done, info["illegal_action"]) == (True, True)
    forfeit = base(ending).rules.forfeit(base(ending).simulation) / base(ending).scale
    assert reward == pytest.approx(-forfeit - base(ending).rules.illegal_penalty)
    assert ending.step(9)[1:3] == (0.0, True)
    raising = wrapped(**options, illegal_action="raise")
    before, _ = raising.reset(seed=0)
    with pytest.raises(AllocationError, match="decision 0 is illegal"):
        raising.step(0)
    equal(before, raising._observe())


@pytest.mark.parametrize("action", [0.0, 0.5, np.nan, None, "0", [0, 1], np.array([0.0])])
def test_actions_that_are_no_whole_numbers_are_refused(action: Any) -> None:
    env = wrapped(unit([4000.0] * 2), "fast:2")
    env.reset(seed=0)
    with pytest.raises(AllocationError, match="expected one whole number"):
        env.step(action)


def test_decisions_only_where_something_happened() -> None:
    workload, cluster = make_workload("headline", jobs=10, seed=3), Cluster.parse("v100:4 p100:4 k80:4x2")
    counts, ends = {}, {}
    for every_round in (True, False):
        env = wrapped(workload, cluster, every_round=every_round)
        steps = list(replay(env, make_scheduler("srtf")))
        counts[every_round], ends[every_round] = len(steps), steps[-1].info["mean_jct_s"]
        rewards = sum(step.reward for step in steps) * steps[-1].info["scale"]
        assert rewards == pytest.approx(-steps[-1].info["mean_jct_s"])
    assert ends[False] == ends[True]
    assert counts[False] < counts[True] / 5


def test_every_round_is_asked_where_nothing_runs() -> None:
    env = wrapped(unit([400.0]), "fast:1", every_round=False, window=1, mixing=False)
    env.reset(seed=0)
    for round in range(3):
        env.step(3)
        assert base(env).decisions == round + 1


def test_copies_of_the_environment_go_on_alike() -> None:
    env = SequentialAllocation(gym.make(NAME, workload=few_gavel, cluster="v100:2 k80:2", window=5))
    _, info = env.reset(seed=0)
    env.step(int(np.flatnonzero(info["action_mask"])[0]))
    twin = copy.deepcopy(env)
    assert (twin.observation_space, twin.action_space) == (env.observation_space, env.action_space)
    ends = []
    for item in (env, twin):
        rewards = [item.step(int(np.flatnonzero(item.action_masks())[k % 2]))[1] for k in range(40)]
        ends.append(rewards)
    assert ends[0] == ends[1]


def test_observations_of_a_subclass_pass() -> None:
    class Clock(ClusterSchedulingEnv):
        """Also tells the hour."""

        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            hour = gym.spaces.Box(0, 1e6, (1,), np.float32)
            self.observation_space = gym.spaces.Dict({**self.observation_space.spaces, "hour": hour})

        def observe(self) -> dict:
            return {**super().observe(), "hour": np.array([self.simulation.time / 3600], np.float32)}

    env = SequentialAllocation(Clock(workload=unit([1e5, 1e5]), cluster="fast:2", window=2, nodes=False))
    observation, _ = env.reset(seed=0)
    assert observation in env.observation_space
    assert set(observation) == {"job_features", "global_features", "action_mask", "hour"}
    assert observation["job_features"].size == 2 * (len(job_feature_names(("fast",))) + 2)


def tiny() -> Workload:
    """Four one-worker jobs; m0 gains most from fast GPUs, m1 hardly, and SRTF gives m1 the fast one first."""
    jobs = [("m0", 1200.0), ("m1", 390.0), ("m0", 800.0), ("m1", 780.0)]
    made = tuple(Job(f"j{i}", 0.0, 1, steps, model) for i, (model, steps) in enumerate(jobs))
    return Workload(made, table_of([[4.0, 2.0, 1.0], [3.9, 3.9, 3.9]]))


def best_mean_jct(workload: Workload, cluster: Cluster, round_s: float) -> float:
    """By brute force over all ways to give each single GPU of each round to a job, without restarts."""
    rates = workload.rates(cluster)[0]
    types = np.repeat(np.arange(len(cluster.types)), cluster.gpus_of_type).tolist()

    @cache
    def cost(left: tuple[float, ...]) -> float:
        waiting = [job for job, steps in enumerate(left) if steps > 0]
        if not waiting:
            return 0.0
        least = np.inf
        for chosen in itertools.permutations([*waiting, *[-1] * (len(types) - 1)], len(types)):
            rate = {job: rates[job, types[gpu]] for gpu, job in enumerate(chosen) if job >= 0}
            if not rate:
                continue
            ends = {job: left[job] / rate[job] for job in rate}
            length = min(round_s, max(ends.values()))
            after = tuple(round(max(0.0, s - length * rate.get(job, 0.0)), 6) for job, s in enumerate(left))
            present = sum(min(ends.get(job, np.inf), length) for job in waiting)
            least = min(least, present + cost(after))
        return float(least)

    return cost(tuple(workload.steps.tolist())) / len(workload)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Networks this small are slower on several threads."""
    torch = pytest.importorskip("torch")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("seed", range(2))
def test_a_policy_learns_the_optimum(seed: int) -> None:
    """MaskablePPO's greedy policy reaches the brute-force mean JCT in seconds; SRTF is over 10 % above it."""
    ppo = pytest.importorskip("sb3_contrib").MaskablePPO
    from stable_baselines3.common.vec_env import DummyVecEnv

    workload, cluster = tiny(), Cluster.parse("fast:1 slow:1")
    best = best_mean_jct(workload, cluster, 100.0)
    srtf = simulate(workload, cluster, make_scheduler("srtf"), round_s=100, restart_s=0).metrics["mean_jct_s"]
    assert srtf > 1.1 * best

    def make() -> SequentialAllocation:
        options: dict[str, Any] = {"window": 4, "round_s": 100, "restart_s": 0, "nodes": False, "mixing": False}
        return wrapped(workload, cluster, **options)

    def greedy(model: Any, env: SequentialAllocation) -> float:
        observation, _ = env.reset(seed=0)
        for _ in range(300):
            action, _ = model.predict(observation, deterministic=True, action_masks=env.action_masks())
            observation, _, done, _, info = env.step(action)
            if done:
                return float(info["mean_jct_s"])
        return np.inf

    model = ppo(
        "MultiInputPolicy",
        DummyVecEnv([make] * 8),
        n_steps=64,
        batch_size=128,
        n_epochs=8,
        gamma=1.0,
        learning_rate=1e-3,
        ent_coef=0.02,
        policy_kwargs={"net_arch": [64]},
        seed=seed,
        device="cpu",
    )
    env, reached = make(), np.inf
    for _ in range(40):
        model.learn(512, reset_num_timesteps=False)
        reached = min(reached, greedy(model, env))
        if reached <= best * (1 + 1e-9):
            break
    assert reached == pytest.approx(best, rel=1e-9)
