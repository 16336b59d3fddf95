"""The simulator's event loop: any order, contention, noise and memory; compiled.

An instant of simulated time runs like this: first everything that ends at it ends, then waiting
transfers start, then each idle device starts its best ready operation; again until nothing changes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from .event_memory import hold, let_go, let_inputs_go, prepare_memory
from .event_workspace import event_workspace, pair_shift
from .fifo_kernel import sift_down, sift_up
from .random_draws import lognormal, uniform

FIFO, PRIORITY, RANDOM = 0, 1, 2
NO_CONTENTION, PAIR, PORTS = 0, 1, 2


class Options(NamedTuple):
    """Rules of one simulation; ``seed`` and ``sample`` number the random draws."""

    order: int
    contention: int
    channels: int
    noise: float
    seed: int
    track_memory: bool
    record: bool


@njit(cache=True, nogil=True, inline="always")
def _push(time, code, size, when, what):  # type: ignore[no-untyped-def]
    """Add an event to the heap; equal times are ordered by code."""
    position = size
    while position > 0:
        parent = (position - 1) >> 1
        if when < time[parent] or (when == time[parent] and what < code[parent]):
            time[position] = time[parent]
            code[position] = code[parent]
            position = parent
        else:
            break
    time[position] = when
    code[position] = what


@njit(cache=True, nogil=True)
def _pop(time, code, size):  # type: ignore[no-untyped-def]
    """Remove the first of ``size + 1`` events, which the caller has read."""
    when, what = time[size], code[size]
    position, child = 0, 1
    while child < size:
        other = child + 1
        if other < size and (time[other] < time[child] or (time[other] == time[child] and code[other] < code[child])):
            child = other
        if time[child] < when or (time[child] == when and code[child] < what):
            time[position] = time[child]
            code[position] = code[child]
            position = child
            child = 2 * position + 1
        else:
            break
    time[position] = when
    code[position] = what


@njit(cache=True, nogil=True)
def simulate_events(problem, assignment, priority, options, sample, work):  # type: ignore[no-untyped-def]
    """Run the event loop once and return the makespan.

    ``priority`` [N] ranks the operations under ``PRIORITY`` (smaller first). Afterwards ``work``
    holds, with ``options.record``, starts and ends of operations and the times at which transfers
    were produced, sent and arrived (NaN where none took place); with ``options.track_memory`` the
    peak bytes of each device.

    The ends of running operations stand in ``busy_until`` [D]. Everything else that is to come is in
    the event heap, by time and code: v - the last input of operation v arrives; n + k - transfer k
    has left its ports. An arrival is known when its transfer starts, so it needs no event of its own.

    This is one long function on purpose: calls that pass twenty arrays would take longer than the
    work between them.
    """
    compute_s, rate, latency, out_ptr = problem.compute_s, problem.seconds_per_byte, problem.latency, problem.out_ptr
    edge_source, edge_target, edge_bytes = problem.edge_source, problem.edge_target, problem.edge_bytes
    tensor_ptr, edge_tensor = problem.tensor_ptr, problem.edge_tensor
    in_ptr, in_edge, out_bytes, returned = problem.in_ptr, problem.in_edge, problem.out_bytes, problem.returned
    waiting, ready, rank, time, code = work.waiting, work.ready, work.rank, work.event_time, work.event_code
    queue, queue_start, queue_size = work.queue, work.queue_start, work.queue_size
    running, busy_until = work.running, work.busy_until
    marked, head, tail, following = work.marked, work.head, work.tail, work.following
    egress, ingress, lanes, produced = work.egress, work.ingress, work.lanes, work.produced
    holds, copy_holds, live, peak = work.holds, work.copy_holds, work.live, work.peak
    sigma, seed, track, record = options.noise, options.seed, options.track_memory, options.record
    fifo, contended = options.order == FIFO, options.contention != NO_CONTENTION
    n, d = assignment.shape[0], latency.shape[0]
    shift = pair_shift(d)
    mask = (1 << shift) - 1
    _prepare(problem, assignment, priority, options, sample, work)
    makespan, now = 0.0, 0.0
    events, pending, links_changed = 0, 0, False
    while True:
        # 1. what ends now ends: operations ...
        for here in range(d):
            if busy_until[here] > now:
                continue
            v = running[here]
            busy_until[here] = np.inf
            makespan = now
            if track:
                edges, outputs = (edge_source, edge_tensor, edge_bytes), (out_bytes, returned)
                let_inputs_go(v, here, in_ptr, in_edge, edges, assignment, outputs, holds, copy_holds, live)
            edge = out_ptr[v]
            while edge < out_ptr[v + 1]:
                tensor = np.int64(edge_tensor[edge])
                stop = tensor_ptr[tensor + 1]
                remote = False
                while edge < stop:
                    w = edge_target[edge]
                    there = assignment[w]
                    edge += 1
                    if there != here:
                        marked[there] = True
                        remote = True
                        continue
                    ready[w] = max(ready[w], now)
                    waiting[w] -= 1
                    if waiting[w] == 0:
                        if ready[w] <= now:
                            rank[w] = now if fifo else rank[w]
                            sift_up(queue, queue_start[here], queue_size[here], w, rank)
                            queue_size[here] += 1
                        else:
                            _push(time, code, events, ready[w], np.int64(w))
                            events += 1
                if remote:
                    for there in range(d):
                        if marked[there]:
                            marked[there] = False
                            _enqueue(
                                head, tail, following, produced, here << shift | there, tensor << shift | there, now
                            )
                            pending += 1
                    links_changed = True
        # ... inputs that were on their way, and transfers
        while events > 0 and time[0] <= now:
            what = code[0]
            events -= 1
            _pop(time, code, events)
            if what < n:
                here = assignment[what]
                rank[what] = now if fifo else rank[what]
                sift_up(queue, queue_start[here], queue_size[here], what, rank)
                queue_size[here] += 1
            else:
                transfer = what - n
                source = edge_source[tensor_ptr[transfer >> shift]]
                here, there = assignment[source], transfer & mask
                egress[here] -= 1
                ingress[there] -= 1
                lanes[here << shift | there] -= 1
                links_changed = True
                if track:
                    let_go(source, here, out_bytes, returned, holds, live)
        # 2. transfers start: by time produced, then source, then destination
        while pending > 0 and links_changed:
            link = _first_transfer(
                tensor_ptr, edge_source, options.contention, options.channels, head, egress, ingress, lanes, produced
            )
            if link < 0:
                links_changed = False
                break
            transfer = head[link]
            head[link] = following[transfer]
            pending -= 1
            here, there, first = link >> shift, link & mask, tensor_ptr[transfer >> shift]
            seconds = edge_bytes[first] * rate[here, there]
            if sigma > 0:
                seconds *= lognormal(sigma, seed, sample, n + transfer)
            arrival = now + (latency[here, there] + seconds)
            for edge in range(first, tensor_ptr[(transfer >> shift) + 1]):
                w = edge_target[edge]
                if assignment[w] == there:
                    ready[w] = max(ready[w], arrival)
                    waiting[w] -= 1
                    if waiting[w] == 0:
                        _push(time, code, events, ready[w], np.int64(w))
                        events += 1
            if record:
                work.sent[transfer], work.arrived[transfer] = now, arrival
            egress[here] += 1
            ingress[there] += 1
            lanes[link] += 1
            if track:
                hold(there, edge_bytes[first], live, peak)
            if track or contended:
                _push(time, code, events, now + seconds, n + transfer)
                events += 1
        if events > 0 and time[0] <= now:
            continue  # a transfer that takes no time has arrived
        # 3. idle devices take their best ready operation
        following_instant = time[0] if events > 0 else np.inf
        for here in range(d):
            if queue_size[here] > 0 and busy_until[here] == np.inf:
                base = queue_start[here]
                v = queue[base]
                queue_size[here] -= 1
                if queue_size[here] > 0:
                    sift_down(queue, base, queue_size[here], queue[base + queue_size[here]], rank)
                running[here] = v
                seconds = compute_s[v, here]
                if sigma > 0:
                    seconds *= lognormal(sigma, seed, sample, v)
                busy_until[here] = now + seconds
                if record:
                    work.start[v], work.end[v] = now, now + seconds
                if track:
                    hold(here, out_bytes[v], live, peak)
            following_instant = min(following_instant, busy_until[here])
        if following_instant == np.inf:
            return makespan
        now = following_instant


@njit(cache=True, nogil=True)
def _prepare(problem, assignment, priority, options, sample, work):  # type: ignore[no-untyped-def]
    """Reset the workspace and give every device its part of the queue array."""
    n, d = assignment.shape[0], problem.latency.shape[0]
    work.queue_start[:] = 0
    for v in range(n):
        work.queue_start[assignment[v] + 1] += 1
        work.waiting[v] = problem.in_degree[v]
        work.ready[v] = 0.0
        if options.order == PRIORITY:
            work.rank[v] = priority[v]
        elif options.order == RANDOM:
            work.rank[v] = uniform(options.seed, sample, -1 - v)
    for device in range(d):
        work.queue_start[device + 1] += work.queue_start[device]
        work.queue_size[device] = 0
        work.busy_until[device] = np.inf
        work.marked[device] = False
        work.egress[device] = 0
        work.ingress[device] = 0
    work.head[:] = -1
    work.lanes[:] = 0
    for v in range(n):
        if work.waiting[v] == 0:
            here = assignment[v]
            work.rank[v] = 0.0 if options.order == FIFO else work.rank[v]
            sift_up(work.queue, work.queue_start[here], work.queue_size[here], v, work.rank)
            work.queue_size[here] += 1
    if options.record:
        work.produced[:] = np.nan
        work.sent[:] = np.nan
        work.arrived[:] = np.nan
    if options.track_memory:
        prepare_memory(problem, assignment, work)


@njit(cache=True, nogil=True)
def _enqueue(head, tail, following, produced, link, transfer, now):  # type: ignore[no-untyped-def]
    """Append a transfer to its link's queue; those of one instant are ordered by number, and so by source.

    The order of one instant can be wrong only where operations take no time.
    """
    produced[transfer] = now
    following[transfer] = -1
    if head[link] < 0:
        head[link] = tail[link] = transfer
        return
    last = tail[link]
    if produced[last] < now or last < transfer:
        following[last] = tail[link] = transfer
        return
    behind, before = head[link], np.int64(-1)
    while produced[behind] < now or behind < transfer:
        before, behind = behind, following[behind]
    following[transfer] = behind
    if before < 0:
        head[link] = transfer
    else:
        following[before] = transfer


@njit(cache=True, nogil=True)
def _first_transfer(tensor_ptr, edge_source, contention, channels, head, egress, ingress, lanes, produced):  # type: ignore[no-untyped-def]
    """The link whose first waiting transfer may start before all others, or -1."""
    d = egress.shape[0]
    shift = pair_shift(d)
    best, best_time = -1, np.inf
    for here in range(d):
        if contention == PORTS and egress[here] >= channels:
            continue
        for there in range(d):
            link = here << shift | there
            transfer = head[link]
            if transfer < 0:
                continue
            if contention == NO_CONTENTION:
                return link
            if contention == PORTS:
                if ingress[there] >= channels:
                    continue
            elif lanes[link] >= channels:
                continue
            when = produced[transfer]
            if when == best_time:
                source = edge_source[tensor_ptr[transfer >> shift]]
                best_source = edge_source[tensor_ptr[head[best] >> shift]]
                if source < best_source or (source == best_source and there < best - (best >> shift << shift)):
                    best = link
            elif when < best_time:
                best, best_time = link, when
    return best


@njit(cache=True, nogil=True)
def event_makespans(problem, assignments, priorities, options, first, result, peaks):  # type: ignore[no-untyped-def]
    """Makespan [B] (and peak bytes [B, D] with ``track_memory``) of each row of assignments [B, N].

    ``priorities`` is [B, N] or [1, N]; ``first`` is the number of the first row, for random draws.
    """
    n, d, t = assignments.shape[1], problem.latency.shape[0], problem.tensor_ptr.shape[0] - 1
    work = event_workspace(n, d, t, problem.edge_target.shape[0], problem.input_bytes.shape[0])
    for row in range(assignments.shape[0]):
        ranks = priorities[min(row, priorities.shape[0] - 1)]
        result[row] = simulate_events(problem, assignments[row], ranks, options, first + row, work)
        if options.track_memory:
            peaks[row] = work.peak
