"""What runs placements, from the group ``executor`` of a command's settings."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from omegaconf import OmegaConf

from hadoppler.envs.errors import MissingExtraError
from hadoppler.real_system.placement.free_memory import check_free_memory
from hadoppler.real_system.placement.isolation import IsolatedExecutor
from hadoppler.scripts.application import CommandError, instantiate

if TYPE_CHECKING:
    from hadoppler.envs.placement import PlacementProblem
    from hadoppler.real_system.placement import Executor


SIZES = ("size", "sequence", "tokens", "batch", "hidden", "width")
"""Options of workloads that say how large tensors are."""


def is_emulated(settings: Mapping[str, Any]) -> bool:
    """Whether an executor's operations only take their time."""
    return str(settings.get("_target_", "")).endswith("emulated_executor")


def make_executor(settings: Mapping[str, Any], problem: PlacementProblem, graph: Mapping[str, Any]) -> Executor:
    """An executor of a problem; close it after use. ``graph`` are the settings that made the problem's graph.

    Raises:
        HadopplerError: the devices are not there, the graph cannot be executed or does not fit this machine's memory,
            or an option does not exist.
    """
    isolate = settings.get("isolate", "thread")
    if isolate not in ("thread", "process"):
        raise CommandError(f"executor.isolate is {isolate!r}; expected thread or process.")
    factory = instantiate(OmegaConf.create({key: value for key, value in settings.items() if key != "isolate"}))
    try:
        made: Executor = factory(problem)
        if isolate == "process":  # what is wrong with the settings was told here; its threads begin in the process
            made = IsolatedExecutor(problem, partial(factory, problem), made.timeout)
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            f"executing placements needs the package {error.name!r}; install it with pip install 'hadoppler[torch]'."
        ) from error
    if not is_emulated(settings):
        check_free_memory(problem, smaller(graph))
    return made


def smaller(graph: Mapping[str, Any]) -> str:
    """How to make a graph smaller, by the settings that it has."""
    found = [f"graph.{name}={graph[name]}" for name in SIZES if graph.get(name) is not None]
    if found:
        return f"make it smaller, with less than {' or '.join(found[:2])}"
    return "give a smaller graph"
