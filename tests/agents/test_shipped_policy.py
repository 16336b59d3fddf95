"""The policy that comes with the package: small, repeatable, and better than the portfolio on graphs it never saw."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch_geometric")

from hadoppler import place  # noqa: E402
from hadoppler.agents.placement import learned  # noqa: E402
from hadoppler.agents.placement.checkpoint import SHIPPED, load_policy  # noqa: E402
from hadoppler.agents.placement.doppler import DopplerPolicy  # noqa: E402
from hadoppler.envs.placement import PlacementProblem, Topology, make_graph, read_graph  # noqa: E402

TOPOLOGIES = (
    Topology.at_speeds("4xP100", [1, 1, 1, 1], bandwidth=3e9),
    Topology.at_speeds("4xP100", [1, 1, 0.5, 0.5], bandwidth=12e9),
)


def wide() -> list[PlacementProblem]:
    graphs = [
        make_graph("random_program", operations=10, size=5040, pieces=7, seed=9100),
        make_graph("random_program", operations=14, size=5040, pieces=5, seed=9101),
        make_graph("moe_block", tokens=2048, width=2048, experts=6, feedforward=5632, devices=2),
        make_graph("chainmm", size=6000, shards=20),
    ]
    return [PlacementProblem(graph, topology, memory="off") for graph in graphs for topology in TOPOLOGIES]


def ratio(problem: PlacementProblem, **options: object) -> float:
    """Our makespan alone, without falling back, over the portfolio's."""
    ours = place("doppler", problem, fall_back=False, **options)
    return ours.makespan / place("portfolio", problem).makespan


def test_it_is_small_and_tells_where_it_comes_from() -> None:
    assert SHIPPED.stat().st_size < 5_000_000
    policy, told = load_policy()
    assert told["policy"] == "doppler"
    assert told["plan"]["problems"].startswith("GeneratedProblems")
    assert sum(weight.numel() for weight in policy.parameters()) < 1_000_000


def test_it_beats_the_portfolio_on_wide_graphs_that_it_never_saw() -> None:
    """0.88 over many more such problems (docs/results.md); 0.95 here fails if features or kernels change meaning."""
    ratios = [ratio(problem) for problem in wide()]
    assert np.exp(np.mean(np.log(ratios))) < 0.95
    refined = [ratio(problem, refine=5000) for problem in wide()[:4]]
    assert np.exp(np.mean(np.log(refined))) < 0.9


def test_it_leaves_chains_alone(reference: Path) -> None:
    graph = read_graph(reference / "graphs" / "pipedream" / "image_classification_resnet50.graph.txt")
    ratios = [ratio(PlacementProblem(graph, topology, memory="off")) for topology in TOPOLOGIES]
    assert max(ratios) < 1.02


def test_it_is_repeatable_and_never_worse_than_the_portfolio() -> None:
    problem = wide()[0]
    first, second = place("doppler", problem, seed=3), place("doppler", problem, seed=3)
    np.testing.assert_array_equal(first.assignment, second.assignment)
    assert first.makespan <= place("portfolio", problem).makespan
    assert "fall_back" not in first.notes
    assert place("doppler", problem, order="priority").execution == "priority"


def test_it_says_when_it_falls_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """An untrained policy in its place loses to the portfolio where there is much to win."""
    torch.manual_seed(0)
    monkeypatch.setattr(learned, "_loaded", lambda path: DopplerPolicy(width=8, second=4, random=0))
    problem = PlacementProblem(make_graph("ffnn"), Topology.preset("4xP100-ideal"), memory="off")
    best = place("portfolio", problem)
    found = place("doppler", problem, samples=4)
    assert found.makespan == best.makespan
    assert found.notes == {"fall_back": best.notes["winner"]}
    alone = place("doppler", problem, samples=4, fall_back=False)
    assert alone.makespan > best.makespan


def test_it_keeps_to_memory() -> None:
    problem = PlacementProblem(make_graph("llama_layer"), Topology.at_speeds("4xP100", [1, 1], bandwidth=3e9))
    assert place("doppler", problem).simulate(problem).peak_memory.max() <= 16e9
