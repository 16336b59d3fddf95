"""The executor of GPUs, on GPUs that are not there: its decisions, and its use of streams and memory."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from fake_cuda import FakeCuda
from hypothesis import given, settings, strategies as st

from hadoppler.envs.errors import GraphError, PlacementError
from hadoppler.envs.placement import (
    DataflowGraph,
    GraphBuilder,
    Kernel,
    PlacementProblem,
    Topology,
    simulate,
)
from hadoppler.envs.placement.graph import Floats
from hadoppler.envs.placement.interpreter import run as run_plainly
from hadoppler.envs.placement.kernel import Reference, TensorType
from hadoppler.real_system.placement import Execution, ExecutionClosedError, ExecutionError, ExecutionTimeoutError
from hadoppler.real_system.placement.audit import audit
from hadoppler.real_system.placement.cpu import random_inputs
from hadoppler.real_system.placement.cuda import CudaExecutor, on_gpus
from hadoppler.real_system.placement.run import Run
from hadoppler.real_system.placement.run_plan import GraphTables

KIND = TensorType((3,), "float64")
LAUNCHES = ("driven", "ahead")


class Case:
    """A graph on devices, how long its kernels take on GPUs that are not there, and what it computes."""

    def __init__(self, graph: DataflowGraph, seconds: list[float], placed: list[int], gpus: list[int]) -> None:
        self.graph, self.seconds, self.placed, self.on = graph, seconds, placed, gpus
        assert graph.kernels is not None
        self.number = {id(kernel): v for v, kernel in enumerate(graph.kernels)}
        self.problem = PlacementProblem(graph, Topology.uniform(len(gpus)), memory="off")
        self.inputs = random_inputs(self.problem, 0)

    def fake(self, **options: Any) -> FakeCuda:
        return FakeCuda(max(self.on) + 1, lambda kernel: self.seconds[self.number[id(kernel)]], **options)

    def executor(self, fake: FakeCuda, launch: Any = "driven", timeout: float = 1e6) -> CudaExecutor:
        return on_gpus(self.problem, fake, self.on, launch, timeout)

    def given(self, fake: FakeCuda, done: Execution) -> Floats:
        """[N] when the host gave each operation to its stream, on the execution's clock."""
        times, first = np.full(self.graph.n, np.nan), fake.work[0]
        begun = first.start - done.schedule.start[self.number[id(first.kernel)]]
        for work in fake.work:
            times[self.number[id(work.kernel)]] = work.given - begun
        return times


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Up to 14 operations with one or two outputs, some waiting for others without reading them."""
    builder = GraphBuilder("drawn")
    known = [builder.add_input("x", KIND), builder.add_input("y", KIND)]
    count = draw(st.integers(1, 14))
    made: list[Reference] = []
    for _ in range(count):
        read = draw(st.lists(st.sampled_from(known), min_size=1, max_size=3))
        value: Any = read[0]
        for other in read[1:-1]:
            value = Kernel("aten.add.Tensor", (value, other), (KIND,))
        two = len(read) == 1 and draw(st.booleans())
        if two:
            kernel = Kernel("aten.sort.default", (value,), (KIND, KIND))
        else:
            kernel = Kernel("aten.sub.Tensor", (value, read[-1]), (KIND,))
        reference = builder.add(kernel, kind="elementwise", flops=1.0)
        known += [reference, Reference("op", reference.number, 1)] if two else [reference]
        made.append(reference)
        if len(made) > 1 and draw(st.integers(0, 3)) == 0:
            builder.add_order(made[draw(st.integers(0, len(made) - 2))], reference)
    returned = draw(st.lists(st.sampled_from(known[2:]), min_size=1, max_size=3, unique=True))
    seconds = draw(st.lists(st.sampled_from([0.25, 1.0, 2.0, 3.0, 7.0]), min_size=count, max_size=count))
    devices = draw(st.integers(1, 3))
    gpus = draw(st.lists(st.integers(0, 1), min_size=devices, max_size=devices))
    placed = draw(st.lists(st.integers(0, devices - 1), min_size=count, max_size=count))
    return Case(builder.finish(returned, [f"out{i}" for i in range(len(returned))]), seconds, placed, gpus)


def assert_right(case: Case, fake: FakeCuda, done: Any) -> None:
    """The graph's results, no fault in the use of streams, nothing before its inputs, every tensor sent once."""
    expected = run_plainly(case.graph, case.inputs)
    assert done.outputs.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(done.outputs[name], tensor)
    assert not fake.faults
    schedule, graph, moved = done.schedule, case.graph, done.schedule.transfers
    assert (schedule.end - schedule.start).tolist() == pytest.approx(case.seconds)
    assert (schedule.start >= done.ready - 1e-9).all()
    assert (schedule.start[graph.edge_target] >= schedule.end[graph.edge_source] - 1e-9).all()
    for device in range(case.problem.d):
        mine = np.flatnonzero(np.array(case.placed) == device)
        mine = mine[np.argsort(schedule.start[mine])]
        assert (schedule.start[mine][1:] >= schedule.end[mine][:-1] - 1e-9).all()
    sent = sorted(zip(moved.tensor.tolist(), moved.target.tolist(), strict=True))
    planned = simulate(case.problem, case.placed).transfers
    assert sent == sorted(zip(planned.tensor.tolist(), planned.target.tolist(), strict=True))
    assert (moved.start >= moved.produced).all()
    assert (moved.end >= moved.start).all()


def receivers(case: Case, tensor: int, device: int) -> list[int]:
    """Operations that a tensor is sent to a device for."""
    edges = slice(case.problem.tensor_ptr[tensor], case.problem.tensor_ptr[tensor + 1])
    return [w for w in case.graph.edge_target[edges].tolist() if case.placed[w] == device]


@settings(max_examples=120, deadline=None)
@given(cases(), st.sampled_from(LAUNCHES), st.booleans(), st.booleans())
def test_any_graph_gives_its_results(case: Case, launch: str, levels: bool, ordered: bool) -> None:
    """Both ways to launch, both order rules, with and without barriers; twice, with inputs sent once."""
    fake = case.fake()
    options: dict[str, Any] = {"mode": "bulk_synchronous"} if levels else {}
    if ordered:
        options |= {"order": "priority", "priority": case.graph.topological_order}
    with case.executor(fake, launch) as executor:
        sends = set()
        for _ in range(2):
            done = executor.run(case.placed, case.inputs, **options)
            assert_right(case, fake, done)
            if levels:
                depth = case.graph.depth
                for level in range(1, int(depth.max()) + 1):
                    begun, moved = done.schedule.start[depth == level].min(), done.schedule.transfers
                    assert begun >= done.schedule.end[depth < level].max() - 1e-9
                    for k in range(len(moved.end)):
                        if level in depth[receivers(case, moved.tensor[k], moved.target[k])]:
                            assert begun >= moved.end[k] - 1e-9
            returned = {(r.number, r.output) for r in case.graph.outputs}
            assert fake.alive() == len(returned) + fake.puts
            sends.add(fake.puts)
        assert len(sends) == 1
        assert all(stream is default for stream, default in zip(fake.is_current, fake.default, strict=True))
        del done
    assert fake.alive() == 0


@settings(max_examples=120, deadline=None)
@given(cases(), st.booleans(), st.randoms(use_true_random=False))
def test_driven_devices_never_idle_and_take_the_best(case: Case, ordered: bool, random: Any) -> None:
    """At most two operations are in flight on a device; the second waits for nothing but the first; of what is ready
    the host gives the one that the rule says."""
    fake, graph = case.fake(), case.graph
    rank = np.arange(graph.n)
    options: dict[str, Any] = {}
    if ordered:
        order, waiting = [], graph.in_degree.copy()
        while len(order) < graph.n:
            order.append(random.choice([v for v in range(graph.n) if not waiting[v] and v not in order]))
            np.subtract.at(waiting, graph.edge_target[graph.edge_source == order[-1]], 1)
        rank[order] = np.arange(graph.n)
        options = {"order": "priority", "priority": order}
    with case.executor(fake) as executor:
        done = executor.run(case.placed, case.inputs, **options)
    assert audit(done).delays.max() <= 1e-9
    given_at, ready, end, placed = case.given(fake, done), done.ready, done.schedule.end, case.placed
    sequence: dict[int, list[int]] = {}
    for work in fake.work:
        v = case.number[id(work.kernel)]
        sequence.setdefault(placed[v], []).append(v)
    for mine in sequence.values():
        for place, x in enumerate(mine):
            assert sum(end[w] > given_at[x] + 1e-9 for w in mine[:place]) <= 1
            for u in graph.edge_source[graph.edge_target == x].tolist():
                assert end[u] <= given_at[x] + 1e-9 or u == mine[place - 1]
            moved = done.schedule.transfers
            for k in range(len(moved.end)):
                if x in receivers(case, moved.tensor[k], moved.target[k]):
                    assert moved.end[k] <= given_at[x] + 1e-9
            for y in mine[place + 1 :]:
                better = rank[y] < rank[x] if ordered else ready[y] < ready[x] - 1e-9
                assert not better or ready[y] >= given_at[x] - 1e-9


@settings(max_examples=80, deadline=None)
@given(cases())
def test_driven_memory_goes_with_the_last_reader(case: Case) -> None:
    """Whenever the host has nothing to do, exactly those tensors are alive that somebody will read or return."""
    fake = case.fake(bytes_per_s=8.0)
    with case.executor(fake) as executor:
        plan = executor.plan(case.placed)
        run = Run(plan, executor.kind.job(plan, case.inputs, 0), None, None)
        returned = {(r.number, r.output) for r in case.graph.outputs}
        first, checks = plan.tables.first_slot, []

        def read(slot: int) -> bool:
            return any(slot in plan.releases[w] and np.isnan(run.end[w]) for w in range(case.graph.n))

        def expected() -> int:
            launched = {case.number[id(work.kernel)] for work in fake.work}
            count = 0
            for v in launched:
                sends = [k for k in plan.sends[v] if np.isnan(run.arrived[k])]
                for output in range(first[v + 1] - first[v]):
                    sending = any(output in plan.transfers[k].outputs for k in sends)
                    kept = np.isnan(run.end[v]) or read(first[v] + output) or (v, output) in returned
                    count += sending or kept
                for k in plan.sends[v]:
                    count += sum(k in sends or read(slot) for slot in plan.transfers[k].slots)
            return count

        def watch() -> None:
            if fake.work:
                checks.append((fake.alive() - fake.puts, expected()))

        fake.watch = watch
        executor.carry_on(run, 0)
    assert checks
    assert all(found == wanted for found, wanted in checks)


def test_ahead_lets_go_at_once() -> None:
    """When all is enqueued, only what is returned is held by the host, and the allocator knows who still reads."""
    case = chain(20, devices=2)
    fake = case.fake()
    held: list[int] = []
    fake.watch = lambda: held.append(fake.alive()) if fake.work else None
    with case.executor(fake, "ahead") as executor:
        done = executor.run(case.placed, case.inputs)
        assert held[0] == 1 + fake.puts
        assert_right(case, fake, done)


@settings(max_examples=60, deadline=None)
@given(cases(), st.sampled_from(LAUNCHES))
def test_two_phases(case: Case, launch: Any) -> None:
    """What reads the second input waits for the second phase."""
    fake = case.fake()
    with case.executor(fake, launch) as executor:
        executor.tables = GraphTables.of(case.problem, [1])
        plan = executor.plan(case.placed)
        job = executor.kind.job(plan, case.inputs, 0)
        late = job.given[1]
        job.given[1] = None  # type: ignore[call-overload]
        run = Run(plan, job, None, None)
        executor.carry_on(run, 0)
        phase = np.array(plan.tables.phase)
        assert np.isnan(np.array(run.end)[phase == 1]).all()
        assert not np.isnan(np.array(run.end)[phase == 0]).any()
        early = job.outputs(0)
        fake.clock += 5.0
        job.provide({1: late})
        executor.carry_on(run, 1)
        outputs, expected = job.outputs(1), run_plainly(case.graph, case.inputs)
        assert all(torch.equal(outputs[name], expected[name]) for name in expected)
        assert all(torch.equal(early[name], expected[name]) for name in early)
        assert not fake.faults
        schedule, ready = run.schedule(), run.ready_times()
        assert (schedule.start >= ready - 1e-9).all()
        if (phase == 1).any() and (phase == 0).any():
            assert schedule.start[phase == 1].min() >= schedule.end[phase == 0].max() + 5.0 - 1e-9


def test_only_what_is_wanted_runs() -> None:
    """Of two chains the one that nobody wants does not run, and its input is not sent."""
    builder = GraphBuilder("two")
    x, y = builder.add_input("x", KIND), builder.add_input("y", KIND)
    ends = [builder.add(Kernel("aten.neg.default", (r,), (KIND,)), kind="elementwise", flops=1.0) for r in (x, y)]
    case = Case(builder.finish(ends, ["a", "b"]), [1.0, 1.0], [0, 0], [0])
    for launch in LAUNCHES:
        fake = case.fake()
        with case.executor(fake, launch) as executor:
            executor.tables = GraphTables.of(case.problem, (), [False, True])
            plan = executor.plan(case.placed)
            run = Run(plan, executor.kind.job(plan, case.inputs, 0), None, None)
            executor.carry_on(run, 0)
            assert list(run.job.outputs(0)) == ["b"]  # type: ignore[attr-defined]
        assert (len(fake.work), fake.puts) == (1, 1)


def chain(length: int, devices: int = 1, target: str = "aten.neg.default") -> Case:
    """Operations one after the other, in turn on the devices."""
    builder = GraphBuilder("chain")
    last = builder.add_input("x", KIND)
    for number in range(length):
        last = builder.add(Kernel(target, (last,), (KIND,)), kind="elementwise", flops=1.0, name=f"step{number}")
    placed = [number % devices for number in range(length)]
    return Case(builder.finish([last], ["out"]), [1.0] * length, placed, list(range(devices)))


def test_copies_do_not_hold_up_what_computes() -> None:
    """Device 0 sends 24 bytes, 3 s, and goes on with its own work; device 1 has work too: nobody waits for the copy."""
    builder = GraphBuilder("apart")
    x = builder.add_input("x", KIND)
    first, mine, other = (
        builder.add(Kernel("aten.neg.default", (x,), (KIND,)), kind="elementwise", flops=1.0) for _ in range(3)
    )
    end = builder.add(Kernel("aten.add.Tensor", (first, other), (KIND,)), kind="elementwise", flops=1.0)
    case = Case(builder.finish([mine, end], ["mine", "out"]), [1.0, 2.0, 2.0, 1.0], [0, 0, 1, 1], [0, 1])
    for launch in LAUNCHES:
        fake = case.fake(bytes_per_s=8.0)
        with case.executor(fake, launch) as executor:
            schedule = executor.run(case.placed, case.inputs).schedule
        assert schedule.start.tolist() == [0.0, 1.0, 0.0, 4.0]
        assert schedule.transfers.start.tolist() == [1.0]
        assert schedule.transfers.end.tolist() == [4.0]


def test_launching_takes_time_only_once() -> None:
    """The second operation is there when the first ends, so that launches of 0.1 s are hidden behind 1 s of work."""
    case = chain(10)
    fake = case.fake(launch_s=0.1)
    with case.executor(fake) as executor:
        done = executor.run(case.placed, case.inputs)
    assert done.makespan == pytest.approx(10.1)
    assert case.given(fake, done)[9] > 7.0  # and none is enqueued long before


def test_ahead_waits_for_its_order() -> None:
    """Operation 1 takes longer than was told, so that 2, which waits for it, holds up 3 on its device."""
    builder = GraphBuilder("fixed")
    x = builder.add_input("x", KIND)
    late = builder.add(Kernel("aten.neg.default", (x,), (KIND,)), kind="elementwise", flops=1.0)
    after = builder.add(Kernel("aten.neg.default", (late,), (KIND,)), kind="elementwise", flops=1.0)
    free = builder.add(Kernel("aten.neg.default", (x,), (KIND,)), kind="elementwise", flops=1.0)
    case = Case(builder.finish([after, free], ["a", "b"]), [5.0, 1.0, 1.0], [0, 1, 1], [0, 1])
    options: Any = {"order": "priority", "priority": [0, 1, 2]}
    starts = {}
    for launch in LAUNCHES:
        fake = case.fake(bytes_per_s=24.0)
        with case.executor(fake, launch) as executor:
            starts[launch] = executor.run(case.placed, case.inputs, **options).schedule.start.tolist()
    assert starts == {"driven": [0.0, 6.0, 0.0], "ahead": [0.0, 6.0, 7.0]}


def test_inputs_are_sent_once_and_again_when_they_change() -> None:
    case = chain(4, devices=2)
    case.placed = [0, 1, 1, 0]
    fake, x = case.fake(), torch.ones(3, dtype=torch.float64)
    with case.executor(fake) as executor:
        for _ in range(3):
            assert torch.equal(executor.run(case.placed, {"x": x}).outputs["out"], x)
        assert fake.puts == 1
        x += 1.0
        assert torch.equal(executor.run(case.placed, {"x": x}).outputs["out"], x)
        assert fake.puts == 2
        assert torch.equal(executor.run(case.placed, {"x": x.clone()}).outputs["out"], x)
        assert fake.puts == 3
        executor.run([1, 1, 1, 1])
        assert fake.puts == 4
        assert len(executor.kind.sent) == 1  # the other GPU does not read it any more
        with torch.inference_mode():
            uncounted = torch.ones(3, dtype=torch.float64)
        for _ in range(2):
            executor.run(case.placed, {"x": uncounted})
        assert fake.puts == 6


def test_devices_on_one_gpu_share_inputs_and_copy_tensors() -> None:
    builder = GraphBuilder("shared")
    x = builder.add_input("x", KIND)
    first = builder.add(Kernel("aten.neg.default", (x,), (KIND,)), kind="elementwise", flops=1.0)
    second = builder.add(Kernel("aten.add.Tensor", (first, x), (KIND,)), kind="elementwise", flops=1.0)
    case = Case(builder.finish([second], ["out"]), [1.0, 1.0], [0, 1], [0, 0])
    fake = case.fake(bytes_per_s=24.0)
    with case.executor(fake) as executor:
        assert executor.run(case.placed, case.inputs).makespan == 3.0
    assert (fake.puts, fake.copies) == (1, 1)


def test_devices_take_gpus_in_turn() -> None:
    problem = replace(chain(3, devices=2).problem, topology=Topology.uniform(3))
    for count, expected in ((4, [0, 1, 2]), (2, [0, 1, 0]), (1, [0, 0, 0])):
        assert on_gpus(problem, FakeCuda(count), None, "driven", 1.0).kind.gpus == expected
    for devices in ([0, 1], [0, 1, 2], [0, 0, -1]):
        with pytest.raises(PlacementError, match=r"expected the GPU, 0 to 1, of each of the problem's 3 devices"):
            on_gpus(problem, FakeCuda(2), devices, "driven", 1.0)
    wrong: Any
    for wrong in (3, "01"):
        with pytest.raises(PlacementError, match=f"devices is {wrong!r}; expected a list with the GPU of each device"):
            on_gpus(problem, FakeCuda(2), wrong, "driven", 1.0)


def test_mistakes_are_told() -> None:
    case = chain(2)
    with pytest.raises(ExecutionError, match="torch sees no GPU here; use executor=cpu or emulated"):
        on_gpus(case.problem, FakeCuda(0), None, "driven", 1.0)
    with pytest.raises(PlacementError, match="launch is 'eager'; expected driven, ahead"):
        on_gpus(case.problem, FakeCuda(1), None, "eager", 1.0)  # type: ignore[arg-type]
    with pytest.raises(GraphError, match="no kernels"):
        on_gpus(replace(case.problem, graph=replace(case.graph, kernels=None)), FakeCuda(1), None, "driven", 1.0)
    with case.executor(case.fake()) as executor:
        with pytest.raises(PlacementError, match="priority="):
            executor.run(case.placed, case.inputs, order="priority")
        with pytest.raises(GraphError, match="no input 'nonsense'"):
            executor.run(case.placed, {"nonsense": torch.zeros(1)})


class Faulty(FakeCuda):
    """Its third kernel fails, once, when it already has its results."""

    error: BaseException | None = RuntimeError("boom")

    def evaluate(self, kernel: Kernel, fetch: Any, gpu: int) -> tuple[Any, ...]:
        results = super().evaluate(kernel, fetch, gpu)
        if len(self.work) == 3 and self.error is not None:
            error, self.error = self.error, None
            raise error
        return results


def test_failures_name_the_operation_and_leave_nothing() -> None:
    case = chain(6, devices=2)
    memory = torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.\nGPU 0 has")
    for launch in LAUNCHES:
        for error, told in (
            (RuntimeError("boom"), "operation 'step2' on device 0 failed with RuntimeError: boom"),
            (memory, "operation 'step2' on device 0 ran out of memory"),
        ):
            fake = Faulty(2, lambda kernel: 0.1)
            fake.error = error
            with case.executor(fake, launch) as executor:
                with pytest.raises(ExecutionError, match=told) as caught:
                    executor.run(case.placed, case.inputs)
                gc.collect()
                assert fake.alive() == fake.puts  # though the error, and its frames, are still at hand
                assert fake.clock >= max(stream.free for stream in fake.streams)
                assert_works(case, executor)
            assert caught.value.__cause__ is error


def assert_works(case: Case, executor: CudaExecutor) -> None:
    expected = run_plainly(case.graph, case.inputs)
    assert torch.equal(executor.run(case.placed, case.inputs).outputs["out"], expected["out"])


def test_a_failing_copy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    case, fake = chain(2, devices=2), FakeCuda(2)

    def failing(target: torch.Tensor, source: torch.Tensor) -> None:
        raise RuntimeError("link down")

    with case.executor(fake) as executor:
        monkeypatch.setattr(fake, "copy", failing)
        with pytest.raises(ExecutionError, match=r"transfer of 'step0' from device 0 to 1 failed .* link down"):
            executor.run(case.placed, case.inputs)
        monkeypatch.undo()
        assert_works(case, executor)


def test_a_failing_input_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    case, fake = chain(2), FakeCuda(1)

    def failing(tensor: torch.Tensor, gpu: int) -> torch.Tensor:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory.")

    with case.executor(fake) as executor:
        monkeypatch.setattr(fake, "put", failing)
        with pytest.raises(ExecutionError, match="sending the input 'x' to device 0 ran out of memory"):
            executor.run(case.placed, case.inputs)
        monkeypatch.undo()
        assert_works(case, executor)


def test_errors_that_come_late_are_told() -> None:
    """An error on the GPU is raised by the next look; what was in flight first is named."""
    case = chain(3)
    for launch in LAUNCHES:
        fake = Faulty(1)
        fake.error = None
        fake.watch = lambda: None
        with case.executor(fake, launch) as executor:
            evaluate = fake.evaluate

            def breaking(kernel: Kernel, fetch: Any, gpu: int, fake: Any = fake, evaluate: Any = evaluate) -> Any:
                fake.broken = RuntimeError("CUDA error: an illegal memory access was encountered")
                return evaluate(kernel, fetch, gpu)

            fake.evaluate = breaking  # type: ignore[method-assign]
            with pytest.raises(ExecutionError, match=r"operation 'step0' on device 0 failed.*illegal memory access"):
                executor.run(case.placed, case.inputs)
            with pytest.raises(ExecutionError, match="waiting for what the GPUs did before failed"):
                executor.run(case.placed, case.inputs)


def test_a_time_out_names_what_is_under_way_and_the_next_run_waits() -> None:
    """A kernel of 30 s is still running a second after the time-out: it is left behind, and waited for later."""
    case = chain(3)
    case.seconds = [30.0, 1.0, 1.0]
    for launch in LAUNCHES:
        fake = case.fake()
        with case.executor(fake, launch) as executor:
            with pytest.raises(ExecutionTimeoutError, match="under way: operation 'step0' on device 0"):
                executor.run(case.placed, case.inputs, timeout=5.0)
            assert fake.alive() == fake.puts
            begin = fake.clock
            with pytest.raises(ExecutionTimeoutError, match="still busy with what they were given before"):
                executor.run(case.placed, {"x": torch.ones(3, dtype=torch.float64)}, timeout=0.001)
            assert fake.clock - begin < 40.0
            assert_works(case, executor)
            assert not fake.faults


def test_ctrl_c_ends_everything() -> None:
    case = chain(6, devices=2)
    for launch in LAUNCHES:
        fake = case.fake()

        def interrupt(fake: FakeCuda = fake) -> None:
            if fake.work:
                fake.watch = lambda: None
                raise KeyboardInterrupt

        fake.watch = interrupt
        with case.executor(fake, launch) as executor:
            with pytest.raises(KeyboardInterrupt) as caught:
                executor.run(case.placed, case.inputs)
            assert fake.copies
            assert fake.alive() == fake.puts  # though the interrupt, and its frames, are still at hand
            del caught
            assert all(stream is default for stream, default in zip(fake.is_current, fake.default, strict=True))
            assert_works(case, executor)
            assert not fake.faults


def test_closed_meanwhile_an_execution_ends() -> None:
    """Somebody closes the executor while kernels run: one sentence, and the next execution works."""
    case = chain(6, devices=2)
    for launch in LAUNCHES:
        fake = case.fake()
        with case.executor(fake, launch) as executor:

            def close(fake: FakeCuda = fake, executor: CudaExecutor = executor) -> None:
                if fake.work:
                    fake.watch = lambda: None
                    executor.close()

            fake.watch = close
            with pytest.raises(ExecutionClosedError, match="the executor was closed during this execution"):
                executor.run(case.placed, case.inputs)
            assert fake.alive() == fake.puts
            assert_works(case, executor)
            assert not fake.faults


def test_what_the_user_computes_is_waited_for() -> None:
    """Work on the user's own stream ends before the execution begins, and is not measured."""
    case = chain(2)
    fake = case.fake()
    with case.executor(fake) as executor:
        fake.default[0].free = 4.0
        done = executor.run(case.placed, case.inputs)
    assert fake.work[0].start == 4.5  # the input has been sent behind it
    assert done.makespan == 2.0
    assert fake.default[0] in fake.memory[id(done.outputs["out"])].kept_for


def test_many_runs_leave_nothing_behind() -> None:
    case = chain(8, devices=2)
    fake = case.fake()
    with case.executor(fake) as executor:
        runs = [weakref.ref(executor.run(case.placed, case.inputs)) for _ in range(20)]
        assert len(fake.streams) == 2 + 4
        assert not any(reference() for reference in runs)
        assert fake.alive() == fake.puts
