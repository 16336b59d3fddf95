"""Schedulers and placement methods of other packages, as choices of the command line like our own."""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from importlib.metadata import EntryPoint
from typing import Any

from hydra.core.config_store import ConfigStore

from hadoppler import PLACEMENTS
from hadoppler.baselines import registry
from hadoppler.baselines.cluster.registry import SCHEDULERS
from hadoppler.envs.errors import MissingExtraError


@dataclass(frozen=True)
class Family:
    """What other packages may offer.

    Attributes:
        entry_points: the group of entry points.
        noun: what one is called in messages.
        own: names of ours.
        given: parameters of one that are no options.
    """

    entry_points: str
    noun: str
    own: tuple[str, ...]
    given: tuple[str, ...] = ()


FAMILIES = {
    "scheduler": Family(registry.SCHEDULERS, "scheduler", tuple(SCHEDULERS)),
    "method": Family(registry.PLACEMENTS, "placement method", tuple(PLACEMENTS), ("problem", "rng", "execution")),
}
"""By the group of settings that chooses among them."""
_added: list[tuple[str, str]] = []


def own_choices(group: str) -> list[str]:
    """Names of the files of a group of settings."""
    return [path.name.removesuffix(".yaml") for path in resources.files("hadoppler.conf").joinpath(group).iterdir()]


def others(group: str) -> dict[str, EntryPoint]:
    """What other packages add to a group of settings, by name; nothing whose name is taken."""
    if group not in FAMILIES:
        return {}
    family, taken = FAMILIES[group], {*FAMILIES[group].own, *own_choices(group)}
    return {name: entry for name, entry in registry.offered(family.entry_points).items() if name not in taken}


def names_of(group: str) -> list[str]:
    """Names that other packages add to a group of settings."""
    return list(others(group))


def clashes(group: str) -> dict[str, str]:
    """What other packages offer in vain because the name is taken: a sentence for each, by name."""
    family = FAMILIES[group]
    return registry.left_out(family.entry_points, family.noun, {*family.own, *own_choices(group)})


def check_offer(entry: EntryPoint, group: str) -> None:
    """Refuse what cannot be loaded.

    Raises:
        MissingExtraError: it cannot be loaded, or nobody can call it.
    """
    registry.load_offered(entry, FAMILIES[group].noun)


def add_choices(arguments: Sequence[str]) -> list[str]:
    """Let ``scheduler=[NAME]`` and ``method=[NAME]`` choose what other packages offer, with its options as settings.

    Only what the command line names is loaded. Returns a sentence for each name in it that another package wants, too.
    """
    store = ConfigStore.instance()
    for group, file in _added:
        store.repo[group].pop(file, None)
    _added.clear()
    told = []
    for group in FAMILIES:
        words = " ".join(word for word in arguments if re.match(rf"\+?{group}[.=]", word))
        named = set(re.findall(r"[\w-]+", words))
        told += [sentence for name, sentence in clashes(group).items() if name in named]
        for name, entry in others(group).items():
            options = _options(entry, FAMILIES[group]) if name in named else {}
            store.store(group=group, name=name, node={name: options}, provider=entry.value)
            _added.append((group, f"{name}.yaml"))
    return told


def _options(entry: EntryPoint, family: Family) -> dict[str, Any]:
    """Parameters with their defaults, ``???`` where there is none; nothing of what cannot be loaded: others tell why.

    Parameters whose default is no plain value are left out; ``+scheduler.NAME.OPTION=VALUE`` gives them.
    """
    try:
        make = registry.load_offered(entry, family.noun)
        parameters = inspect.signature(make).parameters
    except (MissingExtraError, TypeError, ValueError):
        return {}
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    found = {key: item.default for key, item in parameters.items() if key not in family.given and item.kind in named}
    told = {key: "???" if value is inspect.Parameter.empty else value for key, value in found.items()}
    return {key: value for key, value in told.items() if isinstance(value, str | bool | int | float | None)}
