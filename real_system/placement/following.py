"""A placement for another capture of the same module, such as the one for evaluation."""

from __future__ import annotations

import re
from collections import Counter

import numpy as np

from ...envs.placement import DataflowGraph
from ...envs.placement.graph import Integers


def following(graph: DataflowGraph, placed: DataflowGraph, assignment: Integers) -> Integers:
    """[N] devices for ``graph`` that follow those of another graph of the same module (our choice).

    An operation goes where the placed graph has the operations of its name, the first to the first, the second to the
    second; else where most operations of its submodule are; else to the device of what it reads first; else to 0.
    """
    same: dict[str, list[int]] = {}
    near: dict[str, Counter[int]] = {}
    for v in range(placed.n):
        name, device = _plain(placed.names[v]), int(assignment[v])
        same.setdefault(name, []).append(device)
        near.setdefault(_submodule(name), Counter())[device] += 1
    found, met = np.zeros(graph.n, dtype=np.int32), Counter[str]()
    reads: list[list[int]] = [[] for _ in range(graph.n)]
    for source, target in zip(graph.edge_source.tolist(), graph.edge_target.tolist(), strict=True):
        reads[target].append(source)
    for v in graph.topological_order.tolist():
        name = _plain(graph.names[v])
        if name in same:
            found[v] = same[name][met[name] % len(same[name])]
            met[name] += 1
        elif _submodule(name) in near:
            found[v] = near[_submodule(name)].most_common(1)[0][0]
        elif reads[v]:
            found[v] = found[reads[v][0]]
    return found


def _plain(name: str) -> str:
    """A name without the position of a tile."""
    return re.sub(r"\[[\d, ]*\]$", "", name)


def _submodule(name: str) -> str:
    """``layers.0`` of ``layers.0.addmm (backward)``."""
    return name.partition(" ")[0].rpartition(".")[0]
