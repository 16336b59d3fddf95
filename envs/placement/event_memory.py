"""Bytes that each device holds while the event loop runs: graph inputs, outputs, received copies; compiled.

An output stays on its device until every reader there has run and every copy has left; a received copy stays until its
last reader there has run; what the graph returns stays. Devices that overflow cost a penalty.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from .event_workspace import pair_shift


@njit(cache=True, nogil=True)
def hold(device, size, live, peak):  # type: ignore[no-untyped-def]
    """So many bytes more on a device."""
    live[device] += size
    peak[device] = max(peak[device], live[device])


@njit(cache=True, nogil=True)
def let_go(v, device, out_bytes, returned, holds, live):  # type: ignore[no-untyped-def]
    """One reason less to keep the outputs of v on its own device."""
    holds[v] -= 1
    if holds[v] == 0 and not returned[v]:
        live[device] -= out_bytes[v]


@njit(cache=True, nogil=True)
def prepare_memory(problem, assignment, work):  # type: ignore[no-untyped-def]
    """Place the graph inputs, and count who keeps each output and each received copy alive."""
    n, d = assignment.shape[0], problem.latency.shape[0]
    input_ptr, input_index, input_seen, live = problem.input_ptr, problem.input_index, work.input_seen, work.live
    input_seen[:] = False
    live[:] = 0.0
    for v in range(n):
        here = assignment[v]
        for entry in range(input_ptr[v], input_ptr[v + 1]):
            item = input_index[entry]
            if not input_seen[item * d + here]:
                input_seen[item * d + here] = True
                live[here] += problem.input_bytes[item]
    work.peak[:] = work.live
    edge_source, edge_target, edge_tensor = problem.edge_source, problem.edge_target, problem.edge_tensor
    holds, copy_holds, shift = work.holds, work.copy_holds, pair_shift(d)
    holds[:] = 0
    copy_holds[:] = 0
    for edge in range(edge_target.shape[0]):
        source = edge_source[edge]
        there = assignment[edge_target[edge]]
        if there == assignment[source]:
            holds[source] += 1
        else:
            transfer = edge_tensor[edge] << shift | there
            if copy_holds[transfer] == 0:
                holds[source] += 1
            copy_holds[transfer] += 1


@njit(cache=True, nogil=True)
def let_inputs_go(v, here, in_ptr, in_edge, edges, assignment, outputs, holds, copy_holds, live):  # type: ignore[no-untyped-def]
    """v has run: it no longer needs its inputs."""
    edge_source, edge_tensor, edge_bytes = edges
    out_bytes, returned = outputs
    shift = pair_shift(live.shape[0])
    for entry in range(in_ptr[v], in_ptr[v + 1]):
        edge = in_edge[entry]
        source = edge_source[edge]
        if assignment[source] == here:
            let_go(source, here, out_bytes, returned, holds, live)
        else:
            transfer = edge_tensor[edge] << shift | here
            copy_holds[transfer] -= 1
            if copy_holds[transfer] == 0:
                live[here] -= edge_bytes[edge]


@njit(cache=True, nogil=True)
def memory_penalty(peak, capacity, serial_s):  # type: ignore[no-untyped-def]
    """Seconds that peaks [D] above their capacities [D] cost: 0 where everything fits, else more than ``serial_s``.

    Above ``serial_s``, which no placement that fits exceeds, by its part of the bytes that do not fit: of the largest
    finite capacity, or of one byte where that is 0.
    """
    over, largest = 0.0, 0.0
    for device in range(peak.shape[0]):
        over += max(peak[device] - capacity[device], 0.0)
        if capacity[device] < np.inf:
            largest = max(largest, capacity[device])
    if over == 0.0:
        return 0.0
    return serial_s * (1.0 + over / (largest if largest > 0.0 else 1.0))


@njit(cache=True, nogil=True)
def memory_penalties(peaks, capacity, serial_s):  # type: ignore[no-untyped-def]
    """``memory_penalty`` of each row of peaks [B, D]: [B]."""
    penalties = np.empty(peaks.shape[0])
    for row in range(peaks.shape[0]):
        penalties[row] = memory_penalty(peaks[row], capacity, serial_s)
    return penalties
