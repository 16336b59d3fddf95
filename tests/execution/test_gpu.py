"""The executor of GPUs on a real one, whose streams are the devices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from hadoppler.envs.placement import (
    DataflowGraph,
    GraphBuilder,
    Kernel,
    PlacementProblem,
    Topology,
    from_module,
    make_graph,
)
from hadoppler.envs.placement.interpreter import module_inputs, run as run_plainly
from hadoppler.envs.placement.kernel import TensorType
from hadoppler.real_system.placement import ExecutionError, cuda_executor
from hadoppler.real_system.placement.cpu import random_inputs
from hadoppler.scripts.example_model import TransformerBlock

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU here")
LAUNCHES = ("driven", "ahead")


def gpu_case(name: str) -> tuple[DataflowGraph, dict[str, torch.Tensor]]:
    if name.startswith("transformer"):
        torch.manual_seed(0)
        module, args = TransformerBlock(32, 4).double(), (torch.randn(2, 8, 32, dtype=torch.float64),)
        graph = from_module(module, args, training=name.endswith("training"))
        return graph, module_inputs(graph, module, args)
    sizes: dict[str, Any] = {
        "chainmm": {"size": 32},
        "ffnn": {"batch": 32, "features": 16, "hidden": 64, "outputs": 16},
        "llama_block": {"sequence": 16, "width": 32, "heads": 4, "feedforward": 48},
    }
    graph = make_graph(name, dtype="float64", **sizes[name])
    return graph, random_inputs(PlacementProblem(graph, Topology.this_machine(2)), 0)


@pytest.mark.parametrize("launch", LAUNCHES)
@pytest.mark.parametrize("name", ["chainmm", "ffnn", "llama_block", "transformer", "transformer training"])
def test_gpu_outputs_equal_those_of_one_device(name: str, launch: Any) -> None:
    """12 random placements on 2 to 4 streams, both order rules, with and without barriers; float64, to 1e-10."""
    graph, inputs = gpu_case(name)
    expected, rng = run_plainly(graph, inputs), np.random.default_rng(0)
    for devices in (2, 3, 4):
        problem = PlacementProblem(graph, Topology.this_machine(devices), memory="off")
        with cuda_executor(problem, devices=[0] * devices, launch=launch) as executor:
            for number in range(4):
                assignment = rng.integers(devices, size=graph.n)
                options: dict[str, Any] = [
                    {},
                    {"order": "priority", "priority": graph.topological_order},
                    {"mode": "bulk_synchronous"},
                ][number % 3]
                done = executor.run(assignment, inputs, **options)
                for key, tensor in expected.items():
                    torch.testing.assert_close(done.outputs[key].cpu(), tensor, rtol=1e-10, atol=1e-10, equal_nan=True)
                schedule = done.schedule
                assert (schedule.end >= schedule.start).all()
                assert (schedule.start >= done.ready - 1e-6).all()
                assert (schedule.start[graph.edge_target] >= schedule.end[graph.edge_source] - 1e-6).all()
                assert (schedule.transfers.end >= schedule.transfers.start).all()


@pytest.mark.parametrize("launch", LAUNCHES)
def test_gpu_memory_is_reused(launch: Any) -> None:
    """Between run 5 and run 40 the memory in use is equal, and results stay right under reuse."""
    builder, kind = GraphBuilder("big"), TensorType((512, 512))
    last = builder.add_input("x", kind)
    for _ in range(40):
        last = builder.add(Kernel("aten.add.Tensor", (last, last), (kind,)), kind="elementwise", flops=1.0)
    problem = PlacementProblem(builder.finish([last], ["out"]), Topology.this_machine(3), memory="off")
    x = torch.full((512, 512), 2.0**-30)
    with cuda_executor(problem, devices=[0] * 3, launch=launch) as executor:
        for turn in range(40):
            out = executor.run(np.arange(40) // 2 % 3, {"x": x}).outputs["out"]
            assert torch.equal(out.cpu(), torch.full((512, 512), 2.0**10))
            if turn == 5:
                early = torch.cuda.memory_allocated(0)
        assert torch.cuda.memory_allocated(0) == early


def test_gpu_out_of_memory_is_told_and_passes() -> None:
    builder, kind = GraphBuilder("faulty"), TensorType((4, 4))
    x = builder.add_input("x", kind)
    good = builder.add(Kernel("aten.mm.default", (x, x), (kind,)), kind="matmul", flops=1.0, name="good")
    bad = builder.add(
        Kernel("aten.repeat.default", (good, (2**20, 2**18)), (kind,)), kind="copy", flops=1.0, name="bad"
    )
    problem = PlacementProblem(builder.finish([bad], ["out"]), Topology.this_machine(2), memory="off")
    with cuda_executor(problem, devices=[0, 0]) as executor:
        for _ in range(2):
            with pytest.raises(ExecutionError, match="'bad' on device 1 ran out of memory"):
                executor.run([0, 1])
