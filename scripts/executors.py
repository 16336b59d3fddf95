"""What runs placements, from the group ``executor`` of a command's settings."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from omegaconf import OmegaConf

from hadoppler.envs.errors import MissingExtraError
from hadoppler.real_system.placement.isolation import IsolatedExecutor
from hadoppler.scripts.application import CommandError, instantiate

if TYPE_CHECKING:
    from hadoppler.envs.placement import PlacementProblem
    from hadoppler.real_system.placement import Executor


def make_executor(settings: Mapping[str, Any], problem: PlacementProblem) -> Executor:
    """An executor of a problem; close it after use.

    Raises:
        HadopplerError: the devices are not there, the graph cannot be executed, or an option does not exist.
    """
    isolate = settings.get("isolate", "thread")
    if isolate not in ("thread", "process"):
        raise CommandError(f"executor.isolate is {isolate!r}; expected thread or process.")
    factory = instantiate(OmegaConf.create({key: value for key, value in settings.items() if key != "isolate"}))
    try:
        if isolate == "process":
            return IsolatedExecutor(problem, partial(factory, problem), settings.get("timeout", 60.0))
        made: Executor = factory(problem)
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            f"executing placements needs the package {error.name!r}; install it with pip install 'hadoppler[torch]'."
        ) from error
    return made
