"""Where the problems of placement environments come from, and what episodes on one problem share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ..errors import PlacementError
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


def named_problem(graph: DataflowGraph | str, topology: Topology | str) -> PlacementProblem:
    """The problem of a graph, or a workload's name, on devices, or a preset's name."""
    return PlacementProblem(
        make_graph(graph) if isinstance(graph, str) else graph,
        Topology.preset(topology) if isinstance(topology, str) else topology,
    )


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
        max_operations or max((problem.n for problem in problems), default=0),
        max_edges or max([1, *(problem.graph.e for problem in problems)]),
        devices or max((problem.d for problem in problems), default=0),
        edges=edges,
        flat=flat,
    )
    for problem in problems:
        layout.check(problem)
    return layout
