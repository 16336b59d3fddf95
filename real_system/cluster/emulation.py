"""Emulated speed: every step lasts as long as it would on a node of the cluster, by sleeping.

What is emulated is time only: models, gradients and weights are real. A step of one batch takes ``base / speed``
seconds; ``base`` is several times what it takes to compute, so that all nodes find processors enough.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ...envs.cluster import Cluster
from ...envs.cluster.scheduler import Floats
from ...envs.errors import ClusterError
from .training_job import JobSpec

HEADROOM = 5.0
"""Base seconds of a step over those that it takes to compute, at least (our choice)."""


def node_speeds(cluster: Cluster) -> Floats:
    """[R] relative speeds of the cluster's types; 1 for all where none is given.

    Raises:
        ClusterError: some types have one and some have not.
    """
    known = cluster.relative_speed
    missing = [kind for kind in cluster.types if kind not in known]
    if known and missing:
        raise ClusterError(
            f"cluster {cluster.name}: {missing[0]} has no relative_speed, others have; give one for every type, so "
            "that it can be emulated."
        )
    return np.array([known.get(kind, 1.0) for kind in cluster.types])


@dataclass(frozen=True)
class EmulatedPace:
    """``Pace`` of emulated nodes.

    Attributes:
        base_s: (task, batch size) -> seconds of a step at speed 1.
        speed: [R] of the GPU types.
    """

    base_s: Mapping[tuple[str, int], float]
    speed: Floats

    def seconds(self, spec: JobSpec, gpu_type: int, part: float) -> float:
        """As of ``Pace``."""
        return float(part * self.base_s[spec.task, spec.batch_size] / self.speed[gpu_type])

    def speeds(self, spec: JobSpec) -> Sequence[float]:
        """As of ``Pace``."""
        return self.speed.tolist()


@dataclass(frozen=True)
class OwnPace:
    """``Pace`` of nodes that run as fast as they can.

    Attributes:
        speed: [R] how their samples are divided in a gang.
    """

    speed: Floats

    def seconds(self, spec: JobSpec, gpu_type: int, part: float) -> float:
        """As of ``Pace``."""
        return 0.0

    def speeds(self, spec: JobSpec) -> Sequence[float]:
        """As of ``Pace``."""
        return self.speed.tolist()
