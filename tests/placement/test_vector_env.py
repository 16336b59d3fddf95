"""The vector environment against the single one, the batch interface, and its speed."""

import copy
import pickle
import time
import warnings

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from hadoppler.envs.errors import PlacementError
from hadoppler.envs.placement import DataflowGraph, PlacementProblem, Topology, simulate
from hadoppler.envs.placement.env import DevicePlacementEnv
from hadoppler.envs.placement.episodes import EpisodeBatch
from hadoppler.envs.placement.features import ALLOWED, DEVICE_FEATURES, EARLIEST_END
from hadoppler.envs.placement.vector_env import DevicePlacementVectorEnv
from hadoppler.envs.placement.workloads import fork_join, layered_random, make_graph

NAME = "hadoppler/DevicePlacement-v0"


def small(seed=0):
    graph = fork_join(branches=3, length=2, stages=2, seed=seed)
    allowed = np.random.default_rng(seed).random((graph.n, 4)) < 0.7
    allowed[:, 0] |= ~allowed.any(axis=1)
    return PlacementProblem(graph.with_pins(allowed), Topology.preset("mixed"))


def make(count, **options):
    return gym.make_vec(NAME, num_envs=count, vectorization_mode="vector_entry_point", **options)


def greedy(batch):
    """The device of earliest end for the first candidate of each episode."""
    pointer, operations = batch.candidates()
    chosen = np.where(batch.done, -1, 0).astype(np.int64)
    chosen[~batch.done] = operations[pointer[:-1][~batch.done]]
    features = batch.device_features(chosen)
    end = np.where(features[:, :, ALLOWED] > 0, features[:, :, EARLIEST_END], np.inf)
    return chosen, end.argmin(axis=1)


def equal(first, second):
    assert first.keys() == second.keys()
    for name in first:
        np.testing.assert_array_equal(first[name], second[name], err_msg=name)


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"reward": "dense", "order": "priority", "edges": False},
        {"reward": "dense", "noise": 0.2, "order": "random", "flat": False},
        {"illegal_action": "terminate", "max_operations": 20, "max_edges": 50, "devices": 5},
    ],
)
@pytest.mark.parametrize("masked", [True, False])
def test_same_as_single_environments(options, masked, mode):
    """Random actions, legal or not, for three episodes and more: every number is the same."""
    problem, rng = small(), np.random.default_rng(0)
    vector = make(3, problem=problem, autoreset_mode=mode, **options)
    single = SyncVectorEnv([lambda: DevicePlacementEnv(problem, **options)] * 3, autoreset_mode=mode)
    assert vector.single_observation_space == single.single_observation_space
    assert vector.observation_space == single.observation_space
    assert vector.action_space == single.action_space
    assert vector.metadata["autoreset_mode"] is mode
    (seen, info), (expected, expected_info) = vector.reset(seed=7), single.reset(seed=7)
    equal(seen, expected)
    vector.action_space.seed(0)
    for _ in range(50):
        action = vector.action_space.sample()
        if masked:
            action = np.array([rng.permutation(np.argwhere(mask))[0] for mask in info["action_mask"]])
        seen, reward, ended, cut, info = vector.step(action)
        expected, *answers, expected_info = single.step(action)
        equal(seen, expected)
        assert seen in vector.observation_space
        for mine, theirs in zip((reward, ended, cut), answers, strict=True):
            np.testing.assert_array_equal(mine, theirs)
        for name in expected_info:
            if not name.startswith(("_", "final")):
                known = expected_info[f"_{name}"]
                np.testing.assert_array_equal(info[f"_{name}"], known)
                np.testing.assert_array_equal(info[name][known], expected_info[name][known])
        if mode is AutoresetMode.SAME_STEP and ended.any():
            np.testing.assert_array_equal(info["_final_obs"], ended)
            for b in np.flatnonzero(ended):
                equal(info["final_obs"][b], expected_info["final_obs"][b])
            for name in ("makespan", "bound", "illegal_action", "action_mask"):
                if name in expected_info["final_info"]:
                    mine, theirs = info["final_info"][name], expected_info["final_info"][name]
                    np.testing.assert_array_equal(mine, theirs)


def test_disabled_autoreset_waits():
    vector = make(2, problem=small(), autoreset_mode="Disabled", illegal_action="terminate")
    vector.reset(seed=0)
    pointer, operations = vector.batch.candidates()
    first = int(operations[: pointer[1]].min())
    legal = int(np.flatnonzero(small().allowed[first])[0])
    _, _, ended, _, _ = vector.step([[first, legal], [first + 1, 0]])
    assert ended.tolist() == [False, True]
    _, reward, ended, _, _ = vector.step([[0, 0], [first, legal]])
    assert reward[1] == 0
    assert ended[1]
    vector.reset(options={"reset_mask": np.array([False, True])})
    assert vector.batch.state.steps.tolist() == [1, 0]
    _, _, ended, _, _ = vector.step([[0, 0], [first, legal]])
    assert not ended[1]


def test_lean_observations():
    vector = make(4, graph="ffnn", observation="lean", reward="dense")
    assert vector.unwrapped.lean
    seen, _ = vector.reset(seed=0)
    total, done = np.zeros(4), np.zeros(4, bool)
    while not done.all():
        assert seen in vector.observation_space
        np.testing.assert_array_equal(seen["candidates"], vector.batch.legal_actions().max(axis=2))
        operations = seen["candidates"].argmax(axis=1)
        devices = vector.device_features(operations)[:, :, EARLIEST_END].argmin(axis=1)
        seen, reward, done, _, info = vector.step(np.stack([operations, devices], axis=1))
        total += reward
    np.testing.assert_allclose(total, -info["makespan"] / info["bound"])
    assert (info["makespan"] < 0.5 * vector.problem.compute_s[:, 0].sum()).all()
    assert (seen["candidates"].sum(axis=1) == 1).all()


def test_illegal_actions_raise_and_change_nothing():
    vector = make(2, problem=small(), illegal_action="raise")
    vector.reset(seed=0)
    legal = int(np.flatnonzero(small().allowed[0])[0])
    for wrong in ([1, 0], [0, 4], [-1, 0], [99, 0]):
        with pytest.raises(PlacementError, match="illegal"):
            vector.step([[0, legal], wrong])
    assert vector.batch.state.steps.tolist() == [0, 0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"problem": [small()]}, "takes one problem"),
        ({"problem": lambda rng: small()}, "takes one problem"),
        ({"problem": "chainmm"}, "problem is 'chainmm'; expected a PlacementProblem"),
        ({"graph": "ffnn"}, "problem is given beside graph or topology"),
        ({"num_envs": "2"}, "num_envs is '2'; expected a whole number from 1 up"),
        ({"num_envs": 0}, "num_envs is 0; expected a whole number from 1 up"),
        ({"observation": "some"}, "observation is 'some'"),
        ({"render_mode": "ansi"}, "render_mode"),
        ({"reward": "late"}, "reward is 'late'"),
    ],
)
def test_mistakes_are_named(options, message):
    with pytest.raises(PlacementError, match=message):
        DevicePlacementVectorEnv(**({"num_envs": 2, "problem": small()} | options))


@pytest.mark.parametrize(
    "actions",
    [
        np.zeros((2, 2)),
        [[0, 0], [0, np.nan]],
        [[0, 0.5], [0, 1]],
        np.zeros((2, 2), bool),
        np.zeros(4, int),
        np.zeros((2, 1), int),
        np.zeros((3, 2), int),
        0,
        None,
        [["a", "b"], ["c", "d"]],
    ],
    ids=str,
)
def test_actions_of_another_kind_are_refused(actions):
    """With one sentence, without a warning, and nothing changes; any whole numbers and memory orders are fine."""
    vector = make(2, problem=small())
    before, _ = vector.reset(seed=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(
            PlacementError, match=r"the actions have shape .* and type .*; expected 2 x 2 whole numbers:"
        ):
            vector.step(actions)
    equal(before, vector._observe())
    for taken in (np.asfortranarray([[0, 0], [0, 1]]), np.array([[0, 0], [0, 1]], np.uint8)[:, :], [[0, 0], [0, 1]]):
        vector.reset(seed=0)
        assert vector.step(taken)[0]["assignment"][:, 0].tolist() == [0, 1]


def test_made_by_name_without_warnings_and_copied():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gym.make_vec("hadoppler/DevicePlacementVector-v0", num_envs=2, problem=small())
        vector = make(2, problem=small(), noise=0.1)
        with pytest.raises(gym.error.ResetNeeded):
            vector.step(np.zeros((2, 2), int))
        vector.reset(seed=[3, None])
    vector.step([[0, 0], [0, 1]])
    for twin in (copy.deepcopy(vector), pickle.loads(pickle.dumps(vector))):
        for _ in range(60):
            action = vector.action_space.sample()
            mine, theirs = copy.deepcopy(vector).step(action), twin.step(action)
            equal(mine[0], theirs[0])
            break
    with pytest.raises(PlacementError, match="seeds"):
        vector.reset(seed=[1])


def test_batch_history_tells_every_candidate_set():
    problem = PlacementProblem(layered_random(layers=5, width=4, seed=2), Topology.preset("mixed"))
    batch, rng = EpisodeBatch(problem, 3), np.random.default_rng(0)
    sets = []
    while not batch.done.all():
        pointer, operations = batch.candidates()
        mask = np.zeros((3, problem.n), np.int8)
        mask[np.repeat(np.arange(3), np.diff(pointer)), operations] = 1
        np.testing.assert_array_equal(mask, batch.legal_actions().max(axis=2))
        news = batch.new_candidates()
        assert set(news.operations[news.pointer[1] : news.pointer[2]]) <= set(np.flatnonzero(mask[1]))
        full = batch.candidate_features()
        assert not full[mask == 0].any()
        chosen = np.array([rng.choice(np.flatnonzero(row)) for row in mask])
        features = batch.device_features(chosen)
        assert features.shape == (3, problem.d, len(DEVICE_FEATURES))
        np.testing.assert_array_equal(features, full[np.arange(3), chosen])
        sets.append(mask[1])
        batch.step(chosen, rng.integers(problem.d, size=3))
    state, mask = batch.state, np.zeros(problem.n, np.int8)
    for step in range(problem.n):  # from the history alone
        mask[state.ready[1, state.ready_ptr[1, step] : state.ready_ptr[1, step + 1]]] = 1
        np.testing.assert_array_equal(mask, sets[step])
        mask[state.order[1, step]] = 0
    for b, makespan in enumerate(batch.makespans()):
        assert makespan == simulate(problem, batch.placement(b).assignment).makespan


def test_batch_books_like_a_simulator_without_contention():
    """One operation after the other, in order: with priorities and free links both say the same."""
    graph = DataflowGraph.build(flops=[2, 3, 4, 1], edges=[(0, 1), (0, 2), (1, 3), (2, 3)], edge_bytes=[1, 1, 2, 2])
    batch = EpisodeBatch(PlacementProblem.raw(graph, 2), 2)
    for v, devices in ((0, [0, 0]), (1, [1, 0]), (2, [0, 1]), (3, [0, 0])):
        batch.step([v, v], devices)
    assert batch.planned.tolist() == batch.makespans(order="priority").tolist() == [9, 10]
    assert batch.placement(1).order.tolist() == [0, 1, 2, 3]


def test_batch_refuses_illegal_steps():
    batch = EpisodeBatch(small(), 2)
    legal = int(np.flatnonzero(small().allowed[0])[0])
    for operations, devices in (([0, 1], [legal, 0]), ([0, 0], [legal, 7]), ([0, 99], [legal, 0])):
        with pytest.raises(PlacementError, match="cannot be placed"):
            batch.step(operations, devices)
    assert batch.state.steps.tolist() == [0, 0]
    batch.step([0, -1], [legal, 0])
    assert batch.state.steps.tolist() == [1, 0]
    with pytest.raises(PlacementError, match="no candidate of episode 0"):
        batch.device_features([0, 0])
    with pytest.raises(PlacementError, match="not finished"):
        batch.makespans()
    with pytest.raises(PlacementError, match="shape"):
        batch.step([0], [0])
    with pytest.raises(PlacementError, match=r"has shape \(2,\) and type float64; expected one whole number for each"):
        batch.step([0.0, 0.0], [0, 0])
    with pytest.raises(PlacementError, match="episodes is 0"):
        EpisodeBatch(small(), 0)


def test_batch_resets_some_and_copies():
    batch = EpisodeBatch(small(), 3)
    batch.step(*greedy(batch))
    batch.reset([True, False, False])
    assert batch.state.steps.tolist() == [0, 1, 1]
    twin = pickle.loads(pickle.dumps(batch))
    for item in (batch, twin):
        while not item.done.all():
            item.step(*greedy(item))
    np.testing.assert_array_equal(batch.state.assignment, twin.state.assignment)
    np.testing.assert_array_equal(batch.makespans(), twin.makespans())
    assert len(set(batch.makespans())) == 1


def seconds_of(run, repeats=3):
    best = np.inf
    for _ in range(repeats):
        begin = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - begin)
    return best


def test_many_times_the_steps_of_a_single_environment():
    """About 65 times on a quiet machine with 64 episodes; a third of it suffices here."""
    single, vector = gym.make(NAME), make(64, observation="lean")
    single.reset(seed=0)
    vector.reset(seed=0)
    order = single.unwrapped.instance.graph.topological_order
    actions = [np.array([v, v % 4]) for v in order]
    batched = [np.tile(action, (64, 1)) for action in [*actions, actions[0]]]

    def run_single():
        single.reset()
        for action in actions:
            single.step(action)

    def run_vector():
        for action in batched:
            vector.step(action)

    assert 64 * seconds_of(run_single) > 28 * seconds_of(run_vector)


def test_cost_per_operation_does_not_grow():
    def nanoseconds(layers):
        problem = PlacementProblem(make_graph("layered_random", layers=layers, width=10), Topology.preset("4xP100"))
        batch = EpisodeBatch(problem, 4)

        def run():
            batch.reset()
            while not batch.done.all():
                batch.step(*greedy(batch))

        return seconds_of(run) / problem.n

    assert nanoseconds(1000) < 2 * nanoseconds(50)
