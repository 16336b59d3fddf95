"""The cluster environment: Gymnasium's contract, actions and allocations, rewards, masks, windows, copies."""

from __future__ import annotations

import copy
import inspect
import pickle
import textwrap
import warnings
from dataclasses import replace
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from cluster.oracle import table_of, worlds
from cluster.scripted import Scripted, fork_everywhere, greedy_mix
from cluster.test_cases import read
from gymnasium.utils.env_checker import check_env
from hypothesis import assume, given, settings, strategies as st

from hadoppler import make_scheduler
from hadoppler.baselines.cluster.registry import SCHEDULERS
from hadoppler.envs.cluster import (
    Allocation,
    Cluster,
    ClusterSchedulingEnv,
    Job,
    NodeEvent,
    Simulation,
    Workload,
    make_workload,
    replay,
    simulate,
)
from hadoppler.envs.cluster.actions import ActionLayout
from hadoppler.envs.cluster.features import FEATURE_LIMIT, global_feature_names, job_feature_names
from hadoppler.envs.errors import AllocationError, ClusterError, TraceError, UnknownNameError

NAME = "hadoppler/ClusterScheduling-v0"
ALL = [
    *[(name, {}) for name in SCHEDULERS if name != "replay"],
    ("gavel", {"objective": "fifo", "aware": False}),
    ("hadar", {"mode": "horizon"}),
]
"""Every scheduler that the registry knows."""


def few_gavel(rng: np.random.Generator) -> Workload:
    """Three to six jobs of Gavel's kinds."""
    return make_workload("gavel", jobs=int(rng.integers(3, 7)), seed=int(rng.integers(1000)), per_hour=6)


OPTIONS: list[dict[str, Any]] = [
    {},
    {"forking": True, "cluster": "equal5", "workload": "physical", "jobs": 6, "window": 4},
    {"nodes": False, "reward": "ttd", "early_refill": True, "mixing": False, "mixed_rate": "min"},
    {"workload": few_gavel, "cluster": "v100:2+k80:2x2 p100:4", "window": 5, "illegal_action": "terminate"},
    {"workload": [make_workload("physical", seed=s) for s in range(3)], "cluster": "lab_like", "flat": False},
]


def unit(steps: list[float], workers: int | list[int] = 1, arrival: float | list[float] = 0.0) -> Workload:
    """Jobs that do 4, 2 and 1 steps/s on fast, middle and slow GPUs, whatever their workers."""
    count = len(steps)
    gpus = workers if isinstance(workers, list) else [workers] * count
    when = arrival if isinstance(arrival, list) else [arrival] * count
    jobs = [Job(f"j{i}", when[i], gpus[i], steps[i], "m0") for i in range(count)]
    return Workload(tuple(jobs), table_of([[4.0, 2.0, 1.0]]))


def equal(first: dict[str, Any], second: dict[str, Any]) -> None:
    assert first.keys() == second.keys()
    for name in first:
        np.testing.assert_array_equal(first[name], second[name], err_msg=name)


def run(env: gym.Env, seed: int | None, rng: np.random.Generator, rounds: int = 60) -> tuple[list, list, dict]:
    """Rounds of one episode, decided at random among allocations that fit; observations, rewards, last info."""
    observation, info = env.reset(seed=seed)
    base: Any = env.unwrapped
    observations, rewards, random = [observation], [], make_scheduler("random")
    random.reset(base.cluster, 360.0, rng)
    while not base.over and len(rewards) < rounds:
        observation, reward, _, truncated, info = env.step(base.encode(random.schedule(base.view)))
        assert not truncated
        observations.append(observation)
        rewards.append(reward)
    return observations, rewards, info


@pytest.mark.parametrize("options", OPTIONS)
def test_gymnasium_accepts_it(options: dict) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(gym.make(NAME, **options).unwrapped)


@pytest.mark.parametrize("options", [options for options in OPTIONS if options.get("flat", True)])
def test_stable_baselines3_accepts_it(options: dict) -> None:
    checker = pytest.importorskip("stable_baselines3.common.env_checker")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        checker.check_env(gym.make(NAME, **options).unwrapped)


def test_names_and_rendering() -> None:
    options: dict[str, Any] = {"workload": unit([4000.0, 900.0]), "cluster": "fast:2 slow:1"}
    env = gym.make(f"hadoppler:{NAME}", **options, render_mode="rgb_array")
    env.reset(seed=0)
    empty = env.render()
    assert isinstance(empty, np.ndarray)
    assert empty.dtype == np.uint8
    assert empty.shape[2] == 3
    list(replay(env, make_scheduler("srtf")))
    env.reset(seed=0)
    env.step(env.unwrapped.encode(make_scheduler("srtf").schedule(env.unwrapped.view)))
    assert not np.array_equal(empty, env.render())
    text = gym.make(NAME, **options, render_mode="ansi")
    text.reset(seed=0)
    text.step(text.unwrapped.encode(make_scheduler("srtf").schedule(text.unwrapped.view)))
    assert text.render() == "360 s: 2 of 3 GPUs held, 0 jobs outside the window\n      n0 fast[0 1]\n      n1 slow[.]"
    with pytest.raises(AllocationError, match="render_mode"):
        ClusterSchedulingEnv(render_mode="human")


def test_the_example_of_the_docstring_runs(capsys: pytest.CaptureFixture[str]) -> None:
    _, example = inspect.cleandoc(ClusterSchedulingEnv.__doc__ or "").split("Example::")
    exec("import gymnasium, hadoppler\n" + textwrap.dedent(example), {})
    assert float(capsys.readouterr().out) > 0.9


def test_golden_episode() -> None:
    """Two jobs of one worker and one of two on 2 fast and 2 slow GPUs, rounds of 100 s, restarts of 10 s.

    Slots: (n0, fast) 2, (n1, slow) 2. Round 1: job 0 (800 steps) on fast, job 1 (120 steps) on slow. They have
    done 360 and 90 steps at 100 s. Round 2: job 0 goes on, job 1 moves to fast: its 30 steps end at 117.5 s,
    job 0's other 440 are 400 at 200 s. Round 3: job 0's last 40 end at 210 s, job 2 (arrived at 150; 180 steps at
    1/s on slow) from 210 to 390 s, seen at 200 s: in round 4, from 300 s, it goes on.
    """
    workload = unit([800.0, 120.0, 180.0], [1, 1, 2], [0.0, 0.0, 150.0])
    env = ClusterSchedulingEnv(workload, "fast:2 slow:2", window=3, round_s=100, restart_s=10, flat=False)
    assert env.action_space.nvec.tolist() == [3, 3] * 3
    observation, _ = env.reset(seed=0)
    scale = (800 / 4 + 120 / 4 + 180 / 4) / 3 + 10
    assert env.scale == pytest.approx(scale)
    assert observation["free"].tolist() == [2, 2]
    assert observation["action_mask"].reshape(3, 2, 3).tolist() == [[[1, 1, 0]] * 2, [[1, 1, 0]] * 2, [[1, 0, 0]] * 2]
    rewards, infos = [], []
    for action in ([1, 0, 0, 1, 0, 0], [1, 0, 1, 0, 0, 0], [1, 0, 0, 2, 0, 0], [0, 2, 0, 0, 0, 0]):
        observation, reward, done, _, info = env.step(np.array(action))
        rewards.append(reward * 3 * scale)
        infos.append((info["time"], done, info["illegal_action"]))
        if len(rewards) == 1:
            assert observation["held"].tolist() == [[1, 0], [0, 1], [0, 0]]
            names = job_feature_names(env.cluster.types)
            first = dict(zip(names, observation["job_features"][1].tolist(), strict=True))
            assert first["remaining"] == pytest.approx(np.log1p(30 / 4 / 100))
            assert first["progress"] == pytest.approx(0.75)
            assert (first["held_rate"], first["rate[slow]"], first["held[slow]"]) == (0.25, 0.25, 1.0)
            assert (first["rank_remaining"], first["attained"]) == (0.0, pytest.approx(np.log(2)))
    np.testing.assert_allclose(rewards, [-200, -100 - 17.5 - 50, -10 - 100, -90])
    assert infos == [(100.0, False, False), (200.0, False, False), (300.0, False, False), (390.0, True, False)]
    assert info["mean_jct_s"] == pytest.approx((210 + 117.5 + 240) / 3)
    assert info["ttd_s"] == pytest.approx(390)
    assert (info["finished"], info["left_out"]) == (3, 0)


@pytest.mark.parametrize("refill", [False, True])
@pytest.mark.parametrize(("name", "options"), ALL)
def test_every_scheduler_acts_through_it_as_in_the_simulator(name: str, options: dict, refill: bool) -> None:
    workload, cluster = make_workload("headline", jobs=9, seed=4, per_hour=4), Cluster.parse("v100:4x2 p100:4 k80:4x2")
    failures = [NodeEvent(9000.0, "n0", "fail"), NodeEvent(20000.0, "n0", "restore")]
    rules = {"early_refill": refill, "failures": failures, "round_s": 1200.0}
    expected = simulate(workload, cluster, make_scheduler(name, **options), seed=5, **rules)
    scheduler = make_scheduler(name, **options)
    env = ClusterSchedulingEnv(workload, cluster, mixing=scheduler.mixes, forking=scheduler.forks, **rules)
    steps = list(replay(env, scheduler, seed=5))
    result = env.result(name)
    assert expected.jobs.finish.tolist() == result.jobs.finish.tolist()
    assert expected.jobs.restarts.tolist() == result.jobs.restarts.tolist()
    assert result.metrics["mean_jct_s"] == expected.metrics["mean_jct_s"]
    assert not any(step.info["illegal_action"] for step in steps)
    assert sum(step.reward for step in steps) * env.scale == pytest.approx(-expected.metrics["mean_jct_s"], rel=1e-9)


def test_forks_act_through_it_as_in_the_simulator() -> None:
    workload, cluster = make_workload("physical", jobs=4, seed=2), Cluster.built_in("aws_like")
    forking = Scripted(fork_everywhere, forks=True)
    expected = simulate(workload, cluster, forking)
    env = ClusterSchedulingEnv(workload, cluster, forking=True)
    steps = list(replay(env, forking))
    assert expected.jobs.finish.tolist() == env.result().jobs.finish.tolist()
    assert not any(step.info["illegal_action"] for step in steps)


@given(worlds(), st.sampled_from(["mean_jct", "ttd"]), st.booleans(), st.sampled_from([0.0, 10.0]))
@settings(max_examples=60)
def test_rewards_telescope(world: tuple[Workload, Cluster], reward: Any, refill: bool, restart_s: float) -> None:
    workload, cluster = world
    env = ClusterSchedulingEnv(
        workload, cluster, window=7, reward=reward, early_refill=refill, round_s=30, restart_s=restart_s
    )
    try:
        env.reset(seed=0)
    except ClusterError:
        assume(False)
    steps = list(replay(env, Scripted(greedy_mix)))
    metric = {"mean_jct": "mean_jct_s", "ttd": "ttd_s"}[reward]
    result = env.result().metrics
    assert steps[-1].info[metric] == result[metric]
    assert sum(step.reward for step in steps) * env.scale == pytest.approx(-result[metric], rel=1e-9)
    assert all(step.reward <= 0 for step in steps)
    assert env.scale <= result[metric] + restart_s + 1e-9


@given(worlds(), st.data())
@settings(max_examples=120)
def test_decoding_refuses_exactly_what_the_simulator_refuses(world: tuple[Workload, Cluster], data: Any) -> None:
    """Random numbers, made often enough to add up: legal alone if and only if the simulator takes them."""
    workload, cluster = world
    layout = ActionLayout(cluster, 7)
    sim = Simulation(workload, cluster)
    view = sim.next_view()
    assume(view is not None)
    assert view is not None
    node, gpu_type = layout.slots
    matrix = np.zeros((7, len(layout.room)), np.int64)
    for row in range(len(view)):
        left = int(view.workers[row]) if data.draw(st.booleans()) else 0
        for slot in data.draw(st.permutations(range(len(layout.room)))):
            matrix[row, slot] = min(left, int(data.draw(st.integers(0, int(layout.room[slot])))))
            left -= matrix[row, slot]
    given_to = [row for row in range(len(view)) if matrix[row].any()]
    dense = np.zeros((len(view), *cluster.capacity.shape), np.int64)
    dense[:, node, gpu_type] = matrix[: len(view)]
    expected = []
    for row in given_to:
        rows = [(int(view.job[i]), 0, dense[i]) for i in [*expected, row]]
        try:
            copy.deepcopy(sim).apply(Allocation.from_rows(rows))
            expected.append(row)
        except AllocationError:
            pass
    before = matrix.copy()
    allocation, wrong = layout.decode(view, matrix.reshape(-1))
    np.testing.assert_array_equal(matrix, before)
    assert allocation.job.tolist() == view.job[expected].tolist()
    assert wrong == min(set(given_to) - set(expected), default=-1)
    np.testing.assert_array_equal(allocation.gpus(cluster), dense[expected])
    mask = np.split(layout.mask(view), np.cumsum(np.tile(layout.room + 1, 7))[:-1])
    for row in expected:
        assert all(mask[row * len(layout.room) + slot][matrix[row, slot]] for slot in range(len(layout.room)))


@pytest.mark.parametrize(
    ("row", "fits", "gangs"),
    [
        ([2, 0, 0, 0], True, 1),
        ([1, 1, 0, 0], True, 1),
        ([2, 0, 2, 0], True, 2),
        ([1, 1, 0, 2], True, 2),
        ([1, 1, 1, 1], True, 2),
        ([1, 0, 1, 0], True, 1),
        ([3, 0, 1, 0], False, 0),
        ([2, 2, 0, 0], False, 0),
        ([1, 0, 0, 0], False, 0),
        ([2, 0, -2, 2], False, 0),
    ],
)
def test_copies_of_a_job(row: list[int], fits: bool, gangs: int) -> None:
    """Two workers, two nodes of 3 fast and 2 slow GPUs each."""
    workload = unit([1000.0], 2)
    env = ClusterSchedulingEnv(workload, "fast:3+slow:2x2", window=1, forking=True)
    env.reset(seed=0)
    *_, info = env.step(np.array(row))
    assert info["illegal_action"] is not fits
    assert len(env.allocation) == gangs
    assert env.allocation.copy.tolist() == list(range(gangs))
    for plain in (True, False):
        other = ClusterSchedulingEnv(workload, "fast:3+slow:2x2", window=1, mixing=plain)
        other.reset(seed=0)
        *_, info = other.step(np.array(row))
        one_type = (row[0] + row[2] == 0) or (row[1] + row[3] == 0)
        assert info["illegal_action"] is not (gangs == 1 and (plain or one_type))


@given(worlds())
@settings(max_examples=40)
def test_allocations_become_actions_and_come_back(world: tuple[Workload, Cluster]) -> None:
    workload, cluster = world
    layout, sim = ActionLayout(cluster, 8), Simulation(workload, cluster)
    for _ in range(4):
        view = sim.next_view()
        if view is None:
            break
        allocation = greedy_mix(view)
        action = layout.encode(view, allocation)
        assert action in layout.space()
        back, wrong = layout.decode(view, action)
        assert wrong == -1
        for name in ("job", "copy", "ptr", "node", "gpu_type", "count"):
            np.testing.assert_array_equal(getattr(back, name), getattr(allocation, name))
        sim.apply(back)


@pytest.mark.parametrize("window", [1, 3])
@pytest.mark.parametrize("forking", [False, True])
@pytest.mark.parametrize("mixing", [False, True])
def test_allocations_keep_to_the_environments_options(mixing: bool, forking: bool, window: int) -> None:
    """Given as they are or as actions: copies, gangs on several types, jobs outside the window."""
    one, other, both = np.zeros((3, 3, 2), np.int64)
    one[0, 0] = other[1, 0] = both[0, 0] = both[2, 1] = 1
    cases = {
        "a job has several gangs": (Allocation.from_rows([(0, 0, one), (0, 1, other)]), forking),
        "a gang stands on several GPU types": (Allocation.from_rows([(1, 0, both)]), mixing and window > 1),
        "outside the window": (Allocation.from_rows([(2, 0, one)]), window > 2),
    }
    for what, (allocation, allowed) in cases.items():
        env = ClusterSchedulingEnv(
            unit([500.0] * 3, [1, 2, 1]), "fast:1 fast:1 slow:2", mixing=mixing, forking=forking, window=window
        )
        env.reset(seed=0)
        for call in (env.check, env.encode, env.step):
            if allowed:
                call(allocation)
                continue
            with pytest.raises(AllocationError, match=f"{what}|outside the window"):
                call(allocation)
            assert env.simulation.time == 0


def test_what_a_scheduler_does_and_the_environment_does_not_is_no_waiting_in_a_replay() -> None:
    workload = unit([500.0, 500.0], [2, 1])
    env = ClusterSchedulingEnv(workload, "fast:1 fast:1 slow:2", mixing=False)
    with pytest.raises(AllocationError, match="several GPU types"):
        list(replay(env, Scripted(lambda view: Allocation.from_rows([(0, 0, [[1, 0], [0, 0], [0, 1]])]))))


def test_what_no_action_tells_is_named_and_may_be_given_as_it_is() -> None:
    env = ClusterSchedulingEnv(unit([500.0, 500.0], 1), "fast:1 fast:1 slow:2", window=1, forking=True)
    env.reset(seed=0)
    assert (len(env.view), env.queue) == (1, 1)
    one, other, both = np.zeros((3, 3, 2), np.int64)
    one[0, 0] = other[1, 0] = both[2, 1] = 1
    with pytest.raises(AllocationError, match="outside the window"):
        env.encode(Allocation.from_rows([(1, 0, one)]))
    with pytest.raises(AllocationError, match="refused jobs or shares"):
        env.encode(replace(Allocation.from_rows([(0, 0, one)]), refused=[1]))
    with pytest.raises(AllocationError, match="node for each copy"):
        env.encode(Allocation.from_rows([(0, 0, both), (0, 1, both)]))
    shares = Allocation.from_rows([(0, 0, one), (0, 1, other)], share=[100.0, 400.0])
    with pytest.raises(AllocationError, match="refused jobs or shares"):
        env.encode(shares)
    assert env.actions_for(shares) == [shares]
    env.step(shares)
    assert env.simulation.state.jobs.finish[0] == pytest.approx(10 + 400 / 4 + 15)
    plain = ClusterSchedulingEnv(unit([500.0]), "fast:1 fast:1")
    plain.reset(seed=0)
    with pytest.raises(AllocationError, match="forking=True"):
        plain.encode(Allocation.from_rows([(0, 0, one[:2, :1]), (0, 1, other[:2, :1])]))


@pytest.mark.parametrize("masked", [True, False])
def test_h17_masks_are_never_empty_and_nothing_crashes(masked: bool) -> None:
    """The case itself (one GPU, a job that never fits), and a mixed cluster with a narrow window."""
    for options in (
        {"workload": read("H17_no_fit.trace"), "cluster": "v100:1", "window": 3},
        {"workload": few_gavel, "cluster": "v100:2+k80:2x2 p100:4", "window": 4, "forking": True, "early_refill": True},
    ):
        env = ClusterSchedulingEnv(**options, round_s=100, max_idle_rounds=30)
        sizes = np.cumsum(env.action_space.nvec)[:-1]
        env.action_space.seed(0)
        observation, info = env.reset(seed=0)
        for _ in range(1000):
            mask = info["action_mask"]
            assert mask.dtype == np.int8
            parts = np.split(mask, sizes)
            assert all(part[0] == 1 for part in parts), "to give nothing is always legal"
            np.testing.assert_array_equal(mask, observation["action_mask"])
            np.testing.assert_array_equal(mask, env.action_masks())
            action = env.action_space.sample(tuple(parts)) if masked else env.action_space.sample()
            view = env.view
            observation, reward, done, truncated, info = env.step(action)
            assert np.isfinite(reward)
            assert not truncated
            assert observation in env.observation_space
            used = env.allocation.gpus(env.cluster).sum(axis=0)
            assert (used <= view.free).all()
            if done:
                assert info["action_mask"].any()
                observation, info = env.reset()


def test_h17_ends_without_the_job_that_never_fits() -> None:
    env = ClusterSchedulingEnv(read("H17_no_fit.trace"), "v100:1", round_s=100, restart_s=0)
    last = list(replay(env, make_scheduler("srtf")))[-1].info
    assert (last["finished"], last["left_out"], last["mean_jct_s"]) == (2, 1, 600.0)


@pytest.mark.parametrize("options", OPTIONS[1:])
def test_h18_three_episodes_repeat(options: dict) -> None:
    """Only the first reset is seeded; the global generator must play no part."""
    episodes = []
    for disturb in (1, 2):
        np.random.seed(disturb)  # noqa: NPY002
        env, rng = gym.make(NAME, **options), np.random.default_rng(0)
        episodes.append([run(env, 123 if k == 0 else None, rng) for k in range(3)])
    for (observations, rewards, info), (others, other_rewards, other_info) in zip(*episodes, strict=True):
        for first, second in zip(observations, others, strict=True):
            equal(first, second)
        assert rewards == other_rewards
        assert info["time"] == other_info["time"]


def test_seeds_differ() -> None:
    env = ClusterSchedulingEnv(jobs=5)
    drawn = {float(env.reset(seed=seed)[0]["job_features"].sum()) for seed in range(4)}
    assert len(drawn) == 4


def test_illegal_rows_are_left_out_at_a_penalty() -> None:
    env = ClusterSchedulingEnv(unit([4000.0] * 3), "fast:1 slow:1", window=4, illegal_penalty=0.25, round_s=100)
    env.reset(seed=0)
    _, reward, done, _, info = env.step(np.array([1, 0, 1, 0, 0, 1, 0, 0]))  # the second asks what the first has
    assert (done, info["illegal_action"]) == (False, True)
    assert env.allocation.job.tolist() == [0, 2]
    assert reward == pytest.approx(-100 / env.scale - 0.25)
    for wild in (np.full(8, 10**12), np.full(8, -3), np.array([0, 0, 0, 0, 0, 0, 1, 0])):
        *_, info = env.step(wild)
        assert info["illegal_action"]
        assert len(env.allocation) == 0
    for malformed in ([0] * 7, [0.5] * 8, 3):
        with pytest.raises(AllocationError, match="expected 4 x 2 whole numbers"):
            env.step(malformed)


def test_illegal_actions_end_the_episode_worse_than_any_schedule() -> None:
    workload = unit([400.0, 800.0, 50.0], [1, 2, 1], [0.0, 0.0, 500.0])
    for reward in ("mean_jct", "ttd"):
        env = ClusterSchedulingEnv(workload, "fast:2 slow:2", window=3, reward=reward, illegal_action="terminate")
        env.reset(seed=0)
        observation, forfeit, done, _, info = env.step(np.array([2, 0, 0, 0, 0, 0]))
        assert (done, info["illegal_action"], "mean_jct_s" in info) == (True, True, False)
        assert observation in env.observation_space
        assert env.step(env.actions.nothing())[1:3] == (0.0, True)
        worst = sum(step.reward for step in replay(env, make_scheduler("random")))
        assert forfeit < worst


def test_illegal_actions_raise() -> None:
    env = ClusterSchedulingEnv(unit([400.0, 800.0]), "fast:1 slow:1", window=3, illegal_action="raise")
    before, _ = env.reset(seed=0)
    with pytest.raises(AllocationError, match="job 'j1'"):
        env.step(np.array([1, 0, 1, 0, 0, 0]))
    with pytest.raises(AllocationError, match="no job"):
        env.step(np.array([1, 0, 0, 0, 0, 1]))
    equal(before, env.observe())
    assert list(replay(env, make_scheduler("srtf")))[-1].terminated


def test_a_step_after_the_end_does_nothing() -> None:
    env = ClusterSchedulingEnv(unit([400.0]), "fast:1")
    with pytest.raises(gym.error.ResetNeeded):
        env.step(env.actions.nothing())
    last = list(replay(env, make_scheduler("srtf")))[-1].info
    _, reward, done, _, info = env.step(env.actions.nothing())
    assert (reward, done, info["mean_jct_s"]) == (0.0, True, last["mean_jct_s"])
    with pytest.raises(AllocationError, match="call reset"):
        env.encode(Allocation.empty())
    env.reset()
    with pytest.raises(AllocationError, match="not over"):
        env.result()


def test_waiting_for_ever_is_given_up_and_costs() -> None:
    env = ClusterSchedulingEnv(unit([400.0]), "fast:1", max_idle_rounds=5)
    env.reset(seed=0)
    rewards, done = [], False
    while not done:
        _, reward, done, _, info = env.step(env.actions.nothing())
        rewards.append(reward * env.scale)
    assert rewards == pytest.approx([-360.0] * 6)
    assert (info["finished"], info["left_out"], info["mean_jct_s"]) == (0, 1, np.inf)


def test_more_jobs_than_the_window_wait_by_age() -> None:
    env = ClusterSchedulingEnv(
        unit([400.0 * (i + 1) for i in range(6)], 1), "fast:2", window=3, round_s=100, restart_s=0
    )
    observation, _ = env.reset(seed=0)
    whole = dict(zip(global_feature_names(env.cluster.types), observation["global_features"].tolist(), strict=True))
    assert env.view.job.tolist() == [0, 1, 2]
    assert env.queue == 3
    assert (whole["queue"], whole["jobs"]) == (pytest.approx(np.log(4)), pytest.approx(np.log(4)))
    env.step(np.array([1, 0, 1]))
    assert env.view.job.tolist() == [1, 2, 3]
    list(replay(env, make_scheduler("yarn_cs")))
    assert env.result().jobs.finish.tolist() == [100.0, 200.0, 400.0, 600.0, 900.0, 1200.0]


def test_who_runs_is_never_outside_the_window() -> None:
    """A refill gives GPUs to a job from behind; at the next round it is in the window, an older one is not."""
    workload = unit([400.0, 4000.0, 9000.0, 9000.0, 4000.0], [1, 1, 4, 4, 1])
    env = ClusterSchedulingEnv(workload, "fast:4", window=3, round_s=200, restart_s=0, early_refill=True)
    env.reset(seed=0)
    env.step(np.array([1, 1, 0]))
    assert (env.view.time, env.view.mid_round, env.view.job.tolist()) == (100.0, True, [2, 3, 4])
    env.step(np.array([0, 0, 1]))
    assert (env.view.time, env.view.mid_round, env.view.job.tolist()) == (200.0, False, [1, 2, 4])
    assert env.queue == 1


@pytest.mark.parametrize("clone", [copy.deepcopy, lambda env: pickle.loads(pickle.dumps(env))])
def test_copies_go_on_alike(clone: Any) -> None:
    env = ClusterSchedulingEnv(OPTIONS[4]["workload"], "lab_like", restart_s=5)
    run(env, 0, np.random.default_rng(0), rounds=3)
    twin = clone(env)
    assert twin.observation_space == env.observation_space
    assert twin.action_space == env.action_space
    ends = [run(item, None, np.random.default_rng(5)) for item in (env, twin)]
    assert ends[0][1] == ends[1][1]
    equal(ends[0][0][-1], ends[1][0][-1])


def test_subprocesses() -> None:
    vec = pytest.importorskip("stable_baselines3.common.vec_env")
    make = partial(gym.make, "hadoppler:" + NAME, workload="physical", cluster="equal5", jobs=3, window=3)
    envs = vec.SubprocVecEnv([make] * 2)
    try:
        envs.seed(0)
        observation = envs.reset()
        assert observation["job_features"].shape[0] == 2
        _, rewards, _, infos = envs.step(np.zeros((2, 15), np.int64))
        assert (rewards < 0).all()
        assert infos[1]["action_mask"].any()
    finally:
        envs.close()


@given(worlds(), st.integers(0, 2**31), st.booleans(), st.booleans())
@settings(max_examples=40)
def test_spaces_contain_observations(world: tuple[Workload, Cluster], seed: int, flat: bool, forking: bool) -> None:
    workload, cluster = world
    env = ClusterSchedulingEnv(workload, cluster, window=4, flat=flat, forking=forking, round_s=50, max_idle_rounds=3)
    space = copy.deepcopy(env.observation_space)
    try:
        observations, rewards, _ = run(env, seed, np.random.default_rng(seed), rounds=20)
    except ClusterError:
        assume(False)
    assert env.observation_space == space
    for observation in observations:
        assert observation in space
        shaped = env.unflatten(observation)
        assert {name: array.shape for name, array in shaped.items()} == env.layout.shapes
        for name in ("job_features", "global_features"):
            assert np.isfinite(shaped[name]).all()
            assert shaped[name].max(initial=0) <= FEATURE_LIMIT
    assert np.isfinite(rewards).all()


@given(worlds(), st.sampled_from([-4, 3]))
@settings(max_examples=20)
def test_observations_do_not_depend_on_the_unit_of_time(world: tuple[Workload, Cluster], power: int) -> None:
    workload, cluster = world
    unit_s, table = 2.0**power, workload.throughputs
    scaled = replace(
        workload,
        jobs=tuple(replace(job, arrival=job.arrival * unit_s) for job in workload.jobs),
        throughputs=type(table)(table.types, table.rows, table.rates / unit_s, table.spread / unit_s),
    )
    try:
        first, rewards, _ = run(ClusterSchedulingEnv(workload, cluster, round_s=50), 0, np.random.default_rng(0))
    except ClusterError:
        assume(False)
    options = {"round_s": 50 * unit_s, "restart_s": 10 * unit_s}
    second, others, _ = run(ClusterSchedulingEnv(scaled, cluster, **options), 0, np.random.default_rng(0))
    assert rewards == pytest.approx(others, rel=1e-9)
    for one, other in zip(first, second, strict=True):
        equal(one, other)


def test_subclass_with_its_own_reward_workloads_and_observations() -> None:
    class Busy(ClusterSchedulingEnv):
        """Rewards GPUs in use; sees only the jobs' features; more jobs in every episode."""

        episodes = 0

        def __init__(self) -> None:
            super().__init__(cluster="fast:2", window=3, mixing=False)
            self.observation_space = gym.spaces.Dict({"job_features": self.observation_space["job_features"]})

        def workload(self) -> Workload:
            self.episodes += 1
            return unit([float(self.np_random.integers(100, 5000))] * self.episodes)

        def reward(self) -> float:
            return float(self.allocation.count.sum()) / self.cluster.gpus

        def observe(self) -> dict:
            return {"job_features": super().observe()["job_features"]}

    env = Busy()
    check_env(env, skip_render_check=True)
    env.episodes = 0
    env.reset(seed=0)
    assert env.step(np.array([1, 0, 0]))[1] == 0.5
    env.reset()
    assert env.step(np.array([1, 1, 0]))[1] == 1.0


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"reward": "jct"}, AllocationError, "reward is 'jct'"),
        ({"illegal_action": "ignore"}, AllocationError, "illegal_action is 'ignore'"),
        ({"illegal_penalty": -1.0}, AllocationError, "illegal_penalty is -1"),
        ({"window": 0}, AllocationError, "window is 0"),
        ({"round_s": 0.0}, ClusterError, "round_s is 0"),
        ({"forking": True, "consolidation_s": 400.0}, ClusterError, "less than a round"),
        ({"cluster": "fast"}, ClusterError, "cannot read 'fast'"),
        ({"workload": []}, ClusterError, "give at least one"),
        ({"workload": 3}, ClusterError, "workload is 3; expected a Workload, a list of them, a function that makes"),
        ({"workload": ["headline"]}, ClusterError, "number 0 of the workloads is 'headline'; expected a Workload"),
        ({"workload": "headlin"}, UnknownNameError, "did you mean headline"),
        ({"workload": "poisson"}, UnknownNameError, "come with per_hour"),
        ({"jobs": "5"}, TraceError, "jobs is '5'; expected a whole number from 1 up"),
        ({"jobs": 2.5}, TraceError, "jobs is 2.5; expected a whole number from 1 up"),
        ({"per_hour": "2"}, TraceError, "per_hour is '2'; expected a number above 0"),
        ({"cluster": 5}, ClusterError, "cluster is 5; expected a Cluster, or a text such as"),
        ({"window": "8"}, AllocationError, "window is '8'; expected a whole number from 1 up"),
        ({"illegal_penalty": "a"}, AllocationError, "illegal_penalty is 'a'; expected a number from 0"),
        ({"round_s": "a"}, ClusterError, "round_s is 'a'; expected seconds above 0"),
        ({"restart_s": None}, ClusterError, "restart_s is None; expected seconds from 0 up"),
        ({"max_idle_rounds": 2.5}, ClusterError, "max_idle_rounds is 2.5; expected a whole number from 1 up"),
    ],
)
def test_mistakes_are_named(options: dict, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        ClusterSchedulingEnv(**options)


@pytest.mark.parametrize("made", [None, "headline", [1]])
def test_what_is_no_workload_is_refused_when_it_is_drawn(made: Any) -> None:
    class Subclass(ClusterSchedulingEnv):
        def workload(self) -> Workload:
            return made

    for env in (ClusterSchedulingEnv(lambda rng: made), Subclass()):
        with pytest.raises(ClusterError, match=r"the next workload is .*must return a Workload\."):
            env.reset(seed=0)


@pytest.mark.parametrize(("value", "told"), [(None, "None"), (np.nan, "nan"), ("much", "'much'")])
def test_rewards_that_are_no_numbers_are_refused(value: Any, told: str) -> None:
    class Subclass(ClusterSchedulingEnv):
        def reward(self) -> float:
            return value

    env = Subclass(unit([400.0] * 2), "fast:1")
    env.reset(seed=0)
    with pytest.raises(AllocationError, match=rf"^reward\(\) returned {told}; expected a number at every step, 0.0"):
        env.step(env.actions.nothing())


def test_workloads_that_cannot_run_are_named() -> None:
    with pytest.raises(ClusterError, match="none of the jobs"):
        ClusterSchedulingEnv(unit([100.0], 8), "fast:1").reset(seed=0)
