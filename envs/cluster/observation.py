"""Padded observations of rounds and their spaces, and the window of jobs that they show."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from .actions import ActionLayout
from .features import FEATURE_LIMIT, global_feature_names, job_feature_names, observe_round
from .held import what_is_held
from .scheduler import ClusterView

Observation = dict[str, NDArray[Any]]
PER_JOB = (
    *("job", "arrival", "workers", "steps", "remaining", "attained_s", "running_s", "weight", "slo"),
    *("rates", "spread_rates", "held_gang"),
)
"""Fields of a view with one row per job."""


def narrow(view: ClusterView, window: int) -> ClusterView:
    """The view of at most ``window`` jobs: those that run, then the oldest."""
    if len(view) <= window:
        return view
    rows = np.sort(np.argsort(view.held_gang < 0, kind="stable")[:window])
    guessed = None if view.guessed is None else view.guessed[rows]
    return replace(view, guessed=guessed, **{name: getattr(view, name)[rows] for name in PER_JOB})


@dataclass(frozen=True)
class ObservationLayout:
    """Sizes of observations, and what they hold.

    Attributes:
        actions: cluster, window and slots.
        nodes: send what is free and held per slot.
        flat: every array in one dimension, row by row (what stable-baselines3 asks for); ``unflatten`` gives
            the shapes back.
    """

    actions: ActionLayout
    nodes: bool = True
    flat: bool = True

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of every array of an observation before it is made flat."""
        window, slots, types = self.actions.window, len(self.actions.room), self.actions.cluster.types
        return {
            "job_features": (window, len(job_feature_names(types))),
            "global_features": (len(global_feature_names(types)),),
            **({"free": (slots,), "held": (window, slots)} if self.nodes else {}),
            "action_mask": (self.actions.mask_size,),
        }

    def space(self) -> spaces.Dict:
        """The space of observations; every bound is finite."""
        parts: dict[str, spaces.Space] = {}
        for name, shape in self.shapes.items():
            shape = (math.prod(shape),) if self.flat else shape
            if name == "action_mask":
                parts[name] = spaces.MultiBinary(shape[0])
            elif name in ("free", "held"):
                parts[name] = spaces.Box(0, int(self.actions.room.max()), shape, np.int32)
            else:
                parts[name] = spaces.Box(0.0, FEATURE_LIMIT, shape, np.float32)
        return spaces.Dict(parts)

    def observe(self, view: ClusterView | None, origin: float, queue: int, mask: NDArray[np.int8]) -> Observation:
        """New arrays; without a view all are 0 but the mask."""
        shapes, (node, gpu_type) = self.shapes, self.actions.slots
        arrays: Observation = {
            name: np.zeros(shape, np.int32 if name in ("free", "held") else np.float32)
            for name, shape in shapes.items()
            if name != "action_mask"
        }
        if view is not None:
            held = what_is_held(view)
            jobs, arrays["global_features"] = observe_round(view, held, origin, queue)
            arrays["job_features"][: len(view)] = jobs
            if self.nodes:
                arrays["free"][:] = view.free[node, gpu_type]
                by_node = np.zeros((len(view), *view.free.shape), np.int32)
                owner = np.repeat(held.owner, np.diff(view.held.ptr))
                mine = owner >= 0
                np.add.at(by_node, (owner[mine], view.held.node[mine], view.held.gpu_type[mine]), view.held.count[mine])
                arrays["held"][: len(view)] = by_node[:, node, gpu_type]
        arrays["action_mask"] = mask
        return {name: arrays[name].reshape(-1) if self.flat else arrays[name] for name in shapes}

    def unflatten(self, observation: Observation) -> Observation:
        """Views of an observation's arrays with their shapes given back."""
        shapes = self.shapes
        return {
            name: value.reshape(shapes[name]) if name in shapes and name != "action_mask" else value
            for name, value in observation.items()
        }
