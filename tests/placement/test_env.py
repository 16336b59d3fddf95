"""The placement environment: Gymnasium's contract, rewards, masks, illegal actions, copies, replays."""

import copy
import inspect
import pickle
import re
import warnings
from functools import partial
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from hypothesis import given, settings, strategies as st

import hadoppler
from hadoppler import place
from hadoppler.envs import cluster, errors, placement
from hadoppler.envs.cluster import ClusterSchedulingEnv
from hadoppler.envs.errors import MissingExtraError, PlacementError
from hadoppler.envs.placement import DataflowGraph, PlacementProblem, Topology, lower_bounds, simulate
from hadoppler.envs.placement.env import DevicePlacementEnv
from hadoppler.envs.placement.features import DEVICE_FEATURES, NODE_FEATURES, static_features
from hadoppler.envs.placement.replaying import replay
from hadoppler.envs.placement.workloads import fork_join, layered_random, random_program

NAME = "hadoppler/DevicePlacement-v0"


def diamond(**options):
    """0 feeds 1 and 2, both feed 3; two devices, one unit of time per byte."""
    graph = DataflowGraph.build(
        flops=[2, 3, 4, 1], edges=[(0, 1), (0, 2), (1, 3), (2, 3)], edge_bytes=[1, 1, 2, 2], **options
    )
    return PlacementProblem.raw(graph, 2)


def small(seed=0):
    return PlacementProblem(fork_join(branches=3, length=2, stages=2, seed=seed), Topology.preset("mixed"))


def sharded():
    return PlacementProblem(random_program(operations=6, size=512, pieces=3, seed=1), Topology.preset("mixed"))


BUDGETS = {"cp_sat": {"seconds": 1.0, "workers": 1}}


def draw_small(rng):
    return PlacementProblem(layered_random(layers=3, width=int(rng.integers(2, 4)), seed=rng), Topology.preset("mixed"))


def equal(first, second):
    assert first.keys() == second.keys()
    for name in first:
        np.testing.assert_array_equal(first[name], second[name], err_msg=name)


def run(env, choose, seed=None):
    """One episode; returns observations, rewards and the last info."""
    observation, info = env.reset(seed=seed)
    observations, rewards, done = [observation], [], False
    while not done:
        observation, reward, done, truncated, info = env.step(choose(info))
        assert not truncated
        observations.append(observation)
        rewards.append(reward)
    return observations, rewards, info


def legal_at_random(rng):
    def choose(info):
        legal = np.argwhere(info["action_mask"])
        return legal[rng.integers(len(legal))]

    return choose


OPTIONS = [
    {},
    {"edges": False, "reward": "dense"},
    {"flat": False, "noise": 0.1, "order": "random"},
    {"graph": "ffnn", "topology": "mixed", "order": "priority", "contention": "none", "illegal_action": "terminate"},
    {"problem": draw_small, "max_operations": 9, "max_edges": 30, "devices": 5},
    {"problem": [small(0), diamond(), small(2)]},
]


def test_the_page_tells_the_spaces():
    """Names, types and shapes of the table in docs/placement.md are those of the space."""
    page = (Path(__file__).resolve().parents[2] / "docs" / "placement.md").read_text(encoding="utf-8")
    env = DevicePlacementEnv(small(), flat=False)
    sizes = {"N": env.layout.max_operations, "E": env.layout.max_edges, "D": env.layout.devices}
    told = {}
    for names, spaces in re.findall(r"^\| (`[^|]+) \| (\w*(?:float|int)[^|]+) \|", page, flags=re.MULTILINE):
        kind = spaces.split()[0]
        found = re.findall(r"(?:(\w+) )?\[([^]]+)\]", spaces)
        for name, (other, shape) in zip(re.findall(r"`(\w+)`", names), found, strict=True):
            told[name] = (np.dtype(other or kind), tuple(int(sizes.get(part, part)) for part in shape.split(", ")))
    assert told == {name: (space.dtype, space.shape) for name, space in env.observation_space.items()}
    assert env.action_space.nvec.tolist() == [sizes["N"], sizes["D"]]


def test_the_specification_names_what_can_be_imported():
    """Constants and classes in the docstrings of both environments are in their package."""
    for package, env in ((placement, DevicePlacementEnv), (cluster, ClusterSchedulingEnv)):
        names = re.findall(r"``([A-Z]\w+(?:[a-z]\w+|_\w+))(?:\.\w+|\()?", inspect.getdoc(env))
        ours = [name for name in names if name not in {"MultiDiscrete", "Discrete", *vars(errors)}]
        assert ours
        assert [name for name in ours if not hasattr(package, name)] == []


@pytest.mark.parametrize("options", OPTIONS)
def test_gymnasium_accepts_it(options):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        env = gym.make(NAME, **options)
        check_env(env.unwrapped)


@pytest.mark.parametrize("options", [options for options in OPTIONS if options.get("flat", True)])
def test_stable_baselines3_accepts_it(options):
    checker = pytest.importorskip("stable_baselines3.common.env_checker")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        checker.check_env(gym.make(NAME, **options).unwrapped)


def test_names_and_rendering():
    env = gym.make(f"hadoppler:{NAME}", problem=diamond(), render_mode="rgb_array")
    env.reset(seed=0)
    first = env.render()
    assert first.dtype == np.uint8
    assert first.ndim == 3
    assert first.shape[2] == 3
    env.step([0, 1])
    assert not np.array_equal(first, env.render())
    text = gym.make(NAME, problem=diamond(), render_mode="ansi")
    run(text, legal_at_random(np.random.default_rng(0)))
    assert "4 of 4 placed" in text.render()
    with pytest.raises(PlacementError, match="render_mode"):
        DevicePlacementEnv(diamond(), render_mode="human")


def test_golden_episode():
    """Operation 2 stays with 0, operation 1 pays for its transfer, 3 waits for it to come back."""
    problem = diamond()
    bound = lower_bounds(problem).best
    env = DevicePlacementEnv(problem, reward="dense", flat=False)
    observation, info = env.reset(seed=0)
    assert observation["candidates"].tolist() == [1, 0, 0, 0]
    rewards = []
    for action in ([0, 0], [2, 0], [1, 1]):
        observation, reward, done, _, info = env.step(action)
        rewards.append(reward * bound)
        assert not done
    np.testing.assert_allclose(rewards, [-2, -4, 0])  # ends 2, 6, 6
    assert observation["assignment"].tolist() == [0, 1, 0, -1]
    assert info["action_mask"].tolist() == [[0, 0], [0, 0], [0, 0], [1, 1]]
    times = observation["device_features"][3, :, :6] * bound
    np.testing.assert_allclose(times, [[6, 4, 2, 6, 8, 9], [3, 3, 3, 6, 8, 9]], rtol=1e-6)
    np.testing.assert_allclose(observation["device_features"][3, :, 6:10], [[0, 1, 1, 1]] * 2)
    _, reward, done, _, info = env.step([3, 0])
    assert done
    assert info["makespan"] == 9
    assert info["bound"] == bound
    assert reward * bound == pytest.approx(-3)
    assert env.placement().makespan == 9


def test_device_features_of_unequal_devices():
    graph = DataflowGraph.build(flops=[6, 6], edges=[(0, 1)], edge_bytes=[4], out_bytes=[4, 2])
    links = np.array([[1.0, 2.0, 4.0], [2.0, 1.0, 4.0], [4.0, 4.0, 1.0]])
    topology = Topology.uniform(speeds=[1, 2, 3], bandwidth=links, memory_bytes=20)
    env = DevicePlacementEnv(PlacementProblem(graph.with_pins([[1, 1, 1], [1, 1, 0]]), topology), flat=False)
    env.reset(seed=0)
    features = dict(zip(DEVICE_FEATURES, env.step([0, 0])[0]["device_features"][1].T, strict=True))
    np.testing.assert_allclose(features["earliest_start"] * env.bound, [6, 8, 7], rtol=1e-6)
    np.testing.assert_allclose(features["earliest_end"] * env.bound, [12, 11, 9], rtol=1e-6)
    np.testing.assert_allclose(features["speed"], [0.5, 1, 1])  # device 2 is faster, but not allowed
    np.testing.assert_allclose(features["bandwidth"], [1, 0.5, 1])
    np.testing.assert_allclose(features["memory"], [6 / 20, 6 / 20, 6 / 20])
    np.testing.assert_allclose(features["allowed"], [1, 1, 0])


def test_device_features_that_tell_shards_apart():
    """Two pairs of shards, 0 1 and 2 3; sum 4 reads 0 and 2, sum 5 reads 1 and 3; 6 reads 0 again and 1 twice."""
    edges = [(0, 4), (2, 4), (1, 5), (3, 5), (0, 6), (1, 6), (1, 6)]
    graph = DataflowGraph.build(
        flops=[1] * 7,
        edges=edges,
        edge_bytes=[4, 12, 4, 12, 4, 4, 2],
        tensor=["a", "c", "b", "d", "a", "b", "e"],
        group=[7, 7, 3, 3, -1, -1, -1],
    )
    env = DevicePlacementEnv(PlacementProblem(graph, Topology.uniform(2, flops_per_s=1, bandwidth=1.0)), flat=False)
    env.reset(seed=0)

    def seen(operation: int, column: str) -> list[float]:
        return observation["device_features"][operation, :, DEVICE_FEATURES.index(column)].tolist()

    observation, *_ = env.step([0, 1])
    assert seen(2, "affinity") == [0, 1]  # sum 4's other input
    assert seen(3, "affinity") == [0, 0]  # sum 5's is not placed
    assert seen(1, "affinity") == pytest.approx([0, (4 + 4) / (12 + 6 + 8)])  # by edges
    assert seen(1, "siblings") == [0, 0.5]
    assert seen(2, "siblings") == [0, 0]
    observation, *_ = env.step([2, 0])
    observation, *_ = env.step([1, 0])
    assert seen(4, "inputs_here") == [0.75, 0.25]
    observation, *_ = env.step([4, 0])  # 0's tensor goes to device 0
    assert seen(6, "inputs_here") == pytest.approx([1, 0.4])
    scaled = {column: np.array(seen(6, column)) * env.bound for column in ("sent", "received")}
    np.testing.assert_allclose(scaled["sent"], [0, 4], rtol=1e-6)
    np.testing.assert_allclose(scaled["received"], [4, 0], rtol=1e-6)
    observation, *_ = env.step([3, 0])
    assert seen(6, "received") == pytest.approx([4 / env.bound, 0])  # nothing is sent twice, or within a device


def test_static_features():
    problem = diamond()
    features = static_features(problem)
    raw = {
        "computation": [2, 3, 4, 1],
        "b_level": [10, 6, 7, 1],
        "t_level": [0, 3, 3, 9],
        "communication_in": [0, 1, 1, 4],
        "communication_out": [2, 2, 2, 0],
        "memory": [0, 0, 0, 0],
    }
    for name, column in zip(NODE_FEATURES, features.nodes.T, strict=True):
        expected = np.array(raw[name], dtype=float)
        deviation = expected.std() or 1.0
        np.testing.assert_allclose(column, (expected - expected.mean()) / deviation, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(features.edges[:, 0], [-1, -1, 1, 1])
    assert features.next_to_exit.tolist() == [2, 3, 3, -1]
    assert features.next_to_entry.tolist() == [-1, 0, 0, 2]


@pytest.mark.parametrize("rules", [{}, {"order": "priority"}, {"noise": 0.3}, {"contention": "pair"}])
def test_dense_rewards_telescope(rules):
    for seed in range(5):
        totals = []
        for reward in ("final", "dense"):
            env = DevicePlacementEnv(small(), reward=reward, **rules)
            _, rewards, info = run(env, legal_at_random(np.random.default_rng(seed)), seed=seed)
            assert reward == "dense" or not any(rewards[:-1])
            totals.append(sum(rewards))
            assert totals[-1] == pytest.approx(-info["makespan"] / info["bound"], rel=1e-12)
        assert totals[0] == pytest.approx(totals[1], rel=1e-12)


@pytest.mark.parametrize("options", [*OPTIONS[2:], {"problem": small(), "noise": 0.2}])
def test_three_episodes_repeat(options):
    """Only the first reset is seeded; the global generator must play no part."""
    episodes = []
    for disturb in (1, 2):
        np.random.seed(disturb)  # noqa: NPY002
        env = gym.make(NAME, **options)
        rng = np.random.default_rng(0)
        episodes.append([run(env, legal_at_random(rng), seed=123 if k == 0 else None) for k in range(3)])
    for (observations, rewards, info), (others, other_rewards, other_info) in zip(*episodes, strict=True):
        for first, second in zip(observations, others, strict=True):
            equal(first, second)
        assert rewards == other_rewards
        assert info.get("makespan") == other_info.get("makespan")


def test_seeds_differ():
    env = DevicePlacementEnv(small(), noise=0.3)
    rng = np.random.default_rng
    spans = {run(env, legal_at_random(rng(0)), seed=seed)[2]["makespan"] for seed in range(4)}
    assert len(spans) == 4


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("pinned", [True, False])
def test_masks_are_never_empty(masked, pinned):
    graph = layered_random(layers=4, width=3, seed=1)
    if pinned:
        rng = np.random.default_rng(3)
        allowed = rng.random((graph.n, 4)) < 0.4
        allowed[np.arange(graph.n), rng.integers(4, size=graph.n)] = True
        graph = graph.with_pins(allowed)
    problem = PlacementProblem(graph, Topology.preset("mixed"))
    env = DevicePlacementEnv([problem, small()], flat=False)
    env.action_space.seed(0)
    choose = legal_at_random(np.random.default_rng(0))
    _, info = env.reset(seed=0)
    steps = 0
    for _ in range(1000):
        mask = info["action_mask"]
        assert mask.dtype == np.int8
        assert mask.any()
        action = choose(info) if masked else env.action_space.sample()
        was_legal = bool(mask[tuple(action)])
        observation, _, done, truncated, info = env.step(action)
        steps += 1
        assert info["illegal_action"] is (not was_legal)
        assert not truncated
        np.testing.assert_array_equal(observation["action_mask"], info["action_mask"])
        np.testing.assert_array_equal(env.action_masks(), info["action_mask"])
        np.testing.assert_array_equal(observation["candidates"], info["action_mask"].any(axis=1))
        if done:
            assert steps == env.instance.n
            assert info["action_mask"].any()
            env.instance.check_assignment(env.batch.state.assignment[0])
            _, info = env.reset()
            steps = 0


def test_illegal_actions_cost_a_penalty():
    env = DevicePlacementEnv(diamond(allowed=[[1, 1], [0, 1], [1, 1], [1, 1]]), illegal_penalty=0.25)
    env.reset(seed=0)
    _, reward, done, _, info = env.step([3, 0])  # not ready: 0 is the only candidate
    assert (reward, done, info["illegal_action"]) == (-0.25, False, True)
    assert env.batch.state.assignment[0].tolist() == [0, -1, -1, -1]
    _, reward, _, _, info = env.step([1, 0])  # forbidden device
    assert (reward, info["illegal_action"]) == (-0.25, True)
    assert env.batch.state.assignment[0].tolist() == [0, 1, -1, -1]
    for action in ([-7, 99], [10**9, -(10**9)]):
        _, reward, done, _, info = env.step(action)
        assert info["illegal_action"]
    assert done
    assert reward == pytest.approx(-info["makespan"] / info["bound"] - 0.25)


def test_illegal_actions_end_the_episode():
    env = DevicePlacementEnv(diamond(), illegal_action="terminate")
    env.reset(seed=0)
    env.step([0, 0])
    observation, reward, done, truncated, info = env.step([0, 0])
    assert (done, truncated, info["illegal_action"]) == (True, False, True)
    assert "makespan" not in info
    worst = max(
        simulate(diamond(), [a, b, c, d]).makespan for a in (0, 1) for b in (0, 1) for c in (0, 1) for d in (0, 1)
    )
    assert reward < -worst / env.bound
    assert observation in env.observation_space
    assert env.step([1, 0])[1:3] == (0.0, True)
    env.reset()
    assert not env.step([0, 0])[2]


def test_illegal_actions_raise():
    env = DevicePlacementEnv(diamond(), illegal_action="raise")
    before, _ = env.reset(seed=0)
    for action in ([1, 0], [0, 2], [-1, 0], [4, 0]):
        with pytest.raises(PlacementError, match="illegal"):
            env.step(action)
    equal(before, env.observe())
    run(env, legal_at_random(np.random.default_rng(0)))


def test_a_step_after_the_end_does_nothing():
    env = DevicePlacementEnv(diamond())
    observations, _, last = run(env, legal_at_random(np.random.default_rng(0)))
    observation, reward, done, _, info = env.step([0, 0])
    assert (reward, done, info["makespan"]) == (0.0, True, last["makespan"])
    equal(observation, observations[-1])
    with pytest.raises(gym.error.ResetNeeded):
        DevicePlacementEnv(diamond()).step([0, 0])


def test_overflowing_memory_is_penalised():
    graph = DataflowGraph.build(flops=[1, 1], out_bytes=[6, 6], edges=[(0, 1)])
    problem = PlacementProblem(graph, Topology.uniform(2, memory_bytes=12))
    env = DevicePlacementEnv(problem)
    spans = {}
    for second in (0, 1):
        env.reset(seed=0)
        env.step([0, 0])
        spans[second] = env.step([1, second])[4]["makespan"]
    assert spans[0] == 2
    assert spans[1] == 8
    tight = DevicePlacementEnv(PlacementProblem(graph, Topology.uniform(2, memory_bytes=11)))
    for second in (0, 1):
        tight.reset(seed=0)
        tight.step([0, 0])
        assert tight.step([1, second])[4]["makespan"] > 2 + 6


@pytest.mark.parametrize("clone", [copy.deepcopy, lambda env: pickle.loads(pickle.dumps(env))])
def test_copies_go_on_alike(clone):
    env = DevicePlacementEnv([small(0), small(1)], noise=0.1)
    env.reset(seed=0)
    env.step([0, 1])
    twin = clone(env)
    assert twin.observation_space == env.observation_space
    ends = []
    for item in (env, twin):
        rng, spans = np.random.default_rng(5), []
        for _ in range(3):
            choose, info, done = legal_at_random(rng), {"action_mask": item.action_masks()}, False
            while not done:
                *_, done, _, info = item.step(choose(info))
            spans.append(info["makespan"])
            item.reset()
        ends.append(spans)
    assert ends[0] == ends[1]


def test_subprocesses():
    vec = pytest.importorskip("stable_baselines3.common.vec_env")
    # a partial of what is installed: the new processes need not find this file
    envs = vec.SubprocVecEnv([partial(gym.make, "hadoppler:" + NAME, problem=small(), edges=False)] * 2)
    try:
        envs.seed(0)
        observation = envs.reset()
        assert observation["candidates"].shape == (2, small().n)
        _, rewards, _, infos = envs.step(np.array([[0, 0], [0, 1]]))
        assert rewards.tolist() == [0, 0]
        assert infos[1]["action_mask"].any()
    finally:
        envs.close()


@st.composite
def problems(draw):
    n, d = draw(st.integers(1, 8)), draw(st.integers(1, 3))
    pairs = [(a, b) for b in range(n) for a in range(b)]
    edges = draw(st.lists(st.sampled_from(pairs), max_size=15)) if pairs else []
    cost = st.one_of(st.just(0.0), st.floats(0, 1e12), st.floats(0, 1e-9))
    flops = draw(st.lists(cost, min_size=n, max_size=n))
    size = draw(st.lists(st.floats(0, 1e9), min_size=len(edges), max_size=len(edges)))
    pins = draw(st.lists(st.lists(st.booleans(), min_size=d, max_size=d).filter(any), min_size=n, max_size=n))
    graph = DataflowGraph.build(flops=flops, edges=edges, edge_bytes=size, allowed=pins)
    speeds = draw(st.lists(st.floats(0.1, 10), min_size=d, max_size=d))
    return PlacementProblem(graph, Topology.uniform(speeds=speeds, bandwidth=draw(st.sampled_from([1.0, 1e9, np.inf]))))


@settings(max_examples=60, deadline=None)
@given(problems(), st.integers(0, 2**31))
def test_spaces_contain_observations(problem, seed):
    env = DevicePlacementEnv(problem, flat=bool(seed % 2), edges=bool(seed % 3), max_operations=9, devices=4)
    assert env.observation_space == env.observation_space
    env.action_space.seed(seed)
    space = copy.deepcopy(env.observation_space)
    observations, rewards, info = run(env, lambda _: env.action_space.sample(), seed=seed)
    assert env.observation_space == space
    for observation in observations:
        assert observation in space
        shaped = env.unflatten(observation)
        assert {name: array.shape for name, array in shaped.items()} == env.layout.shapes
        assert shaped["action_mask"].any()
        assert np.all(np.isfinite(shaped["device_features"]))
    assert len(rewards) == problem.n
    assert np.isfinite(rewards).all()
    assert info["makespan"] >= lower_bounds(problem).best * (1 - 1e-9)


@pytest.mark.parametrize("order", ["fifo", "priority"])
@pytest.mark.parametrize("method", [name for name in hadoppler.PLACEMENTS if name != "file"])
def test_every_method_acts_through_the_environment(method, order):
    problem = sharded()
    try:
        placement = place(method, problem, order=order, **BUDGETS.get(method, {}))
    except MissingExtraError as error:
        pytest.skip(str(error))
    env = gym.make(NAME, problem=problem, order=order, reward="dense")
    steps = list(replay(env, placement))
    assert [int(step.action[0]) for step in steps] == placement.order.tolist()
    assert not any(step.info["illegal_action"] for step in steps)
    assert steps[-1].terminated
    assert steps[-1].info["makespan"] == placement.makespan
    np.testing.assert_array_equal(env.unwrapped.placement().assignment, placement.assignment)


@pytest.mark.parametrize("rules", [{"contention": "none"}, {"contention": "pair"}, {"contention": "ports"}])
def test_replay_obeys_the_options(rules):
    problem = small()
    placement = place("round_robin", problem)
    expected = simulate(problem, placement.assignment, **rules).makespan
    assert list(replay(gym.make(NAME, problem=problem, **rules), placement))[-1].info["makespan"] == expected
    with pytest.raises(PlacementError):
        next(replay(gym.make(NAME, problem=diamond()), placement))


def test_subclass_with_its_own_reward_and_problems():
    class Balanced(DevicePlacementEnv):
        """Rewards an even load, alternates between two problems."""

        def problem(self):
            return small(self.np_random.integers(2))

        def reward(self):
            return -float(np.ptp(self.batch.state.computed[0])) / self.bound

    env = Balanced(small())
    env.reset(seed=0)
    _, reward, *_ = env.step([0, 0])
    assert reward == pytest.approx(-env.instance.compute_s[0, 0] / env.bound)
    _, rewards, info = run(env, legal_at_random(np.random.default_rng(0)))
    assert rewards[-1] != pytest.approx(-info["makespan"] / info["bound"])
    check_env(env, skip_render_check=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"reward": "late"}, "reward is 'late'"),
        ({"order": "lifo"}, "order is 'lifo'"),
        ({"contention": "some"}, "contention is 'some'"),
        ({"illegal_action": "ignore"}, "illegal_action is 'ignore'"),
        ({"noise": -1.0}, "noise is -1"),
        ({"max_operations": 3}, "larger max_operations"),
        ({"max_edges": 3}, "larger max_edges"),
        ({"devices": 1}, "larger devices"),
        ({"problem": draw_small}, "give max_operations"),
        ({"problem": "chainmm"}, r"problem is 'chainmm'; expected a Placement.*is given as graph='chainmm'\.$"),
        ({"problem": diamond().graph}, "problem is of the type DataflowGraph; expected a PlacementProblem"),
        ({"problem": 3}, "problem is 3; expected a PlacementProblem, a list of them or a function"),
        ({"problem": []}, "the list of problems is empty; give at least one"),
        ({"problem": [diamond(), "ffnn"]}, "number 1 of the problems is 'ffnn'; expected a PlacementProblem"),
        ({"graph": "ffnn"}, "problem is given beside graph or topology, of which it consists; leave those out"),
        ({"topology": "mixed"}, "problem is given beside graph or topology"),
        ({"problem": draw_small, "graph": "ffnn"}, "problem is given beside graph or topology"),
        ({"problem": None, "graph": diamond()}, "graph is of the type PlacementProblem; expected a DataflowGraph"),
        ({"problem": None, "topology": 4}, "topology is 4; expected a Topology or a preset's name"),
        ({"max_operations": "a"}, "max_operations is 'a'; expected a whole number from 1 up"),
        ({"max_edges": 0}, "max_edges is 0; expected a whole number from 1 up"),
        ({"devices": 2.5}, "devices is 2.5; expected a whole number from 1 up"),
        ({"noise": "a"}, "noise is 'a'; expected a number from 0"),
        ({"illegal_penalty": None}, "illegal_penalty is None; expected a number from 0"),
    ],
)
def test_mistakes_are_named(options, message):
    with pytest.raises(PlacementError, match=message):
        DevicePlacementEnv(**({"problem": diamond()} | options))


@pytest.mark.parametrize("made", [None, "chainmm", [diamond()], diamond().graph])
def test_what_is_no_problem_is_refused_when_it_is_drawn(made):
    class Subclass(DevicePlacementEnv):
        def problem(self):
            return made

    sizes = {"max_operations": 9, "max_edges": 9, "devices": 4}
    for env in (DevicePlacementEnv(lambda rng: made, **sizes), Subclass(**sizes, problem=draw_small)):
        with pytest.raises(PlacementError, match=r"the next problem is .*must return a PlacementProblem\."):
            env.reset(seed=0)


@pytest.mark.parametrize(("value", "told"), [(None, "None"), (np.nan, "nan"), ("much", "'much'"), ([1.0, 2.0], r"\[")])
def test_rewards_that_are_no_numbers_are_refused(value, told):
    class Subclass(DevicePlacementEnv):
        def reward(self):
            return value

    env = Subclass(diamond())
    env.reset(seed=0)
    with pytest.raises(PlacementError, match=rf"^reward\(\) returned {told}.*; expected a number at every step, 0.0"):
        env.step([0, 0])


def test_what_illegal_actions_do_to_ones_own_reward():
    """As the docstring of the hook says: called at every step, without a makespan before the last."""
    seen = []

    class Subclass(DevicePlacementEnv):
        def reward(self):
            seen.append(self.makespan)
            return 5.0

    env = Subclass(diamond(), illegal_penalty=0.25)
    _, rewards, info = run(env, lambda _: [3, 0])
    assert rewards == [4.75, 4.75, 4.75, 5.0]
    assert seen == [None, None, None, info["makespan"]]
    env = Subclass(diamond(), illegal_action="terminate")
    _, rewards, _ = run(env, lambda _: [3, 0])
    assert rewards == [env.rules.forfeit(env.batch)]
    assert len(seen) == 4


def test_a_drawn_problem_that_does_not_fit_is_named():
    env = DevicePlacementEnv(draw_small, max_operations=2, max_edges=2, devices=4)
    with pytest.raises(PlacementError, match="larger max_operations"):
        env.reset(seed=0)


def test_import_stays_light():
    import subprocess
    import sys

    code = (
        "import sys, hadoppler; assert not {'numba', 'torch', 'scipy'} & set(sys.modules);"
        "import hadoppler.envs.placement.env; assert not {'torch', 'torch_geometric'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
