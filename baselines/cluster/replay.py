"""Recorded allocations of Gavel, played back: what the mechanism does with them can be compared exactly."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...envs.cluster import Cluster, ClusterView
from ...envs.errors import AllocationError
from .gavel import GavelScheduler, rules_of


class ReplayPolicy:
    """The k-th reset gets the k-th recorded allocation.

    Args:
        allocations: ``{"t": seconds, "x": {job: {GPU type: fraction}}}`` each, by time.
        policy: Gavel's name of the policy that was recorded; FIFO's rule and the shuffled order of
            types depend on it.
    """

    def __init__(self, allocations: Sequence[Mapping[str, Any]], policy: str) -> None:
        self.name = f"replay of {policy}"
        self.work_conserving, self.shuffles_types = rules_of(policy)
        self._allocations = allocations

    @classmethod
    def read(cls, path: str | Path, policy: str | None = None) -> ReplayPolicy:
        """Read a recording; the policy's name is the second part of the file's unless given.

        Raises:
            AllocationError: the file cannot be read, or the policy is not known.
        """
        path = Path(path)
        try:
            content = path.read_bytes()
            allocations = json.loads(gzip.decompress(content) if path.suffix == ".gz" else content)["allocations"]
        except (OSError, ValueError, KeyError, EOFError) as error:
            raise AllocationError(f"{path}: cannot be read as recorded allocations ({error!r}).") from error
        parts = path.name.split(".")[0].split("__")
        if policy is None and len(parts) < 2:
            raise AllocationError(f"{path}: its name does not tell the policy (TRACE__POLICY.json.gz); give policy=.")
        return cls(allocations, policy or parts[1])

    def reset(self, cluster: Cluster, round_s: float, rng: np.random.Generator) -> None:
        """Forget everything; a new run begins."""
        self._next, self._types = 0, cluster.types

    def fractions(self, view: ClusterView) -> np.ndarray:
        """[N, R] the next recorded fractions; NaN for jobs that the recording does not name.

        Raises:
            AllocationError: the recording is at its end.
        """
        if self._next >= len(self._allocations):
            raise AllocationError(
                f"{self.name}: the recording has {len(self._allocations)} allocations and at {view.time:g} s one more "
                "is needed; the workload, cluster or policy differs from the recorded run."
            )
        entry = self._allocations[self._next]
        self._next += 1
        answer = np.full((len(view), len(self._types)), np.nan)
        for position, job in enumerate(view.job.tolist()):
            fractions = entry["x"].get(str(job))
            if fractions is not None:
                answer[position] = [fractions.get(gpu_type, 0.0) for gpu_type in self._types]
        return answer


def replay(path: str | Path, policy: str | None = None) -> GavelScheduler:
    """A scheduler that plays recorded allocations back (``mechanism="gavel"`` is what they were recorded under)."""
    return GavelScheduler(ReplayPolicy.read(path, policy))
