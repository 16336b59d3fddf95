"""A problem as two files that every command reads: its graph with the seconds of each operation, and its devices."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import yaml

from .problem import PlacementProblem
from .readers import read_graph, write_graph
from .readers.files import write_text
from .topology import Topology


def save_problem(folder: str | Path, problem: PlacementProblem, name: str = "measured") -> tuple[Path, Path]:
    """Write ``NAME_graph.json`` and ``NAME_topology.yaml``; returns their paths.

    ``graph=file graph.path=... topology=file topology.path=...`` then stands for the problem. Where tensors are not
    shared between consumers, each edge gets a tensor of its own.
    """
    folder, graph = Path(folder), problem.graph
    if not problem.share_tensors:
        graph = replace(graph, tensor=np.arange(graph.e, dtype=np.int32))
    paths = folder / f"{name}_graph.json", folder / f"{name}_topology.yaml"
    write_graph(graph, paths[0])
    topology = replace(problem.topology, contention=problem.contention or problem.topology.contention)
    write_text(paths[1], yaml.safe_dump(topology.to_dict(), sort_keys=False, allow_unicode=True))
    return paths


def load_problem(folder: str | Path, name: str = "measured") -> PlacementProblem:
    """What ``save_problem`` wrote.

    Raises:
        GraphError: the graph's file is missing or is none.
        TopologyError: the topology's file is missing or is none.
    """
    folder = Path(folder)
    topology = Topology.from_yaml(folder / f"{name}_topology.yaml")
    return PlacementProblem(read_graph(folder / f"{name}_graph.json"), topology)
