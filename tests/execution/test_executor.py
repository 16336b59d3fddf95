"""The executor of CPU and emulated devices: results, order, work conservation, memory, faults."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from placement_oracles import placed

from hadoppler import place
from hadoppler.envs.errors import GraphError, PlacementError
from hadoppler.envs.placement import (
    DataflowGraph,
    PlacementProblem,
    Topology,
    from_module,
    make_graph,
    simulate,
)
from hadoppler.envs.placement.interpreter import module_inputs, run as run_plainly
from hadoppler.envs.placement.tiling import tile
from hadoppler.real_system.placement import (
    ExecutionClosedError,
    ExecutionError,
    ExecutionTimeoutError,
    cpu_executor,
    emulated_executor,
)
from hadoppler.real_system.placement.audit import audit
from hadoppler.real_system.placement.cpu import CpuJob, random_inputs
from hadoppler.real_system.placement.isolation import IsolatedExecutor
from hadoppler.real_system.placement.links import Mailbox
from hadoppler.real_system.placement.memory import peak_memory
from hadoppler.real_system.placement.threads import SWITCH_S, ThreadExecutor
from hadoppler.scripts.example_model import TransformerBlock

SMALL: dict[str, Callable[[], DataflowGraph]] = {
    "chainmm": lambda: make_graph("chainmm", size=32, dtype="float64"),
    "ffnn": lambda: make_graph("ffnn", batch=32, features=16, hidden=64, outputs=16, dtype="float64"),
    "llama_block": lambda: make_graph("llama_block", sequence=16, width=32, heads=4, feedforward=48, dtype="float64"),
    "llama_layer": lambda: make_graph(
        "llama_layer", sequence=16, width=32, heads=4, feedforward=48, vocabulary=64, dtype="float64"
    ),
}


def transformer(training: bool) -> tuple[DataflowGraph, dict[str, torch.Tensor]]:
    torch.manual_seed(0)
    module, args = TransformerBlock(32, 4).double(), (torch.randn(2, 8, 32, dtype=torch.float64),)
    graph = from_module(module, args, training=training)
    return graph, module_inputs(graph, module, args)


def close(found: Any, expected: Any) -> None:
    """Float64 results agree to 1e-10 (sums in another order)."""
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-10, atol=1e-10, equal_nan=True)


@pytest.mark.parametrize("name", [*SMALL, "transformer", "transformer training", "tiled perceptron training"])
def test_outputs_equal_those_of_one_device(name: str) -> None:
    """20 random placements on 2 to 4 CPU devices, both order rules, with and without barriers."""
    if name in SMALL:
        graph = SMALL[name]()
        inputs = random_inputs(PlacementProblem(graph, Topology.this_machine(2)), 0)
    elif name.startswith("transformer"):
        graph, inputs = transformer(name.endswith("training"))
    else:
        torch.manual_seed(0)
        module = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 8)).double()
        args = (torch.randn(12, 8, dtype=torch.float64),)
        graph = tile(from_module(module, args, training=True), 2)
        inputs = module_inputs(graph, module, args)
    expected = run_plainly(graph, inputs)
    rng = np.random.default_rng(0)
    for devices in (2, 3, 4):
        problem = PlacementProblem(graph, Topology.this_machine(devices))
        with cpu_executor(problem) as executor:
            for number in range(8 if devices == 2 else 6):
                assignment = rng.integers(devices, size=graph.n)
                options: dict[str, Any] = [
                    {},
                    {"order": "priority", "priority": graph.topological_order},
                    {"mode": "bulk_synchronous"},
                ][number % 3]
                done = executor.run(assignment, inputs, **options)
                close(done.outputs, expected)
                assert_possible(problem, assignment, done)
            assert not executor.stuck


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
def test_executors_at_once_restore_the_interval_of_switching(order: tuple[int, ...], fails: bool) -> None:
    """Whichever begins and ends first, and also if one runs out of time: threads switch quickly until the last ends."""
    usual = sys.getswitchinterval()
    problem = PlacementProblem(DataflowGraph.build(flops=[1.0]), Topology.uniform(1))
    lasts = [0.2, 0.45, 0.7]

    def execute(number: int) -> None:
        with emulated_executor(problem, unit_s=lasts[number]) as executor:
            try:
                executor.run([0], timeout=0.1 if fails and number == 2 else None)
            except ExecutionTimeoutError:
                assert fails

    threads = [threading.Thread(target=execute, args=(number,)) for number in order]
    seen = []
    for thread in threads:
        thread.start()
        time.sleep(0.03)
    while any(thread.is_alive() for thread in threads[:-1]) or threads[-1].is_alive():
        seen.append((sys.getswitchinterval(), threads[order.index(1)].is_alive()))
        time.sleep(0.02)
    for thread in threads:
        thread.join()
    assert sys.getswitchinterval() == usual
    quick = [interval for interval, running in seen[:10] if running]
    assert quick
    assert max(quick) == pytest.approx(SWITCH_S)


def assert_possible(problem: PlacementProblem, assignment: Any, done: Any) -> None:
    """Nothing starts before its inputs are there, devices run one operation at a time, each tensor is sent once."""
    schedule, graph = done.schedule, problem.graph
    assert (schedule.end >= schedule.start).all()
    assert (schedule.start >= done.ready).all()
    for edge in range(graph.e):
        v, w = graph.edge_source[edge], graph.edge_target[edge]
        assert schedule.start[w] >= schedule.end[v]
    for device in range(problem.d):
        mine = np.flatnonzero(assignment == device)
        mine = mine[np.argsort(schedule.start[mine])]
        assert (schedule.start[mine][1:] >= schedule.end[mine][:-1]).all()
    expected = simulate(problem, assignment, memory="off").transfers
    sent = sorted(zip(schedule.transfers.tensor.tolist(), schedule.transfers.target.tolist(), strict=True))
    assert sent == sorted(zip(expected.tensor.tolist(), expected.target.tolist(), strict=True))
    assert (schedule.transfers.start >= schedule.transfers.produced).all()
    assert (schedule.transfers.end >= schedule.transfers.start).all()


@settings(max_examples=25)
@given(placed(inputs=True))
def test_any_graph_runs_to_its_end_on_emulated_devices(drawn: tuple[PlacementProblem, list[int]]) -> None:
    problem, assignment = drawn[0], np.array(drawn[1])
    unit = 2e-3 / max(problem.serial_s, 1e-30) if problem.serial_s > 0 else 1.0
    with emulated_executor(problem, unit_s=unit, timeout=20.0) as executor:
        for mode in ("work_conserving", "bulk_synchronous"):
            assert_possible(problem, assignment, executor.run(assignment, mode=mode))


@given(placed(zero=False, inputs=True))
def test_memory_by_the_simulators_rules(drawn: tuple[PlacementProblem, list[int]]) -> None:
    """On the simulator's own schedules the peaks are the simulator's."""
    problem = replace(drawn[0], topology=drawn[0].topology.with_links(latency=0.0))
    schedule = simulate(problem, drawn[1])
    found = peak_memory(problem, schedule.assignment, schedule.start, schedule.end, schedule.transfers)
    assert found.tolist() == schedule.peak_memory.tolist()


def raw(name: str) -> PlacementProblem:
    return PlacementProblem.raw(make_graph(name, costs="published"))


def test_emulated_time_is_the_simulators() -> None:
    """Long operations: what threads add is small; the machine may be busy, so the best of three counts."""
    problem = raw("chainmm")
    for placement in (place("heft", problem), place("round_robin", problem)):
        with emulated_executor(problem, unit_s=1e-14) as executor:
            measured = min(executor.run(placement.assignment).makespan for _ in range(3))
        expected = placement.simulate(problem).makespan * 1e-14
        assert expected <= measured < 1.35 * expected


def test_contended_links_are_the_simulators() -> None:
    """Three tensors of 20 ms from device 0: one port sends them one after the other; pairs send at once."""
    graph = DataflowGraph.build(
        flops=[0.001, 0.001, 0.001, 0.001], edges=[(0, 1), (0, 2), (0, 3)], edge_bytes=[0.02] * 3, tensor=[0, 1, 2]
    )
    for contention, expected in (("ports", 0.062), ("pair", 0.022), ("none", 0.022)):
        topology = Topology.uniform(4, contention=contention)
        problem = PlacementProblem(graph, topology)
        assert simulate(problem, [0, 1, 2, 3]).makespan == pytest.approx(expected)
        with emulated_executor(problem) as executor:
            measured = min(executor.run([0, 1, 2, 3]).makespan for _ in range(3))
        assert expected <= measured < expected + 0.015


def test_first_in_first_out_and_priority() -> None:
    """Operation 0 is ready first and blocks the device; of 1, 2, 3 the rule decides."""
    graph = DataflowGraph.build(flops=[1e-3] * 5, edges=[(4, 1)], out_bytes=[0.0] * 5)
    problem = PlacementProblem(graph, Topology.uniform(2, bandwidth=1e12))
    with emulated_executor(problem) as executor:
        fifo = executor.run([0, 0, 0, 0, 1]).schedule
        assert np.argsort(fifo.start[:4]).tolist() == [0, 2, 3, 1]
        urgent = executor.run([0, 0, 0, 0, 0], order="priority", priority=[3, 4, 1, 2, 0]).schedule
        assert np.argsort(urgent.start).tolist() == [3, 4, 1, 2, 0]


def test_barriers_hold_back_what_is_ready() -> None:
    """Two chains of unequal operations: work-conserving they overlap, by levels each level takes its longest."""
    graph = DataflowGraph.build(flops=[0.04, 0.01, 0.01, 0.04], edges=[(0, 1), (2, 3)], out_bytes=[0.0] * 4)
    problem = PlacementProblem(graph, Topology.uniform(2))
    with emulated_executor(problem) as executor:
        free = min(executor.run([0, 0, 1, 1]).makespan for _ in range(3))
        held = executor.run([0, 0, 1, 1], mode="bulk_synchronous")
    assert free < 0.065
    assert held.makespan >= 0.08
    assert held.schedule.start[3] >= held.schedule.end[0]


def test_the_audit_finds_idle_devices() -> None:
    """On its own trace a run is work-conserving; held back by barriers it is not."""
    graph = DataflowGraph.build(flops=[0.04, 0.01, 0.01, 0.04], edges=[(0, 1), (2, 3)], out_bytes=[0.0] * 4)
    problem = PlacementProblem(graph, Topology.uniform(2))
    with emulated_executor(problem) as executor:
        found = min((audit(executor.run([0, 0, 1, 1])) for _ in range(3)), key=lambda item: item.delays.max())
        assert found.late(0.01) == 0
        held = audit(executor.run([0, 0, 1, 1], mode="bulk_synchronous"))
    assert held.late(0.02) == 1
    assert held.delays[3] == pytest.approx(0.03, abs=0.01)
    assert held.idle[1] == pytest.approx(held.delays[2:].sum())


def test_a_slow_device_and_jitter() -> None:
    graph = DataflowGraph.build(flops=[0.02], edges=[])
    problem = PlacementProblem(graph, Topology.uniform(1))
    with emulated_executor(problem, jitter=0.2) as executor:
        times = [executor.run([0], seed=seed).makespan for seed in range(12)]
        assert np.std(times) > 0.001
        kind: Any = executor.kind
        kind.jitter = 0.0
        kind.slowness[0] = 2.0
        assert min(executor.run([0]).makespan for _ in range(3)) == pytest.approx(0.04, abs=0.006)


def test_tensors_go_after_their_last_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    """A chain of 40 products on two devices never holds more than a few tensors."""
    from hadoppler.envs.placement import GraphBuilder, Kernel, TensorType

    builder, kind = GraphBuilder("chain"), TensorType((8, 8))
    last = builder.add_input("x", kind)
    for _ in range(40):
        last = builder.add(Kernel("aten.mm.default", (last, last), (kind,)), kind="matmul", flops=1024)
    graph = builder.finish([last])
    problem = PlacementProblem(graph, Topology.this_machine(2))
    held: list[int] = []
    release = CpuJob.release

    def watched(job: CpuJob, v: int) -> None:
        release(job, v)
        held.append(sum(value is not None for value in job.values))

    monkeypatch.setattr(CpuJob, "release", watched)
    with cpu_executor(problem) as executor:
        done = executor.run(np.arange(40) // 3 % 2)
    assert max(held) <= 3
    assert done.schedule.peak_memory.max() <= 4 * 256 + 256


def with_kernel(target: str, args: tuple[Any, ...] = (), before: float = 0.0) -> PlacementProblem:
    """Two operations on two devices: a product, then one that fails or blocks."""
    from hadoppler.envs.placement import GraphBuilder, Kernel, TensorType

    builder, kind = GraphBuilder("faulty"), TensorType((4, 4))
    x = builder.add_input("x", kind)
    first = builder.add(Kernel("aten.mm.default", (x, x), (kind,)), kind="matmul", flops=1.0, name="good")
    bad = builder.add(Kernel(target, (first, *args), (kind,)), kind="matmul", flops=1.0, name="bad")
    return PlacementProblem(builder.finish([bad]), Topology.this_machine(2))


def wait_for_threads(count: int) -> None:
    deadline = time.monotonic() + 3.0
    while threading.active_count() > count and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() <= count


@pytest.mark.parametrize("error", [RuntimeError("boom"), SystemExit(3), MemoryError("no room")])
def test_a_failing_operation_is_named_and_nothing_is_left(error: BaseException, monkeypatch: Any) -> None:
    problem = with_kernel("aten.relu.default")
    before = threading.active_count()
    compute = CpuJob.compute

    def failing(job: CpuJob, v: int) -> None:
        if v == 1:
            raise error
        compute(job, v)

    executor = cpu_executor(problem)
    monkeypatch.setattr(CpuJob, "compute", failing)
    begin = time.monotonic()
    with pytest.raises(ExecutionError, match="operation 'bad' on device 1"):
        executor.run([0, 1])
    assert time.monotonic() - begin < 2.0
    wait_for_threads(before)
    monkeypatch.setattr(CpuJob, "compute", compute)
    assert executor.run([0, 1]).outputs  # it works again afterwards
    executor.close()
    wait_for_threads(before)


def test_a_failing_copy_is_named(monkeypatch: Any) -> None:
    problem = with_kernel("aten.relu.default")

    def failing(job: CpuJob, transfer: int, payload: Any) -> Any:
        raise RuntimeError("link down")

    monkeypatch.setattr(CpuJob, "copy", failing)
    for rate in (float("inf"), 1e9):
        with (
            cpu_executor(problem, bytes_per_s=rate) as executor,
            pytest.raises(ExecutionError, match=r"'good'.* device 0.*link down"),
        ):
            executor.run([0, 1])


def test_out_of_memory_is_told() -> None:
    problem = with_kernel("aten.repeat.default", ((2**30, 2**18),))
    with cpu_executor(problem) as executor, pytest.raises(ExecutionError, match="'bad' on device 1 ran out of memory"):
        executor.run([0, 1])


def test_a_time_out_names_what_is_under_way(monkeypatch: Any) -> None:
    """The thread inside native code is told of, and ends when the operation returns."""
    problem = with_kernel("aten.relu.default")
    before, free = threading.active_count(), threading.Event()
    compute = CpuJob.compute

    def blocking(job: CpuJob, v: int) -> None:
        if v == 1:
            free.wait(20.0)
        compute(job, v)

    monkeypatch.setattr(CpuJob, "compute", blocking)
    executor = cpu_executor(problem)
    begin = time.monotonic()
    with pytest.raises(ExecutionTimeoutError, match="'bad' on device 1"):
        executor.run([0, 1], timeout=0.2)
    assert time.monotonic() - begin < 2.0
    assert executor.stuck == ["device-1"]
    free.set()
    assert executor.run([0, 1]).outputs
    wait_for_threads(before + 4)
    assert not executor.stuck
    executor.close()
    wait_for_threads(before)


def test_emulated_operations_end_with_the_execution() -> None:
    graph = DataflowGraph.build(flops=[30.0], edges=[])
    before = threading.active_count()
    executor = emulated_executor(PlacementProblem(graph, Topology.uniform(1)))
    begin = time.monotonic()
    with pytest.raises(ExecutionTimeoutError):
        executor.run([0], timeout=0.1)
    assert time.monotonic() - begin < 2.0
    wait_for_threads(before)


def test_ctrl_c_ends_everything() -> None:
    graph = DataflowGraph.build(flops=[30.0], edges=[])
    before = threading.active_count()
    executor = emulated_executor(PlacementProblem(graph, Topology.uniform(1)))
    timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
    usual = signal.signal(signal.SIGINT, signal.default_int_handler)  # shells let what they start behind ignore it
    begin = time.monotonic()
    try:
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            executor.run([0])
    finally:
        signal.signal(signal.SIGINT, usual)
    timer.join()
    assert time.monotonic() - begin < 2.0
    wait_for_threads(before)


@pytest.mark.parametrize("blocked", ["operation", "transfer"])
def test_closed_from_another_thread_an_execution_ends_at_once(blocked: str) -> None:
    """Whatever the devices wait for; the next execution begins anew, and nothing is left of either."""
    times = {"operation": [30.0, 1e-3], "transfer": [1e-3, 1e-3]}[blocked]
    size = {"operation": 0.0, "transfer": 30.0}[blocked]
    graph = DataflowGraph.build(flops=times, edges=[(0, 1)], out_bytes=[size, 0.0])
    before = threading.active_count()
    executor = emulated_executor(PlacementProblem(graph, Topology.uniform(2)))
    for _ in range(3):
        closing: list[float] = []

        def close(when: list[float] = closing) -> None:
            when.append(time.monotonic())
            executor.close()

        timer = threading.Timer(0.1, close)
        timer.start()
        with pytest.raises(ExecutionClosedError, match="the executor was closed during this execution"):
            executor.run([0, 1])
        assert time.monotonic() - closing[0] < 0.5
        timer.join()
        wait_for_threads(before)


@pytest.mark.parametrize("make", ["cpu", "emulated"])
def test_an_executor_that_is_dropped_ends_its_threads(make: str) -> None:
    problem = with_kernel("aten.relu.default")
    before = threading.active_count()
    executor = cpu_executor(problem) if make == "cpu" else emulated_executor(problem)
    executor.run([0, 1])
    assert threading.active_count() > before
    dropped = weakref.ref(executor)
    del executor
    gc.collect()
    assert dropped() is None
    wait_for_threads(before)


def test_many_runs_leave_nothing_behind() -> None:
    """Between run 20 and run 200: threads and handles equal, memory within 5 %."""
    problem = PlacementProblem(SMALL["ffnn"](), Topology.this_machine(2))
    rng = np.random.default_rng(0)

    def measured() -> tuple[int, int, int]:
        gc.collect()
        with open("/proc/self/statm", encoding="ascii") as file:
            resident = int(file.read().split()[1])
        return threading.active_count(), len(os.listdir("/proc/self/fd")), resident

    if not os.path.exists("/proc/self/statm"):
        pytest.skip("the system does not tell a process's memory in /proc")
    with cpu_executor(problem) as executor:
        for number in range(200):
            executor.run(rng.integers(2, size=problem.n))
            if number == 19:
                early = measured()
        late = measured()
    assert late[:2] == early[:2]
    assert late[2] < 1.05 * early[2]


def test_mistakes_are_told() -> None:
    problem = PlacementProblem(SMALL["chainmm"](), Topology.this_machine(2))
    with cpu_executor(problem) as executor:
        with pytest.raises(PlacementError, match="devices are 0 to 1"):
            executor.run(np.full(problem.n, 7))
        with pytest.raises(PlacementError, match="priority="):
            executor.run(np.zeros(problem.n, dtype=int), order="priority")
        with pytest.raises(PlacementError, match="order is 'random'"):
            executor.run(np.zeros(problem.n, dtype=int), order="random")  # type: ignore[arg-type]
        with pytest.raises(PlacementError, match="mode is 'async'"):
            executor.run(np.zeros(problem.n, dtype=int), mode="async")  # type: ignore[arg-type]
        with pytest.raises(GraphError, match="no input 'nonsense'"):
            executor.run(np.zeros(problem.n, dtype=int), {"nonsense": torch.zeros(1)})
    with pytest.raises(GraphError, match="no kernels"):
        cpu_executor(PlacementProblem(replace(problem.graph, kernels=None), Topology.this_machine(2)))
    with pytest.raises(PlacementError, match="unit_s is 0"):
        emulated_executor(problem, unit_s=0.0)
    other = PlacementProblem(SMALL["ffnn"](), Topology.this_machine(2))
    with pytest.raises(PlacementError, match="the truth has"):
        emulated_executor(problem, truth=other)


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "text": ({"timeout": "abc"}, "timeout is 'abc'; expected seconds above 0, or inf for no limit"),
    "none": ({"timeout": None}, "timeout is None"),
    "nan": ({"timeout": float("nan")}, "timeout is nan"),
    "zero": ({"timeout": 0}, "timeout is 0"),
    "negative": ({"timeout": -1.0}, "timeout is -1.0"),
    "true": ({"timeout": True}, "timeout is True"),
    "unit": ({"unit_s": "abc"}, "unit_s is 'abc'; expected seconds above 0, at most 1e[+]06"),
    "long unit": ({"unit_s": 1e300}, "unit_s is 1e[+]300"),
    "bound": ({"bound_s": "abc"}, "bound_s is 'abc'"),
    "long bound": ({"bound_s": float("inf")}, "bound_s is inf"),
    "both": ({"unit_s": 1.0, "bound_s": 1.0}, "unit_s is 1.0 and bound_s 1.0; each tells how long all takes: give one"),
    "jitter": ({"jitter": "x"}, "jitter is 'x'; expected a number from 0 up"),
    "jitter nan": ({"jitter": float("nan")}, "jitter is nan"),
    "no list": ({"slow_links": 3}, r"slow_links is 3; expected a list of \[from, to, factor\]"),
    "no entry": ({"slow_links": [3]}, "slow_links holds 3; expected"),
    "factor": ({"slow_links": [[0, 1, "x"]]}, r"slow_links holds \[0, 1, 'x'\]; expected .* a factor above 0"),
    "endless": ({"slow_links": [[0, 1, float("inf")]]}, "slow_links holds"),
    "itself": ({"slow_links": [[1, 1, 2.0]]}, "two different devices from 0 to 1"),
    "no device": ({"slow_links": [[0, 2, 2.0]]}, "two different devices from 0 to 1"),
    "half a device": ({"slow_links": [[0.5, 1, 2.0]]}, "two different devices from 0 to 1"),
    "slowness": ({"slowness": "x"}, "slowness is 'x'; expected one factor above 0, or a list of 2"),
    "three": ({"slowness": [1, 2, 3]}, r"slowness is \[1, 2, 3\]; expected one factor above 0, or a list of 2"),
    "no time": ({"slowness": [1, 0]}, r"slowness is \[1, 0\]"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_settings_are_told_before_anything_begins(name: str) -> None:
    wrong, told = WRONG[name]
    problem = PlacementProblem(DataflowGraph.build(flops=[1e-3, 1e-3], edges=[(0, 1)]), Topology.uniform(2))
    with pytest.raises(PlacementError, match=told) as caught:
        emulated_executor(problem, **wrong)
    assert str(caught.value).count("\n") == 0
    if "timeout" in wrong:
        kernels = with_kernel("aten.relu.default")
        for make in (cpu_executor, partial(IsolatedExecutor, make=cpu_executor)):
            with pytest.raises(PlacementError, match=told):
                make(kernels, **wrong)  # type: ignore[operator]


def test_wrong_rates_and_seeds_are_told() -> None:
    problem = with_kernel("aten.relu.default")
    wrong: Any
    for wrong in ("abc", None, 0, float("nan")):
        with pytest.raises(PlacementError, match=f"bytes_per_s is {wrong!r}; expected bytes per second above 0"):
            cpu_executor(problem, bytes_per_s=wrong)
    with cpu_executor(problem) as executor:
        with pytest.raises(PlacementError, match="timeout is 0; expected"):
            executor.run([0, 1], timeout=0)
        for wrong in (-1, 0.5, "x"):
            with pytest.raises(PlacementError, match=f"seed is {wrong!r}; expected a whole number from 0 up"):
                executor.run([0, 1], seed=wrong)


@pytest.mark.parametrize("timeout", [float("inf"), 1e300, 10**7])
def test_there_may_be_no_time_out(timeout: float) -> None:
    problem = with_kernel("aten.relu.default")
    with cpu_executor(problem, timeout=timeout) as executor:
        assert executor.run([0, 1]).outputs
    with IsolatedExecutor(problem, partial(cpu_executor, problem), timeout) as isolated:
        assert isolated.run([0, 1]).outputs


def test_limited_links_take_their_time() -> None:
    """A tensor of 1 MB at 20 MB/s takes 50 ms more."""
    from hadoppler.envs.placement import GraphBuilder, Kernel, TensorType

    builder, kind = GraphBuilder("two"), TensorType((512, 512))
    x = builder.add_input("x", kind)
    first = builder.add(Kernel("aten.relu.default", (x,), (kind,)), kind="elementwise", flops=1.0)
    second = builder.add(Kernel("aten.relu.default", (first,), (kind,)), kind="elementwise", flops=1.0)
    problem = PlacementProblem(builder.finish([second]), Topology.this_machine(2))
    with cpu_executor(problem, bytes_per_s=20e6) as executor:
        executor.run([0, 1])
        moved = executor.run([0, 1]).schedule.transfers
    assert 0.05 <= moved.end[0] - moved.start[0] < 0.2


def test_the_kind_of_devices_is_open() -> None:
    """Anything that fills the protocol runs: here operations that only note their order."""
    graph = DataflowGraph.build(flops=[1.0] * 4, edges=[(0, 1), (1, 2), (2, 3)])
    seen: list[int] = []

    class Job:
        def compute(self, v: int) -> None:
            seen.append(v)

        def payload(self, transfer: int) -> Any:
            return transfer

        def copy(self, transfer: int, payload: Any) -> Any:
            return payload

        def arrive(self, transfer: int, payload: Any) -> None:
            assert transfer == payload

        def release(self, v: int) -> None: ...

        def stop(self) -> None: ...

        def outputs(self, phase: int) -> dict[str, torch.Tensor]:
            return {}

        def provide(self, inputs: Any) -> None: ...

    class Kind:
        def job(self, plan: Any, inputs: Any, seed: int) -> Job:
            return Job()

        def links(self) -> Any:
            from hadoppler.real_system.placement.links import Couriers

            return Couriers(2)

        def enter_thread(self) -> None: ...

    with ThreadExecutor(PlacementProblem(graph, Topology.uniform(2)), Kind()) as executor:
        executor.run([0, 1, 0, 1])
    assert seen == [0, 1, 2, 3]


def test_a_mailbox_keeps_its_deadline() -> None:
    """Rung for items that are gone, it returns at the deadline and neither before it has to nor never."""
    box: Any = Mailbox()
    assert list(box.take(until=time.perf_counter() - 1.0)) == []
    for round_ in range(200):
        for item in range(3):
            box.put((round_, item))
        assert list(box.take(until=None)) == [(round_, item) for item in range(3)]
        deadline = time.perf_counter() + 1e-4
        assert list(box.take(until=deadline)) == []  # the bell may still ring: at once, or at the deadline
        assert list(box.take(until=time.perf_counter() + 1e-6)) == []
    threading.Timer(0.05, box.put, ["late"]).start()
    assert list(box.take(until=time.perf_counter() + 5.0)) == ["late"]


def test_thousands_of_short_transfers_all_arrive() -> None:
    """Runs of a few milliseconds, over and over: none may hang (one in a hundred did, through the queue's time-out)."""
    rng = np.random.default_rng(0)
    edges = sorted({(int(rng.integers(max(0, v - 8), v)), v) for v in range(1, 60) for _ in range(2)})
    graph = DataflowGraph.build(flops=[1e-5] * 60, edges=edges, out_bytes=[1e-5] * 60)
    problem = PlacementProblem(graph, Topology.uniform(4, latency=2e-5))
    with emulated_executor(problem, timeout=5.0) as executor:
        for number in range(300):
            mode = ("work_conserving", "bulk_synchronous")[number % 2]
            executor.run(rng.integers(4, size=60), mode=mode)
