"""A user's module by the name of a function that makes it: ``graph=module model=package.module:factory``."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from ...errors import GraphError, MissingExtraError

if TYPE_CHECKING:
    import torch


def load_factory(name: str) -> tuple[torch.nn.Module, tuple[Any, ...], dict[str, Any]]:
    """Call a user's factory and give its module and example arguments, by position and by keyword.

    The factory takes no arguments and returns ``(module, args)`` or ``(module, args, kwargs)``, or a
    module alone if its call needs no arguments. Modules in the current folder can be named, too.

    Args:
        name: ``package.module:factory``; the factory may be nested (``module:Class.method``).

    Raises:
        GraphError: the name is malformed or unknown, or the factory fails or returns something else.
        MissingExtraError: torch is not installed.
    """
    try:
        import torch
    except ImportError as error:
        raise MissingExtraError("A module needs torch; install hadoppler[torch].") from error
    with current_folder():
        factory = find_factory(name)
        try:
            made = factory()
        except Exception as error:
            raise GraphError(
                f"{name}: the factory failed ({type(error).__name__}: {error}); it must run without arguments."
            ) from error
    module, args, kwargs = (*made, {})[:3] if isinstance(made, tuple) and len(made) in (2, 3) else (made, (), {})
    if not isinstance(module, torch.nn.Module) or not isinstance(args, tuple | list) or not is_keywords(kwargs):
        raise GraphError(
            f"{name}: the factory returned {_describe(made)}; expected (module, args) or (module, args, kwargs) with a "
            "torch.nn.Module, a tuple of arguments and a dictionary of keyword arguments."
        )
    try:
        inspect.signature(module.forward).bind(*args, **kwargs)
    except TypeError as error:
        raise GraphError(
            f"{name}: the module's forward cannot be called with the {len(args) + len(kwargs)} example arguments that "
            f"the factory returned ({error}); return (module, args) or (module, args, kwargs) that fit."
        ) from error
    return module, tuple(args), dict(kwargs)


def is_keywords(value: Any) -> bool:
    """Whether it can be given as ``**value``."""
    return isinstance(value, Mapping) and all(isinstance(key, str) for key in value)


def find_factory(name: str) -> Any:
    """A user's function by its name, not called yet; modules of the current folder are found in ``current_folder``.

    Raises:
        GraphError: the name is malformed or unknown, or is no function's.
    """
    place, _, attribute = name.partition(":")
    if place.endswith(".py"):
        raise GraphError(
            f"The model {name!r} names a file; give its module, {place[:-3].replace('/', '.')}:{attribute}."
        )
    if not place or not attribute:
        raise GraphError(f"The model {name!r} is not of the form 'package.module:factory'.")
    try:
        found: Any = importlib.import_module(place)
    except ModuleNotFoundError as error:
        if error.name is not None and (place == error.name or place.startswith(f"{error.name}.")):
            raise GraphError(f"{name}: there is no module {error.name!r} here or installed; check the name.") from error
        raise GraphError(f"{name}: importing {place!r} needs {error.name!r}; install it.") from error
    except Exception as error:
        raise GraphError(f"{name}: importing {place!r} failed ({type(error).__name__}: {error}).") from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            close = get_close_matches(part, dir(found), 1)
            hint = f"did you mean {close[0]!r}?" if close else "check the name."
            raise GraphError(f"{name}: {place!r} has no {part!r}; {hint}")
        found = getattr(found, part)
    if not callable(found):
        raise GraphError(
            f"{name}: {attribute!r} is {_describe(found)}, expected a function that returns (module, args)."
        )
    return found


def _describe(value: Any) -> str:
    if isinstance(value, tuple):
        return f"a tuple of {', '.join(type(item).__name__ for item in value) or 'nothing'}"
    return f"a {type(value).__name__}"


@contextmanager
def current_folder() -> Iterator[None]:
    """Make modules of the current folder importable, as ``python`` does."""
    sys.path.insert(0, "")
    try:
        yield
    finally:
        sys.path.remove("")
