"""The problems that a command speaks of: graphs on devices, from its settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, get_args

from omegaconf import OmegaConf

from hadoppler.envs.arguments import as_list
from hadoppler.scripts.application import CommandError, instantiate

if TYPE_CHECKING:
    from hadoppler.envs.placement import DataflowGraph, PlacementProblem


def one_problem(
    graph: Mapping[str, Any], topology: Mapping[str, Any], contention: str | None = None, memory: str = "error"
) -> list[PlacementProblem]:
    """The problem of ``graph=...`` on ``topology=...``.

    Raises:
        HadopplerError: the graph or the devices cannot be made, or an option does not exist.
    """
    return [_problem(instantiate(OmegaConf.create(dict(graph))), topology, contention, memory)]


def several_problems(
    graphs: Sequence[Any], topology: Mapping[str, Any], contention: str | None = None, memory: str = "error"
) -> list[PlacementProblem]:
    """Workloads by name, or by mappings of ``name`` and options, on ``topology=...``.

    Raises:
        HadopplerError: a graph or the devices cannot be made, or an option does not exist.
    """
    from hadoppler.envs.placement import make_graph

    found = []
    for entry in as_list(graphs):
        options = {"name": entry} if isinstance(entry, str) else dict(entry) if isinstance(entry, Mapping) else {}
        if "name" not in options:
            raise CommandError(f"problems.graphs holds {entry!r}; expected a workload's name, or name and options.")
        options.setdefault("costs", topology.get("costs", "real"))
        found.append(_problem(make_graph(**options), topology, contention, memory))
    return found


def _problem(
    graph: DataflowGraph, topology: Mapping[str, Any], contention: str | None, memory: str
) -> PlacementProblem:
    from hadoppler.envs.placement import PlacementProblem, Topology
    from hadoppler.envs.placement.problem import MemoryMode

    if memory not in get_args(MemoryMode):
        raise CommandError(f"memory is {memory!r}; expected {', '.join(get_args(MemoryMode))}.")
    devices = instantiate(OmegaConf.create({key: value for key, value in topology.items() if key != "costs"}))
    if not isinstance(devices, Topology):
        problem: PlacementProblem = devices(graph)
        return problem.with_options(contention=contention)  # type: ignore[arg-type]
    return PlacementProblem(graph, devices, contention=contention, memory=memory)  # type: ignore[arg-type]
