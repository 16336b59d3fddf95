"""Padded observations of placement episodes and their spaces, of one shape for graphs of many sizes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from ..arguments import check_whole
from ..errors import PlacementError
from .episodes import EpisodeBatch
from .features import DEVICE_FEATURES, EDGE_FEATURES, FEATURE_LIMIT, NODE_FEATURES, StaticFeatures
from .problem import PlacementProblem

Observation = dict[str, NDArray[Any]]
GRAPH_ID_LIMIT = 2**24 - 1
"""Largest ``graph_id``: float32, to which some libraries cast, holds all smaller numbers exactly."""


@dataclass(frozen=True)
class ObservationLayout:
    """Sizes to which observations are padded, and what they hold.

    Attributes:
        max_operations, max_edges, devices: N, E and D of the padded arrays.
        edges: send the static edges; without them ``graph_id`` tells which graph it is.
        flat: every array in one dimension, row by row (what stable-baselines3 asks for); ``unflatten`` gives
            the shapes back.
    """

    max_operations: int
    max_edges: int
    devices: int
    edges: bool = True
    flat: bool = True

    def __post_init__(self) -> None:
        for name in ("max_operations", "max_edges", "devices"):
            check_whole(name, getattr(self, name), PlacementError)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of every array of an observation before it is made flat."""
        n, e, d = self.max_operations, self.max_edges, self.devices
        edges = {"edge_index": (2, e), "edge_features": (e, len(EDGE_FEATURES))}
        return {
            "node_features": (n, len(NODE_FEATURES)),
            **(edges if self.edges else {"graph_id": (1,)}),
            "counts": (3,),
            "candidates": (n,),
            "action_mask": (n, d),
            "device_features": (n, d, len(DEVICE_FEATURES)),
            "assignment": (n,),
            "memory": (d,),
        }

    def space(self) -> spaces.Dict:
        """The space of observations; every bound is finite."""
        size = max(self.max_operations, self.max_edges, self.devices)
        ranges: dict[str, tuple[float, float, Any]] = {
            "node_features": (-FEATURE_LIMIT, FEATURE_LIMIT, np.float32),
            "edge_index": (0, max(self.max_operations - 1, 1), np.int32),
            "edge_features": (-FEATURE_LIMIT, FEATURE_LIMIT, np.float32),
            "graph_id": (0, GRAPH_ID_LIMIT, np.int32),
            "counts": (0, size, np.int32),
            "device_features": (0.0, FEATURE_LIMIT, np.float32),
            "assignment": (-1, self.devices - 1, np.int32),
            "memory": (0.0, FEATURE_LIMIT, np.float32),
        }
        parts: dict[str, spaces.Space] = {}
        for name, shape in self.shapes.items():
            shape = (math.prod(shape),) if self.flat else shape
            if name in ranges:
                low, high, dtype = ranges[name]
                parts[name] = spaces.Box(low, high, shape, dtype)
            else:
                parts[name] = spaces.MultiBinary(shape[0] if len(shape) == 1 else shape)
        return spaces.Dict(parts)

    def check(self, problem: PlacementProblem) -> None:
        """Refuse a problem that does not fit.

        Raises:
            PlacementError: it has more operations, edges or devices than the observation has room for.
        """
        for name, count, room in (
            ("operations", problem.n, self.max_operations),
            ("edges", problem.graph.e, self.max_edges),
            ("devices", problem.d, self.devices),
        ):
            if count > room:
                option = name if name == "devices" else f"max_{name}"
                raise PlacementError(
                    f"{problem.graph.title}: it has {count} {name}, the environment was made for {room}; "
                    f"make it with a larger {option}."
                )

    def static(self, problem: PlacementProblem, features: StaticFeatures, graph_id: int) -> Observation:
        """The part of an observation that no step changes, padded with zeros; shapes as ``shapes``."""
        shapes, n, e = self.shapes, problem.n, problem.graph.e
        nodes = np.zeros(shapes["node_features"], np.float32)
        nodes[:n] = features.nodes
        part: Observation = {
            "node_features": nodes,
            "counts": np.array([n, e, problem.d], np.int32),
        }
        if not self.edges:
            part["graph_id"] = np.array([graph_id % (GRAPH_ID_LIMIT + 1)], np.int32)
            return part
        part["edge_index"] = np.zeros(shapes["edge_index"], np.int32)
        part["edge_index"][:, :e] = features.edge_index
        part["edge_features"] = np.zeros(shapes["edge_features"], np.float32)
        part["edge_features"][:e] = features.edges
        return part

    def masks(self, batch: EpisodeBatch) -> NDArray[np.int8]:
        """int8 [B, N, D] legal actions; a finished episode shows (0, 0), which does nothing there."""
        return batch.legal_actions(np.zeros((batch.episodes, self.max_operations, self.devices), np.int8))

    def observe(self, static: Observation, batch: EpisodeBatch) -> Observation:
        """New arrays with a leading dimension B."""
        b, shapes = batch.episodes, self.shapes
        mask = self.masks(batch)
        assignment = np.full((b, self.max_operations), -1, np.int32)
        assignment[:, : batch.problem.n] = batch.state.assignment
        arrays = {name: np.repeat(value[None], b, axis=0) for name, value in static.items()}
        arrays["candidates"] = mask.max(axis=2)
        arrays["action_mask"] = mask
        arrays["device_features"] = batch.candidate_features(np.zeros((b, *shapes["device_features"]), np.float32))
        arrays["assignment"] = assignment
        arrays["memory"] = self.memory(batch)
        if self.flat:
            return {name: arrays[name].reshape(b, -1) for name in shapes}
        return {name: arrays[name] for name in shapes}

    def memory(self, batch: EpisodeBatch) -> NDArray[np.float32]:
        """float32 [B, D] bytes booked on each device as a share of its capacity, 0 without a limit."""
        share = np.zeros((batch.episodes, self.devices), np.float32)
        if batch.tracks_memory:
            share[:, : batch.problem.d] = np.minimum(batch.memory_share(), FEATURE_LIMIT)
        return share

    def unflatten(self, observation: Observation) -> Observation:
        """Views of an observation's arrays, or of a batch of them [B, ...], with their shapes given back."""
        shapes = {name: shape for name, shape in self.shapes.items() if name in observation}
        return {
            name: value.reshape(*value.shape[: value.ndim - (1 if self.flat else len(shapes[name]))], *shapes[name])
            if name in shapes
            else value
            for name, value in observation.items()
        }
