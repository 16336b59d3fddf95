"""What a placement makes of a graph: who waits for whom, what is sent where, and where each tensor lies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from ...envs.placement import PlacementProblem
from ...envs.placement.graph import DataflowGraph


class Transfer(NamedTuple):
    """One tensor on its way to one device.

    ``outputs`` are the outputs of ``operation`` that it carries, and ``slots`` where they go; ``consumers`` holds an
    entry for every edge that it serves.
    """

    operation: int
    tensor: int
    source: int
    target: int
    bytes: float
    consumers: tuple[int, ...]
    outputs: tuple[int, ...] = ()
    slots: tuple[int, ...] = ()


@dataclass(frozen=True, eq=False)
class GraphTables:
    """What runs need of a graph wherever its operations are placed.

    Attributes:
        targets: [T] consumers of each tensor, one entry per edge.
        producer: [T] operation that makes it.
        carried: [T] outputs of the producer that the tensor stands for; none without kernels.
        phase: [N] 0, or 1 for operations that wait for inputs which are given later, or that nobody wants.
        late: [N] whether an operation itself reads such an input, or is not wanted.
        wanted: [N] operations that run at all; the others never begin, and nothing is kept or sent for them.
    """

    problem: PlacementProblem
    targets: tuple[tuple[int, ...], ...]
    producer: tuple[int, ...]
    carried: tuple[tuple[int, ...], ...]
    phase: tuple[int, ...]
    late: tuple[bool, ...]
    wanted: tuple[bool, ...]

    @classmethod
    def of(
        cls, problem: PlacementProblem, late_inputs: Sequence[int] = (), wanted: Sequence[bool] | None = None
    ) -> GraphTables:
        """Tables of a problem's graph.

        Args:
            late_inputs: numbers of graph inputs that a second phase waits for.
            wanted: [N] operations to run in the first phase, with all that they wait for; the others never run.
        """
        graph, pointer = problem.graph, problem.tensor_ptr.tolist()
        ends, runs = graph.edge_target.tolist(), (True,) * graph.n if wanted is None else tuple(wanted)
        targets = tuple(tuple(w for w in ends[a:b] if runs[w]) for a, b in pairwise(pointer))
        producer = tuple(graph.edge_source[problem.tensor_ptr[:-1]].tolist())
        late = [False] * graph.n
        for v in range(graph.n):
            reads = graph.input_index[graph.input_ptr[v] : graph.input_ptr[v + 1]]
            late[v] = not runs[v] or bool(np.isin(reads, list(late_inputs)).any())
        phase = [int(flag) for flag in late]
        starts, following = graph.out_ptr.tolist(), ends
        for v in graph.topological_order.tolist():
            if phase[v]:
                for w in following[starts[v] : starts[v + 1]]:
                    phase[w] = 1
        carried = _carried(graph, targets, producer, _reads(graph, runs))
        return cls(problem, targets, producer, carried, tuple(phase), tuple(late), runs)

    @cached_property
    def reads(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """[N] distinct (operation, output) that each wanted operation reads; empty without kernels."""
        return _reads(self.problem.graph, self.wanted)

    @cached_property
    def tensors_of(self) -> tuple[tuple[int, ...], ...]:
        """[N] tensors that each operation makes."""
        made: list[list[int]] = [[] for _ in range(self.problem.n)]
        for tensor, v in enumerate(self.producer):
            made[v].append(tensor)
        return tuple(map(tuple, made))

    @cached_property
    def first_slot(self) -> tuple[int, ...]:
        """[N + 1] slots ``first_slot[v]:first_slot[v + 1]`` hold the outputs of operation v on its own device."""
        kernels = self.problem.graph.kernels
        counts = [len(kernel.outputs) for kernel in kernels] if kernels is not None else [0] * self.problem.n
        return tuple(np.cumsum([0, *counts]).tolist())


@dataclass(frozen=True, eq=False)
class RunPlan:
    """A placed graph as lists that threads walk through quickly.

    Attributes:
        assignment: [N] device of each operation.
        waiting: [N] edges (and late inputs) that each operation waits for.
        local: [N] consumers on the operation's own device, one entry per edge.
        sends: [N] transfers that begin when the operation ends.
        transfers: all of them.
        entries: [D] operations that wait for nothing.
        count: [2, D] operations of each phase on each device.
        slots: number of places for tensors; ``holds`` [slots] counts the operations that read each one on its device,
            and one more for what the graph returns.
        inputs_at: [N] (operation, output) -> slot, where it is not the producer's own.
        releases: [N] slots that an operation has read once it has run.
    """

    tables: GraphTables
    assignment: tuple[int, ...]
    waiting: tuple[int, ...]
    local: tuple[tuple[int, ...], ...]
    sends: tuple[tuple[int, ...], ...]
    transfers: tuple[Transfer, ...]
    entries: tuple[tuple[int, ...], ...]
    count: tuple[tuple[int, ...], tuple[int, ...]]
    slots: int
    holds: tuple[int, ...]
    inputs_at: tuple[dict[tuple[int, int], int], ...]
    releases: tuple[tuple[int, ...], ...]

    @property
    def problem(self) -> PlacementProblem:
        """Graph and devices."""
        return self.tables.problem

    def slot(self, v: int, key: tuple[int, int]) -> int:
        """Where operation v finds output ``key`` = (operation, number) on its device."""
        found = self.inputs_at[v].get(key)
        return self.tables.first_slot[key[0]] + key[1] if found is None else found

    @classmethod
    def of(cls, tables: GraphTables, assignment: ArrayLike) -> RunPlan:
        """Lists for one assignment [N].

        Raises:
            PlacementError: the assignment does not fit the problem.
        """
        problem = tables.problem
        placed = problem.check_assignment(assignment).tolist()
        local: list[tuple[int, ...]] = [()] * problem.n
        sends: list[tuple[int, ...]] = [()] * problem.n
        transfers: list[Transfer] = []
        slots = tables.first_slot[-1]
        inputs_at: list[dict[tuple[int, int], int]] = [{} for _ in range(problem.n)]
        for v, tensors in enumerate(tables.tensors_of):
            here, mine, sent = placed[v], list[int](), list[int]()
            for tensor in tensors:
                elsewhere: dict[int, list[int]] = {}
                for w in tables.targets[tensor]:
                    (mine if placed[w] == here else elsewhere.setdefault(placed[w], [])).append(w)
                for there in sorted(elsewhere):
                    outputs = tables.carried[tensor]
                    places = tuple(range(slots, slots + len(outputs)))
                    slots += len(outputs)
                    for w in elsewhere[there]:
                        inputs_at[w].update(zip(((v, output) for output in outputs), places, strict=True))
                    sent.append(len(transfers))
                    size = float(problem.graph.edge_bytes[problem.tensor_ptr[tensor]])
                    transfers.append(Transfer(v, tensor, here, there, size, tuple(elsewhere[there]), outputs, places))
            local[v], sends[v] = tuple(mine), tuple(sent)
        waiting = (problem.graph.in_degree + np.array(tables.late, dtype=np.int32)).tolist()
        entries = [tuple(v for v in range(problem.n) if placed[v] == d and not waiting[v]) for d in range(problem.d)]
        phases = np.zeros((2, problem.d), dtype=np.int64)
        np.add.at(phases, (list(tables.phase), placed), 1)
        count = (tuple(phases[0].tolist()), tuple(phases[1].tolist()))
        plan = cls(
            tables, tuple(placed), tuple(waiting), tuple(local), tuple(sends), tuple(transfers), tuple(entries), count,
            slots, (), tuple(inputs_at), (),
        )  # fmt: skip
        plan._count_holds()
        return plan

    def _count_holds(self) -> None:
        """Fill ``holds`` and ``releases``."""
        holds = [0] * self.slots
        releases: list[tuple[int, ...]] = []
        for v, keys in enumerate(self.tables.reads):
            read = tuple({self.slot(v, key) for key in keys})
            for slot in read:
                holds[slot] += 1
            releases.append(read)
        for reference in self.problem.graph.outputs:
            if reference.source == "op" and self.slots:
                holds[self.tables.first_slot[reference.number] + reference.output] += 1
        object.__setattr__(self, "holds", tuple(holds))
        object.__setattr__(self, "releases", tuple(releases) if releases else ((),) * self.problem.n)


Reads = tuple[tuple[tuple[int, int], ...], ...]
"""[N] the (operation, output) that operations read."""


def _reads(graph: DataflowGraph, wanted: Sequence[bool]) -> Reads:
    if graph.kernels is None:
        return ((),) * graph.n
    return tuple(
        tuple(dict.fromkeys((r.number, r.output) for r in kernel.references() if r.source == "op")) if runs else ()
        for kernel, runs in zip(graph.kernels, wanted, strict=True)
    )


def _carried(
    graph: DataflowGraph, targets: Sequence[tuple[int, ...]], producer: Sequence[int], reads: Reads
) -> tuple[tuple[int, ...], ...]:
    """[T] outputs that each tensor stands for.

    A tensor is that output of its producer which exactly the tensor's targets read. Where a file drew the edges
    otherwise (one tensor for each of them), it is all outputs that its targets read: what arrives with any one of an
    operation's tensors is then enough for the edge behind it.
    """
    if graph.kernels is None:
        return ((),) * len(targets)
    readers: list[dict[int, set[int]]] = [{} for _ in range(graph.n)]
    for w, keys in enumerate(reads):
        for v, output in keys:
            readers[v].setdefault(output, set()).add(w)
    carried: list[tuple[int, ...]] = []
    taken: set[tuple[int, int]] = set()
    for tensor, v in enumerate(producer):
        wanted = set(targets[tensor])
        exact = [o for o in sorted(readers[v]) if readers[v][o] == wanted and (v, o) not in taken]
        if exact:
            taken.add((v, exact[0]))
        carried.append(tuple(exact[:1]) or tuple(o for o in sorted(readers[v]) if readers[v][o] & wanted))
    return tuple(carried)
