"""Problems drawn at random: a graph of many kinds and sizes on devices of many speeds and links.

What a policy that shall place graphs that it has never seen is trained on; also a source of episodes:
``DevicePlacementEnv(draw_problem)``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..arguments import check_whole
from ..errors import PlacementError
from .graph import DataflowGraph
from .problem import PlacementProblem
from .topology import Contention, Topology
from .workloads import make_graph
from .workloads.llama_cuts import even_cuts

MOST_OPERATIONS = 500
LEAST_OPERATIONS = 10
"""A limit below this is refused: hardly a graph is so small, and drawing until one comes would take minutes or for ever
(our choice)."""
SPEEDS = (1.0, 1.0, 0.75, 0.5, 0.5, 0.25)
"""Unequal devices draw theirs from these."""


def draw_problem(rng: np.random.Generator, most_operations: int = MOST_OPERATIONS) -> PlacementProblem:
    """A graph of at most ``most_operations`` on two to eight devices; all choices and weights are ours.

    Raises:
        PlacementError: ``most_operations`` is no whole number from ``LEAST_OPERATIONS`` up.
    """
    check_whole("most_operations", most_operations, PlacementError, LEAST_OPERATIONS)
    while True:
        graph = draw_graph(rng)
        if graph.n <= most_operations:
            return PlacementProblem(graph, draw_topology(rng), memory="off")


def draw_graph(rng: np.random.Generator) -> DataflowGraph:
    """A sharded tensor program, one of the published workloads in another size, or a random graph."""
    names = list(_GRAPHS)
    weights = np.array([weight for weight, _ in _GRAPHS.values()])
    return _GRAPHS[names[int(rng.choice(len(names), p=weights / weights.sum()))]][1](rng)


def draw_topology(rng: np.random.Generator) -> Topology:
    """Two to eight P100s, in half of the cases of unequal speeds, with links of 2 to 30 GB/s."""
    count = int(rng.choice((2, 3, 4, 4, 5, 6, 8, 8)))
    speeds = rng.choice(SPEEDS, size=count) if rng.random() < 0.5 else np.ones(count)
    bandwidth = np.full((count, count), float(np.exp(rng.uniform(np.log(2e9), np.log(3e10)))))
    if count >= 4 and rng.random() < 0.25:  # two groups, with faster links inside each
        group = np.arange(count) < count // 2
        bandwidth[group[:, None] == group[None, :]] *= float(rng.choice((2.0, 4.0)))
    contention: Contention = "ports" if rng.random() < 0.8 else "none"
    return Topology.at_speeds("4xP100", speeds / speeds.max(), bandwidth=bandwidth, contention=contention)


def _power(rng: np.random.Generator, low: int, high: int) -> int:
    """A power of two from 2^low to 2^high."""
    return int(2 ** rng.integers(low, high + 1))


def _random_program(rng: np.random.Generator) -> DataflowGraph:
    operations, pieces = int(rng.integers(6, 25)), int(rng.integers(2, 7))
    return make_graph("random_program", operations=operations, size=_power(rng, 11, 13), pieces=pieces, seed=rng)


def _chainmm(rng: np.random.Generator) -> DataflowGraph:
    return make_graph("chainmm", size=_power(rng, 11, 14), shards=int(rng.choice((8, 12, 16, 24, 27, 32))))


def _ffnn(rng: np.random.Generator) -> DataflowGraph:
    sizes: dict[str, Any] = {"batch": _power(rng, 12, 15), "hidden": _power(rng, 12, 16), "outputs": _power(rng, 5, 11)}
    return make_graph("ffnn", **sizes, features=_power(rng, 5, 11), shards=int(rng.choice((8, 9, 12, 16, 24))))


def _llama(rng: np.random.Generator, name: str) -> DataflowGraph:
    heads = int(rng.choice((16, 24, 32)))
    sizes: dict[str, Any] = {
        "sequence": int(rng.choice((1024, 1680, 2048, 3360, 4096))),
        "width": 128 * heads,
        "heads": heads,
    }
    cuts: dict[str, Any] = {"devices": int(rng.choice((4, 8)))}
    if rng.random() < 0.6:
        cuts = {"cuts": even_cuts(int(rng.choice((2, 3, 4, 5, 8))))}
    return make_graph(name, **sizes, feedforward=int(rng.choice((2, 4))) * 128 * heads, **cuts)


def _costs(rng: np.random.Generator) -> dict[str, Any]:
    """Mean FLOPs (1e9 take 0.13 ms) and bytes: as much communication as computation at 0.2 to 20 GB/s."""
    flops = float(np.exp(rng.uniform(np.log(1e9), np.log(1e11))))
    seconds = flops / 7.4e12
    return {"flops": flops, "out_bytes": seconds * float(np.exp(rng.uniform(np.log(2e8), np.log(2e10))))}


def _layered(rng: np.random.Generator) -> DataflowGraph:
    layers, width = int(rng.integers(4, 21)), int(rng.integers(3, 17))
    density = float(rng.uniform(0.1, 0.5))
    return make_graph("layered_random", layers=layers, width=width, density=density, seed=rng, **_costs(rng))


def _fork_join(rng: np.random.Generator) -> DataflowGraph:
    sizes: dict[str, Any] = {
        "branches": int(rng.integers(2, 13)),
        "length": int(rng.integers(1, 6)),
        "stages": int(rng.integers(1, 8)),
    }
    return make_graph("fork_join", **sizes, seed=rng, **_costs(rng))


def _chain(rng: np.random.Generator) -> DataflowGraph:
    return make_graph("chain", length=int(rng.integers(10, 120)), seed=rng, **_costs(rng))


def _skips(rng: np.random.Generator) -> DataflowGraph:
    """A chain in which some operations also read one a few steps back, as residual networks do."""
    length, reach = int(rng.integers(10, 150)), int(rng.integers(2, 6))
    costs, share = _costs(rng), float(rng.uniform(0.1, 0.6))
    edges = [(v, v + 1) for v in range(length - 1)]
    edges += [(v, v + reach) for v in range(length - reach) if rng.random() < share]
    stored = costs["out_bytes"] * rng.lognormal(0.0, 1.0, length)
    return DataflowGraph.build(
        title="skips",
        flops=costs["flops"] * rng.lognormal(0.0, 1.0, length),
        out_bytes=stored,
        bytes_moved=2 * stored,
        edges=edges,
        tensor=[source for source, _ in edges],
        kind=["matmul"] * length,
    )


def _ladder(rng: np.random.Generator) -> DataflowGraph:
    return make_graph("ladder", rungs=int(rng.integers(5, 40)), seed=rng, **_costs(rng))


_GRAPHS: dict[str, tuple[float, Callable[[np.random.Generator], DataflowGraph]]] = {
    "random_program": (6.0, _random_program),
    "chainmm": (1.5, _chainmm),
    "ffnn": (1.5, _ffnn),
    "llama_block": (1.5, lambda rng: _llama(rng, "llama_block")),
    "llama_layer": (1.0, lambda rng: _llama(rng, "llama_layer")),
    "layered_random": (1.5, _layered),
    "fork_join": (1.5, _fork_join),
    "chain": (0.5, _chain),
    "skips": (1.0, _skips),
    "ladder": (0.75, _ladder),
}
"""Name -> weight, and how to draw one."""
