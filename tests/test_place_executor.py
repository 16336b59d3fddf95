"""``hadoppler place executor=...``: what is executed, verified, measured, written, and how it refuses."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hadoppler.envs.errors import MemoryLimitError
from hadoppler.envs.placement import (
    DataflowGraph,
    GraphBuilder,
    Kernel,
    PlacementProblem,
    TensorType,
    Topology,
    from_module,
    make_graph,
    simulate,
    write_graph,
)
from hadoppler.real_system.placement import Execution, ExecutionError, cpu_executor, emulated_executor, free_memory
from hadoppler.real_system.placement.cpu import random_inputs
from hadoppler.real_system.placement.verified import VerificationError, VerifiedExecutor, check_order
from hadoppler.scripts import execution, place, train

torch = pytest.importorskip("torch", reason="torch is not installed")
SMALL = ["graph=chainmm", "graph.size=32", "topology=this_machine", "topology.devices=2", "method=[heft,round_robin]"]
EMULATED = ["graph=fork_join", "topology=uniform", "executor=emulated", "executor.bound_s=0.02"]
MEASURED = {"measured_s", "measured_std", "measured_runs", "dropped", "late", "verified"}


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    torch.set_num_threads(1)


def results() -> tuple[dict[str, Any], Path]:
    """What the only run wrote, and its folder."""
    (path,) = Path("runs/place").glob("*/results.json")
    return json.loads(path.read_text()), path.parent


def chain_of_two() -> PlacementProblem:
    """a (2 s), then b (1 s), which reads 3 bytes of a."""
    graph = DataflowGraph.build(flops=[2, 1], ids=["a", "b"], edges=[("a", "b")], out_bytes=[3, 0], title="two")
    return PlacementProblem(graph, Topology.uniform(2))


# --- the command --------------------------------------------------------------------------------------


def test_processors_execute_and_verify_every_placement(capsys: pytest.CaptureFixture[str]) -> None:
    assert place.main([*SMALL, "executor=cpu", "runs=2"]) == 0
    found, folder = results()
    assert [row["method"] for row in found["rows"]] == ["heft", "round_robin"]
    for row in found["rows"]:
        assert set(row) >= MEASURED
        assert row["verified"] == "outputs"
        assert 1 <= row["measured_runs"] <= 2
        assert 0 < row["measured_s"] < 10
        assert row["measured_ratio"] == row["measured_s"] / row["makespan"]
    events = json.loads((folder / "trace_measured.json").read_text())["traceEvents"]
    assert sum(event["ph"] == "X" and event["tid"] == 0 for event in events) == 76
    assert (folder / "gantt.png").read_bytes().startswith(b"\x89PNG")
    printed = capsys.readouterr().out
    for words in ("measured [", "/ simulated", "late", "for more than 1 ms", "equal those of one-device execution"):
        assert words in printed
    assert printed.count("gantt.png") == 1
    order = ["decided [s]", "computing on one device", "executing heft: 2 times", "executing round_robin", "measured ["]
    places = [printed.index(words) for words in order]
    assert places == sorted(places), "what is known is told before what takes long"


def test_emulated_devices_take_the_time_that_was_simulated(capsys: pytest.CaptureFixture[str]) -> None:
    assert place.main([*EMULATED, "method=[heft,single_device]", "runs=3", "pictures=false", "order=priority"]) == 0
    found, folder = results()
    for row in found["rows"]:
        assert row["verified"] == "order"
        assert 0.9 < row["measured_ratio"] < 3.0, "sleeping threads on a busy machine"
    assert not (folder / "gantt.png").exists()
    assert (folder / "trace_measured.json").exists()
    assert "Emulated devices compute nothing" in capsys.readouterr().out


def test_barriers_hold_up_what_is_ready() -> None:
    """a (2 s), b (1 s) and c (1 s), where c reads b only: with a barrier after a and b, c waits for a."""
    nodes = [{"id": name, "flops": flops} for name, flops in zip("abc", (2, 1, 1), strict=True)]
    Path("graph.json").write_text(json.dumps({"nodes": nodes, "edges": [{"src": "b", "dst": "c"}]}))
    Path("placement.json").write_text(json.dumps({"a": 0, "b": 1, "c": 1}))
    small = ["graph=file", "graph.path=graph.json", "topology=raw", "topology.devices=2", "pictures=false", "runs=3"]
    small += ["method=[file]", "method.file.path=placement.json", "executor=emulated", "executor.bound_s=0.1"]
    taken = []
    for mode in ("work_conserving", "bulk_synchronous"):
        assert place.main([*small, f"mode={mode}", f"hydra.run.dir={mode}"]) == 0
        taken.append(json.loads(Path(mode, "results.json").read_text())["rows"][0]["measured_s"])
    assert taken[0] == pytest.approx(0.1, rel=0.2)
    assert taken[1] == pytest.approx(0.15, rel=0.2)


def test_units_of_a_file_are_not_compared_with_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        place.main(["graph=chainmm", "graph.size=16", "topology=raw", "method=[heft]", "executor=cpu", "runs=1"]) == 0
    )
    found, _ = results()
    assert found["rows"][0]["measured_ratio"] is None
    assert found["rows"][0]["measured_s"] > 0
    assert "to which seconds do not compare" in capsys.readouterr().out


def test_a_method_that_is_measured_faster_than_the_one_that_is_kept_is_told() -> None:
    from hadoppler.scripts.execution_report import disagreement

    def row(method: str, makespan: float, measured: float | None, std: float | None = 1e-4) -> dict[str, Any]:
        return {"method": method, "makespan": makespan, "measured_s": measured, "measured_std": std}

    heft = row("heft", 1.0, 5e-3)
    assert disagreement([row("etf", 2.0, 4e-3), heft]) == [
        "placement.json holds the best simulated placement, heft's, measured 5 ms; etf's, in placements/etf.json, took "
        "4 ms. hadoppler calibrate makes the simulator believe what is measured."
    ]
    assert len(disagreement([heft, row("etf", 2.0, 4e-3, None)])) == 1, "one repetition"
    assert not disagreement([heft, row("etf", 2.0, 4.85e-3)]), "within the deviations"
    assert not disagreement([heft, row("portfolio", 1.0, 4e-3)]), "most likely the same placement"
    assert not disagreement([heft, row("etf", 2.0, 6e-3)])
    assert not disagreement([heft, row("etf", 2.0, None)])
    assert not disagreement([row("heft", 1.0, None), row("etf", 2.0, 4e-3)])


def test_the_command_tells_which_placement_is_kept(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Round robin's placement is the best simulated, and made slow; each is measured once, without a deviation."""
    honest = execution.measure

    def slower(devices: Any, placement: Any, *others: Any) -> Any:
        found = honest(devices, placement, *others)
        return replace(found, seconds=np.array([2.0 if placement.method == "round_robin" else 1.0]))

    monkeypatch.setattr(execution, "measure", slower)
    assert place.main([*SMALL, "executor=cpu", "runs=1", "pictures=false"]) == 0
    found, folder = results()
    best = min(found["rows"], key=lambda row: row["makespan"])
    assert best["method"] == "round_robin"
    assert best["measured_std"] is None
    printed = capsys.readouterr().out
    assert "2 ± -" in printed
    assert "round_robin's, measured 2 s; heft's, in placements/heft.json, took 1 s" in printed
    kept, other = (
        json.loads((folder / name).read_text()) for name in ("placement.json", "placements/round_robin.json")
    )
    assert kept == other


def test_without_an_executor_nothing_is_measured() -> None:
    assert place.main([*SMALL, "pictures=false"]) == 0
    found, folder = results()
    assert not MEASURED & set(found["rows"][0])
    assert not (folder / "trace_measured.json").exists()


def test_wrong_outputs_are_a_failure(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The second placement's outputs are made wrong: the first one's results are kept, and the exit code tells."""
    honest, seen = execution.measure, []

    def wrong(devices: Any, placement: Any, *others: Any) -> Any:
        seen.append(placement.method)
        if placement.method == "round_robin":
            expected = devices.executor._expected
            devices.executor._expected = {name: value + 1 for name, value in expected.items()}
        return honest(devices, placement, *others)

    monkeypatch.setattr(execution, "measure", wrong)
    assert place.main([*SMALL, "executor=cpu", "runs=1"]) == 2
    found, folder = results()
    rows = {row["method"]: row for row in found["rows"]}
    assert rows["heft"]["verified"] == "outputs"
    assert rows["round_robin"]["verified"] is False
    assert rows["round_robin"]["measured_s"] is None
    assert (folder / "gantt.png").exists()
    err = capsys.readouterr().err
    assert err.startswith("hadoppler place: executed, these failed: round_robin (chainmm: output ")
    assert "differs from one-device execution by up to 1," in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["graph=fork_join", "executor=cpu"], "the graph has no kernels and cannot be executed"),
        ([*SMALL, "executor=cpu", "runs=0"], "runs is 0; expected a whole number from 1 up"),
        ([*SMALL, "executor=cpu", "mode=levels"], "mode is 'levels'; expected work_conserving or bulk_synchronous"),
        ([*SMALL, "executor=cpu", "order=random"], "order is 'random'; with an executor it is fifo or priority"),
        ([*SMALL, "executor=cpu", "executor.isolate=no"], "executor.isolate"),
        ([*SMALL, "executor=tpu"], "there is no executor called 'tpu'; choose one of cpu, cuda, emulated"),
        ([*EMULATED, "executor.jitter=-1"], "jitter is -1; expected a number from 0 up"),
        ([*EMULATED, "executor.jitter=x"], "jitter is 'x'"),
        ([*EMULATED, "executor.timeout=null"], "timeout is None; expected seconds above 0, or inf for no limit"),
        ([*EMULATED, "executor.timeout=abc", "executor.isolate=process"], "timeout is 'abc'"),
        ([*EMULATED, "executor.unit_s=1"], "unit_s is 1 and bound_s 0.02; each tells how long all takes: give one"),
        ([*EMULATED, "executor.slow_links=3"], "slow_links is 3"),
        ([*EMULATED, "executor.slow_links=[[0,1,x]]"], "slow_links holds [0, 1, 'x']"),
        ([*SMALL, "executor=cpu", "executor.bytes_per_s=abc"], "bytes_per_s is 'abc'"),
        (["graph=chainmm", "graph.size=4000000", "topology=raw", "executor=cpu"], "less than graph.size=4000000"),
    ],
)
def test_mistakes_are_told_before_anything_runs(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert place.main([*words, "method=[heft]"] if "method=[heft,round_robin]" not in words else words) == 2
    err = capsys.readouterr().err
    assert told in err
    assert err.count("\n") == 1
    assert not list(Path().glob("runs/place/*/run.json"))


def test_gpus_that_are_not_there_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    assert place.main([*SMALL, "executor=cuda"]) == 2
    assert "torch sees no GPU here; use executor=cpu or emulated" in capsys.readouterr().err


def test_a_time_out_is_told_and_the_others_are_kept(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["graph=fork_join", "topology=uniform", "executor=emulated", "executor.bound_s=5", "executor.timeout=0.1"]
    assert place.main([*words, "method=[heft]", "runs=1", "pictures=false"]) == 2
    assert "did not end within 0.1 s" in capsys.readouterr().err
    assert results()[0]["rows"][0]["verified"] is False


# --- memory -------------------------------------------------------------------------------------------


def test_the_memory_of_one_device_is_counted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A product of 8 x 8 matrices: two inputs and one result of 256 bytes each."""
    builder, matrix = GraphBuilder("product"), TensorType((8, 8))
    read = builder.add_input("a", matrix), builder.add_input("b", matrix)
    product = builder.add(Kernel("aten.mm.default", read, (matrix,)), kind="matmul", flops=1024)
    problem = PlacementProblem(builder.finish([product]), Topology.uniform(2))
    assert free_memory.peak_bytes(problem) == (768.0, 512.0)
    (tmp_path / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable:       0 kB\n")
    monkeypatch.setattr(free_memory, "MEMINFO", tmp_path / "meminfo")
    with pytest.raises(
        MemoryLimitError, match=r"inputs take 512 bytes .* holds 768 at once, but only 0 are free.*; x\."
    ):
        free_memory.check_free_memory(problem, "x")
    monkeypatch.setattr(free_memory, "MEMINFO", tmp_path / "none")
    free_memory.check_free_memory(problem, "x")


# --- verification -------------------------------------------------------------------------------------


def test_outputs_are_checked_at_every_execution_and_let_go() -> None:
    problem = PlacementProblem(make_graph("chainmm", size=16), Topology.this_machine(2))
    rng = np.random.default_rng(0)
    with VerifiedExecutor(cpu_executor(problem), random_inputs(problem, 0)) as executor:
        for _ in range(3):
            done = executor.run(rng.integers(2, size=problem.n))
            assert done.outputs == {}
        with pytest.raises(ExecutionError, match="leave inputs out"):
            executor.run(np.zeros(problem.n, int), {})
        executor.inputs = {name: 2 * value for name, value in random_inputs(problem, 0).items()}
        executor._knows_inputs = False
        with pytest.raises(VerificationError, match="differs from one-device execution"):
            executor.run(np.zeros(problem.n, int))


def executed(problem: PlacementProblem) -> VerifiedExecutor:
    """After two executions on two devices, checked with random inputs."""
    with VerifiedExecutor(cpu_executor(problem), random_inputs(problem, 0)) as executor:
        for _ in range(2):
            executor.run(np.arange(problem.n) % 2)
    return executor


def one_by_one(*targets: tuple[str, tuple[Any, ...]], shape: tuple[int, ...] = (16, 16)) -> PlacementProblem:
    """Operations that all read one input, and are all outputs."""
    builder, kind = GraphBuilder("several"), TensorType(shape)
    x = builder.add_input("x", kind)
    outputs = [
        builder.add(Kernel(target, (x, *args), (kind,)), kind="elementwise", flops=1.0, name=target.split(".")[1])
        for target, args in targets
    ]
    return PlacementProblem(builder.finish(outputs), Topology.this_machine(2))


@pytest.mark.parametrize("name", ["products", "layers", "convolutions"])
def test_random_inputs_keep_deep_graphs_finite(name: str) -> None:
    if name == "products":
        builder, kind = GraphBuilder("deep"), TensorType((64, 64))
        last = builder.add_input("x", kind)
        for number in range(100):
            read = last, builder.add_input(f"w{number}", kind)
            last = builder.add(Kernel("aten.mm.default", read, (kind,)), kind="matmul", flops=1.0)
        graph = builder.finish([last])
    else:
        x = torch.zeros(4, 64) if name == "layers" else torch.zeros(1, 16, 8, 8)

        def layer() -> torch.nn.Module:
            if name == "layers":
                return torch.nn.Linear(64, 64)
            return torch.nn.Sequential(torch.nn.Conv2d(16, 16, 3, padding=1), torch.nn.BatchNorm2d(16))

        module = torch.nn.Sequential(*[layer() for _ in range(60)]).eval()
        graph = from_module(module, (x,))
    problem = PlacementProblem(graph, Topology.this_machine(2))
    executor = executed(problem)
    assert executor.compared == "outputs"
    (value,) = executor._expected.values()
    assert 1e-9 < float(value.abs().max()) < 1e9
    assert executor.remarks() == [
        "The outputs of every repetition equal those of one-device execution, up to rounding."
    ]


def test_outputs_that_are_not_finite_are_named() -> None:
    """The logarithm of negative numbers tells nothing."""
    log, relu = ("aten.log.default", ()), ("aten.relu.default", ())
    both = executed(one_by_one(log, relu))
    assert both.compared == "some outputs"
    (name,) = both.not_finite
    first, second = both.remarks()
    assert first.startswith(f"Nothing was verified of {name}: with the random inputs of this check, one device gives")
    assert second.startswith("The other outputs of every repetition equal")
    alone = executed(one_by_one(log))
    assert alone.compared == "nothing"
    assert len(alone.remarks()) == 1


def test_a_reference_that_fails_is_one_sentence() -> None:
    """Index 9 of 4 rows, which no device can do."""
    builder, kind = GraphBuilder("failing"), TensorType((4, 4))
    x = builder.add_input("x", kind)
    bad = builder.add(Kernel("aten.select.int", (x, 0, 9), (TensorType((4,)),)), kind="elementwise", flops=1.0)
    problem = PlacementProblem(builder.finish([bad]), Topology.this_machine(2))
    with pytest.raises(
        ExecutionError, match=r"failing: computing the outputs on one device failed with IndexError"
    ) as e:
        executed(problem)
    assert "\n" not in str(e.value)


ATTENTION = "aten.scaled_dot_product_attention.default"
DRAWING: dict[str, tuple[tuple[str, tuple[Any, ...]], bool]] = {
    "dropout": (("aten.native_dropout.default", (0.5, True)), True),
    "dropout in evaluation": (("aten.native_dropout.default", (0.5, False)), False),
    "bernoulli": (("aten.bernoulli.p", (0.5,)), True),
    "like": (("aten.rand_like.default", ()), True),
    "within another": (("aten.add.Tensor", (Kernel("aten.rand.default", ((16, 16),), (TensorType((16, 16)),)),)), True),
    "attention": ((ATTENTION, ()), False),
    "attention with dropout": ((ATTENTION, (None, 0.5)), True),
}


@pytest.mark.parametrize("name", DRAWING)
def test_what_draws_random_numbers_is_not_compared(name: str) -> None:
    (target, args), random = DRAWING[name]
    builder, kind = GraphBuilder("drawing"), TensorType((1, 1, 16, 16) if "attention" in name else (16, 16))
    x = builder.add_input("x", kind)
    read = (x, x, x) if "attention" in name else (x,)
    first = builder.add(Kernel(target, (*read, *args), (kind,)), kind="elementwise", flops=1.0, name="draws")
    second = builder.add(Kernel("aten.relu.default", (first,), (kind,)), kind="elementwise", flops=1.0)
    executor = executed(PlacementProblem(builder.finish([second]), Topology.this_machine(2)))
    assert executor.random == ["draws"] * random
    assert executor.compared == ("nothing" if random else "outputs")
    assert random == executor.remarks()[0].startswith("Random numbers are drawn by draws: the outputs are others")


def test_modules_with_dropout_are_executed_and_timed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "dropping.py").write_text(
        "import torch\n\ndef factory():\n"
        "    return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.5)), (torch.zeros(4, 8),)\n"
    )
    words = ["graph=module", "model=dropping:factory", "topology=this_machine", "method=[heft]", "executor=cpu"]
    assert place.main([*words, "runs=2", "pictures=false"]) == 0
    assert results()[0]["rows"][0]["verified"] == "nothing"
    assert results()[0]["rows"][0]["measured_s"] > 0
    assert "Random numbers are drawn by 1.native_dropout" in capsys.readouterr().out


def test_an_order_that_edges_forbid_is_found() -> None:
    problem = chain_of_two()
    schedule = simulate(problem, [0, 1])
    assert schedule.start.tolist() == [0, 5]
    check_order(problem, Execution(schedule, schedule.start))
    early = replace(schedule, start=np.array([0.0, 4.9]))
    with pytest.raises(VerificationError, match="'b' began before"):
        check_order(problem, Execution(early, early.start))
    unsent = replace(schedule.transfers, tensor=schedule.transfers.tensor[:0], target=schedule.transfers.target[:0])
    with pytest.raises(VerificationError, match="'b' began before"):
        check_order(
            problem, Execution(replace(schedule, transfers=replace(unsent, end=unsent.end[:0])), schedule.start)
        )
    free = PlacementProblem(DataflowGraph.build(flops=[2, 1], ids=["a", "b"]), Topology.uniform(1))
    both = replace(simulate(free, [0, 0]), start=np.array([0.0, 1.0]))
    with pytest.raises(VerificationError, match="'b' began on device 0 while another one ran there"):
        check_order(free, Execution(both, both.start))


def test_emulated_executions_run_in_order() -> None:
    problem = PlacementProblem(make_graph("layered_random", seed=1), Topology.preset("mixed"))
    rng = np.random.default_rng(0)
    with VerifiedExecutor(emulated_executor(problem, bound_s=0.005)) as executor:
        for _ in range(3):
            executor.run(rng.integers(problem.d, size=problem.n))


def test_graph_files_are_executed_by_emulated_devices(tmp_path: Path) -> None:
    write_graph(chain_of_two().graph, tmp_path / "two.json")
    words = ["graph=file", "graph.path=two.json", "topology=uniform", "topology.flops_per_s=1"]
    words += ["executor=emulated", "executor.unit_s=0.01"]
    assert place.main([*words, "method=[single_device]", "runs=2"]) == 0
    (row,) = results()[0]["rows"]
    assert row["makespan"] == 3
    assert 0.029 < row["measured_s"] < 0.3
    assert row["measured_ratio"] == pytest.approx(row["measured_s"] / 0.03)


# --- learning from real runs --------------------------------------------------------------------------


def test_the_fastest_measured_placement_is_left_and_can_be_placed(capsys: pytest.CaptureFixture[str]) -> None:
    """The command that a training prints places the graph as its fastest run did."""
    words = [
        "graph=ffnn",
        "graph.hidden=128",
        "stage=[imitation,online]",
        "stage.imitation.updates=1",
        "agent.samples=4",
    ]
    words += ["stage.online.updates=2", "stage.online.batch=3", "stage.online.search_calls=50"]
    assert train.main([*words, "executor=emulated", "executor.bound_s=0.005", "pictures=false"]) == 0
    (path,) = Path("runs/train").glob("*/results.json")
    measured = json.loads(path.read_text())["measured"]
    assert measured["runs"] == 6
    assert 0 < measured["measured_s"] < 1
    printed = capsys.readouterr().out
    assert "The fastest placement of 6 runs takes" in printed
    command = next(line for line in printed.splitlines() if line.startswith("  hadoppler place"))
    assert "topology=raw" in command
    assert place.main([*shlex.split(command)[2:], "pictures=false"]) == 0
    again, _ = results()
    assert again["rows"][0]["makespan"] == json.loads(Path(measured["placement"]).read_text())["makespan"]


def test_what_was_not_measured_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "graph=chainmm",
        "stage=online",
        "stage.online.updates=1",
        "stage.online.batch=1",
        "stage.online.repeated=1",
    ]
    assert train.main([*words, "executor=emulated", "executor.bound_s=0.005", "pictures=false"]) == 0
    printed = capsys.readouterr().out
    assert " inf" not in printed
    assert "Nothing was measured of what the policy itself would place" in printed
