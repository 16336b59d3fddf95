"""Where the problems of placement environments come from, and what episodes on one problem share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ..arguments import check_each
from ..errors import PlacementError, describe
from .episodes import EpisodeBatch
from .features import static_features
from .graph import DataflowGraph
from .observation import Observation, ObservationLayout
from .problem import PlacementProblem
from .topology import Topology
from .workloads import make_graph

ProblemFactory = Callable[[np.random.Generator], PlacementProblem]
ProblemSource = PlacementProblem | Sequence[PlacementProblem] | ProblemFactory


@dataclass(eq=False)
class PreparedProblem:
    """A problem with what every episode on it shares, made when it is first needed."""

    problem: PlacementProblem
    _batch: EpisodeBatch | None = None
    _static: Observation | None = None

    @property
    def batch(self) -> EpisodeBatch:
        """A batch of one episode."""
        if self._batch is None:
            self._batch = EpisodeBatch(self.problem, 1)
        return self._batch

    def observe_static(self, layout: ObservationLayout, graph_id: int) -> Observation:
        """The padded static part of the observations."""
        if self._static is None:
            self._static = layout.static(self.problem, static_features(self.problem), graph_id)
        return self._static


GRAPH, TOPOLOGY = "chainmm", "4xP100"
"""Where neither a problem nor a name is given."""


def find_problems(
    problem: ProblemSource | None, graph: DataflowGraph | str | None, topology: Topology | str | None
) -> list[PlacementProblem] | ProblemFactory:
    """What the arguments of an environment stand for: its problems, or the function that makes them.

    Raises:
        PlacementError: they are of other types, there is no problem among them, or ``problem`` has company.
    """
    if problem is None:
        return [_named_problem(GRAPH if graph is None else graph, TOPOLOGY if topology is None else topology)]
    if graph is not None or topology is not None:
        raise PlacementError("problem is given beside graph or topology, of which it consists; leave those out.")
    if isinstance(problem, PlacementProblem):
        return [problem]
    if callable(problem):
        return problem
    given: object = problem
    if isinstance(given, str | DataflowGraph) or not isinstance(given, Iterable):
        how = f"graph={given!r}" if isinstance(given, str) else "graph=GRAPH"
        raise PlacementError(
            f"problem is {describe(given)}; expected a PlacementProblem, a list of them or a function that makes one; "
            f"a graph, or a workload's name, is given as {how}."
        )
    found = list(given)
    check_each("problem", found, PlacementProblem, PlacementError)
    return found


def _named_problem(graph: DataflowGraph | str, topology: Topology | str) -> PlacementProblem:
    """The problem of a graph, or a workload's name, on devices, or a preset's name."""
    graph = make_graph(graph) if isinstance(graph, str) else graph
    topology = Topology.preset(topology) if isinstance(topology, str) else topology
    if not isinstance(graph, DataflowGraph):
        raise PlacementError(f"graph is {describe(graph)}; expected a DataflowGraph or a workload's name.")
    if not isinstance(topology, Topology):
        raise PlacementError(f"topology is {describe(topology)}; expected a Topology or a preset's name.")
    return PlacementProblem(graph, topology)


def make_layout(
    problems: Sequence[PlacementProblem],
    max_operations: int | None,
    max_edges: int | None,
    devices: int | None,
    *,
    edges: bool,
    flat: bool,
) -> ObservationLayout:
    """The layout of the given sizes, by default the largest of the problems; every problem must fit.

    Raises:
        PlacementError: no problem is given and a size is missing, or a problem does not fit.
    """
    if not problems and None in (max_operations, max_edges, devices):
        raise PlacementError("Without a problem the sizes are needed; give max_operations, max_edges and devices.")
    layout = ObservationLayout(
        max((problem.n for problem in problems), default=0) if max_operations is None else max_operations,
        max([1, *(problem.graph.e for problem in problems)]) if max_edges is None else max_edges,
        max((problem.d for problem in problems), default=0) if devices is None else devices,
        edges=edges,
        flat=flat,
    )
    for problem in problems:
        layout.check(problem)
    return layout
