"""A placement read back from a file, to be scored and compared."""

from __future__ import annotations

import numpy as np

from ...envs.errors import PlacementError
from ...envs.placement import Placement, PlacementProblem


def from_file(
    problem: PlacementProblem, *, rng: np.random.Generator, execution: str, path: str | None = None
) -> Placement:
    """The placement in ``path``; see ``Placement.load``.

    Raises:
        PlacementError: no path was given, or the file does not fit the graph and devices.
    """
    if path is None:
        raise PlacementError("the method 'file' needs path=: a placement.json, or a JSON object of id: device.")
    return Placement.load(path, problem)
