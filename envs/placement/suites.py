"""Frozen lists of placement problems, on which figures of different people compare."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..arguments import check_whole
from ..content_hash import check_hash, content_hash
from ..errors import SuiteError
from ..frozen_suites import frozen_suite
from .problem import PlacementProblem
from .random_problems import LEAST_OPERATIONS, MOST_OPERATIONS, draw_problem

ARRAYS = (
    *("flops", "bytes_moved", "out_bytes", "edge_source", "edge_target", "edge_bytes", "tensor"),
    *("group", "shard", "layer", "input_ptr", "input_index"),
)
"""Of a graph: what costs, features and methods depend on; names and titles do not count."""


@dataclass(frozen=True)
class PlacementSuite:
    """The first ``count`` problems of ``draw_problem`` from the generators (seed, 0), (seed, 1), ...

    Attributes:
        name: for tables and results.
        seed: of the whole list; suites with different seeds share no problem.
        count: how many problems.
        most_operations: of a graph, ``LEAST_OPERATIONS`` or more.
        sha256: hash of their content as it was frozen; None for a list that nobody else uses.

    Raises:
        SuiteError: a number is no whole one, or too small; it is named.
    """

    name: str
    seed: int
    count: int
    most_operations: int = MOST_OPERATIONS
    sha256: str | None = None

    def __post_init__(self) -> None:
        for key, least in (("seed", 0), ("count", 1), ("most_operations", LEAST_OPERATIONS)):
            check_whole(f"suite {self.name}: {key}", getattr(self, key), SuiteError, least)

    def make(self) -> list[PlacementProblem]:
        """All of them, drawn anew."""
        return [draw_problem(np.random.default_rng((self.seed, i)), self.most_operations) for i in range(self.count)]

    def check(self, problems: list[PlacementProblem]) -> str:
        """The hash of its problems.

        Raises:
            SuiteError: it is not the frozen one.
        """
        found = content_hash(map(content, problems))
        check_hash(self.name, found, self.sha256)
        return found


def make_suite(name: str) -> PlacementSuite:
    """A frozen suite by name, such as ``placement_test``; its ``make`` draws it, and its ``check`` compares the hash.

    Raises:
        UnknownNameError: no suite of placement problems has this name.
    """
    return PlacementSuite(**frozen_suite(name, PlacementSuite))


def content(problem: PlacementProblem) -> dict[str, Any]:
    """All that decides what a placement of a problem costs, in plain values."""
    graph, devices = problem.graph, problem.topology.to_dict()
    allowed = None if graph.allowed is None else graph.allowed
    told = {"kind": graph.kind, "seconds": dict(graph.seconds), "allowed": allowed}
    return {
        "graph": {name: getattr(graph, name) for name in ARRAYS} | told,
        "inputs": [item.bytes for item in graph.inputs],
        "topology": {key: value for key, value in devices.items() if key not in ("name", "source")},
        "contention": problem.contention,
        "memory": problem.memory,
        "share_tensors": problem.share_tensors,
    }
