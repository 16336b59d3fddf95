"""Simulations per CPU second: our kernels against SimPy, same semantics, same graphs, same run.

Two SimPy models: ``process`` - one process per operation and per transfer, devices as priority
resources, the usual way; ``callback`` - the same events chained by callbacks, without generators.
Every makespan of theirs is compared with ours.

    python benchmarks/placement_simulator.py [--quick]
"""

from __future__ import annotations

import argparse
import heapq
import json
import time
from collections.abc import Callable, Generator
from typing import Any

import numpy as np
import simpy
from rich.console import Console
from rich.table import Table

from hadoppler.envs.placement import PlacementProblem, make_graph, makespans

GRAPHS = ("chainmm", "ffnn", "llama_block", "llama_layer")
LATE = 2  # SimPy's normal priority is 1: events with this one come after all others of their instant


def pause(env: simpy.Environment, priority: int) -> simpy.Event:
    """An event of this instant that comes after all normal ones, by ``priority``."""
    event = env.event()
    event._ok, event._value = True, None
    env.schedule(event, priority=priority)
    return event


class Ports:
    """One egress and one ingress port per device; transfers wait by time produced, source, target."""

    def __init__(self, env: simpy.Environment, devices: int) -> None:
        self.env, self.waiting = env, []
        self.egress, self.ingress = [False] * devices, [False] * devices
        self.deciding = False

    def request(self, key: tuple[float, int, int, int], here: int, there: int) -> simpy.Event:
        granted = self.env.event()
        heapq.heappush(self.waiting, (key, here, there, granted))
        self.decide_late()
        return granted

    def release(self, here: int, there: int) -> None:
        self.egress[here] = self.ingress[there] = False
        self.decide_late()

    def decide_late(self) -> None:
        if not self.deciding:
            self.deciding = True
            pause(self.env, LATE).callbacks.append(self.decide)

    def decide(self, _: simpy.Event) -> None:
        self.deciding, left = False, []
        while self.waiting:
            item = heapq.heappop(self.waiting)
            _, here, there, granted = item
            if self.egress[here] or self.ingress[there]:
                left.append(item)
            else:
                self.egress[here] = self.ingress[there] = True
                granted.succeed()
        self.waiting = left


def simulate_with_processes(problem: PlacementProblem, assignment: list[int], contention: str) -> float:
    """One process per operation and one per transfer."""
    env, graph = simpy.Environment(), problem.graph
    compute, rate = problem.compute_s.tolist(), problem.seconds_per_byte.tolist()
    device = [simpy.PriorityResource(env) for _ in range(problem.d)]
    ports = Ports(env, problem.d)
    arrived = [env.event() for _ in range(graph.e)]
    source, target, size = graph.edge_source.tolist(), graph.edge_target.tolist(), graph.edge_bytes.tolist()

    def transfer(edge: int) -> Generator[simpy.Event, Any, None]:
        here, there = assignment[source[edge]], assignment[target[edge]]
        if contention == "ports":
            yield ports.request((env.now, source[edge], there, edge), here, there)
        yield env.timeout(size[edge] * rate[here][there])
        if contention == "ports":
            ports.release(here, there)
        arrived[edge].succeed()

    def operation(v: int, incoming: list[int], outgoing: list[int]) -> Generator[simpy.Event, Any, None]:
        if incoming:
            yield env.all_of([arrived[edge] for edge in incoming])
        ready = env.now
        yield pause(env, LATE + 1 + v)  # operations of one instant ask in the order of their numbers
        with device[assignment[v]].request(priority=(ready, v)) as turn:
            yield turn
            yield env.timeout(compute[v][assignment[v]])
        for edge in outgoing:
            if assignment[target[edge]] == assignment[v]:
                arrived[edge].succeed()
            else:
                env.process(transfer(edge))

    for v in range(graph.n):
        incoming = graph.in_edge[graph.in_ptr[v] : graph.in_ptr[v + 1]].tolist()
        env.process(operation(v, incoming, list(range(graph.out_ptr[v], graph.out_ptr[v + 1]))))
    env.run()
    return float(env.now)


def simulate_with_callbacks(problem: PlacementProblem, assignment: list[int], contention: str) -> float:
    """The same events, chained by callbacks."""
    env, graph = simpy.Environment(), problem.graph
    compute, rate = problem.compute_s.tolist(), problem.seconds_per_byte.tolist()
    source, target, size = graph.edge_source.tolist(), graph.edge_target.tolist(), graph.edge_bytes.tolist()
    pointer, waiting = graph.out_ptr.tolist(), graph.in_degree.tolist()
    ports = Ports(env, problem.d)
    queue: list[list[tuple[float, int]]] = [[] for _ in range(problem.d)]
    busy, deciding = [False] * problem.d, [False] * problem.d

    def after(delay: float, call: Callable[[Any], None]) -> None:
        env.timeout(delay).callbacks.append(call)

    def decide_late(where: int) -> None:
        if not busy[where] and not deciding[where]:
            deciding[where] = True
            pause(env, LATE + 1).callbacks.append(lambda _: decide(where))

    def decide(where: int) -> None:
        deciding[where] = False
        if queue[where] and not busy[where]:
            _, v = heapq.heappop(queue[where])
            busy[where] = True
            after(compute[v][where], lambda _: finish(v))

    def arrive(edge: int) -> None:
        w = target[edge]
        waiting[w] -= 1
        if waiting[w] == 0:
            heapq.heappush(queue[assignment[w]], (env.now, w))
            decide_late(assignment[w])

    def send(edge: int, here: int, there: int) -> None:
        def left(_: Any) -> None:
            if contention == "ports":
                ports.release(here, there)
            arrive(edge)

        seconds = size[edge] * rate[here][there]
        if contention == "ports":
            granted = ports.request((env.now, source[edge], there, edge), here, there)
            granted.callbacks.append(lambda _: after(seconds, left))
        else:
            after(seconds, left)

    def finish(v: int) -> None:
        here = assignment[v]
        busy[here] = False
        for edge in range(pointer[v], pointer[v + 1]):
            there = assignment[target[edge]]
            if there == here:
                arrive(edge)
            else:
                send(edge, here, there)
        decide_late(here)

    for v in range(graph.n):
        if waiting[v] == 0:
            heapq.heappush(queue[assignment[v]], (0.0, v))
    for where in range(problem.d):
        decide_late(where)
    env.run()
    return float(env.now)


def rate_of(call: Callable[[], Any], simulations: int, repeats: int = 3) -> tuple[float, float]:
    """Best simulations per CPU second and per wall second over a few repeats."""
    cpu, wall = [], []
    for _ in range(repeats):
        begin_cpu, begin = time.process_time(), time.perf_counter()
        call()
        cpu.append(time.process_time() - begin_cpu)
        wall.append(time.perf_counter() - begin)
    return simulations / min(cpu), simulations / min(wall)


def measure(name: str, contention: str, batch: int, rival_batch: int) -> dict[str, Any]:
    """One row: our speed on one thread and two, and both rivals'."""
    problem = PlacementProblem.raw(make_graph(name, costs="published"), 4, contention=contention)
    rows = np.random.default_rng(0).integers(0, 4, (batch, problem.n))
    ours = makespans(problem, rows[:100], threads=1)  # compiles
    cpu, wall = rate_of(lambda: makespans(problem, rows, threads=1), batch, 10)
    _, wall_two = rate_of(lambda: makespans(problem, rows, threads=2), batch, 10)
    row: dict[str, Any] = {"graph": name, "contention": contention, "ours_per_cpu_s": cpu}
    for style, model in (("process", simulate_with_processes), ("callback", simulate_with_callbacks)):
        samples = rows[:rival_batch].tolist()
        theirs = [model(problem, sample, contention) for sample in samples]
        if not np.array_equal(theirs, ours[:rival_batch]):
            raise SystemExit(f"{name}, {contention}: the {style} model disagrees with ours")
        speed, _ = rate_of(
            lambda model=model, samples=samples: [model(problem, s, contention) for s in samples], rival_batch, 2
        )
        row[f"{style}_per_cpu_s"] = speed
        row[f"ratio_{style}"] = cpu / speed
    row["two_threads"] = wall_two / wall
    return row


def main() -> None:
    """Measure, print a table, and the rows as JSON on the last line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a tenth of the batch")
    quick = parser.parse_args().quick
    rows = [
        measure(name, contention, 2000 if quick else 20_000, 5 if quick else 20)
        for contention in ("none", "ports")
        for name in GRAPHS
    ]
    table = Table(title="simulations per CPU second, random assignments, 4 devices")
    for column in rows[0]:
        table.add_column(column, justify="left" if column in ("graph", "contention") else "right")
    for row in rows:
        table.add_row(*(value if isinstance(value, str) else f"{value:,.2f}" for value in row.values()))
    Console(width=140).print(table)
    print(json.dumps({"rows": rows}))


if __name__ == "__main__":
    main()
