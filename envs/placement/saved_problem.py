"""A problem as files that every command reads: its graph with the seconds of each operation, and its devices.

A third file keeps what is a rule of the problem and belongs to neither.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import yaml

from ..arguments import is_number
from ..descriptions import check_keys, read_yaml
from ..errors import PlacementError, describe
from .problem import MemoryMode, PlacementProblem
from .readers import read_graph, write_graph
from .readers.files import write_text
from .topology import Topology


def save_problem(folder: str | Path, problem: PlacementProblem, name: str = "measured") -> tuple[Path, Path, Path]:
    """Write ``NAME_graph.json``, ``NAME_topology.yaml`` and ``NAME_problem.yaml``; returns their paths.

    ``graph=file graph.path=... topology=file topology.path=...`` then stands for the problem, but for the rules in the
    third file (``memory``, ``share_tensors``, ``time_unit``), which only ``load_problem`` reads. Where tensors are not
    shared between consumers, each edge gets a tensor of its own.

    Raises:
        GraphError: a file cannot be written.
    """
    folder, graph = Path(folder), problem.graph
    if not problem.share_tensors:
        graph = replace(graph, tensor=np.arange(graph.e, dtype=np.int32))
    paths = folder / f"{name}_graph.json", folder / f"{name}_topology.yaml", folder / f"{name}_problem.yaml"
    write_graph(graph, paths[0])
    topology = replace(problem.topology, contention=problem.contention or problem.topology.contention)
    write_text(paths[1], yaml.safe_dump(topology.to_dict(), sort_keys=False, allow_unicode=True))
    rules = {
        "memory": problem.memory,
        "share_tensors": bool(problem.share_tensors),
        "time_unit": float(problem.time_unit),
    }
    write_text(paths[2], yaml.safe_dump(rules, sort_keys=False))
    return paths


def load_problem(folder: str | Path, name: str = "measured") -> PlacementProblem:
    """What ``save_problem`` wrote; without the third file, which earlier versions did not write, by the usual rules.

    Raises:
        GraphError: the graph's file is missing or is none.
        TopologyError: the topology's file is missing or is none.
        PlacementError: the file of rules is none, or the graph does not fit the devices.
    """
    folder = Path(folder)
    topology = Topology.from_yaml(folder / f"{name}_topology.yaml")
    graph, path = read_graph(folder / f"{name}_graph.json"), folder / f"{name}_problem.yaml"
    return PlacementProblem(graph, topology, **(_read_rules(path) if path.exists() else {}))


def _read_rules(path: Path) -> dict[str, Any]:
    """The rules in a file; those that are left out are the usual ones."""
    values = read_yaml(path, PlacementError)
    if not isinstance(values, Mapping):
        raise PlacementError(f"{path}: expected keys such as memory, found {describe(values)}.")
    check_keys(values, ("memory", "share_tensors", "time_unit"), str(path), PlacementError)
    unit, share = values.get("time_unit", 1.0), values.get("share_tensors", True)
    if not (is_number(unit) and 0 < unit < np.inf):
        raise PlacementError(f"{path}: time_unit is {unit!r}; expected a finite number above 0.")
    if not isinstance(share, bool):
        raise PlacementError(f"{path}: share_tensors is {share!r}; expected true or false.")
    if values.get("memory", "error") not in get_args(MemoryMode):
        raise PlacementError(f"{path}: memory is {values['memory']!r}; expected {', '.join(get_args(MemoryMode))}.")
    return dict(values)
