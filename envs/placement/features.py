"""What a policy sees: static features of operations and edges, and the devices as one operation sees them.

Static features are standardised per graph (mean 0, deviation 1; a constant column becomes 0). Times among
the device features are divided by one scale per problem, the best lower bound of its makespan, so one
policy serves graphs of microseconds and of hours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from .bounds import lower_bounds
from .graph import Floats, Integers
from .problem import PlacementProblem

NODE_FEATURES = ("computation", "b_level", "t_level", "communication_in", "communication_out", "memory")
"""Columns of ``StaticFeatures.nodes``: mean seconds over the allowed devices; longest path to an exit, the
operation and mean communication included; longest path from an entry, the operation not included; mean
seconds of all entering and of all leaving edges (these five: DOPPLER); bytes of the outputs and of the graph
inputs read (our choice)."""

EDGE_FEATURES = ("communication",)
"""Columns of ``StaticFeatures.edges``: mean seconds of the tensor over all pairs of distinct devices."""

DEVICE_FEATURES = (
    "computation",
    "input_computation",
    "input_start",
    "input_end",
    "earliest_start",
    "earliest_end",
    "memory",
    "speed",
    "bandwidth",
    "allowed",
    "inputs_here",
    "affinity",
    "siblings",
    "sent",
    "received",
)
"""Columns of the device features of an operation v on a device d. Times are shares of the time scale:

- ``computation``: of all operations on d so far;
- ``input_computation``, ``input_start``, ``input_end``: computation, earliest start and latest end of
  those producers of v that sit on d (0 without any);
- ``earliest_start``: when v could start on d, if no transfer waits (these five: DOPPLER);
- ``earliest_end``: when it would then end;
- ``memory``: bytes booked on d with v there, as if nothing were ever freed, / capacity (0 for no limit);
- ``speed``: time of v on its best device / its time on d;
- ``bandwidth``: mean over v's input bytes of the bandwidth from where they are, as a share of the fastest
  link (1 on d itself, and without inputs);
- ``allowed``: 1 if v may use d, else 0;
- ``inputs_here``: share of v's input bytes that d has produced or received;
- ``affinity``: of the bytes that v's consumers read from others, the share produced on d;
- ``siblings``: share of the shards of v's sharded operation that sit on d;
- ``sent``, ``received``: time of all transfers from and to d so far (these ten: our choice; the affinity and
  the siblings tell apart shards that are alike in the graph).
"""

COMPUTED, INPUT_COMPUTED, INPUT_START, INPUT_END, EARLIEST_START = 0, 1, 2, 3, 4
EARLIEST_END, MEMORY, SPEED, BANDWIDTH, ALLOWED = 5, 6, 7, 8, 9
INPUTS_HERE, AFFINITY, SIBLINGS, SENT, RECEIVED = 10, 11, 12, 13, 14

FEATURE_LIMIT = 1e6
"""Device features are cut off here, so that they have a finite range."""


@dataclass(frozen=True, eq=False)
class StaticFeatures:
    """Features of a problem that no decision changes; read-only.

    Attributes:
        nodes: float32 [N, 6], columns ``NODE_FEATURES``, standardised.
        edges: float32 [E, 1], columns ``EDGE_FEATURES``, standardised.
        edge_index: int32 [2, E] sources and targets.
        next_to_exit: int32 [N] next operation on the longest path to an exit, -1 at its end.
        next_to_entry: int32 [N] next operation on the longest path back to an entry, -1 at its end.
    """

    nodes: NDArray[np.float32]
    edges: NDArray[np.float32]
    edge_index: Integers
    next_to_exit: Integers
    next_to_entry: Integers


def static_features(problem: PlacementProblem) -> StaticFeatures:
    """Compute the static features of a problem: linear in operations and edges."""
    graph, duration, transfer = problem.graph, problem.mean_s, problem.mean_transfer_s
    (to_exit, next_to_exit), (to_entry, next_to_entry) = longest_paths(problem)
    read = problem.input_bytes[graph.input_index]
    reader = np.repeat(np.arange(problem.n), np.diff(graph.input_ptr))
    columns = (
        duration,
        to_exit,
        to_entry - duration,
        np.bincount(graph.edge_target, transfer, minlength=problem.n),
        np.bincount(graph.edge_source, transfer, minlength=problem.n),
        graph.out_bytes + np.bincount(reader, read, minlength=problem.n),
    )
    features = StaticFeatures(
        nodes=standardise(np.stack(columns, axis=1)),
        edges=standardise(transfer[:, None]),
        edge_index=graph.edge_index,
        next_to_exit=next_to_exit,
        next_to_entry=next_to_entry,
    )
    for array in vars(features).values():
        array.setflags(write=False)
    return features


def longest_paths(problem: PlacementProblem) -> tuple[tuple[Floats, Integers], tuple[Floats, Integers]]:
    """Longest paths by mean computation and communication, to an exit and back to an entry.

    Each as its length [N], the operation itself included, and the next operation [N] on it, -1 at its end.
    """
    graph, duration, transfer = problem.graph, problem.mean_s, problem.mean_transfer_s
    to_entry = _paths(graph.topological_order, graph.in_ptr, graph.in_edge, graph.edge_source, transfer, duration)
    return paths_to_exit(problem, transfer), to_entry


def paths_to_exit(problem: PlacementProblem, transfer: Floats) -> tuple[Floats, Integers]:
    """Longest paths to an exit by mean computation and the seconds of edges [E] that are given.

    Their lengths [N], the operation itself included, and the next operation [N] on each, -1 at its end.
    """
    graph, edges = problem.graph, np.arange(problem.graph.e, dtype=np.int32)
    return _paths(graph.topological_order[::-1], graph.out_ptr, edges, graph.edge_target, transfer, problem.mean_s)


def standardise(columns: Floats) -> NDArray[np.float32]:
    """Each column of [M, K] with mean 0 and deviation 1, as float32; constant columns become 0."""
    if len(columns) == 0:
        return np.zeros(columns.shape, np.float32)
    size = np.abs(columns).max(axis=0)
    scaled = columns / np.where(size > 0, size, 1.0)
    centred = scaled - scaled.mean(axis=0)
    deviation = centred.std(axis=0)
    constant = deviation < 1e-9
    return np.where(constant, 0.0, centred / np.where(constant, 1.0, deviation)).astype(np.float32)


def time_scale(problem: PlacementProblem) -> float:
    """The best lower bound of the problem's makespan; where that is 0, the time of a serial run, or 1."""
    return lower_bounds(problem).best or problem.serial_s or 1.0


class DeviceScales(NamedTuple):
    """What the kernel of the device features needs beside the problem's arrays."""

    allowed: NDArray[np.bool_]
    best_s: Floats
    time: float
    fastest_link: float
    """Least seconds per byte between two distinct devices."""
    track_memory: bool
    shared_bytes: Floats
    """[N] bytes that the consumers of each operation read from other producers."""
    group: Integers
    """[N] number of the sharded operation, from 0 without gaps; -1 for none."""
    group_size: Integers


def device_scales(problem: PlacementProblem, scale: float) -> DeviceScales:
    """Make the scales of a problem; ``scale`` divides all times."""
    apart = ~np.eye(problem.d, dtype=bool)
    fastest = float(problem.seconds_per_byte[apart].min()) if problem.d > 1 else 0.0
    tracked = problem.memory != "off" and bool(np.isfinite(problem.topology.memory_bytes).any())
    graph = problem.graph
    read = np.bincount(graph.edge_target, graph.edge_bytes, minlength=problem.n)
    shared = np.bincount(graph.edge_source, read[graph.edge_target] - graph.edge_bytes, minlength=problem.n)
    groups, number = np.unique(graph.group, return_inverse=True)
    number = number - int(bool(groups.size) and groups[0] < 0)
    return DeviceScales(
        allowed=np.array(problem.allowed, order="C"),
        best_s=np.array(problem.best_s),
        time=float(scale),
        fastest_link=fastest,
        track_memory=tracked,
        shared_bytes=np.asarray(shared, dtype=np.float64),
        group=number.astype(np.int32),
        group_size=np.bincount(number[number >= 0], minlength=1).astype(np.int32),
    )


def _paths(
    order: Integers, pointer: Integers, edges: Integers, other_end: Integers, transfer: Floats, duration: Floats
) -> tuple[Floats, Integers]:
    """Longest path [N] behind each operation, itself included, and its next operation [N]."""
    length, following = np.zeros(len(order)), np.full(len(order), -1, np.int32)
    # copies, as read-only arrays are another type to Numba
    a, b, c, d = (np.array(array) for array in (order, pointer, edges, other_end))
    _longest_paths(a, b, c, d, np.array(transfer), np.array(duration), length, following)
    return length, following


@njit(cache=True)
def _longest_paths(order, pointer, edges, other_end, transfer, duration, length, following):  # type: ignore[no-untyped-def]
    for v in order:
        longest = 0.0
        for entry in range(pointer[v], pointer[v + 1]):
            edge = edges[entry]
            there = transfer[edge] + length[other_end[edge]]
            if following[v] < 0 or there > longest:
                longest, following[v] = there, other_end[edge]
        length[v] = duration[v] + longest


@njit(cache=True, nogil=True)
def memory_need(problem, assignment, input_there, copy_there, v, device):  # type: ignore[no-untyped-def]
    """Bytes that v adds on a device: its outputs, and what it reads that is not there yet.

    ``assignment`` [N] tells where v's producers are, ``input_there`` [P, D] which graph inputs and ``copy_there``
    [T, D] which received tensors are on which device already.
    """
    need = problem.out_bytes[v]
    for entry in range(problem.input_ptr[v], problem.input_ptr[v + 1]):
        item = problem.input_index[entry]
        if not input_there[item, device]:
            need += problem.input_bytes[item]
    last = -1
    for entry in range(problem.in_ptr[v], problem.in_ptr[v + 1]):
        edge = problem.in_edge[entry]
        tensor = problem.edge_tensor[edge]
        elsewhere = assignment[problem.edge_source[edge]] != device
        if elsewhere and tensor != last and not copy_there[tensor, device]:
            need += problem.edge_bytes[edge]
        last = tensor  # parallel edges of one tensor stand one behind the other
    return need


@njit(cache=True, nogil=True)
def _write_affinity(problem, scales, state, b, v, out):  # type: ignore[no-untyped-def]
    """Where the other inputs of v's consumers are, and where its sibling shards are."""
    shared, group = scales.shared_bytes[v], scales.group[v]
    for device in range(problem.latency.shape[0]):
        produced = 0.0
        if shared > 0:
            for edge in range(problem.out_ptr[v], problem.out_ptr[v + 1]):
                produced += state.read_from[b, problem.edge_target[edge], device]
        out[device, AFFINITY] = produced / shared if shared > 0 else 0.0
        out[device, SIBLINGS] = 0.0 if group < 0 else state.group_there[b, group, device] / scales.group_size[group]


@njit(cache=True, nogil=True)
def write_device_features(problem, scales, state, b, v, out):  # type: ignore[no-untyped-def]
    """Fill ``out`` [D or more, F] for operation v of episode b, whose producers are all placed.

    Cost: edges of v times D.
    """
    d = problem.latency.shape[0]
    for device in range(d):
        out[device, COMPUTED] = state.computed[b, device] / scales.time
        out[device, INPUT_COMPUTED] = 0.0
        out[device, INPUT_START] = -1.0
        out[device, INPUT_END] = 0.0
        out[device, BANDWIDTH] = 0.0
        out[device, INPUTS_HERE] = 0.0
        state.begin[b, device] = state.free[b, device]
    carried, last = 0.0, -1
    for entry in range(problem.in_ptr[v], problem.in_ptr[v + 1]):
        edge = problem.in_edge[entry]
        u, size = problem.edge_source[edge], problem.edge_bytes[edge]
        here, end = state.assignment[b, u], state.end[b, u]
        carried += size
        if u != last:  # parallel edges come from one producer
            out[here, INPUT_COMPUTED] += problem.compute_s[u, here] / scales.time
            begin = np.float32(state.start[b, u] / scales.time)
            if out[here, INPUT_START] < 0 or begin < out[here, INPUT_START]:
                out[here, INPUT_START] = begin
            out[here, INPUT_END] = max(out[here, INPUT_END], np.float32(end / scales.time))
        last = u
        for device in range(d):
            rate = problem.seconds_per_byte[here, device]
            arrival = end + (problem.latency[here, device] + size * rate)
            state.begin[b, device] = max(state.begin[b, device], arrival)
            out[device, BANDWIDTH] += size * (1.0 if rate <= scales.fastest_link else scales.fastest_link / rate)
            if device == here or state.copy_there[b, problem.edge_tensor[edge], device]:
                out[device, INPUTS_HERE] += size
    _write_affinity(problem, scales, state, b, v, out)
    for device in range(d):
        out[device, INPUT_START] = max(out[device, INPUT_START], np.float32(0.0))
        duration = problem.compute_s[v, device]
        out[device, EARLIEST_START] = state.begin[b, device] / scales.time
        out[device, EARLIEST_END] = (state.begin[b, device] + duration) / scales.time
        out[device, MEMORY] = 0.0
        if scales.track_memory and np.isfinite(problem.memory_bytes[device]):
            assignment, input_there, copy_there = state.assignment[b], state.input_there[b], state.copy_there[b]
            need = memory_need(problem, assignment, input_there, copy_there, v, device)
            booked = state.used[b, device] + need
            out[device, MEMORY] = booked / max(problem.memory_bytes[device], 1.0)
        out[device, SPEED] = 1.0 if duration <= scales.best_s[v] else scales.best_s[v] / duration
        out[device, BANDWIDTH] = out[device, BANDWIDTH] / carried if carried > 0 else 1.0
        out[device, ALLOWED] = 1.0 if scales.allowed[v, device] else 0.0
        out[device, INPUTS_HERE] = out[device, INPUTS_HERE] / carried if carried > 0 else 0.0
        out[device, SENT] = state.sent[b, device] / scales.time
        out[device, RECEIVED] = state.received[b, device] / scales.time
        for column in range(out.shape[1]):
            out[device, column] = min(out[device, column], np.float32(FEATURE_LIMIT))
