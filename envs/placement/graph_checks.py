"""Checks of the parts that a graph is built from; each names its offender in one sentence."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import GraphError

Floats = NDArray[np.float64]
Integers = NDArray[np.int32]
Identifier = int | str

COST_LIMIT = 1e30
"""Costs above this are refused: sums of them would no longer be finite numbers (our choice)."""


def plain_label(label: Any) -> Any:
    """NumPy's integers and texts as Python's, so that ids compare by value and type."""
    return label.item() if isinstance(label, np.generic) else label


def number_ids(labels: tuple[Identifier, ...], count: int, where: str) -> dict[tuple[type, Identifier], int]:
    """Id, with its type, -> position; every id is an integer or a text and stands once."""
    if len(labels) != count:
        raise GraphError(f"{where}: {len(labels)} ids for {count} costs; give one id per operation.")
    number: dict[tuple[type, Identifier], int] = {}
    for position, label in enumerate(labels):
        if isinstance(label, bool) or not isinstance(label, int | str):
            raise GraphError(f"{where}: operation {position} has the id {label!r}; ids are integers or texts.")
        if number.setdefault((type(label), label), position) != position:
            raise GraphError(f"{where}: the id {label!r} stands twice; ids must be distinct.")
    return number


def number_edges(
    pairs: list[tuple[Identifier, Identifier]], number: dict[tuple[type, Identifier], int], where: str
) -> tuple[Integers, Integers]:
    """Positions of sources and targets [E] of edges that are given by ids."""
    ends = np.empty((2, len(pairs)), dtype=np.int32)
    for edge, pair in enumerate(pairs):
        try:
            tail, head = pair
        except (TypeError, ValueError):
            raise GraphError(f"{where}: edge {edge} is {pair!r}; expected a pair (source, target).") from None
        for side, label in enumerate((plain_label(tail), plain_label(head))):
            position = number.get((type(label), label)) if isinstance(label, int | str) else None
            if position is None:
                raise GraphError(f"{where}: edge {edge} ({tail!r} -> {head!r}) names no operation {label!r}.")
            ends[side, edge] = position
        if ends[0, edge] == ends[1, edge]:
            raise GraphError(f"{where}: operation {tail!r} has an edge to itself; remove the self-loop.")
    return ends[0], ends[1]


def number_tensors(tail: Integers, labels: Sequence[Hashable] | None, where: str) -> Integers:
    """[E] a number for each (source, label); without labels each edge has its own."""
    if labels is None:
        return np.arange(len(tail), dtype=np.int32)
    if len(labels) != len(tail):
        raise GraphError(f"{where}: {len(labels)} tensor labels for {len(tail)} edges; give one per edge.")
    number: dict[tuple[int, Hashable], int] = {}
    keys = [(int(source), label) for source, label in zip(tail, labels, strict=True)]
    try:
        return np.array([number.setdefault(key, len(number)) for key in keys], dtype=np.int32)
    except TypeError as error:
        raise GraphError(f"{where}: a tensor label cannot be compared ({error}); use texts or numbers.") from error


def renumber_tensors(carried: Integers) -> Integers:
    """Number the tensors by their first edge."""
    starts = np.ones(len(carried), dtype=bool)
    starts[1:] = carried[1:] != carried[:-1]
    return (np.cumsum(starts) - 1).astype(np.int32)


def number_vector(values: ArrayLike, what: str, where: str) -> Floats:
    """A new flat array of numbers."""
    try:
        array = np.array(values, dtype=np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise GraphError(f"{where}: {what} must be a list of numbers ({error}).") from error
    if array.ndim != 1:
        raise GraphError(f"{where}: {what} has shape {array.shape}; expected a flat list of numbers.")
    return array


def check_costs(
    values: ArrayLike | None, count: int, what: str, labels: Sequence[Any], where: str, missing: bool = False
) -> Floats:
    """A copy of ``values`` [count] after refusing what is no cost; NaN passes where ``missing`` is allowed."""
    if values is None:
        return np.zeros(count)
    array = number_vector(values, what, where)
    if len(array) != count:
        raise GraphError(f"{where}: {what} has {len(array)} entries, expected {count}.")
    with np.errstate(invalid="ignore"):
        bad = ~((array >= 0) & (array <= COST_LIMIT))
    if missing:
        bad &= ~np.isnan(array)
    if bad.any():
        offender = int(np.argmax(bad))
        raise GraphError(
            f"{where}: {labels[offender]!r} has {what} {array[offender]}; expected a number from 0 to {COST_LIMIT:g}."
        )
    return array + 0.0


def check_labels(values: ArrayLike | None, what: str, ids: tuple[Identifier, ...], where: str) -> Integers:
    """A copy of whole numbers [N], -1 everywhere by default."""
    if values is None:
        return np.full(len(ids), -1, dtype=np.int32)
    array = number_vector(values, what, where)
    if len(array) != len(ids):
        raise GraphError(f"{where}: {what} has {len(array)} entries, expected {len(ids)}.")
    bad = ~((np.floor(array) == array) & (np.abs(array) < 2**31))
    if bad.any():
        offender = int(np.argmax(bad))
        raise GraphError(f"{where}: {ids[offender]!r} has {what} {array[offender]:g}; expected a whole number.")
    return array.astype(np.int32)


def input_lists(
    rows: Sequence[Sequence[int]], ids: tuple[Identifier, ...], limit: int, where: str
) -> tuple[Integers, Integers]:
    """Pointer [N + 1] and graph inputs, each once per operation."""
    if len(rows) != len(ids):
        raise GraphError(f"{where}: reads has {len(rows)} entries, expected {len(ids)}.")
    pointer, index = np.zeros(len(ids) + 1, dtype=np.int32), []
    for position, row in enumerate(rows):
        if not isinstance(row, Iterable):
            raise GraphError(f"{where}: {ids[position]!r} reads {row!r}; expected a list of graph inputs.")
        for item in dict.fromkeys(row):
            if not isinstance(item, int | np.integer) or not 0 <= item < limit:
                raise GraphError(
                    f"{where}: {ids[position]!r} reads a graph input outside the {limit} that exist, {item!r}."
                )
            index.append(item)
        pointer[position + 1] = len(index)
    return pointer, np.array(index, dtype=np.int32)


def check_allowed(allowed: ArrayLike, ids: tuple[Identifier, ...], where: str) -> NDArray[np.bool_]:
    """Check and copy ``allowed`` [N, D]."""
    try:
        given = np.array(allowed)
    except ValueError as error:
        raise GraphError(f"{where}: the rows of allowed differ in length; give one value per device.") from error
    if given.ndim != 2 or len(given) != len(ids):
        raise GraphError(f"{where}: allowed has shape {given.shape}, expected ({len(ids)}, devices).")
    if not np.isin(given, (0, 1)).all():
        raise GraphError(f"{where}: allowed holds values other than true and false; give one of them per device.")
    mask = given.astype(bool)
    if not mask.any(axis=1).all():
        offender = ids[int(np.argmin(mask.any(axis=1)))]
        raise GraphError(f"{where}: operation {offender!r} may use no device; allow at least one.")
    return mask
