"""Lower bounds: hand values, published graphs, and never above the best plan."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from placement_oracles import best_plan, problems

from hadoppler.envs.placement import DataflowGraph, PlacementProblem, Topology, lower_bounds, make_graph


@pytest.mark.parametrize(
    ("name", "bound"), [("chainmm", 1200.07), ("ffnn", 56.70), ("llama_block", 141.09), ("llama_layer", 97.25)]
)
def test_bounds_of_the_published_graphs(name: str, bound: float) -> None:
    problem = PlacementProblem.raw(make_graph(name, costs="published"))
    assert lower_bounds(problem).best / 1e10 == pytest.approx(bound, abs=0.005)


def test_a_join_waits_or_shares() -> None:
    # three producers of 2 feed one consumer; a transfer takes 3: all on one device 6 + 1, or two there
    # and one sent, max(4, 2 + 3) + 1; or one there and two sent, 5 + 1
    graph = DataflowGraph.build(flops=[2, 2, 2, 1], out_bytes=[3, 3, 3, 0], edges=[(0, 3), (1, 3), (2, 3)])
    bounds = lower_bounds(PlacementProblem.raw(graph, 3))
    assert bounds.communication == 6
    assert bounds.critical_path == 3
    assert bounds.load == pytest.approx(7 / 3)
    assert bounds.best == 6
    assert bounds.name == "communication"


def test_the_same_backwards_for_fan_outs() -> None:
    graph = DataflowGraph.build(flops=[1, 2, 2, 2], out_bytes=[3, 0, 0, 0], edges=[(0, 1), (0, 2), (0, 3)])
    assert lower_bounds(PlacementProblem.raw(graph, 3)).communication == 6


def test_load_of_unequal_devices() -> None:
    graph = DataflowGraph.build(flops=[3, 3, 3])
    assert lower_bounds(PlacementProblem(graph, Topology.uniform(speeds=(1, 0.5)))).load == pytest.approx(6)


def test_load_of_unrelated_devices_is_a_linear_program() -> None:
    # each device is fast at one of the two operations: 1 + 1 in parallel
    graph = DataflowGraph.build(flops=[0, 0], kind=["a", "b"], seconds={"x": [1, 4], "y": [4, 1]})
    topology = Topology.uniform(2)
    devices = tuple(type(topology.devices[0])(kind) for kind in ("x", "y"))
    problem = PlacementProblem(graph, Topology("xy", devices, np.asarray(1.0), np.asarray(0.0)))
    assert problem.compute_s.tolist() == [[1, 4], [4, 1]]
    assert lower_bounds(problem).load == pytest.approx(1, rel=1e-5)


def test_pins_raise_the_load() -> None:
    graph = DataflowGraph.build(flops=[2, 2, 2]).with_pins([[True, False]] * 3)
    assert lower_bounds(PlacementProblem(graph, Topology.uniform(2))).load == pytest.approx(6, rel=1e-5)


@given(problems(most=6))
@settings(max_examples=120)
def test_no_bound_exceeds_the_best_plan(problem: PlacementProblem) -> None:
    bounds = lower_bounds(problem)
    best = best_plan(problem)
    for value in (bounds.load, bounds.critical_path, bounds.communication):
        assert value <= best * (1 + 1e-9)
