"""Every placement method on every shape of graph and machine, against brute force and by hand."""

from __future__ import annotations

import itertools
import json
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from placement_oracles import best_plan, placed, problems

from hadoppler import PLACEMENTS, place
from hadoppler.baselines.placement import list_scheduling, portfolio
from hadoppler.baselines.placement.annealing import improve
from hadoppler.envs.errors import MemoryLimitError, PlacementError, UnknownNameError
from hadoppler.envs.placement import (
    DataflowGraph,
    Device,
    EpisodeBatch,
    GraphInput,
    Placement,
    PlacementProblem,
    Topology,
    lower_bounds,
    make_graph,
    makespans,
)
from hadoppler.envs.placement.placement import is_topological
from hadoppler.envs.placement.simulator import Order

CASES = Path(__file__).parents[1] / "cases"
SMALL_BUDGET: dict[str, dict[str, Any]] = {
    "annealing": {"calls": 4000},
    "cp_sat": {"seconds": 1.0, "workers": 1},
    "critical_path": {"runs": 8},
}
METHODS = [name for name in PLACEMENTS if name not in ("file", "doppler")]
LIST_METHODS = ["critical_path", "heft", "peft", "etf", "dls", "min_min"]
SHAPES = {
    "single": lambda: DataflowGraph.build(flops=[1e9], shard=[0], title="single"),
    "edgeless": lambda: DataflowGraph.build(flops=[1e9] * 7, shard=range(7), title="edgeless"),
    "zero": lambda: DataflowGraph.build(flops=[0] * 5, edges=[(0, 2), (1, 2), (2, 3)], shard=range(5), title="zero"),
    "ties": lambda: DataflowGraph.build(
        flops=[1e9] * 9,
        out_bytes=[1e6] * 9,
        edges=[(a, b) for a in range(3) for b in range(3, 6)] + [(a, a + 3) for a in range(3, 6)],
        shard=[0, 1, 2] * 3,
        group=[0, 0, 0, 1, 1, 1, 2, 2, 2],
        title="ties",
    ),
    "layered": lambda: make_graph("layered_random", seed=3, layers=5, width=5),
    "program": lambda: make_graph("random_program", seed=2, operations=6),
    "fork_join": lambda: make_graph("fork_join"),
    "ffnn": lambda: make_graph("ffnn"),
}
MACHINES = {
    "one": Topology.uniform(1, flops_per_s=1e12, bandwidth=1e9),
    "equal": Topology.uniform(4, flops_per_s=1e12, bandwidth=1e10, latency=1e-6),
    "unequal": Topology.uniform(speeds=(1, 1, 0.5, 0.5), flops_per_s=1e12, bandwidth=3e9, contention="pair"),
    "v100": Topology.preset("8xV100"),
    "mixed": Topology.preset("mixed-ideal"),
}


def run(method: str, problem: PlacementProblem, **options: Any) -> Placement:
    return place(method, problem, **(SMALL_BUDGET.get(method, {}) | options))


def lacks(method: str, graph: DataflowGraph) -> bool:
    """Whether the graph has nothing for the method to go by."""
    if method == "tensor_parallel":
        return not (graph.shard >= 0).any()
    return method == "pipeline" and int(graph.depth.max()) == 0


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("method", METHODS)
def test_every_method_places_every_graph(method: str, shape: str, machine: str) -> None:
    problem = PlacementProblem(SHAPES[shape](), MACHINES[machine])
    if method == "cp_sat" and problem.n > 100 and machine != "equal":
        pytest.skip("one machine is enough for the solver on the largest graph")
    if lacks(method, problem.graph):
        with pytest.raises(PlacementError, match="needs a graph with"):
            run(method, problem)
        return
    placement = run(method, problem)
    assert placement.assignment.shape == (problem.n,)
    assert is_topological(problem.graph, placement.order)
    assert placement.makespan == placement.simulate(problem).makespan
    assert placement.makespan >= lower_bounds(problem).best * (1 - 1e-9)
    assert placement.seconds > 0
    again = run(method, problem)
    assert again.assignment.tolist() == placement.assignment.tolist()
    assert again.order.tolist() == placement.order.tolist()


@pytest.mark.parametrize("method", METHODS)
def test_every_method_keeps_pins(method: str) -> None:
    graph = make_graph("ffnn")
    allowed = np.random.default_rng(0).random((graph.n, 4)) < 0.4
    allowed[~allowed.any(axis=1), 0] = True
    problem = PlacementProblem(graph.with_pins(allowed), Topology.preset("4xP100"))
    placement = run(method, problem)
    assert allowed[np.arange(graph.n), placement.assignment].all()


@pytest.mark.parametrize("method", METHODS)
def test_every_method_fits_memory_or_says_so(method: str) -> None:
    weights = [GraphInput(f"w{i}", 10.0, "parameter") for i in range(8)]
    graph = DataflowGraph.build(
        flops=[4.0] * 8,
        out_bytes=[1.0] * 8,
        edges=[(i, i + 1) for i in range(7)],
        inputs=weights,
        reads=[[i] for i in range(8)],
        shard=[0, 1] * 4,
        layer=range(8),
    )
    roomy = PlacementProblem(graph, Topology.uniform(4, memory_bytes=33))
    placement = run(method, roomy)
    assert (placement.simulate(roomy).peak_memory <= 33).all()
    tight = PlacementProblem(graph, Topology.uniform(4, memory_bytes=21))  # 80 bytes of 84, and no room to share
    with pytest.raises(MemoryLimitError, match="fits"):
        run(method, tight)


@given(placed(zero=False, inputs=True))
@settings(max_examples=40)
def test_list_schedulers_and_episodes_book_the_same_memory(case: tuple[PlacementProblem, list[int]]) -> None:
    """Outputs, graph inputs once, and received tensors once, however many operations read them: counted by hand."""
    limited = tuple(replace(device, memory_bytes=1e9) for device in case[0].topology.devices)
    problem = PlacementProblem(case[0].graph, replace(case[0].topology, devices=limited), memory="penalty")
    graph, device = problem.graph, np.array(case[1])
    batch = EpisodeBatch(problem, 1)
    batch.reset()
    for v in graph.topological_order:
        batch.step(np.array([v]), np.array([device[v]]))
    tensor = problem.arrays.edge_tensor
    sent = {(tensor[e], device[graph.edge_target[e]]): graph.edge_bytes[e] for e in range(graph.e)
            if device[graph.edge_source[e]] != device[graph.edge_target[e]]}  # fmt: skip
    reader = np.repeat(np.arange(graph.n), np.diff(graph.input_ptr))
    read = {(i, device[v]): problem.input_bytes[i] for i, v in zip(graph.input_index.tolist(), reader, strict=True)}
    expected = np.bincount(device, graph.out_bytes, minlength=problem.d)
    for (_, where), size in [*sent.items(), *read.items()]:
        expected[where] += size
    assert batch.state.used[0] == pytest.approx(expected)
    pinned = replace(problem, graph=graph.with_pins(np.eye(problem.d, dtype=bool)[device]))
    books = list_scheduling._open_books(pinned, insertion=False)
    ranks = list_scheduling.upward_ranks(pinned)
    list_scheduling._by_rank(pinned.arrays, np.array(pinned.allowed), ranks, np.zeros((graph.n, pinned.d)),
                             1, False, -1, True, books)  # fmt: skip
    assert books.used == pytest.approx(expected)


@pytest.mark.parametrize("method", [*METHODS])
def test_priorities_can_decide_the_execution(method: str) -> None:
    problem = PlacementProblem(make_graph("random_program", seed=4, operations=6), MACHINES["unequal"])
    placement = run(method, problem, order="priority")
    assert placement.execution == "priority"
    assert placement.makespan == placement.simulate(problem).makespan


def brute_force(problem: PlacementProblem) -> float:
    """O1: the best assignment under FIFO."""
    rows = np.array(list(itertools.product(range(problem.d), repeat=problem.n)), dtype=np.int32)
    return float(makespans(problem, rows).min())


@given(problems(most=6, zero=False))
@settings(max_examples=25)
def test_no_method_beats_brute_force(problem: PlacementProblem) -> None:
    best = brute_force(problem)
    for method in METHODS:
        if not lacks(method, problem.graph):
            assert run(method, problem).makespan >= best


@given(problems(most=6, zero=False))
@settings(max_examples=15)
def test_cp_sat_plans_as_well_as_brute_force(problem: PlacementProblem) -> None:
    free = problem.with_options(contention="none")
    best = best_plan(free)
    placement = place("cp_sat", free, seconds=20, workers=1)
    assert placement.planned is not None
    assert placement.planned.makespan == pytest.approx(best, rel=1e-5)
    assert placement.notes["optimal"]
    assert best <= brute_force(free)
    assert placement.notes["bound"] <= best * (1 + 1e-9)


@given(problems(most=7, zero=False))
@settings(max_examples=25)
def test_annealing_finds_the_best_assignment_of_tiny_graphs(problem: PlacementProblem) -> None:
    assert place("annealing", problem, calls=20_000).makespan == brute_force(problem)


@given(problems(most=10))
@settings(max_examples=60)
def test_plans_are_legal(problem: PlacementProblem) -> None:
    graph = problem.graph
    for method in LIST_METHODS:
        placement = run(method, problem)
        plan, place_of = placement.planned, placement.assignment
        assert plan is not None
        for edge in range(graph.e):
            u, w = graph.edge_source[edge], graph.edge_target[edge]
            wait = problem.latency[place_of[u], place_of[w]]
            wait = wait + graph.edge_bytes[edge] * problem.seconds_per_byte[place_of[u], place_of[w]]
            assert plan.start[w] >= plan.end[u] + wait
        for device in range(problem.d):
            mine = sorted((plan.start[v], plan.end[v]) for v in np.flatnonzero(place_of == device))
            assert all(a[1] <= b[0] for a, b in itertools.pairwise(mine))
        assert np.allclose(plan.end - plan.start, problem.compute_s[np.arange(graph.n), place_of])


def heft_case() -> PlacementProblem:
    # T0..T4; T1 feeds T2 and T3 with 2 bytes over a link of 1 byte/s
    graph = DataflowGraph.build(
        ids=["T0", "T1", "T2", "T3", "T4"], flops=[1, 1, 3, 5, 2], edges=[("T1", "T2"), ("T1", "T3")], edge_bytes=[2, 2]
    )
    return PlacementProblem.raw(graph, 2)


@pytest.mark.parametrize("order", ["fifo", "priority", "random"])
@pytest.mark.parametrize("method", ["random", "single_device", "critical_path"])
def test_what_is_chosen_among_several_is_the_best_under_the_order_of_execution(method: str, order: Order) -> None:
    """Its figure is that of the simulator under that order, and the least of all that were drawn."""
    graph = make_graph("layered_random", seed=3, layers=8, width=8)
    problem = PlacementProblem(graph, Topology.uniform(2, flops_per_s=1e12, bandwidth=1e10))
    chosen = 0
    for seed in range(8):
        options = {} if method == "single_device" else {"runs": 30}
        found = place(method, problem, seed=seed, order=order, **options)
        assert found.execution == order
        if method == "random":
            drawn = np.random.default_rng(seed).random((30, problem.n, problem.d)).argmax(axis=2)
            priority = graph.topological_order if order == "priority" else None
            times = makespans(problem, drawn, order=order, priority=priority)
            assert found.assignment.tolist() == drawn[int(times.argmin())].tolist()
            assert found.notes["mean"] == pytest.approx(times.mean())
            chosen += int(times.argmin() != makespans(problem, drawn).argmin())
        elif method == "critical_path":
            assert found.notes["best"] == found.makespan or order == "random"
    assert method != "random" or order == "fifo" or chosen, "the two orders would choose differently at times"


def test_heft_fills_gaps() -> None:
    from hadoppler.baselines.placement.list_scheduling import upward_ranks

    problem = heft_case()
    assert upward_ranks(problem).tolist() == [1, 8, 3, 5, 2]
    placement = place("heft", problem)
    plan = placement.planned
    assert plan is not None
    assert plan.start.tolist() == [2, 0, 3, 1, 0]
    assert plan.end.tolist() == [3, 1, 6, 6, 2]
    device = placement.assignment
    assert device[1] == device[3] != device[4] == device[0] == device[2]
    assert placement.makespan == plan.makespan == 6 == lower_bounds(problem).best
    # without gaps T4 (rank 2) and T0 (rank 1) come after T2, which waits for its input until 3
    late = place("heft", problem, insertion=False).planned
    assert late is not None
    assert late.makespan == 8


def test_critical_path_reports_its_spread() -> None:
    problem = PlacementProblem.raw(make_graph("llama_layer", costs="published"))
    notes = place("critical_path", problem, runs=50).notes
    assert notes["best"] < notes["mean"] < notes["worst"]
    assert notes["best"] / 1e10 < 215 < notes["worst"] / 1e10


def test_search_beats_lists_on_the_published_graphs() -> None:
    for name, limit in (("chainmm", 1200.2), ("ffnn", 57.5), ("llama_block", 175)):
        problem = PlacementProblem.raw(make_graph(name, costs="published"))
        found = place("annealing", problem, calls=300_000, seed=1)
        assert found.makespan / 1e10 <= limit
        assert found.makespan <= place("portfolio", problem).makespan
        assert found.calls <= 300_000 * 1.05


def test_portfolio_is_the_best_of_its_members() -> None:
    problem = PlacementProblem(make_graph("llama_block"), MACHINES["unequal"])
    best = place("portfolio", problem)
    simple = ["enumerative", "round_robin", "single_device", "tensor_parallel", "pipeline"]
    others = [place(name, problem).makespan for name in [*LIST_METHODS, *simple]]
    assert best.makespan <= min(others)
    assert best.notes["winner"] in PLACEMENTS


@pytest.mark.parametrize("method", ["portfolio", "annealing"])
@pytest.mark.parametrize("error", [PlacementError, MemoryLimitError, ValueError])
def test_a_fault_of_a_member_is_told(monkeypatch: pytest.MonkeyPatch, method: str, error: type[Exception]) -> None:
    """Only members that the graph has no shards or layers for are left out."""
    plain = PlacementProblem(SHAPES["zero"](), MACHINES["equal"])
    graph = DataflowGraph.build(flops=[1.0] * 3)  # neither shards nor layers
    assert run(method, PlacementProblem(graph, MACHINES["equal"])).makespan > 0

    def faulty(problem: PlacementProblem, **options: Any) -> Placement:
        raise error("heft has gone wrong")

    monkeypatch.setitem(portfolio.MEMBERS, "heft", faulty)
    with pytest.raises(error, match="heft has gone wrong"):
        run(method, plain)


def test_tensor_parallel_and_pipeline_do_what_they_say() -> None:
    graph = DataflowGraph.build(
        flops=[1, 1, 1, 1, 4, 4],
        edges=[(0, 2), (1, 3), (2, 4), (3, 5)],
        shard=[0, 1, 0, 1, 0, 1],
        layer=[0, 0, 1, 1, 2, 2],
    )
    problem = PlacementProblem(graph, Topology.uniform(2))
    assert place("tensor_parallel", problem).assignment.tolist() == [0, 1, 0, 1, 0, 1]
    assert place("pipeline", problem).assignment.tolist() == [0, 0, 0, 0, 1, 1]


@pytest.mark.parametrize("memory", [(150.0, 1500.0, 150.0), (0.0, 900.0, 900.0), (0.0, 0.0, 0.0), (0.5, 0.25, 0.0)])
@pytest.mark.parametrize("order", ["fifo", "priority"])
def test_searches_score_what_the_simulator_says_where_memory_overflows(memory: tuple[float, ...], order: Order) -> None:
    """Unequal devices, some without memory: a chain's makespan is that of its placement, penalty and all."""
    weights = [GraphInput(f"w{i}", 100.0 + i, "parameter") for i in range(9)]
    graph = DataflowGraph.build(
        flops=[1.0, 2, 3] * 3,
        out_bytes=[40.0] * 9,
        edges=[(i, i + 2) for i in range(7)],
        inputs=weights,
        reads=[[i] for i in range(9)],
    )
    devices = tuple(Device(memory_bytes=size) for size in memory)
    problem = PlacementProblem(graph, replace(Topology.uniform(3), devices=devices), memory="penalty")
    rng = np.random.default_rng(0)
    starts = [
        Placement(rng.integers(0, 3, graph.n).astype(np.int32), graph.topological_order, execution=order)
        for _ in range(4)
    ]
    for calls in (4, 400):
        for found in improve(problem, starts, rng=rng, execution=order, calls=calls):
            assert (found.makespan > problem.serial_s) == (found.simulate(problem).peak_memory > memory).any()
            if order == "fifo":
                assert found.makespan == found.simulate(problem).makespan
    assert (place("annealing", problem, calls=50, order=order).makespan > problem.serial_s) == (sum(memory) < 1)


def test_pipeline_stages_are_balanced() -> None:
    from hadoppler.baselines.placement.parallelism import balanced_stages

    rng = np.random.default_rng(0)
    for _ in range(30):
        layers, devices = int(rng.integers(1, 8)), int(rng.integers(1, 4))
        seconds = rng.integers(1, 9, (layers, devices)).astype(float)
        stages = balanced_stages(seconds)
        assert (np.diff(stages) >= 0).all()

        def worst(stage: Any, seconds: np.ndarray = seconds) -> float:
            return max(seconds[np.asarray(stage) == d, d].sum() for d in range(seconds.shape[1]))

        options = itertools.combinations_with_replacement(range(devices), layers)
        assert worst(stages) == min(worst(option) for option in options)


def test_enumerative_brings_inputs_for_free_where_it_can() -> None:
    # two sharded products, shard i of the second reads shard i of the first: nothing needs to move
    graph = DataflowGraph.build(
        flops=[1] * 8,
        out_bytes=[9] * 8,
        edges=[(i, 7 - i) for i in range(4)],
        group=[0] * 4 + [1] * 4,
        shard=list(range(4)) * 2,
    )
    placement = place("enumerative", PlacementProblem(graph, Topology.uniform(4)))
    assert placement.makespan == 2


def test_enumerative_spreads_by_speed() -> None:
    graph = DataflowGraph.build(flops=[1] * 6, group=[0] * 6, shard=range(6))
    placement = place("enumerative", PlacementProblem(graph, Topology.uniform(speeds=(1, 0.5))))
    assert np.bincount(placement.assignment).tolist() == [4, 2]


def test_a_placement_survives_its_file(tmp_path: Path) -> None:
    graph = DataflowGraph.build(
        ids=[10, "10", "矩阵乘_1/é"], flops=[4, 2, 6], edges=[(10, "矩阵乘_1/é")], edge_bytes=[1]
    )
    problem = PlacementProblem.raw(graph, 2)
    placement = place("heft", problem)
    placement.save(tmp_path / "placement.json", problem)
    again = place("file", problem, path=str(tmp_path / "placement.json"))
    assert again.assignment.tolist() == placement.assignment.tolist()
    assert again.order.tolist() == placement.order.tolist()
    assert again.makespan == placement.makespan
    assert [item.name for item in tmp_path.iterdir()] == ["placement.json"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not JSON"),
        ("[1]", "JSON object"),
        ('{"0": 0, "1": 1}', "no device"),
        ('{"0": 0, "1": 1, "2": 0, "x": 1}', "'x' is no operation"),
        ('{"0": 0, "1": 5, "2": 0}', "device 5"),
        ('{"0": 0, "1": "gpu", "2": 0}', "'gpu'"),
        ('{"operations": [{"id": 0, "device": 0}, {"id": 0, "device": 1}]}', "twice"),
        ('{"operations": [{"id": "0", "device": 0}]}', "no operation"),
        ('{"operations": [3]}', "3 is no operation"),
    ],
)
def test_bad_placement_files_are_named(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "placement.json"
    path.write_text(content)
    problem = PlacementProblem(DataflowGraph.build(flops=[1, 1, 1]), Topology.uniform(2))
    with pytest.raises(PlacementError, match=message) as caught:
        place("file", problem, path=str(path))
    assert str(path) in str(caught.value) or "device 5" in message
    with pytest.raises(PlacementError, match="cannot be read"):
        place("file", problem, path=str(tmp_path / "absent.json"))


def test_names_and_options_are_checked() -> None:
    problem = heft_case()
    with pytest.raises(
        PlacementError, match=r"the method is of the type Placement.*, as in place\(\"heft\", problem\)"
    ):
        place(problem, "heft")  # type: ignore[arg-type]
    with pytest.raises(PlacementError, match="the problem is of the type DataflowGraph; expected a PlacementProblem"):
        place("heft", problem.graph)  # type: ignore[arg-type]
    with pytest.raises(UnknownNameError, match="did you mean heft"):
        place("hefty", problem)
    with pytest.raises(UnknownNameError, match="no option 'insertions'"):
        place("heft", problem, insertions=True)
    with pytest.raises(UnknownNameError, match="order"):
        place("heft", problem, order="lifo")
    for options in ({"calls": 0}, {"seconds": -1.0}, {"chains": 0}):
        with pytest.raises(PlacementError):
            place("annealing", problem, **options)


def test_an_interrupted_search_stops() -> None:
    script = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from hadoppler import place\n"
        "from hadoppler.envs.placement import *\n"
        "problem = PlacementProblem(make_graph('ffnn'), Topology.preset('4xP100'))\n"
        "place('annealing', problem, calls=10)\n"
        "print('searching', flush=True)\n"
        "place('annealing', problem, calls=10**10)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "searching\n"
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    try:
        _, errors = process.communicate(timeout=30)
    finally:
        process.kill()
    assert "KeyboardInterrupt" in errors


def test_budgets_in_seconds_are_kept_and_marked() -> None:
    problem = PlacementProblem.raw(make_graph("ffnn", costs="published"))
    place("annealing", problem, calls=100)  # compiles
    placement = place("annealing", problem, seconds=0.5)
    assert not placement.repeatable
    assert placement.seconds < 1.5
    assert place("annealing", problem, calls=100).repeatable


def test_large_graphs_are_placed_in_time() -> None:
    for graph in (
        make_graph("chain", length=20_000),
        make_graph("ladder", rungs=30),
        make_graph("layered_random", layers=100, width=100, density=0.02),
    ):
        problem = PlacementProblem(graph, MACHINES["unequal"])
        begin = time.perf_counter()
        lower_bounds(problem)
        place("heft", problem)
        assert time.perf_counter() - begin < 10


def test_ties_do_not_depend_on_hashes() -> None:
    script = (
        "from hadoppler import place, PLACEMENTS\n"
        "from hadoppler.envs.placement import *\n"
        "problem = PlacementProblem(make_graph('ffnn'), Topology.preset('4xP100'))\n"
        "methods = [m for m in PLACEMENTS if m not in ('file', 'cp_sat', 'doppler')]\n"
        "options = {'annealing': {'calls': 500}}\n"
        "print([place(m, problem, **options.get(m, {})).assignment.tolist() for m in methods])\n"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", script],
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONHASHSEED": seed, "PATH": ""},
        ).stdout
        for seed in ("0", "1", "77")
    }
    assert len(outputs) == 1
    assert len(json.loads(next(iter(outputs)))) >= 12
