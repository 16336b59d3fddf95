"""Registers the environments with Gymnasium, by name alone: their modules load when one is made."""

from __future__ import annotations

from gymnasium.envs.registration import register, registry

CLUSTER_SCHEDULING = "hadoppler/ClusterScheduling-v0"
DEVICE_PLACEMENT = "hadoppler/DevicePlacement-v0"
DEVICE_PLACEMENT_VECTOR = "hadoppler/DevicePlacementVector-v0"
"""The vector environment under a name of its own, for ``make_vec`` only."""


def register_environments() -> None:
    """Make the environments known to ``gymnasium.make`` and ``make_vec``; does nothing the second time."""
    vector = "hadoppler.envs.placement.vector_env:DevicePlacementVectorEnv"
    if DEVICE_PLACEMENT not in registry:
        register(
            id=DEVICE_PLACEMENT,
            entry_point="hadoppler.envs.placement.env:DevicePlacementEnv",
            vector_entry_point=vector,
        )
    if DEVICE_PLACEMENT_VECTOR not in registry:
        register(id=DEVICE_PLACEMENT_VECTOR, vector_entry_point=vector)
    if CLUSTER_SCHEDULING not in registry:
        register(id=CLUSTER_SCHEDULING, entry_point="hadoppler.envs.cluster.env:ClusterSchedulingEnv")
