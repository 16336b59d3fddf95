"""Emulated speed: every step lasts as long as it would on a node of the cluster, by sleeping.

What is emulated is time only: models, gradients and weights are real. A step of one batch takes ``base / speed``
seconds; ``base`` is several times what it takes to compute, so that all nodes find processors enough.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ...envs.cluster import Cluster
from ...envs.cluster.facts import GPUS
from ...envs.cluster.scheduler import Floats
from ...envs.errors import ClusterError
from .training_job import JobSpec

HEADROOM = 5.0
"""Base seconds of a step over those that it takes to compute, at least (our choice)."""


def node_speeds(cluster: Cluster) -> Floats:
    """[R] relative speeds of a cluster's types: those that it gives, else by the peak FLOP/s of known GPUs.

    The second rule is our choice.

    Raises:
        ClusterError: some types have a relative speed and some have not, or an unknown type stands beside others.
    """
    given, types = cluster.relative_speed, cluster.types
    missing = [kind for kind in types if kind not in (given or GPUS)]
    if missing and (given or len(types) > 1):
        what = "others have" if given else "and is no known GPU"
        raise ClusterError(
            f"cluster {cluster.name}: {missing[0]} has no relative_speed, {what}; give one for every type in a file "
            f"(cluster=file), such as relative_speed: {{{', '.join(f'{kind}: 1.0' for kind in types)}}}."
        )
    if missing:
        return np.ones(1)
    if given:
        return np.array([given[kind] for kind in types])
    peak = np.array([GPUS[kind].flops_per_s for kind in types])
    return peak / peak.max()


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
