"""Drawn problems, and problems on some of their devices."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from hadoppler.agents.placement.tasks import GeneratedProblems
from hadoppler.envs.errors import PlacementError, SuiteError, TopologyError, TrainingError
from hadoppler.envs.placement import DataflowGraph, PlacementProblem, Topology, makespans
from hadoppler.envs.placement.random_problems import LEAST_OPERATIONS, MOST_OPERATIONS, draw_problem
from hadoppler.envs.placement.suites import PlacementSuite


def drawn(number: int, **options: int) -> PlacementProblem:
    return draw_problem(np.random.default_rng((7, number)), **options)


def test_the_same_seed_draws_the_same_problem() -> None:
    for number in range(10):
        first, second = drawn(number), drawn(number)
        assert first.graph.title == second.graph.title
        for name in ("flops", "out_bytes", "edge_source", "edge_target", "edge_bytes"):
            np.testing.assert_array_equal(getattr(first.graph, name), getattr(second.graph, name))
        np.testing.assert_array_equal(first.compute_s, second.compute_s)
        np.testing.assert_array_equal(first.topology.bandwidth, second.topology.bandwidth)


def test_drawn_problems_are_of_many_kinds() -> None:
    problems = [drawn(number) for number in range(60)]
    assert len({problem.graph.title for problem in problems}) >= 7
    assert {problem.d for problem in problems} == {2, 3, 4, 5, 6, 8}
    assert max(problem.n for problem in problems) <= MOST_OPERATIONS
    unequal = [bool(np.ptp(problem.compute_s, axis=1).any()) for problem in problems]
    assert 0.3 < np.mean(unequal) < 0.7
    assert {problem.contention for problem in problems} == {"ports", "none"}
    assert all(problem.n <= 50 for problem in (drawn(number, most_operations=50) for number in range(10)))


@pytest.mark.parametrize("most", [3, 0, -1, LEAST_OPERATIONS - 1, 50.0, True, None, "50"])
def test_a_limit_that_no_graph_keeps_is_refused_at_once(most: Any) -> None:
    """By everything that takes it, with its name; the least one that is taken is kept by graphs that come soon."""
    words = f"most_operations is {most!r}; expected a whole number from {LEAST_OPERATIONS} up"
    for make, error in (
        (lambda: drawn(0, most_operations=most), PlacementError),
        (lambda: PlacementSuite("mine", 0, 1, most_operations=most), SuiteError),
        (lambda: GeneratedProblems(0, most_operations=most), TrainingError),
    ):
        with pytest.raises(error, match=words):
            make()


def test_episodes_on_drawn_problems() -> None:
    env = gym.make("hadoppler/DevicePlacement-v0", problem=draw_problem, max_operations=600, max_edges=3000, devices=8)
    titles = {env.reset(seed=seed)[0] is not None and env.unwrapped.instance.graph.title for seed in range(6)}
    assert len(titles) > 1


def test_some_of_the_devices() -> None:
    """Placements on a part of the devices take as long as the same ones on all of them."""
    links = np.array([[1.0, 2.0, 4.0], [2.0, 1.0, 8.0], [4.0, 8.0, 1.0]])
    topology = Topology.uniform(speeds=[1, 2, 3], bandwidth=links, latency=0.1)
    problem = PlacementProblem(drawn(0).graph, topology, memory="off")
    part = problem.on_devices([2, 0])
    assert [device.kind for device in part.topology.devices] == ["device*3", "device"]
    assert part.topology.bandwidth[0, 1] == 4.0
    rows = np.random.default_rng(0).integers(2, size=(5, problem.n))
    np.testing.assert_array_equal(makespans(part, rows), makespans(problem, np.array([2, 0])[rows]))


def test_pins_move_with_the_devices() -> None:
    graph = DataflowGraph.build(flops=[1, 1]).with_pins([[1, 1, 0], [0, 1, 1]])
    problem = PlacementProblem(graph, Topology.uniform(3))
    assert problem.on_devices([2, 1]).allowed.tolist() == [[False, True], [True, True]]
    with pytest.raises(PlacementError, match=r"operation 1 may use none of the devices \[0\]"):
        problem.on_devices([0])
    for wrong in ([], [0, 0], [3], [-1]):
        with pytest.raises(TopologyError, match="are no devices"):
            problem.on_devices(wrong)
