"""Checked access to the objects of a JSON file, with errors that name file, object and key."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from ...errors import GraphError


def load_object(text: str, source: str) -> dict[str, Any]:
    """The JSON object in a text.

    Raises:
        GraphError: the text is not JSON (with the line), repeats a key or holds something else.
    """

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        row = dict(pairs)
        if len(row) < len(pairs):
            names = [key for key, _ in pairs]
            twice = next(key for key in row if names.count(key) > 1)
            raise GraphError(f"{source}: an object has the key {twice!r} twice; give each key once.")
        return row

    try:
        document = json.loads(text, object_pairs_hook=unique)
    except json.JSONDecodeError as error:
        raise GraphError(f"{source}: line {error.lineno} is not valid JSON ({error.msg}); mend it there.") from error
    except (RecursionError, ValueError) as error:
        if isinstance(error, GraphError):
            raise
        raise GraphError(f"{source}: the JSON is nested too deeply or has a number of too many digits.") from error
    if not isinstance(document, dict):
        raise GraphError(f"{source}: the JSON holds a {type(document).__name__}, expected an object with 'nodes'.")
    return document


@dataclass(frozen=True)
class Row:
    """One object of a JSON file.

    Attributes:
        values: its keys and values.
        where: what to call it in errors, such as ``node 'A'``.
        source: the file.
    """

    values: dict[str, Any]
    where: str
    source: str

    @classmethod
    def checked(cls, value: Any, where: str, source: str, keys: Sequence[str]) -> Row:
        """Wrap a value that must be an object with none but these keys.

        Raises:
            GraphError: it is no object, or has an unknown key; the nearest valid one is named.
        """
        if not isinstance(value, dict):
            raise GraphError(f"{source}: {where} is {_shown(value)}, expected an object.")
        for key in value:
            if key not in keys:
                close = get_close_matches(key, keys, 1)
                hint = f"did you mean {close[0]!r}?" if close else f"expected one of {', '.join(keys)}."
                raise GraphError(f"{source}: {where} has the unknown key {key!r}; {hint}")
        return cls(value, where, source)

    def rows(self, key: str, keys: Sequence[str], *, needed: bool = False) -> list[Row]:
        """The list of objects under a key; each is named by its position."""
        values = self.need(key) if needed else self.values.get(key, [])
        if not isinstance(values, list):
            raise self.wrong(key, "a list")
        return [Row.checked(value, f"{key[:-1]} {i}", self.source, keys) for i, value in enumerate(values)]

    def need(self, key: str) -> Any:
        """The value of a key that must be there."""
        if key not in self.values:
            raise GraphError(f"{self.source}: {self.where} has no {key!r}; it is needed.")
        return self.values[key]

    def number(self, key: str, default: float | None = None) -> float:
        """A number; ``None`` as default makes the key needed."""
        value = self.need(key) if default is None else self.values.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
            raise self.wrong(key, "a number")
        try:
            return float(value)
        except OverflowError:
            raise self.wrong(key, "a number that is not so large") from None

    def whole(self, key: str, default: int) -> int:
        """A whole number of 32 bits."""
        value = self.values.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not -(2**31) <= value < 2**31:
            raise self.wrong(key, "a whole number")
        return value

    def text(self, key: str, default: str) -> str:
        """A text."""
        value = self.values.get(key, default)
        if not isinstance(value, str):
            raise self.wrong(key, "a text")
        return value

    def wholes(self, key: str) -> list[int]:
        """A list of whole numbers; empty where the key is missing."""
        values = self.values.get(key, [])
        if not isinstance(values, list) or any(type(value) is not int for value in values):
            raise self.wrong(key, "a list of whole numbers")
        return values

    def identifier(self, key: str) -> int | str:
        """An id: a text or an integer."""
        value = self.need(key)
        if isinstance(value, bool) or not isinstance(value, int | str):
            raise self.wrong(key, "a text or an integer")
        return value

    def wrong(self, key: str, expected: str) -> GraphError:
        """The error for a value that is not as expected."""
        return GraphError(f"{self.source}: {self.where} has {key} {_shown(self.values.get(key))}, expected {expected}.")


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
