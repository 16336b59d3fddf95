"""Slow and plain second opinions on the simulator, and random problems to ask them about."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from hadoppler.envs.placement import DataflowGraph, GraphInput, PlacementProblem, Topology


def oracle(
    problem: PlacementProblem,
    assignment: Any,
    *,
    order: str = "fifo",
    priority: Any = None,
    contention: str | None = None,
) -> tuple[np.ndarray, np.ndarray, list[dict[str, Any]]]:
    """Starts, ends and transfers by a plain loop over instants, written from the definition."""
    graph, contention = problem.graph, contention or problem.contention
    n, d = graph.n, problem.d
    place = [int(x) for x in assignment]
    rank = {int(v): i for i, v in enumerate(priority)} if priority is not None else {}
    start, end = np.full(n, np.nan), np.full(n, np.nan)
    ready_at: dict[int, float] = {}
    arrived: list[list[float]] = [[] for _ in range(n)]
    waiting: list[dict[str, Any]] = []
    sent: list[dict[str, Any]] = []
    done: set[int] = set()
    running: dict[int, int] = {}
    now = 0.0
    for v in range(n):
        if graph.in_degree[v] == 0:
            ready_at[v] = 0.0

    def produce(v: int) -> None:
        edges = range(graph.out_ptr[v], graph.out_ptr[v + 1])
        targets: dict[tuple[int, int], list[int]] = {}
        for edge in edges:
            w = int(graph.edge_target[edge])
            if place[w] == place[v]:
                deliver(w, now)
            else:
                label = int(graph.tensor[edge]) if problem.share_tensors else int(edge)
                targets.setdefault((label, place[w]), []).append(edge)
        for (_, device), group in sorted(targets.items()):
            waiting.append({"source": v, "from": place[v], "to": device, "edges": group, "produced": now})

    def deliver(w: int, when: float) -> None:
        arrived[w].append(when)
        if len(arrived[w]) == graph.in_degree[w]:
            ready_at[w] = max(arrived[w])

    def free_link(item: dict[str, Any]) -> bool:
        busy = [x for x in sent if x["left"] > now]
        limit = problem.topology.channels
        if contention == "none":
            return True
        if contention == "pair":
            return sum(x["from"] == item["from"] and x["to"] == item["to"] for x in busy) < limit
        return sum(x["from"] == item["from"] for x in busy) < limit and sum(x["to"] == item["to"] for x in busy) < limit

    while len(done) < n:
        while True:
            for device, v in list(running.items()):
                if end[v] <= now:
                    del running[device]
                    done.add(v)
                    produce(v)
            startable = [item for item in waiting if free_link(item)]
            if startable:
                item = min(startable, key=lambda x: (x["produced"], x["source"], x["to"]))
                waiting.remove(item)
                size = graph.edge_bytes[item["edges"][0]]
                seconds = size * problem.seconds_per_byte[item["from"], item["to"]]
                item |= {"start": now, "left": now + seconds, "bytes": size}
                item["end"] = now + (problem.latency[item["from"], item["to"]] + seconds)
                sent.append(item)
                for edge in item["edges"]:
                    deliver(int(graph.edge_target[edge]), item["end"])
                continue
            if any(end[v] <= now for v in running.values()):
                continue
            started = False
            for device in range(d):
                choices = [v for v, t in ready_at.items() if t <= now and np.isnan(start[v]) and place[v] == device]
                if device in running or not choices:
                    continue
                v = min(choices, key=lambda x: (rank[x] if rank else ready_at[x], x))
                start[v], end[v] = now, now + problem.compute_s[v, device]
                running[device] = v
                started = True
            if not started or not any(end[v] <= now for v in running.values()):
                break
        if len(done) == n:
            break
        future = [end[v] for v in running.values()]
        future += [x["left"] for x in sent if x["left"] > now]
        future += [t for v, t in ready_at.items() if t > now]
        now = min(future)
    return start, end, sent


def peak_memory(problem: PlacementProblem, schedule: Any) -> np.ndarray:
    """Peak bytes per device, from the intervals in which each thing must be held."""
    graph, place, moved = problem.graph, schedule.assignment, schedule.transfers
    forever = float("inf")
    held: list[list[tuple[float, float, float]]] = [[] for _ in range(problem.d)]  # from, until, bytes
    for device in range(problem.d):
        mine = [v for v in range(graph.n) if place[v] == device]
        read = {int(i) for v in mine for i in graph.input_index[graph.input_ptr[v] : graph.input_ptr[v + 1]]}
        held[device] += [(-1.0, forever, graph.inputs[i].bytes) for i in read]
        for v in mine:
            targets = graph.edge_target[graph.out_ptr[v] : graph.out_ptr[v + 1]]
            until = [float(schedule.end[w]) for w in targets if place[w] == device]
            for k in np.flatnonzero(moved.operation == v):
                rate = problem.seconds_per_byte[moved.source[k], moved.target[k]]
                until.append(float(moved.start[k] + moved.bytes[k] * rate))
            held[device].append((float(schedule.start[v]), max(until, default=forever), float(graph.out_bytes[v])))
    for k in range(len(moved.start)):
        edges = range(problem.tensor_ptr[moved.tensor[k]], problem.tensor_ptr[moved.tensor[k] + 1])
        readers = [graph.edge_target[e] for e in edges if place[graph.edge_target[e]] == moved.target[k]]
        last = max(float(schedule.end[w]) for w in readers)
        held[moved.target[k]].append((float(moved.start[k]), last, float(moved.bytes[k])))
    return np.array(
        [max((sum(size for a, b, size in items if a <= t < b) for t, _, _ in items), default=0.0) for items in held]
    )


@st.composite
def graphs(draw: st.DrawFn, *, most: int = 12, zero: bool = True, inputs: bool = False) -> DataflowGraph:
    """Small graphs with whole-number costs, so that sums are exact and ties are common."""
    n = draw(st.integers(1, most))
    low = 0 if zero else 1
    costs = draw(st.lists(st.integers(low, 5), min_size=n, max_size=n))
    pairs = [(a, b) for b in range(n) for a in range(b)]
    edges = draw(st.lists(st.sampled_from(pairs), max_size=2 * n)) if pairs else []
    names = draw(st.permutations(range(n)))
    sizes = draw(st.lists(st.integers(0, 4), min_size=n, max_size=n))
    shared = draw(st.booleans())
    items = [GraphInput(f"w{i}", float(draw(st.integers(0, 9))), "parameter") for i in range(3)] if inputs else []
    reads = draw(st.lists(st.lists(st.integers(0, 2), max_size=2, unique=True), min_size=n, max_size=n))
    return DataflowGraph.build(
        flops=[costs[v] for v in range(n)],
        out_bytes=sizes,
        edges=[(names[a], names[b]) for a, b in edges],
        tensor=["t" if shared else i for i in range(len(edges))],
        inputs=items,
        reads=reads if inputs else None,
    )


@st.composite
def problems(draw: st.DrawFn, *, most: int = 12, zero: bool = True, inputs: bool = False) -> PlacementProblem:
    """Small graphs on one to four devices of unequal speed and links; all numbers are exact in binary."""
    graph = draw(graphs(most=most, zero=zero, inputs=inputs))
    d = draw(st.integers(1, 4))
    powers = st.sampled_from([0.5, 1.0, 2.0])
    topology = Topology.uniform(
        speeds=draw(st.lists(powers, min_size=d, max_size=d)),
        bandwidth=np.array(draw(st.lists(powers, min_size=d * d, max_size=d * d))).reshape(d, d),
        latency=float(draw(st.integers(0, 1))),
        contention=draw(st.sampled_from(["none", "pair", "ports"])),
    )
    return PlacementProblem(graph, topology, share_tensors=draw(st.booleans()))


@st.composite
def placed(draw: st.DrawFn, **options: Any) -> tuple[PlacementProblem, list[int]]:
    """A problem and an assignment."""
    problem = draw(problems(**options))
    return problem, draw(st.lists(st.integers(0, problem.d - 1), min_size=problem.n, max_size=problem.n))


def best_plan(problem: PlacementProblem) -> float:
    """O2: least makespan over all assignments and orders, by depth-first search (transfers never wait)."""
    graph, d = problem.graph, problem.d
    tail = np.zeros(graph.n)
    for v in graph.topological_order[::-1]:
        out = graph.edge_target[graph.out_ptr[v] : graph.out_ptr[v + 1]]
        tail[v] = problem.best_s[v] + max((tail[w] for w in out), default=0.0)
    best = [float(problem.serial_s) + 1.0]

    def search(free: tuple[float, ...], done: dict[int, tuple[int, float]]) -> None:
        if len(done) == graph.n:
            best[0] = min(best[0], max(free))
            return
        for v in range(graph.n):
            edges = graph.in_edge[graph.in_ptr[v] : graph.in_ptr[v + 1]]
            if v in done or any(int(graph.edge_source[e]) not in done for e in edges):
                continue
            for device in np.flatnonzero(problem.allowed[v]):
                begin = free[device]
                for e in edges:
                    here, end = done[int(graph.edge_source[e])]
                    rate = problem.seconds_per_byte[here, device]
                    begin = max(begin, end + problem.latency[here, device] + graph.edge_bytes[e] * rate)
                end = begin + problem.compute_s[v, device]
                if begin + tail[v] < best[0] and end < best[0]:
                    moved = tuple(end if k == device else free[k] for k in range(d))
                    search(moved, done | {v: (int(device), float(end))})

    search((0.0,) * d, {})
    return best[0]
