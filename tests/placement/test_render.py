"""Gantt pictures and traces: what they show, how they are written, and awkward schedules."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from placement_oracles import placed

from hadoppler.envs.errors import GraphError
from hadoppler.envs.placement import DataflowGraph, PlacementProblem, Schedule, Topology, make_graph, render, simulate
from hadoppler.envs.placement.render import COLOURS, HATCHES, gantt, save_gantt, time_axis, write_trace

PNG = b"\x89PNG\r\n\x1a\n"


def example() -> tuple[PlacementProblem, Schedule]:
    """a (4 s) and b (2 s) on device 0, c (3 s) on device 1 waits for 8 bytes of a, then 2 bytes of b."""
    graph = DataflowGraph.build(
        flops=[4, 2, 3],
        ids=["a", 7, "c"],
        names=["first", "second", "third"],
        kind=["matmul", "softmax", "matmul"],
        out_bytes=[8, 2, 0],
        edges=[("a", "c"), (7, "c")],
        title="example",
    )
    problem = PlacementProblem(graph, Topology.uniform(2, latency=0.5))
    return problem, simulate(problem, [0, 0, 1])


def bars(axes: Any) -> list[tuple[float, float, float]]:
    """(left, right, middle of the row) of every bar of a picture."""
    boxes = [path.get_extents() for item in axes.collections for path in item.get_paths()]
    return sorted((box.x0, box.x1, (box.y0 + box.y1) / 2) for box in boxes)


def legend(axes: Any) -> list[str]:
    return [text.get_text() for text in axes.get_legend().get_texts()]


def test_the_picture_shows_operations_and_transfers() -> None:
    problem, schedule = example()
    # a and b above, c on device 1; 8 bytes from 4 and 2 bytes from 12, each with half a second of latency
    assert schedule.end.tolist() == [4, 6, 17.5]
    (axes,) = gantt(problem, schedule).axes
    operations = [(0, 4, -0.1), (4, 6, -0.1), (14.5, 17.5, 0.9)]
    transfers = [(4, 12.5, 1.275), (12, 14.5, 1.275)]
    assert np.array(bars(axes)) == pytest.approx(np.array(sorted([*operations, *transfers])))
    assert axes.get_title() == "example: 3 operations, 2 edges, depth 2"
    assert axes.get_xlabel() == "time [s]"
    assert axes.get_ylabel() == "device"
    assert [label.get_text() for label in axes.get_yticklabels()] == ["0: device", "1: device"]
    assert legend(axes) == ["matmul", "softmax", "incoming transfer"], "the heaviest kind first"
    assert axes.get_xlim() == (0, schedule.makespan)
    assert axes.yaxis_inverted(), "device 0 is on top"


def test_until_fixes_the_axis_and_the_title_is_free() -> None:
    problem, schedule = example()
    (axes,) = gantt(problem, schedule, title="costs $5_000$ [x]", until=40).axes
    assert axes.get_xlim() == (0, 40)
    assert axes.get_title() == r"costs \$5_000\$ [x]"


def test_the_file_is_a_png_and_written_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    problem, schedule = example()
    path = tmp_path / "picture.png"
    save_gantt(path, problem, schedule, title="a title")
    assert path.read_bytes().startswith(PNG)
    assert path.stat().st_size > 5_000
    assert [item.name for item in tmp_path.iterdir()] == ["picture.png"]
    before = path.read_bytes()

    def broken(*_: Any, **__: Any) -> Any:
        class Figure:
            def savefig(self, target: Path, **_: Any) -> None:
                Path(target).write_bytes(b"half")
                raise OSError(28, "No space left on device")

        return Figure()

    monkeypatch.setattr(render, "gantt", broken)
    with pytest.raises(OSError, match="No space left"):
        save_gantt(path, problem, schedule)
    assert path.read_bytes() == before, "the old picture is whole"
    assert [item.name for item in tmp_path.iterdir()] == ["picture.png"], "no half picture stays"


@pytest.mark.parametrize(
    ("span", "expected"),
    [(5, (1.0, "s")), (1, (1.0, "s")), (0.5, (1e-3, "ms")), (5e-5, (1e-6, "µs")), (0, (1e-6, "µs"))],
)
def test_the_unit_of_time_reads_well(span: float, expected: tuple[float, str]) -> None:
    assert time_axis(example()[0], span) == expected


def test_the_raw_model_has_its_own_unit() -> None:
    graph = DataflowGraph.build(flops=[2e10])
    problem = PlacementProblem.raw(graph, 1)
    assert time_axis(problem, 2e10) == (1e10, "raw / 1e+10")
    (axes,) = gantt(problem, simulate(problem, [0])).axes
    assert axes.get_xlabel() == "time [raw / 1e+10]"
    assert axes.get_xlim() == (0, 2)
    assert time_axis(PlacementProblem.raw(DataflowGraph.build(flops=[2]), 1), 2) == (1.0, "raw")


def save_and_trace(problem: PlacementProblem, assignment: Any, folder: Path) -> list[dict[str, Any]]:
    """Draw and trace a placement without any warning; returns the trace's events."""
    schedule = simulate(problem, assignment)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        save_gantt(folder / "g.png", problem, schedule)
        write_trace(folder / "t.json", problem, schedule)
    assert (folder / "g.png").read_bytes().startswith(PNG)
    return json.loads((folder / "t.json").read_text())["traceEvents"]


def test_a_single_operation_and_a_makespan_of_zero(tmp_path: Path) -> None:
    for cost in (1.0, 0.0):
        problem = PlacementProblem(DataflowGraph.build(flops=[cost]), Topology.uniform(1))
        (event,) = [e for e in save_and_trace(problem, [0], tmp_path) if e["ph"] == "X"]
        assert (event["ts"], event["dur"]) == (0, cost * 1e6)
    schedule = simulate(problem, [0])
    assert gantt(problem, schedule).axes[0].get_xlim() == (0, 1)


@pytest.mark.parametrize("count", [8, 9, 30])
def test_many_kinds_share_the_last_colour_under_an_honest_name(count: int, tmp_path: Path) -> None:
    kinds = [f"kind{i:02d}" for i in range(count)]
    graph = DataflowGraph.build(flops=np.arange(count, 0, -1), kind=kinds)
    problem = PlacementProblem(graph, Topology.uniform(2))
    (axes,) = gantt(problem, simulate(problem, np.arange(count) % 2)).axes
    shown = kinds if count == 8 else [*kinds[:7], f"{count - 7} other kinds"]
    assert legend(axes) == [*shown, "incoming transfer"]
    shown_legend = axes.get_legend()
    assert shown_legend is not None
    patches = shown_legend.get_patches()
    assert len({patch.get_facecolor() for patch in patches}) == len(COLOURS) + 1
    assert len(set(HATCHES)) == len(COLOURS)
    save_and_trace(problem, np.zeros(count, int), tmp_path)


def test_names_that_matplotlib_would_take_for_something_else(tmp_path: Path) -> None:
    graph = DataflowGraph.build(flops=[1, 2], kind=["_hidden", "$x_{$"], names=["$", "</script>"], title="a$b^$c")
    problem = PlacementProblem(graph, Topology.uniform(2, kind="$_{"))
    events = save_and_trace(problem, [0, 1], tmp_path)
    assert {e["name"] for e in events if e["ph"] == "X"} == {"$", "</script>"}
    (axes,) = gantt(problem, simulate(problem, [0, 1])).axes
    assert [text.strip().replace("\\", "") for text in legend(axes)] == ["$x_{$", "_hidden", "incoming transfer"]


def test_many_devices(tmp_path: Path) -> None:
    graph = make_graph("chain", length=8)
    problem = PlacementProblem(graph, Topology.uniform(600, flops_per_s=1e9, bandwidth=1e9))
    events = save_and_trace(problem, np.arange(8) * 80, tmp_path)
    assert sum(e["name"] == "process_name" for e in events) == 600
    figure = gantt(problem, simulate(problem, np.arange(8) * 80))
    assert figure.get_figheight() <= 60
    assert len(figure.axes[0].get_yticks()) <= 80


# --- trace --------------------------------------------------------------------------------------------


def test_the_trace_says_what_ran_and_what_was_sent(tmp_path: Path) -> None:
    problem, schedule = example()
    write_trace(tmp_path / "t.json", problem, schedule)
    assert [item.name for item in tmp_path.iterdir()] == ["t.json"]
    document = json.loads((tmp_path / "t.json").read_text())
    assert document["displayTimeUnit"] == "ms"
    spans = [e for e in document["traceEvents"] if e["ph"] == "X"]
    assert [e["name"] for e in spans] == ["first", "second", "third", "first from 0", "second from 0"]
    first = spans[0]
    assert first == {
        "ph": "X", "name": "first", "cat": "matmul", "pid": 0, "tid": 0, "ts": 0, "dur": 4e6,
        "args": {"id": "a", "flops": 4, "out_bytes": 8},
    }  # fmt: skip
    assert spans[1]["args"]["id"] == 7
    assert spans[4] == {
        "ph": "X", "name": "second from 0", "cat": "transfer", "pid": 1, "tid": 1, "ts": 12e6, "dur": 2.5e6,
        "args": {"bytes": 2, "waited_us": 6e6},
    }  # fmt: skip
    names = {(e["name"], e["pid"], e.get("tid")): e["args"]["name"] for e in document["traceEvents"] if e["ph"] == "M"}
    assert names == {
        (kind, pid, tid): text
        for pid in (0, 1)
        for kind, tid, text in (
            ("process_name", None, f"{pid}: device"),
            ("thread_name", 0, "operations"),
            ("thread_name", 1, "incoming transfers"),
        )
    }


@given(placed(inputs=True))
@settings(max_examples=40)
def test_any_trace_is_valid_and_adds_up(tmp_path_factory: pytest.TempPathFactory, case: Any) -> None:
    problem, assignment = case
    schedule = simulate(problem, assignment)
    path = tmp_path_factory.getbasetemp() / "any.json"
    write_trace(path, problem, schedule)
    events = json.loads(path.read_text(), parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))["traceEvents"]
    spans = [e for e in events if e["ph"] == "X"]
    for event in spans:
        assert set(event) == {"ph", "name", "cat", "pid", "tid", "ts", "dur", "args"}
        assert event["ts"] >= 0
        assert event["dur"] >= 0
        assert 0 <= event["pid"] < problem.d
        assert isinstance(event["name"], str)
    work = [e for e in spans if e["tid"] == 0]
    assert len(work) == problem.n
    assert [e["ts"] for e in work] == sorted(e["ts"] for e in work)
    assert max(e["ts"] + e["dur"] for e in work) == pytest.approx(schedule.makespan * 1e6)
    for device in range(problem.d):
        assert sum(e["dur"] for e in work if e["pid"] == device) == pytest.approx(schedule.busy[device] * 1e6)
    sent = [e for e in spans if e["tid"] == 1]
    assert sum(e["args"]["bytes"] for e in sent) == schedule.bytes_moved
    assert all(e["args"]["waited_us"] >= 0 for e in sent)


def test_raw_traces_are_scaled(tmp_path: Path) -> None:
    problem = PlacementProblem.raw(DataflowGraph.build(flops=[3e10]), 1)
    write_trace(tmp_path / "t.json", problem, simulate(problem, [0]))
    (event,) = [e for e in json.loads((tmp_path / "t.json").read_text())["traceEvents"] if e["ph"] == "X"]
    assert event["dur"] == 3e6


def test_a_folder_that_is_missing_is_named(tmp_path: Path) -> None:
    problem, schedule = example()
    with pytest.raises(GraphError, match="cannot be written"):
        write_trace(tmp_path / "none" / "t.json", problem, schedule)


# --- simulated beside measured ------------------------------------------------------------------------


def test_both_schedules_stand_on_one_axis() -> None:
    """Simulated 17.5 units of 2 s are 35 s; the measured schedule takes 40 s."""
    problem, schedule = example()
    measured = render.scaled(schedule, 40 / 17.5)
    assert measured.transfers.end.tolist() == pytest.approx((schedule.transfers.end * 40 / 17.5).tolist())
    above, below = render.gantt_pair(problem, schedule, measured, title="a title", unit_s=2.0).axes
    assert above.get_xlim() == below.get_xlim()
    assert above.get_xlim()[1] >= 40
    assert [axes.get_title(loc="left") for axes in (above, below)] == ["simulated: 35 s", "measured: 40 s"]
    assert bars(above)[0] == pytest.approx((0, 8, -0.1))
    assert max(bar[1] for bar in bars(above)) == pytest.approx(35)
    assert max(bar[1] for bar in bars(below)) == pytest.approx(40)
    assert below.get_xlabel() == "time [s]"
    assert legend(above) == ["matmul", "softmax", "incoming transfer"]


def test_a_schedule_in_unknown_units_is_stretched() -> None:
    problem, schedule = example()
    measured = render.scaled(schedule, 1e-3)
    above, below = render.gantt_pair(problem, schedule, measured, unit_s=None).axes
    assert above.get_title(loc="left") == "simulated, stretched to the measured time: 17.5 ms"
    assert np.array(bars(above)) == pytest.approx(np.array(bars(below)))
