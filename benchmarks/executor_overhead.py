"""What the executor adds: time per operation that does nothing, per hop between devices, and on top of real products.

Rival in the same run: the plain way, one ``concurrent.futures`` pool per device and a callback per operation. The last
part takes eight products of 512 x 512 on one and on two CPU devices; repetitions in which the threads waited for a
processor are dropped and counted.

    python benchmarks/executor_overhead.py [--quick]
"""

from __future__ import annotations

import argparse
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from hadoppler.envs.placement import DataflowGraph, GraphBuilder, Kernel, PlacementProblem, TensorType, Topology
from hadoppler.real_system.placement import cpu_executor
from hadoppler.real_system.placement.interference import load
from hadoppler.real_system.placement.links import Couriers, Links
from hadoppler.real_system.placement.run_plan import RunPlan
from hadoppler.real_system.placement.threads import ThreadExecutor

OPERATIONS = 1000
DISTURBED = 0.05
WARM_UP = 20
"""Runs until the threads' memory has its size."""
Row = dict[str, Any]


class NoWork:
    """A job whose operations do nothing and whose transfers carry nothing."""

    def compute(self, v: int) -> None:
        pass

    def payload(self, transfer: int) -> None:
        pass

    def copy(self, transfer: int, payload: Any) -> None:
        pass

    def arrive(self, transfer: int, payload: Any) -> None:
        pass

    def release(self, v: int) -> None:
        pass

    def stop(self) -> None:
        pass

    def outputs(self, phase: int) -> dict[str, Any]:
        return {}

    def provide(self, inputs: Any) -> None:
        pass


class EmptyDevices:
    """Devices for ``NoWork``; tensors over ``inline_bytes`` go through a courier's thread."""

    def __init__(self, devices: int, inline_bytes: int) -> None:
        self.devices, self.inline_bytes = devices, inline_bytes

    def job(self, plan: RunPlan, inputs: Any, seed: int) -> NoWork:
        return NoWork()

    def links(self) -> Links:
        return Couriers(self.devices, inline_bytes=self.inline_bytes)

    def enter_thread(self) -> None:
        pass


def graphs() -> dict[str, DataflowGraph]:
    """A chain, and a random graph with two inputs an operation."""
    rng = np.random.default_rng(0)
    pairs = sorted({(int(rng.integers(max(0, v - 50), v)), v) for v in range(1, OPERATIONS) for _ in range(2)})
    return {
        "chain": DataflowGraph.build(flops=np.ones(OPERATIONS), edges=[(v, v + 1) for v in range(OPERATIONS - 1)]),
        "random": DataflowGraph.build(flops=np.ones(OPERATIONS), edges=pairs),
    }


def overhead(name: str, graph: DataflowGraph, devices: int, inline: bool, repeats: int) -> Row:
    """Microseconds per operation and per hop, beside pools and callbacks."""
    problem = PlacementProblem(graph, Topology.uniform(devices))
    assignment = np.arange(graph.n) % devices
    per_operation, hops = [], list[np.ndarray]()
    with ThreadExecutor(problem, EmptyDevices(devices, 0 if inline else -1)) as executor:
        for number in range(repeats + 3):
            done = executor.run(assignment)
            if number >= 3:
                per_operation.append(done.makespan / graph.n * 1e6)
                hops.append(_hops(graph, assignment, done.schedule) * 1e6)
    rival = [pools(graph, assignment, devices) / graph.n * 1e6 for _ in range(max(repeats // 4, 2))]
    row: Row = {
        "graph": name,
        "devices": devices,
        "link": ("direct" if inline else "courier") if devices > 1 else "",
        "operation_us": float(np.median(per_operation)),
        "operation_p90_us": float(np.quantile(per_operation, 0.9)),
        "pools_us": float(np.median(rival)),
        "ratio": float(np.median(rival) / np.median(per_operation)),
    }
    if devices > 1 and name == "chain":
        together = np.concatenate(hops)
        row |= {f"hop_p{q}_us": float(np.percentile(together, q)) for q in (10, 50, 90, 99)}
    return row


def _hops(graph: DataflowGraph, assignment: np.ndarray, schedule: Any) -> np.ndarray:
    """Seconds from the end of a producer to the start of its consumer on another device."""
    apart = assignment[graph.edge_source] != assignment[graph.edge_target]
    gap: np.ndarray = schedule.start[graph.edge_target[apart]] - schedule.end[graph.edge_source[apart]]
    return gap


def pools(graph: DataflowGraph, assignment: np.ndarray, devices: int) -> float:
    """Seconds of the plain way: a pool with one thread per device, a lock, a callback per operation."""
    waiting, lock, finished = graph.in_degree.tolist(), threading.Lock(), threading.Event()
    pointer, target, left = graph.out_ptr.tolist(), graph.edge_target.tolist(), [graph.n]
    executors = [ThreadPoolExecutor(1) for _ in range(devices)]

    def ended(v: int) -> None:
        ready = []
        with lock:
            for w in target[pointer[v] : pointer[v + 1]]:
                waiting[w] -= 1
                if not waiting[w]:
                    ready.append(w)
            left[0] -= 1
        for w in ready:
            start(w)
        if not left[0]:
            finished.set()

    def start(v: int) -> None:
        executors[assignment[v]].submit(lambda: None).add_done_callback(lambda future: ended(v))

    begin = time.perf_counter()
    for v in [v for v in range(graph.n) if not waiting[v]]:
        start(v)
    finished.wait()
    seconds = time.perf_counter() - begin
    for executor in executors:
        executor.shutdown()
    return seconds


def products(repeats: int, size: int = 512, tiles: int = 8) -> list[Row]:
    """Eight independent products on one and on two CPU devices."""
    builder, kind = GraphBuilder("products"), TensorType((size, size))
    for number in range(tiles):
        a, b = (builder.add_input(f"{name}{number}", kind) for name in "ab")
        builder.add(Kernel("aten.mm.default", (a, b), (kind,)), kind="matmul", flops=2.0 * size**3)
    problem = PlacementProblem(builder.finish(), Topology.this_machine(2))
    rows, base = list[Row](), float("nan")
    with cpu_executor(problem) as executor:
        for devices in (1, 2):
            assignment, clean, dropped = np.arange(tiles) % devices, list[float](), 0
            for _ in range(WARM_UP):
                executor.run(assignment)
            while len(clean) < repeats and dropped < 20 * repeats:
                done = executor.run(assignment)
                if done.interference > DISTURBED * done.makespan:
                    dropped += 1
                else:
                    clean.append(done.makespan)
            median = float(np.median(clean)) if clean else float("nan")
            base = median if devices == 1 else base
            rows.append(
                {
                    "graph": f"{tiles} products of {size} x {size}",
                    "devices": devices,
                    "milliseconds": median * 1e3,
                    "ratio": median / base,
                    "clean": len(clean),
                    "dropped": dropped,
                    "load": load(),
                }
            )
    return rows


def show(title: str, rows: list[Row]) -> None:
    """One table."""
    table = Table(title=title)
    names = list(dict.fromkeys(name for row in rows for name in row))
    for name in names:
        table.add_column(name, justify="left" if name in ("graph", "link") else "right")
    for row in rows:
        values = [row.get(name, "") for name in names]
        table.add_row(*(f"{value:,.3g}" if isinstance(value, float) else str(value) for value in values))
    Console(width=200).print(table)


def main() -> None:
    """Measure, print tables, and the rows as JSON on the last line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer repetitions")
    quick = parser.parse_args().quick
    repeats = 10 if quick else 50
    empty = [
        overhead(name, graph, devices, inline, repeats)
        for name, graph in graphs().items()
        for devices, inline in ((1, True), (2, True), (2, False), (4, True), (4, False))
    ]
    real = products(repeats)
    show("operations that do nothing: microseconds; ratio = pools with callbacks / ours", empty)
    show("real products; ratio to one device", real)
    print(json.dumps({"rows": [*empty, *real]}))


if __name__ == "__main__":
    main()
