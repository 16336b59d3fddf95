"""Find a method or scheduler by name: a table of ours first, then what other packages offer."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from ..envs.errors import MissingExtraError, UnknownNameError, unknown_name

SCHEDULERS, PLACEMENTS = "hadoppler.schedulers", "hadoppler.placements"
"""Entry point groups under which other packages offer schedulers and placement methods."""


def find_by_name(name: str, table: Mapping[str, str], group: str, noun: str) -> Any:
    """The object behind ``name``: ``module:object`` in ``table``, else an entry point of ``group``.

    ``noun`` is what it is called in messages, such as "placement method".

    Raises:
        UnknownNameError: nobody offers the name, or another package's offer does not exist.
        MissingExtraError: its module needs a package that is not installed.
    """
    if name in table:
        module, _, attribute = table[name].partition(":")
        try:
            return getattr(import_module(module), attribute)
        except ModuleNotFoundError as error:
            if (error.name or "").startswith("hadoppler"):
                raise
            raise MissingExtraError(
                f"the {noun} {name!r} needs the package {error.name!r}; install it with pip install 'hadoppler[all]'."
            ) from error
    others = offered(group)
    if name in others:
        return load_offered(others[name], noun)
    raise unknown_name(noun, name, [*table, *others], how_to_offer(noun, group))


def how_to_offer(noun: str, group: str) -> str:
    """The end of a sentence that tells how a name of one's own comes about."""
    return f"; a {noun} of your own gets a name by an entry point in the group {group}, as docs/extend.md shows"


def offered(group: str) -> dict[str, EntryPoint]:
    """What other packages offer under a group of entry points, by name; the first of two with one name counts."""
    found: dict[str, EntryPoint] = {}
    for entry in entry_points(group=group):
        found.setdefault(entry.name, entry)
    return found


def package_of(entry: EntryPoint) -> str:
    """The distribution that offers an entry point, for people."""
    return entry.dist.name if entry.dist is not None else "another package"


def load_offered(entry: EntryPoint, noun: str) -> Callable[..., Any]:
    """The object of another package's entry point.

    Raises:
        MissingExtraError: it cannot be loaded, whatever its module did, or nobody can call it.
    """
    where = f"the {noun} {entry.name!r} of the package {package_of(entry)}"
    try:
        found = entry.load()
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise MissingExtraError(
            f"{where} cannot be loaded from {entry.value} ({reason}); install or mend that package."
        ) from error
    if not callable(found):
        raise MissingExtraError(
            f"{where} is of the type {type(found).__name__}; expected a class or function at {entry.value}; mend that "
            "package."
        )
    return found


def left_out(group: str, noun: str, taken: Collection[str]) -> dict[str, str]:
    """Offers of other packages whose name stands for something else already: a sentence for each, by name.

    Args:
        taken: names that are ours.
    """
    first, told = offered(group), {}
    for entry in entry_points(group=group):
        package, winner = package_of(entry), first[entry.name]
        if entry.name in taken or package != package_of(winner):
            whose = "Hadoppler's own" if entry.name in taken else f"that of the package {package_of(winner)}"
            told[entry.name] = (
                f"the {noun} {entry.name!r} of the package {package} is left out: the name stands for {whose}; that "
                "package must give it another name."
            )
    return told


def check_options(who: str, make: Callable[..., Any], options: Iterable[str], given: Collection[str] = ()) -> None:
    """Refuse options that ``make`` does not take; one that takes any checks them itself.

    ``given`` are parameters that are no options, because the caller gives them.

    Raises:
        UnknownNameError: there is no such option; the valid ones are listed.
    """
    parameters = {key: item for key, item in inspect.signature(make).parameters.items() if key not in given}
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return
    for key in options:
        if key not in parameters:
            known = f"its options are {', '.join(parameters)}" if parameters else "it has no options"
            raise UnknownNameError(f"the {who} has no option {key!r}; {known}.")
