"""Executors in a process of their own: what cannot be interrupted there is ended with it."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
from functools import partial

import numpy as np
import pytest
import torch
from stubborn_devices import stubborn

from hadoppler.envs.errors import GraphError, PlacementError
from hadoppler.envs.placement import DataflowGraph, PlacementProblem, Topology, make_graph
from hadoppler.envs.placement.interpreter import run as run_plainly
from hadoppler.real_system.placement import (
    ExecutionClosedError,
    ExecutionError,
    ExecutionTimeoutError,
    cpu_executor,
    emulated_executor,
)
from hadoppler.real_system.placement.cpu import random_inputs
from hadoppler.real_system.placement.isolation import IsolatedExecutor


def small() -> PlacementProblem:
    return PlacementProblem(make_graph("chainmm", size=32, dtype="float64"), Topology.this_machine(2))


def alive(pid: int | None) -> bool:
    try:
        os.kill(pid or 0, 0)
    except OSError:
        return False
    return True


def test_results_and_mistakes_come_through() -> None:
    problem = small()
    inputs = random_inputs(problem, 0)
    with IsolatedExecutor(problem, partial(cpu_executor, problem)) as executor:
        done = executor.run(np.arange(problem.n) % 2, inputs)
        for name, tensor in run_plainly(problem.graph, inputs).items():
            torch.testing.assert_close(done.outputs[name], tensor)
        child = executor.process_id
        with pytest.raises(PlacementError, match="devices are 0 to 1"):
            executor.run(np.full(problem.n, 5))
        assert executor.run(np.zeros(problem.n, dtype=int)).makespan > 0
        assert executor.process_id == child
        os.kill(child or 0, signal.SIGKILL)
        begin = time.monotonic()
        with pytest.raises(ExecutionError, match="has died"):
            executor.run(np.zeros(problem.n, dtype=int))
        assert time.monotonic() - begin < 2.0
        assert executor.run(np.zeros(problem.n, dtype=int)).makespan > 0
        child = executor.process_id
    assert not alive(child)


def test_native_code_that_does_not_return_is_ended() -> None:
    problem = small()
    executor = IsolatedExecutor(problem, partial(stubborn, problem))
    with pytest.raises(ExecutionTimeoutError):
        executor.run(np.zeros(problem.n, dtype=int), timeout=0.2)
    assert executor.process_id is None
    with executor:
        pass


def test_a_child_killed_in_mid_run_is_an_error_within_two_seconds() -> None:
    graph = DataflowGraph.build(flops=[30.0], edges=[])
    problem = PlacementProblem(graph, Topology.uniform(1))
    with IsolatedExecutor(problem, partial(emulated_executor, problem)) as executor:
        with pytest.raises(ExecutionTimeoutError):
            executor.run([0], timeout=0.05)
        executor._start()
        child = executor.process_id
        killed: list[float] = []

        def kill() -> None:
            killed.append(time.monotonic())
            os.kill(child or 0, signal.SIGKILL)

        threading.Timer(0.3, kill).start()
        with pytest.raises(ExecutionError, match="SIGKILL"):
            executor.run([0])
        assert time.monotonic() - killed[0] < 2.0
        assert not alive(child)


def test_closed_from_another_thread_or_dropped(capfd: pytest.CaptureFixture[str]) -> None:
    """The execution ends at once; the process of an executor that nobody holds ends without a word."""
    graph = DataflowGraph.build(flops=[30.0], edges=[])
    problem = PlacementProblem(graph, Topology.uniform(1))
    executor = IsolatedExecutor(problem, partial(emulated_executor, problem))
    executor._start()
    closing: list[float] = []

    def close(executor: IsolatedExecutor) -> None:
        closing.append(time.monotonic())
        executor.close()

    threading.Timer(0.3, close, [executor]).start()
    with pytest.raises(ExecutionClosedError, match="closed during this execution"):
        executor.run([0])
    assert time.monotonic() - closing[0] < 0.5
    assert executor.process_id is None
    executor._start()
    process = executor._process
    del executor
    gc.collect()
    process.join(5.0)
    assert process.exitcode == 0
    assert "Traceback" not in capfd.readouterr().err


def test_an_executor_that_cannot_be_made_says_so() -> None:
    problem = PlacementProblem(DataflowGraph.build(flops=[1.0], edges=[]), Topology.uniform(1))
    with IsolatedExecutor(problem, partial(cpu_executor, problem)) as executor:
        with pytest.raises(GraphError, match="no kernels"):
            executor.run([0])
        assert executor.process_id is None
