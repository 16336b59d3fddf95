"""The wrappers, and proof that stable-baselines3 learns through them."""

import itertools
import pickle
import warnings

import gymnasium as gym
import numpy as np
import pytest

from hadoppler import place
from hadoppler.envs.errors import PlacementError
from hadoppler.envs.placement import DataflowGraph, PlacementProblem, Topology, makespans
from hadoppler.envs.placement.replaying import replay
from hadoppler.envs.placement.workloads import fork_join
from hadoppler.envs.placement.wrappers import FlatAction, SelectThenPlace

NAME = "hadoppler/DevicePlacement-v0"


def two_chains():
    """Two chains that exchange a tensor halfway and join: 2 of 128 assignments are best."""
    graph = DataflowGraph.build(
        flops=[2, 3, 4, 3, 5, 2, 1],
        edges=[(0, 1), (1, 2), (3, 4), (4, 5), (0, 4), (2, 6), (5, 6)],
        edge_bytes=[4, 4, 1, 4, 1, 2, 2],
    )
    return PlacementProblem.raw(graph, 2)


def pinned():
    graph = fork_join(branches=3, length=2, stages=1, seed=0)
    allowed = np.ones((graph.n, 4), bool)
    allowed[2], allowed[3] = [0, 1, 0, 0], [1, 0, 0, 1]
    return PlacementProblem(graph.with_pins(allowed), Topology.preset("mixed"))


def wrapped(wrapper, problem=None, **options):
    return wrapper(gym.make(NAME, problem=problem or pinned(), **options))


@pytest.mark.parametrize("wrapper", [FlatAction, SelectThenPlace])
@pytest.mark.parametrize("action", [0.0, 1.5, np.nan, None, "0", [0, 1], np.array([0.0])], ids=str)
def test_actions_that_are_no_whole_numbers_are_refused(wrapper, action):
    env = wrapped(wrapper)
    env.reset(seed=0)
    with pytest.raises(PlacementError, match="expected one whole number"):
        env.step(action)
    for taken in (0, np.int32(0), np.array(0), np.array([0])):
        env.reset(seed=0)
        env.step(taken)


def drive(env, masked, steps=1000):
    """Random steps; checks masks, spaces and lengths."""
    env.action_space.seed(0)
    observation, info = env.reset(seed=0)
    length, lengths = 0, set()
    for _ in range(steps):
        mask = env.action_masks()
        assert mask.dtype == np.int8
        assert mask.any()
        assert observation in env.observation_space
        np.testing.assert_array_equal(mask, info["action_mask"])
        np.testing.assert_array_equal(mask, np.asarray(observation["action_mask"]).reshape(-1))
        action = env.action_space.sample(mask) if masked else env.action_space.sample()
        observation, reward, done, truncated, info = env.step(action)
        assert info["illegal_action"] is (not mask[action])
        assert np.isfinite(reward)
        assert not truncated
        length += 1
        if done:
            assert info["action_mask"].any()
            lengths.add(length)
            length = 0
            observation, info = env.reset()
    return lengths


@pytest.mark.parametrize("flat", [True, False])
@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize(("wrapper", "steps_each"), [(FlatAction, 1), (SelectThenPlace, 2)])
def test_random_steps(wrapper, steps_each, masked, flat):
    env = wrapped(wrapper, flat=flat)
    assert drive(env, masked) == {steps_each * pinned().n}


@pytest.mark.parametrize("wrapper", [FlatAction, SelectThenPlace])
def test_stable_baselines3_accepts_them(wrapper):
    checker = pytest.importorskip("stable_baselines3.common.env_checker")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        checker.check_env(wrapped(wrapper))


@pytest.mark.parametrize("wrapper", [FlatAction, SelectThenPlace])
@pytest.mark.parametrize("reward", ["final", "dense"])
def test_placements_replay_through_them(wrapper, reward):
    problem = pinned()
    placement = place("heft", problem)
    env = pickle.loads(pickle.dumps(wrapped(wrapper, problem, reward=reward)))
    steps = list(replay(env, placement, seed=0))
    assert len(steps) == problem.n * (1 if wrapper is FlatAction else 2)
    assert steps[-1].info["makespan"] == placement.makespan
    assert sum(step.reward for step in steps) == pytest.approx(-placement.makespan / steps[-1].info["bound"])
    assert not any(step.info["illegal_action"] for step in steps)


def test_flat_action_numbers():
    env = wrapped(FlatAction, two_chains())
    assert env.action_space.n == 14
    env.reset(seed=0)
    env.step(3 * 2 + 1)
    assert env.unwrapped.batch.state.assignment[0].tolist() == [-1, -1, -1, 1, -1, -1, -1]


def test_selection_and_placement():
    env = wrapped(SelectThenPlace, two_chains(), reward="dense", flat=False)
    observation, _ = env.reset(seed=0)
    assert (observation["phase"], observation["selected"]) == (0, 7)
    assert observation["action_mask"].tolist() == [1, 0, 0, 1, 0, 0, 0]
    observation, reward, *_ = env.step(3)
    assert (observation["phase"], observation["selected"], reward) == (1, 3, 0)
    assert observation["action_mask"].tolist() == [1, 1, 0, 0, 0, 0, 0]
    np.testing.assert_array_equal(observation["selected_features"], observation["device_features"][3])
    observation, reward, *_ = env.step(1)
    assert reward == pytest.approx(-3 / env.unwrapped.bound)
    assert observation["phase"] == 0
    assert observation["action_mask"].tolist() == [1, 0, 0, 0, 0, 0, 0]
    assert not observation["selected_features"].any()


def test_illegal_choices():
    env = wrapped(SelectThenPlace, pinned(), illegal_penalty=0.5)
    env.reset(seed=0)
    _, reward, _, _, info = env.step(5)
    assert (reward, info["illegal_action"], env.env.unwrapped.batch.state.steps[0]) == (-0.5, True, 0)
    _, reward, _, _, info = env.step(env.action_space.n - 1)
    assert (reward, info["illegal_action"]) == (-0.5, True)
    assert env.unwrapped.batch.state.order[0, 0] == 0
    for wrapper in (FlatAction, SelectThenPlace):
        ending = wrapped(wrapper, illegal_action="terminate")
        ending.reset(seed=0)
        _, reward, done, _, _ = ending.step(ending.action_space.n - 1)
        assert done
        assert reward == ending.unwrapped.rules.forfeit(ending.unwrapped.batch)
        assert ending.step(0)[1:3] == (0.0, True)
        raising = wrapped(wrapper, illegal_action="raise")
        raising.reset(seed=0)
        with pytest.raises(PlacementError, match="illegal"):
            raising.step(raising.action_space.n - 1)
        assert not raising.step(0)[2]


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("kind", ["maskable flat", "maskable select", "plain flat"])
def test_an_agent_learns_the_optimum(kind, seed):
    """The greedy policy reaches the brute-force optimum within 20,000 steps (2 to 4 s)."""
    ppo = pytest.importorskip("sb3_contrib").MaskablePPO
    from stable_baselines3 import PPO
    from stable_baselines3.common.vec_env import DummyVecEnv

    problem = two_chains()
    best = makespans(problem, np.array(list(itertools.product(range(2), repeat=problem.n)))).min()
    assert makespans(problem, np.zeros((1, problem.n), int))[0] >= 1.6 * best
    masked = kind.startswith("maskable")

    def make():
        return wrapped(SelectThenPlace if "select" in kind else FlatAction, problem, edges=False, reward="dense")

    def greedy(model, env):
        observation, _ = env.reset(seed=0)
        done = False
        while not done:
            masks = {"action_masks": env.action_masks()} if masked else {}
            action, _ = model.predict(observation, deterministic=True, **masks)
            observation, _, done, _, info = env.step(action)
        return info["makespan"]

    model = (ppo if masked else PPO)(
        "MultiInputPolicy",
        DummyVecEnv([make] * 8),
        n_steps=64,
        batch_size=128,
        n_epochs=8,
        gamma=1.0,
        learning_rate=1e-3,
        ent_coef=0.05,
        policy_kwargs={"net_arch": [64]},
        seed=seed,
        device="cpu",
    )
    env, reached = make(), np.inf
    for _ in range(40):
        model.learn(512, reset_num_timesteps=False)
        reached = greedy(model, env)
        if reached == best:
            break
    assert reached == best
