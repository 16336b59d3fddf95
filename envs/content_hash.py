"""Hashes of what problems consist of, so that figures of different people are known to be of the same problems."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Any

import numpy as np

from .errors import SuiteError


def content_hash(parts: Iterable[Any]) -> str:
    """SHA-256, in hexadecimal, over the canonical text of each part.

    It depends on values only: not on the process, the order of a mapping's keys, or integer and float types' sizes.
    Floats count to eight significant digits (our choice): the last bits of a logarithm differ between processors.
    """
    digest = sha256()
    for part in parts:
        digest.update(canonical(part).encode())
        digest.update(b"\n")
    return digest.hexdigest()


def canonical(value: Any) -> str:
    """A value of JSON's kinds or NumPy's as text, equal for equal values.

    Raises:
        TypeError: it is of another kind.
    """
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, bool) or value is None or isinstance(value, int):
        return repr(value)
    if isinstance(value, float):
        return f"{value + 0.0:.7e}"  # adding 0 makes -0 positive
    if isinstance(value, str):
        return ascii(value)
    if isinstance(value, Mapping):
        pairs = sorted((str(key), item) for key, item in value.items())
        return "{" + ",".join(f"{key!a}:{canonical(item)}" for key, item in pairs) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(canonical, value)) + "]"
    raise TypeError(f"{type(value).__name__} has no canonical text")


def check_hash(suite: str, found: str, expected: str | None) -> None:
    """Refuse a suite whose content is not the one that was frozen; without an expected hash anything goes.

    Raises:
        SuiteError: they differ.
    """
    if expected is not None and found != expected:
        raise SuiteError(
            f"suite {suite}: its content has the SHA-256 {found}, but {expected} was frozen, so that figures would not "
            "compare with those of others; leave the suite's settings as they are (other versions of its generators, "
            "or of NumPy, make other content, too), or give suite.sha256=null for a suite of your own."
        )
