"""What users give, in arguments and from their hooks: refused in one sentence where it is something else."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from .errors import HadopplerError, describe

Kind = TypeVar("Kind")


def is_number(value: Any) -> bool:
    """Whether it is a number, truth values apart."""
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)


def is_whole(value: Any) -> bool:
    """Whether it is a whole number, truth values apart."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def check_whole(name: str, value: Any, error: type[HadopplerError], least: int = 1) -> None:
    """Refuse what is no whole number from ``least`` up.

    Raises:
        error: it is none; ``name`` says what it is.
    """
    if not is_whole(value) or value < least:
        raise error(f"{name} is {value!r}; expected a whole number from {least} up.")


def read_range(
    name: str, value: Any, error: type[HadopplerError], least: float = 0, whole: bool = False
) -> tuple[Any, Any]:
    """Two numbers from ``least`` up, the smaller one first.

    Raises:
        error: they are none; ``name`` says what they are.
    """
    numbers = list(value) if is_listed(value) else []
    fits = all(is_number(number) and (not whole or float(number).is_integer()) for number in numbers)
    if len(numbers) != 2 or not fits or not least <= numbers[0] <= numbers[1] < math.inf:
        kind = "whole numbers" if whole else "numbers"
        shown = numbers if is_listed(value) else value
        raise error(f"{name} is {shown!r}; expected two {kind} from {least:g} up, [least, most].")
    return numbers[0], numbers[1]


def is_listed(value: Any) -> bool:
    """Whether it holds several values: no text, no mapping, no number."""
    return isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping)


def as_list(value: Any) -> list[Any]:
    """Several values as a list; one alone as a list of it."""
    return list(value) if is_listed(value) else [value]


def check_list(name: str, value: Any, error: type[HadopplerError], example: str) -> None:
    """Refuse one value where several belong.

    Raises:
        error: it is one; ``name`` says what it is.
    """
    if not is_listed(value):
        raise error(f"{name} is {value!r}; expected a list, such as {example}.")


def check_each(noun: str, values: Sequence[Any], kind: type, error: type[HadopplerError]) -> None:
    """Refuse a list that is empty or holds something else than objects of a class.

    Raises:
        error: it does; ``noun`` says what they are.
    """
    if not len(values):
        raise error(f"the list of {noun}s is empty; give at least one.")
    for number, item in enumerate(values):
        if not isinstance(item, kind):
            raise error(f"number {number} of the {noun}s is {describe(item)}; expected a {kind.__name__}.")


def check_made(noun: str, value: object, kind: type[Kind], error: type[HadopplerError]) -> Kind:
    """What an environment's hook of the name ``noun``, or the function in its place, returned.

    Raises:
        error: it is of another class.
    """
    if not isinstance(value, kind):
        raise error(
            f"the next {noun} is {describe(value)}; the function that makes {noun}s, or {noun}() of a subclass, must "
            f"return a {kind.__name__}."
        )
    return value


def read_choice(action: Any, error: type[HadopplerError]) -> int:
    """An action of a ``Discrete`` space: a whole number, or an array of one.

    Raises:
        error: it is another one.
    """
    array = np.asarray(action)
    if array.size != 1 or array.dtype.kind not in "iu":
        raise error(f"the action is {action!r}; expected one whole number.")
    return int(array.item())


def read_reward(value: Any, error: type[HadopplerError]) -> float:
    """What the hook ``reward()`` of an environment returned.

    Raises:
        error: it is no number, or not a defined one.
    """
    try:
        reward = float(value)
    except (TypeError, ValueError):
        reward = math.nan
    if math.isnan(reward):
        raise error(f"reward() returned {value!r}; expected a number at every step, 0.0 where it brings nothing.")
    return reward
