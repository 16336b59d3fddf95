"""Data sets that come inside scikit-learn."""

from __future__ import annotations

import importlib
from functools import lru_cache
from typing import Any

from ....envs.errors import MissingExtraError


@lru_cache(maxsize=4)
def load(name: str) -> Any:
    """``sklearn.datasets.load_<name>()``: an object with ``data``, ``target`` and, of pictures, ``images``.

    Raises:
        MissingExtraError: scikit-learn is not installed.
    """
    try:
        datasets = importlib.import_module("sklearn.datasets")
    except ImportError as error:
        raise MissingExtraError(f"The {name} data need scikit-learn; install hadoppler[cluster].") from error
    return getattr(datasets, f"load_{name}")()
