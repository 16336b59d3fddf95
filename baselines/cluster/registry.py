"""Find a scheduler by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, cast

from ...envs.cluster import Scheduler
from ...envs.errors import MissingExtraError, UnknownNameError

SCHEDULERS: dict[str, str] = {
    "yarn_cs": "hadoppler.baselines.cluster.yarn_cs:YarnCS",
    "tiresias": "hadoppler.baselines.cluster.tiresias:Tiresias",
    "srtf": "hadoppler.baselines.cluster.srtf:SRTF",
    "random": "hadoppler.baselines.cluster.random_scheduler:RandomScheduler",
    "gavel": "hadoppler.baselines.cluster.gavel:gavel",
    "replay": "hadoppler.baselines.cluster.replay:replay",
}
"""Schedulers: name -> ``module:class or function`` that makes one from its options. Other packages add
theirs through the entry point group ``hadoppler.schedulers``."""


def find_scheduler(
    name: str, options: Mapping[str, Any] | None = None, table: Mapping[str, str] = SCHEDULERS
) -> Scheduler:
    """Make a scheduler by name with its own options.

    Raises:
        UnknownNameError: nobody offers the name, or it has no such option; the valid ones are listed.
        MissingExtraError: its module needs a package that is not installed.
    """
    make = _find(name, table)
    options = dict(options or {})
    valid = list(inspect.signature(make).parameters)
    for key in options:
        if key not in valid:
            known = f"its options are {', '.join(valid)}" if valid else "it has no options"
            raise UnknownNameError(f"the scheduler {name!r} has no option {key!r}; {known}.")
    return make(**options)


def _find(name: str, table: Mapping[str, str]) -> Callable[..., Scheduler]:
    if name in table:
        module, _, attribute = table[name].partition(":")
        try:
            return cast(Callable[..., Scheduler], getattr(import_module(module), attribute))
        except ModuleNotFoundError as error:
            if (error.name or "").startswith("hadoppler"):
                raise
            raise MissingExtraError(
                f"the scheduler {name!r} needs the package {error.name!r}; install it with pip install {error.name}."
            ) from error
    offered = {entry.name: entry for entry in entry_points(group="hadoppler.schedulers")}
    if name in offered:
        return cast(Callable[..., Scheduler], offered[name].load())
    valid = [*table, *offered]
    near = get_close_matches(name, valid, n=1)
    hint = f" (did you mean {near[0]}?)" if near else ""
    raise UnknownNameError(f"no scheduler is called {name!r}{hint}; choose one of {', '.join(valid)}.")
