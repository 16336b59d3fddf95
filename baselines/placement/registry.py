"""Find a placement method by name, run it, and score its answer."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import NoneType, UnionType
from typing import Any, Literal, Union, cast, get_args, get_origin, get_type_hints

import numpy as np

from ...envs.errors import MemoryLimitError, PlacementError, UnknownNameError, describe
from ...envs.placement import Placement, PlacementProblem
from ...envs.placement.placement import is_topological
from ...envs.placement.simulator import Order
from ..registry import PLACEMENTS as ENTRY_POINTS, check_options, find_by_name

Method = Callable[..., Placement]
GIVEN = ("problem", "rng", "execution")
"""Parameters of a method that are no options: ``place`` gives them."""


def find_method(name: str, table: Mapping[str, str]) -> Method:
    """The function behind a name: the table first, then entry points ``hadoppler.placements``.

    Raises:
        UnknownNameError: nobody offers the name; the valid ones are listed.
        MissingExtraError: its module needs a package that is not installed.
    """
    return cast(Method, find_by_name(name, table, ENTRY_POINTS, "placement method"))


def run_method(
    name: str, problem: PlacementProblem, table: Mapping[str, str], *, seed: int, order: str, options: Mapping[str, Any]
) -> Placement:
    """Call a method with a generator made from ``seed``; check, repair and score what it returns."""
    for what, value, kind in (("method", name, str), ("problem", problem, PlacementProblem)):
        if not isinstance(value, kind):
            given = f"the {what} is {describe(value)}; expected a {'name' if kind is str else 'PlacementProblem'}"
            raise PlacementError(f'{given}, as in place("heft", problem).')
    method = check_method(name, table, options)
    if order not in get_args(Order):
        raise UnknownNameError(f"order is {order!r}; expected {', '.join(get_args(Order))}.")
    if not _fits(seed, int) or seed < 0:
        raise PlacementError(f"seed is {seed!r}; expected a whole number from 0 up.")
    begin = time.perf_counter()
    placement = method(problem, rng=np.random.default_rng(seed), execution=order, **options)
    if not isinstance(placement, Placement):
        raise PlacementError(f"the method {name!r} returned a {type(placement).__name__}; expected a Placement.")
    if not is_topological(problem.graph, placement.order):
        raise PlacementError(f"the method {name!r} returned an order that does not respect the graph's edges.")
    placement = replace(placement, method=name, seed=seed, execution=cast(Order, order))
    try:
        makespan = placement.simulate(problem).makespan
    except MemoryLimitError:
        from .annealing import repair

        placement = repair(problem, placement, np.random.default_rng(seed))
        makespan = placement.simulate(problem).makespan
    return replace(placement, makespan=makespan, seconds=time.perf_counter() - begin)


def check_method(name: str, table: Mapping[str, str], options: Mapping[str, Any]) -> Method:
    """The function behind a name, if it takes these options.

    Raises:
        UnknownNameError: the method or an option does not exist.
        PlacementError: an option is missing or of the wrong type.
        MissingExtraError: the method needs a package that is not installed.
    """
    method = find_method(name, table)
    check_options(f"method {name!r}", method, options, GIVEN)
    own = {key: item for key, item in inspect.signature(method).parameters.items() if key not in GIVEN}
    if any(item.kind is item.VAR_KEYWORD for item in own.values()):
        return method
    for key, item in own.items():
        if item.default is item.empty and key not in options:
            raise PlacementError(f"the method {name!r} needs the option {key!r}; give it a value.")
    hints = _type_hints(method)
    for key, value in options.items():
        if key in hints and value is not own[key].default and not _fits(value, hints[key]):
            wanted = hints[key].__name__ if isinstance(hints[key], type) else hints[key]
            raise PlacementError(
                f"the method {name!r} has {key}={value!r}; expected {wanted}, found {type(value).__name__}."
            )
    return method


def _type_hints(method: Method) -> dict[str, Any]:
    """Parameter types, or nothing where another package's annotations cannot be evaluated."""
    try:
        return get_type_hints(method)
    except (NameError, TypeError, AttributeError):
        return {}


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value is of an annotated type; types other than plain ones are left to the method."""
    if get_origin(hint) in (Union, UnionType):
        return any(_fits(value, part) for part in get_args(hint))
    if get_origin(hint) is Literal:
        return value in get_args(hint)
    plain: dict[Any, Any] = {
        int: (int, np.integer),
        float: (int, float, np.integer, np.floating),
        str: str,
        bool: (bool, np.bool_),
    }
    if hint is None or hint is NoneType:
        return value is None
    if hint in (int, float) and isinstance(value, bool):
        return False
    return isinstance(value, plain[hint]) if hint in (int, float, str, bool) else True
