"""Ray nodes for cluster nodes: private ones on this machine, or those of a Ray cluster that runs already."""

from __future__ import annotations

import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Mapping
from typing import Any, Protocol

from ...envs.errors import MissingExtraError
from .backend import WorkerError

LOOPBACK = "127.0.0.1" if sys.platform == "darwin" else "127.0.0.2"
"""Not 127.0.0.1 where others are there: Ray takes that for the machine's address in its network."""
OBJECT_STORE_BYTES = 100_000_000
"""Of each private node; states of jobs go through it."""
CALL_S = 5.0
"""How long the head of a cluster may take to answer."""
PRIVATE = ("RAY_TMPDIR", "RAY_USAGE_STATS_ENABLED")
"""Where Ray's processes keep files, their address too, for others to find; and whether they tell its makers."""
FAST_HEALTH_CHECKS = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 500,
    "health_check_failure_threshold": 5,
}


def import_ray() -> Any:
    """The module.

    Raises:
        MissingExtraError: Ray is not installed.
    """
    try:
        import ray
    except ImportError as error:
        raise MissingExtraError("The ray backend needs Ray; install hadoppler[ray].") from error
    return ray


def label(name: str) -> str:
    """The Ray resource by which a Ray node says which cluster node it stands for."""
    return f"hadoppler_{name}"


def alive_nodes() -> list[dict[str, Any]]:
    """The Ray nodes that are there, in the order of their addresses."""
    nodes = [node for node in import_ray().nodes() if node["Alive"]]
    return sorted(nodes, key=lambda node: (node["NodeManagerAddress"], node["NodeID"]))


class Places(Protocol):
    """Where the workers of cluster nodes are put.

    Attributes:
        host: address under which all of them reach this process.
    """

    host: str

    def options(self, name: str) -> dict[str, Any] | None:
        """How an actor is told to be on a cluster node; None while there is no Ray node for it."""

    def close(self) -> None:
        """Leave Ray."""


class PrivateNodes:
    """A Ray cluster of this process's own on loopback addresses, with one Ray node per cluster node.

    Nothing of it is reachable from outside, it joins no other, and it ends with this process.

    Args:
        workers: name of a cluster node -> workers on it.

    Raises:
        WorkerError: Ray is in use in this process already, or does not start.
    """

    host = LOOPBACK

    def __init__(self, workers: Mapping[str, int]) -> None:
        ray = import_ray()
        if ray.is_initialized():
            raise WorkerError("this process uses Ray already; join its cluster by address=, or end it before.")
        self._workers = dict(workers)
        self._nodes: dict[str, Any] = {}
        self._cluster: Any = None
        self.folder = tempfile.mkdtemp(prefix="hadoppler_", dir="/tmp")  # short: names of sockets are limited
        self._before = {name: os.environ.get(name) for name in PRIVATE}
        os.environ.update(zip(PRIVATE, (self.folder, "0"), strict=True))
        try:
            self._start()
        except Exception as error:
            self.close()
            raise WorkerError(f"a private Ray cluster did not start ({type(error).__name__}: {error}).") from error

    def _start(self) -> None:
        from ray.cluster_utils import Cluster

        os.mkdir(f"{self.folder}/ray")
        self._cluster = Cluster()
        self._cluster.add_node(
            num_cpus=0, include_dashboard=False, _system_config=FAST_HEALTH_CHECKS, **self._common()
        )  # for Ray's own books, so that any of the others can be lost
        for name in self._workers:
            self.add_node(name)
        import_ray().init(address=self._cluster.address, _node_ip_address=LOOPBACK, logging_level="error")

    def _common(self) -> dict[str, Any]:
        return {"node_ip_address": LOOPBACK, "object_store_memory": OBJECT_STORE_BYTES}

    def add_node(self, name: str) -> None:
        """Start the Ray node of a cluster node, again if it was removed."""
        count = self._workers[name]
        self._nodes[name] = self._cluster.add_node(
            wait=False, num_cpus=count, resources={label(name): count}, **self._common()
        )

    def remove_node(self, name: str) -> None:
        """Kill the Ray node of a cluster node, with all that runs on it."""
        self._cluster.remove_node(self._nodes.pop(name), allow_graceful=False)

    def options(self, name: str) -> dict[str, Any] | None:
        """As of ``Places``."""
        there = any(label(name) in node["Resources"] for node in alive_nodes())
        return {"resources": {label(name): 1}} if there else None

    def close(self) -> None:
        """As of ``Places``."""
        import_ray().shutdown()
        if self._cluster is not None:
            self._cluster.shutdown()
        for name, value in self._before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        shutil.rmtree(self.folder, ignore_errors=True)


class JoinedNodes:
    """A Ray cluster that runs already.

    A cluster node is the Ray node that has the resource ``hadoppler_<name>`` (``ray start
    --resources='{"hadoppler_<name>": 1}'``). A cluster node that no Ray node is named after takes one of those that
    are named after none and have processors for its workers, in the order of their addresses; if that one is lost,
    another.

    Args:
        address: as of ``ray.init``.
        workers: name of a cluster node -> workers on it.

    Raises:
        WorkerError: there is no such cluster, or too few nodes in it.
    """

    def __init__(self, address: str, workers: Mapping[str, int]) -> None:
        ray = import_ray()
        self._workers = dict(workers)
        self._taken: dict[str, str] = {}
        self._joined = not ray.is_initialized()
        try:
            if self._joined:
                _call(address)
                ray.init(address=address, logging_level="error")
        except (OSError, ValueError, RuntimeError) as error:
            raise WorkerError(f"there is no Ray cluster at {address!r} ({error}).") from error
        self.host = str(ray.util.get_node_ip_address())
        self._named = self._find_named()
        missing = [name for name in workers if self.options(name) is None]
        if missing:
            self.close()
            raise WorkerError(
                f"the Ray cluster at {address!r} has no node for {', '.join(missing)}; start one with "
                f"--resources='{{\"{label(missing[0])}\": 1}}', or one that has {workers[missing[0]]} processors."
            )

    def _find_named(self) -> set[str]:
        """Cluster nodes that Ray nodes are named after."""
        labels = {resource for node in alive_nodes() for resource in node["Resources"]}
        return {name for name in self._workers if label(name) in labels}

    def options(self, name: str) -> dict[str, Any] | None:
        """As of ``Places``."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        if name in self._named:
            return {"resources": {label(name): 1 / self._workers[name]}}
        alive = alive_nodes()
        if self._taken.get(name) not in [node["NodeID"] for node in alive]:
            others = {taken for other, taken in self._taken.items() if other != name}
            free = [node["NodeID"] for node in alive if node["NodeID"] not in others and self._fits(name, node)]
            if not free:
                return None
            self._taken[name] = free[0]
        return {"scheduling_strategy": NodeAffinitySchedulingStrategy(self._taken[name], soft=False)}

    def _fits(self, name: str, node: dict[str, Any]) -> bool:
        named = any(resource.startswith(label("")) for resource in node["Resources"])
        return not named and node["Resources"].get("CPU", 0) >= self._workers[name]

    def close(self) -> None:
        """As of ``Places``; the cluster goes on."""
        if self._joined:
            import_ray().shutdown()


def _call(address: str) -> None:
    """See whether anybody is at ``host:port``; Ray itself would try for minutes.

    Raises:
        OSError: nobody is.
    """
    host, _, port = address.rpartition(":")
    if host and port.isdecimal() and "/" not in host:
        socket.create_connection((host, int(port)), CALL_S).close()
