"""Nodes with GPUs of any types: described in one line, in a file, or by a built-in name."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..descriptions import check_keys, read_yaml
from ..errors import ClusterError, unknown_name

_TERM = re.compile(r"^(?P<gpus>[^\s:x+]+:\d+(?:\+[^\s:x+]+:\d+)*)(?:x(?P<nodes>\d+))?$")


@dataclass(frozen=True)
class Node:
    """One machine: its name and how many GPUs of which types it has (none is allowed)."""

    name: str
    gpus: Mapping[str, int]


@dataclass(frozen=True, eq=False)
class Cluster:
    """H nodes with GPUs of R types.

    Attributes:
        nodes: [H]; names are unique.
        name: for tables.
        relative_speed: for types that a throughput table does not know: their rate as a share of
            the rate on the table's first type. A type without one must be in the table.

    Types stand in order of their first appearance.
    """

    nodes: tuple[Node, ...]
    name: str = "cluster"
    relative_speed: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        seen: set[str] = set()
        for node in self.nodes:
            if node.name in seen:
                raise ClusterError(f"cluster {self.name}: two nodes are called {node.name!r}; give each its own name.")
            seen.add(node.name)
            for kind, count in node.gpus.items():
                if isinstance(count, bool) or count != int(count) or count < 0:
                    raise ClusterError(
                        f"cluster {self.name}, node {node.name}: {kind} is {count!r}; expected a whole number of GPUs."
                    )
        if not any(count > 0 for node in self.nodes for count in node.gpus.values()):
            raise ClusterError(f"cluster {self.name}: no node has a GPU; give at least one, such as v100:4x5.")
        for kind, speed in self.relative_speed.items():
            if kind not in self.types or not speed > 0:
                raise ClusterError(
                    f"cluster {self.name}: relative_speed of {kind!r} is {speed}; expected a number above 0 for one "
                    f"of {', '.join(self.types)}."
                )

    @cached_property
    def types(self) -> tuple[str, ...]:
        """[R] names of the GPU types."""
        return tuple(dict.fromkeys(kind for node in self.nodes for kind in node.gpus))

    @cached_property
    def capacity(self) -> NDArray[np.int64]:
        """[H, R] GPUs of each type on each node, read-only."""
        counts = np.array([[node.gpus.get(kind, 0) for kind in self.types] for node in self.nodes], dtype=np.int64)
        counts.setflags(write=False)
        return counts

    @property
    def gpus(self) -> int:
        """GPUs in all."""
        return int(self.capacity.sum())

    @property
    def gpus_of_type(self) -> NDArray[np.int64]:
        """[R] GPUs of each type."""
        return self.capacity.sum(axis=0)

    @classmethod
    def parse(cls, text: str, name: str | None = None, relative_speed: Mapping[str, float] | None = None) -> Cluster:
        """Read ``TYPE:GPUS`` terms, each with ``xNODES`` behind it (1 by default), between spaces.

        ``v100:4x5 k80:8`` is five nodes of 4 V100 and one of 8 K80; ``v100:2+k80:2x3`` is three
        nodes with both. A built-in name (``headline``, ``aws_like``, ``lab_like``, ``equal5``) works too.
        ``relative_speed`` is for types that a throughput table lacks.

        Raises:
            ClusterError: a term does not read so, or a relative speed is unusable; it is named.
        """
        if text.strip() in BUILT_IN:
            found = cls.built_in(text.strip())
            return cls(found.nodes, found.name, {**found.relative_speed, **_read_speeds(relative_speed, text)})
        nodes: list[Node] = []
        for term in text.replace(",", " ").split():
            match = _TERM.match(term)
            if match is None:
                raise ClusterError(
                    f"cluster {text!r}: cannot read {term!r}; expected TYPE:GPUSxNODES such as v100:4x5."
                )
            gpus: dict[str, int] = {}
            for part in match["gpus"].split("+"):
                kind, count = part.split(":")
                gpus[kind] = gpus.get(kind, 0) + int(count)
            first = len(nodes)
            nodes.extend(Node(f"n{first + i}", gpus) for i in range(int(match["nodes"] or 1)))
        return cls(tuple(nodes), name or text.strip(), _read_speeds(relative_speed, text))

    @classmethod
    def built_in(cls, name: str) -> Cluster:
        """A cluster by name (our choice of sizes and speeds).

        ``headline``: 20 V100, 20 P100 and 20 K80, 4 a node. ``aws_like``, ``lab_like``, ``equal5``:
        five nodes with one GPU each, of relative speeds 1, .45, .45, .14, .14; 1, .9, .5, .35, .15;
        and five times 1.

        Raises:
            UnknownNameError: there is none of this name.
        """
        if name not in BUILT_IN:
            raise unknown_name("cluster", name, BUILT_IN)
        content = BUILT_IN[name]
        if isinstance(content, str):
            return cls.parse(content, name)
        types = {speed: f"speed_{speed:.2f}" for speed in content}
        nodes = tuple(Node(f"n{i}", {types[speed]: 1}) for i, speed in enumerate(content))
        return cls(nodes, name, {kind: speed for speed, kind in types.items()})

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], where: str = "cluster") -> Cluster:
        """Build a cluster from plain values, the schema of a cluster file.

        Keys: ``nodes``, a list; each entry has ``gpus`` (a mapping of type to count, or a count with
        ``gpu_type`` beside it), and optionally ``name`` and ``count`` (equal nodes, 1 by default);
        ``name``; ``relative_speed`` (type to share of the throughput table's first type).

        Raises:
            ClusterError: a key is unknown, missing or of the wrong type; it is named.
        """
        check_keys(values, ("nodes", "name", "relative_speed"), where, ClusterError)
        entries = values.get("nodes")
        if not isinstance(entries, Sequence) or isinstance(entries, str) or not entries:
            raise ClusterError(f"{where}: nodes is missing; give a list of nodes with gpus and gpu_type.")
        nodes: list[Node] = []
        for position, entry in enumerate(entries):
            nodes.extend(_read_node(entry, len(nodes), f"{where}, node {position}"))
        return cls(tuple(nodes), str(values.get("name", where)), _read_speeds(values.get("relative_speed"), where))

    @classmethod
    def from_yaml(cls, path: str | Path) -> Cluster:
        """Read a cluster file, YAML or JSON; ``from_dict`` tells its keys.

        Raises:
            ClusterError: the file is missing, is no YAML or does not fit the schema.
        """
        values = read_yaml(path, ClusterError)
        if not isinstance(values, Mapping):
            raise ClusterError(f"{path}: expected the key nodes, found {type(values).__name__}.")
        return cls.from_dict(values, str(path))

    def to_dict(self) -> dict[str, Any]:
        """Plain values that ``from_dict`` reads back."""
        nodes = [{"name": node.name, "gpus": dict(node.gpus)} for node in self.nodes]
        return {"name": self.name, "nodes": nodes, "relative_speed": dict(self.relative_speed)}


BUILT_IN: dict[str, str | tuple[float, ...]] = {
    "headline": "v100:4x5 p100:4x5 k80:4x5",
    "aws_like": (1.0, 0.45, 0.45, 0.14, 0.14),
    "lab_like": (1.0, 0.9, 0.5, 0.35, 0.15),
    "equal5": (1.0,) * 5,
}
"""Clusters by name: the text of ``Cluster.parse``, or relative speeds of one-GPU nodes."""


def _read_speeds(speeds: Any, where: str) -> dict[str, float]:
    if not isinstance(speeds or {}, Mapping):
        raise ClusterError(f"{where}: relative_speed is {speeds!r}; expected GPU types with their speeds.")
    try:
        return {str(kind): float(speed) for kind, speed in (speeds or {}).items()}
    except (TypeError, ValueError) as error:
        raise ClusterError(f"{where}: relative_speed is {speeds!r}; expected a number for each GPU type.") from error


def _read_node(entry: Any, number: int, where: str) -> list[Node]:
    if not isinstance(entry, Mapping):
        raise ClusterError(f"{where}: expected keys such as gpus and gpu_type, found {entry!r}.")
    check_keys(entry, ("name", "gpus", "gpu_type", "count"), where, ClusterError)
    gpus = entry.get("gpus")
    if isinstance(gpus, Mapping):
        counts = {str(kind): count for kind, count in gpus.items()}
    elif isinstance(gpus, int) and "gpu_type" in entry:
        counts = {str(entry["gpu_type"]): gpus}
    else:
        raise ClusterError(f"{where}: gpus is {gpus!r}; give a mapping of GPU type to count, or a count and gpu_type.")
    if not all(isinstance(count, int) for count in counts.values()):
        raise ClusterError(f"{where}: gpus is {gpus!r}; expected whole numbers of GPUs.")
    copies = entry.get("count", 1)
    if not isinstance(copies, int) or copies < 1:
        raise ClusterError(f"{where}: count is {copies!r}; expected a whole number from 1 up.")
    name = str(entry.get("name", f"n{number}"))
    return [Node(name if copies == 1 else f"{name}-{i}", counts) for i in range(copies)]
