"""Find a placement method by name, run it, and score its answer."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from difflib import get_close_matches
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, cast, get_args

import numpy as np

from ...envs.errors import MemoryLimitError, MissingExtraError, PlacementError, UnknownNameError
from ...envs.placement import Placement, PlacementProblem
from ...envs.placement.placement import is_topological
from ...envs.placement.simulator import Order

Method = Callable[..., Placement]


def find_method(name: str, table: Mapping[str, str]) -> Method:
    """The function behind a name: the table first, then entry points ``hadoppler.placements``.

    Raises:
        UnknownNameError: nobody offers the name; the valid ones are listed.
        MissingExtraError: its module needs a package that is not installed.
    """
    if name in table:
        module, _, attribute = table[name].partition(":")
        try:
            return cast(Method, getattr(import_module(module), attribute))
        except ModuleNotFoundError as error:
            if (error.name or "").startswith("hadoppler"):
                raise
            raise MissingExtraError(
                f"the method {name!r} needs the package {error.name!r}; install it with pip install 'hadoppler[all]'."
            ) from error
    offered = {entry.name: entry for entry in entry_points(group="hadoppler.placements")}
    if name in offered:
        return cast(Method, offered[name].load())
    valid = [*table, *offered]
    near = get_close_matches(name, valid, n=1)
    hint = f" (did you mean {near[0]}?)" if near else ""
    raise UnknownNameError(f"no placement method is called {name!r}{hint}; choose one of {', '.join(valid)}.")


def run_method(
    name: str, problem: PlacementProblem, table: Mapping[str, str], *, seed: int, order: str, options: Mapping[str, Any]
) -> Placement:
    """Call a method with a generator made from ``seed``; check, repair and score what it returns."""
    method = find_method(name, table)
    if order not in get_args(Order):
        raise UnknownNameError(f"order is {order!r}; expected {', '.join(get_args(Order))}.")
    _check_options(name, method, options)
    begin = time.perf_counter()
    placement = method(problem, rng=np.random.default_rng(seed), execution=order, **options)
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


def _check_options(name: str, method: Method, options: Mapping[str, Any]) -> None:
    parameters = inspect.signature(method).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return
    valid = [key for key in parameters if key not in ("problem", "rng", "execution")]
    for key in options:
        if key not in valid:
            known = f"its options are {', '.join(valid)}" if valid else "it has no options"
            raise UnknownNameError(f"the method {name!r} has no option {key!r}; {known}.")
