"""Recorded allocations of Gavel, played back: what the mechanism does with them can be compared exactly."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...envs.arguments import check_list, is_number
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
            AllocationError: the file cannot be read, or an allocation in it has another form.
            UnknownNameError: Gavel has no such policy.
        """
        path = Path(path)
        try:
            content = path.read_bytes()
            allocations = json.loads(gzip.decompress(content) if path.suffix == ".gz" else content)["allocations"]
        except (OSError, ValueError, KeyError, TypeError, EOFError, RecursionError, zlib.error) as error:
            raise AllocationError(f"{path}: cannot be read as recorded allocations ({error!r}).") from error
        check_list(f"{path}: allocations", allocations, AllocationError, '[{"t": 0, "x": {"0": {"v100": 1}}}]')
        for number, entry in enumerate(allocations):
            if not _is_allocation(entry):
                raise AllocationError(
                    f"{path}: allocation {number} is no mapping with x, the fractions (0 to 1) of each job on each GPU "
                    "type."
                )
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


def _is_allocation(entry: Any) -> bool:
    """Whether it has fractions as a solver gives them, which may be a little off."""
    jobs = entry.get("x") if isinstance(entry, Mapping) else None
    return isinstance(jobs, Mapping) and all(
        isinstance(parts, Mapping) and all(is_number(part) and -0.1 <= part <= 1.1 for part in parts.values())
        for parts in jobs.values()
    )


def replay(path: str | Path, policy: str | None = None) -> GavelScheduler:
    """A scheduler that plays recorded allocations back (``mechanism="gavel"`` is what they were recorded under)."""
    return GavelScheduler(ReplayPolicy.read(path, policy))
