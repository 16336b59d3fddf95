"""Frozen lists of jobs on clusters, on which figures of different people compare."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..arguments import check_list
from ..content_hash import check_hash, content_hash
from ..descriptions import check_keys
from ..errors import SuiteError
from ..frozen_suites import frozen_suite
from .cluster import Cluster
from .generators import make_workload
from .workload import Workload

KEYS = ("workload", "jobs", "per_hour", "seed", "cluster")


@dataclass(frozen=True)
class World:
    """Jobs, the cluster that they run on, and the seed of the jobs and of the schedulers' draws."""

    workload: Workload
    cluster: Cluster
    seed: int


@dataclass(frozen=True)
class ClusterSuite:
    """Workloads of ``make_workload`` on clusters, under one set of rules.

    Attributes:
        name: for tables and results.
        worlds: mappings with ``workload`` (a generator's name), ``jobs``, ``per_hour`` (None: all jobs at 0), ``seed``
            and ``cluster`` (a text for ``Cluster.parse``).
        round_s, restart_s: the rules that differ between papers; the others are ``SimulationRules``' own.
        sha256: hash of the content as it was frozen; None for a list that nobody else uses.
    """

    name: str
    worlds: Sequence[Mapping[str, Any]]
    round_s: float = 360.0
    restart_s: float = 10.0
    sha256: str | None = None

    def __post_init__(self) -> None:
        example = "[{workload: headline, jobs: 60, seed: 0, cluster: headline}]"
        check_list(f"suite {self.name}: worlds", self.worlds, SuiteError, example)
        if not self.worlds:
            raise SuiteError(f"suite {self.name}: it has no worlds; give one or more.")
        for number, world in enumerate(self.worlds):
            where = f"suite {self.name}, world {number}"
            if not isinstance(world, Mapping):
                raise SuiteError(f"{where} is {world!r}; expected keys and values such as {example}.")
            check_keys(world, KEYS, where, SuiteError)
            for key in ("workload", "jobs", "seed", "cluster"):
                if key not in world:
                    raise SuiteError(f"{where}: {key} is missing; give {', '.join(KEYS)} (per_hour may be left out).")

    def make(self) -> list[World]:
        """All worlds, drawn anew.

        Raises:
            HadopplerError: a workload or a cluster cannot be made.
        """
        return [_make(world) for world in self.worlds]

    def check(self, worlds: Sequence[World]) -> str:
        """The hash of its jobs, their rates, the clusters and the rules.

        Raises:
            SuiteError: it is not the frozen one.
        """
        found = content_hash([{"round_s": self.round_s, "restart_s": self.restart_s}, *map(content, worlds)])
        check_hash(self.name, found, self.sha256)
        return found


def make_suite(name: str) -> ClusterSuite:
    """A frozen suite by name, such as ``cluster_test``; its ``make`` draws it, and its ``check`` compares the hash.

    Raises:
        UnknownNameError: no suite of jobs on clusters has this name.
    """
    return ClusterSuite(**frozen_suite(name, ClusterSuite))


def content(world: World) -> dict[str, Any]:
    """All that decides how a schedule of a world turns out, in plain values; names and ids do not count."""
    jobs, (together, spread) = world.workload.jobs, world.workload.rates(world.cluster)
    return {
        "jobs": [[job.arrival, job.workers, job.steps, job.kind, job.weight, job.slo] for job in jobs],
        "rates": together,
        "spread_rates": spread,
        "types": world.cluster.types,
        "capacity": world.cluster.capacity,
        "seed": world.seed,
    }


def _make(world: Mapping[str, Any]) -> World:
    jobs = make_workload(world["workload"], jobs=world["jobs"], seed=world["seed"], per_hour=world.get("per_hour"))
    return World(jobs, Cluster.parse(world["cluster"]), world["seed"])
