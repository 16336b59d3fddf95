"""A graph on devices: what each operation costs where, and what each tensor costs between them."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import MemoryLimitError, PlacementError
from .fifo_kernel import ProblemArrays
from .graph import DataflowGraph, Floats, Integers, frozen
from .topology import Contention, Topology

MemoryMode = Literal["error", "penalty", "off"]


@dataclass(frozen=True, eq=False)
class PlacementProblem:
    """Assign every operation of ``graph`` to a device of ``topology``.

    Attributes:
        contention: how transfers wait for each other; the topology's by default.
        memory: what a placement over a device's memory does in the simulator: ``error`` raises,
            ``penalty`` lengthens its makespan, ``off`` ignores it.
        share_tensors: a tensor is sent to a device once, however many operations there read it.
        time_unit: makespans are divided by it in tables (1 s; 1e10 for the public files' units).

    The cost of an operation on a device is, in this order (our choice): the graph's measured
    seconds for the device's kind; its FLOPs and bytes through the device's roofline; where there are
    none, the fastest measurement on other kinds divided by the device's share of the fastest
    device's FLOP/s.
    """

    graph: DataflowGraph
    topology: Topology
    contention: Contention | None = None
    memory: MemoryMode = "error"
    share_tensors: bool = True
    time_unit: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "contention", self.contention or self.topology.contention)
        if self.contention not in get_args(Contention):
            raise PlacementError(f"contention is {self.contention!r}; expected none, pair or ports.")
        if self.memory not in get_args(MemoryMode):
            raise PlacementError(f"memory is {self.memory!r}; expected error, penalty or off.")
        allowed = self.graph.allowed
        if allowed is not None and allowed.shape[1] != self.d:
            raise PlacementError(
                f"{self.graph.title}: its pins speak of {allowed.shape[1]} devices, the topology has {self.d}; "
                "make them equal."
            )
        self._check_costs()
        self._check_memory()

    @classmethod
    def raw(
        cls,
        graph: DataflowGraph,
        devices: int | None = None,
        *,
        speeds: ArrayLike | None = None,
        contention: Contention = "none",
    ) -> PlacementProblem:
        """The cost model of the public text files: equal devices, costs and transfers as they stand.

        A unit of cost takes one unit of time, a byte between two devices too, every edge between
        two devices is a transfer of its own, and transfers never wait. Measured seconds are ignored.
        ``speeds`` [D] makes the devices unequal.

        Raises:
            TopologyError: a number of devices, a speed or the contention is not usable.
        """
        topology = Topology.uniform(devices, speeds=speeds, contention=contention, name="raw")
        return cls(
            replace(graph, seconds={}, bytes_moved=frozen(np.zeros(graph.n))),
            topology,
            memory="off",
            share_tensors=False,
            time_unit=1e10 if graph.flops.max() >= 1e10 else 1.0,
        )

    def with_options(
        self, *, contention: Contention | None = None, memory: MemoryMode | None = None
    ) -> PlacementProblem:
        """The same problem under another contention or memory rule."""
        return replace(self, contention=contention or self.contention, memory=memory or self.memory)

    def with_seconds(self, seconds: ArrayLike) -> PlacementProblem:
        """The same problem with times [N, D] of each operation on each device, which are then kinds of their own."""
        times = np.array(seconds, dtype=np.float64)
        kinds = [f"{device.kind}#{number}" for number, device in enumerate(self.topology.devices)]
        devices = tuple(replace(item, kind=kind) for item, kind in zip(self.topology.devices, kinds, strict=True))
        columns = {kind: frozen(np.ascontiguousarray(times[:, number])) for number, kind in enumerate(kinds)}
        return replace(
            self, graph=replace(self.graph, seconds=columns), topology=replace(self.topology, devices=devices)
        )

    def on_devices(self, devices: ArrayLike) -> PlacementProblem:
        """The same graph on some of the devices, given by number.

        Raises:
            PlacementError: pins leave an operation without a device.
            TopologyError: a device does not exist or is named twice.
        """
        topology, graph = self.topology.subset(devices), self.graph
        if graph.allowed is not None:
            allowed = graph.allowed[:, np.asarray(devices, dtype=np.int64)]
            if not allowed.any(axis=1).all():
                v = int(np.argmin(allowed.any(axis=1)))
                told = np.asarray(devices).tolist()
                raise PlacementError(f"{graph.title}: operation {graph.ids[v]!r} may use none of the devices {told}.")
            graph = graph.with_pins(allowed)
        return replace(self, graph=graph, topology=topology)

    def __getstate__(self) -> dict[str, Any]:
        """Copies and pickles hold the fields alone; what is derived is derived again, read-only as here."""
        return {item.name: getattr(self, item.name) for item in fields(self)}

    @property
    def n(self) -> int:
        """Number of operations."""
        return self.graph.n

    @property
    def d(self) -> int:
        """Number of devices."""
        return self.topology.d

    @cached_property
    def compute_s(self) -> Floats:
        """[N, D] seconds of each operation on each device (allowed or not)."""
        graph, columns = self.graph, []
        unpriced = (graph.flops == 0) & (graph.bytes_moved == 0)
        for device, share in zip(self.topology.devices, self.topology.relative_speed, strict=True):
            column = device.seconds(graph.kind, graph.flops, graph.bytes_moved)
            if graph.seconds:
                elsewhere = np.fmin.reduce([np.asarray(values) for values in graph.seconds.values()])
                column = np.where(unpriced, elsewhere / share, column)
                measured = graph.seconds.get(device.kind, np.nan)
                column = np.where(np.isnan(measured), column, measured)
            columns.append(column)
        return frozen(np.ascontiguousarray(np.stack(columns, axis=1)))

    @cached_property
    def allowed(self) -> NDArray[np.bool_]:
        """[N, D] devices that each operation may use."""
        if self.graph.allowed is None:
            return frozen(np.ones((self.n, self.d), dtype=bool))
        return self.graph.allowed

    @cached_property
    def seconds_per_byte(self) -> Floats:
        """[D, D] inverse bandwidth, 0 on the diagonal."""
        return frozen(1.0 / self.topology.bandwidth)

    @property
    def latency(self) -> Floats:
        """[D, D] seconds, 0 on the diagonal."""
        return self.topology.latency

    @cached_property
    def best_s(self) -> Floats:
        """[N] seconds of each operation on the fastest device that it may use."""
        return frozen(np.where(self.allowed, self.compute_s, np.inf).min(axis=1))

    @cached_property
    def mean_s(self) -> Floats:
        """[N] mean seconds of each operation over the devices that it may use."""
        return frozen(np.where(self.allowed, self.compute_s, 0.0).sum(axis=1) / self.allowed.sum(axis=1))

    @cached_property
    def mean_transfer_s(self) -> Floats:
        """[E] mean seconds of each edge's tensor over all pairs of distinct devices (0 with one device)."""
        apart = ~np.eye(self.d, dtype=bool)
        if not apart.any():
            return frozen(np.zeros(self.graph.e))
        rate, delay = self.seconds_per_byte[apart].mean(), self.latency[apart].mean()
        return frozen(delay + rate * self.graph.edge_bytes)

    @cached_property
    def least_transfer_s(self) -> Floats:
        """[E] seconds of each edge's tensor over the pair of distinct devices where it is fastest."""
        apart = ~np.eye(self.d, dtype=bool)
        if not apart.any():
            return frozen(np.full(self.graph.e, np.inf))
        pairs = np.unique(np.stack([self.latency[apart], self.seconds_per_byte[apart]]), axis=1)
        return frozen((pairs[0][:, None] + pairs[1][:, None] * self.graph.edge_bytes[None, :]).min(axis=0))

    @cached_property
    def tensor_ptr(self) -> Integers:
        """[T + 1] CSR pointer: edges that one transfer serves (each edge alone if tensors are not shared)."""
        if self.share_tensors:
            return self.graph.tensor_ptr
        return np.arange(self.graph.e + 1, dtype=np.int32)

    @cached_property
    def input_bytes(self) -> Floats:
        """[P] bytes of each graph input."""
        return np.array([item.bytes for item in self.graph.inputs], dtype=np.float64)

    @cached_property
    def may_overflow(self) -> bool:
        """False if every device holds all inputs, all outputs and a copy of every tensor at once."""
        carried = self.graph.edge_bytes[self.tensor_ptr[:-1]].sum() if self.graph.e else 0.0
        most = self.input_bytes.sum() + self.graph.out_bytes.sum() + carried
        return bool(most > self.topology.memory_bytes.min())

    @cached_property
    def serial_s(self) -> float:
        """Every operation on its slowest device and every tensor over its slowest link, one after the other.

        No work-conserving schedule is longer.
        """
        slowest = np.where(self.allowed, self.compute_s, 0.0).max(axis=1).sum()
        if self.d > 1 and self.graph.e:
            slowest += self.graph.e * self.latency.max() + self.graph.edge_bytes.sum() * self.seconds_per_byte.max()
        return float(slowest)

    @cached_property
    def arrays(self) -> ProblemArrays:
        """What the compiled kernels read."""
        graph = self.graph
        returned = np.diff(graph.out_ptr) == 0
        returned[[reference.number for reference in graph.outputs if reference.source == "op"]] = True
        tensors = np.arange(len(self.tensor_ptr) - 1, dtype=np.int32)
        arrays = ProblemArrays(
            compute_s=self.compute_s,
            seconds_per_byte=self.seconds_per_byte,
            latency=self.latency,
            out_ptr=graph.out_ptr,
            edge_source=graph.edge_source,
            edge_target=graph.edge_target,
            edge_bytes=graph.edge_bytes,
            in_degree=graph.in_degree,
            in_ptr=graph.in_ptr,
            in_edge=graph.in_edge,
            tensor_ptr=self.tensor_ptr,
            edge_tensor=np.repeat(tensors, np.diff(self.tensor_ptr)),
            out_bytes=graph.out_bytes,
            returned=returned,
            input_ptr=graph.input_ptr,
            input_index=graph.input_index,
            input_bytes=self.input_bytes,
            memory_bytes=self.topology.memory_bytes,
        )
        for array in arrays:
            array.setflags(write=False)
        return arrays

    def check_assignment(self, assignment: ArrayLike) -> NDArray[np.int32]:
        """Return ``assignment`` [N] or [B, N] as int32 after checking it.

        Raises:
            PlacementError: wrong shape, an unknown device, or a device that an operation may not use.
        """
        try:
            array = np.asarray(assignment)
        except ValueError as error:
            raise PlacementError(f"{self.graph.title}: the rows of assignments differ in length.") from error
        if array.ndim not in (1, 2) or array.shape[-1] != self.n:
            raise PlacementError(
                f"{self.graph.title}: an assignment of shape {array.shape} was given; expected one device "
                f"number for each of {self.n} operations."
            )
        if not np.issubdtype(array.dtype, np.integer):
            raise PlacementError(f"{self.graph.title}: device numbers must be integers, found {array.dtype}.")
        if array.size and (array.min() < 0 or array.max() >= self.d):
            outside = (array < 0) | (array >= self.d)
            where = np.unravel_index(int(np.argmax(outside)), array.shape)
            raise PlacementError(
                f"{self.graph.title}: operation {self.graph.ids[where[-1]]!r} is on device {array[where]}; "
                f"devices are 0 to {self.d - 1}."
            )
        if self.graph.allowed is not None:
            legal = self.allowed[np.arange(self.n), array]
            if not legal.all():
                where = np.unravel_index(int(np.argmin(legal)), array.shape)
                choices = np.flatnonzero(self.allowed[where[-1]]).tolist()
                raise PlacementError(
                    f"{self.graph.title}: operation {self.graph.ids[where[-1]]!r} is on device {array[where]} and "
                    f"may only use {choices}."
                )
        return np.array(array, dtype=np.int32, order="C")  # a writable copy: one type for the kernels

    def _check_costs(self) -> None:
        """Refuse an operation that a profile left out and that nothing else prices."""
        graph = self.graph
        if graph.seconds:
            measured = ~np.isnan(list(graph.seconds.values())).all(axis=0)
            missing = ~measured & (graph.flops == 0) & (graph.bytes_moved == 0)
            if missing.any():
                raise PlacementError(
                    f"{graph.title}: operation {graph.ids[int(np.argmax(missing))]!r} has neither measured seconds nor "
                    "FLOPs; give one of them, 0 for an operation that costs nothing."
                )

    def _check_memory(self) -> None:
        """Refuse a graph that no placement can fit."""
        capacity = self.topology.memory_bytes
        if self.memory != "error" or np.isinf(capacity).all():
            return
        used = np.unique(self.graph.input_index)
        total = float(self.input_bytes[used].sum()) if used.size else 0.0
        if total > capacity.sum():
            raise MemoryLimitError(
                f"{self.graph.title}: its inputs and parameters take {total:.4g} bytes, all devices together have "
                f"{capacity.sum():.4g}; use more or larger devices, or memory=off."
            )
        need = self.graph.out_bytes.copy()
        reads = np.diff(self.graph.input_ptr)
        np.add.at(need, np.repeat(np.arange(self.n), reads), self.input_bytes[self.graph.input_index])
        room = np.where(self.allowed, capacity, -1.0).max(axis=1)
        if (need > room).any():
            v = int(np.argmax(need > room))
            raise MemoryLimitError(
                f"{self.graph.title}: operation {self.graph.ids[v]!r} alone needs {need[v]:.4g} bytes, the largest "
                f"device that it may use has {room[v]:.4g}; use larger devices, tile the graph, or memory=off."
            )
