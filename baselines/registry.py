"""Find a method or scheduler by name: a table of ours first, then what other packages offer."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

from ..envs.errors import MissingExtraError, UnknownNameError, unknown_name


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
    offered = {entry.name: entry for entry in entry_points(group=group)}
    if name in offered:
        try:
            return offered[name].load()
        except (ImportError, AttributeError) as error:
            raise MissingExtraError(
                f"the {noun} {name!r} of another package cannot be loaded from {offered[name].value} ({error}); "
                "install or mend that package."
            ) from error
    raise unknown_name(noun, name, [*table, *offered])


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
