"""Find a method or scheduler by name: a table of ours first, then what other packages offer."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

from ..envs.errors import MissingExtraError, UnknownNameError


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
    valid = [*table, *offered]
    near = get_close_matches(name, valid, n=1)
    hint = f" (did you mean {near[0]}?)" if near else ""
    raise UnknownNameError(f"no {noun} is called {name!r}{hint}; choose one of {', '.join(valid)}.")
