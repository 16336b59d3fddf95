"""Devices, links and costs: presets, topology files, roofline and measured seconds, memory checks."""

from __future__ import annotations

import copy
import itertools
import json
import os
import pickle
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import HealthCheck, given, settings as hypothesis_settings, strategies as st
from placement_oracles import placed

import hadoppler
from hadoppler.envs.errors import HadopplerError, MemoryLimitError, PlacementError, TopologyError, UnknownNameError
from hadoppler.envs.placement import (
    DataflowGraph,
    Device,
    GraphInput,
    PlacementProblem,
    Topology,
    load_problem,
    lower_bounds,
    makespans,
    save_problem,
    simulate,
)
from hadoppler.envs.placement.machines import PRESETS
from hadoppler.envs.placement.problem import MemoryMode

NAN, INFINITY = float("nan"), float("inf")
VARIANTS = ("", "-slow", "-contended", "-ideal")


def same(a: Topology, b: Topology) -> bool:
    """Whether two topologies agree in everything."""
    fields = ("name", "devices", "contention", "channels", "source")
    return all(getattr(a, name) == getattr(b, name) for name in fields) and all(
        np.array_equal(getattr(a, name), getattr(b, name)) for name in ("bandwidth", "latency")
    )


def sentence(caught: pytest.ExceptionInfo[HadopplerError]) -> str:
    """The text of an error, checked to be one line that ends."""
    text = str(caught.value)
    assert "\n" not in text
    assert text[-1] in ".?"
    return text


# --- presets ------------------------------------------------------------------------------------------


AS_THEY_ARE = ("4xP100-contended", "mixed-contended")
"""Links of 12 GB/s with ports: there is no such variant."""
NAMES = [base + variant for base in PRESETS for variant in VARIANTS if base + variant not in AS_THEY_ARE]


@pytest.mark.parametrize("name", NAMES)
def test_presets_are_plausible(name: str) -> None:
    topology = Topology.preset(name)
    assert topology.name == name
    assert topology.source
    assert topology.d == {"4": 4, "8": 8, "m": 4}[name[0]]
    apart = ~np.eye(topology.d, dtype=bool)
    for matrix in (topology.bandwidth, topology.latency):
        assert np.array_equal(matrix, matrix.T), "links are symmetric"
        assert not matrix.flags.writeable
    assert (topology.bandwidth[apart] >= 3e9).all()
    assert (topology.bandwidth[apart] <= 450e9).all()
    assert (np.diag(topology.bandwidth) == INFINITY).all()
    assert (topology.latency[apart] >= 1e-6).all()
    assert (topology.latency[apart] <= 1e-4).all()
    assert (np.diag(topology.latency) == 0).all()
    for device in topology.devices:
        assert 2e12 < device.flops_per_s < 100e12
        assert device.flops_per_s <= device.kind_flops_per_s["matmul"] < 500e12
        assert 12e9 <= device.memory_bytes <= 80e9
        assert 150e9 < device.memory_bytes_per_s < 3.4e12
        assert device.memory_bytes_per_s > topology.bandwidth[apart].max()
        assert 1e-6 <= device.overhead_s <= 1e-5
    if name.endswith("-slow"):
        assert (topology.bandwidth[apart] == 3e9).all()
    if name.endswith("-contended"):
        assert (topology.bandwidth[apart] <= 12e9).all()
    assert topology.contention == ("none" if name.endswith("-ideal") else "ports")


def test_no_two_presets_are_one_machine() -> None:
    """Under each name there is another one, on the command line too, where all of them are."""
    for first, second in itertools.combinations(map(Topology.preset, NAMES), 2):
        assert not same(replace(first, name="", source=""), replace(second, name="", source=""))
    files = (Path(hadoppler.__file__).parent / "conf" / "topology").glob("*.yaml")
    offered = {text["name"] for path in files if "preset" in (text := yaml.safe_load(path.read_text()))["_target_"]}
    assert offered == set(NAMES)


def test_a_v100_has_two_fast_two_plain_and_three_slow_neighbours() -> None:
    bandwidth = Topology.preset("8xV100").bandwidth / 1e9
    for row in bandwidth:
        rates, counts = np.unique(row[np.isfinite(row)], return_counts=True)
        assert dict(zip(rates.tolist(), counts.tolist(), strict=True)) == {10: 3, 25: 2, 50: 2}


def test_mixed_devices_differ_and_speeds_are_shares_of_the_fastest() -> None:
    topology = Topology.preset("mixed")
    assert [device.kind for device in topology.devices] == ["V100", "V100", "P100", "K80"]
    assert topology.relative_speed == pytest.approx([1, 1, 9.3 / 15.7, 2.8 / 15.7])
    assert topology.memory_bytes.tolist() == [16e9, 16e9, 16e9, 12e9]


@pytest.mark.parametrize("name", [*AS_THEY_ARE, "4xP99", "4xP100-fast", "4xP100-", "", "-slow", "4XP100", 5])
def test_an_unknown_preset_lists_the_valid_ones(name: Any) -> None:
    with pytest.raises(UnknownNameError) as caught:
        Topology.preset(name)
    text = sentence(caught)
    for valid in (repr(name), *PRESETS, "-slow", "-contended", "-ideal", "YAML"):
        assert valid in text


# --- this machine, uniform ----------------------------------------------------------------------------


def test_this_machine_has_the_asked_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Topology.this_machine().d == len(os.sched_getaffinity(0))
    assert Topology.this_machine(3).d == 3
    # systems without sched_getaffinity, such as macOS
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    assert Topology.this_machine(3).d == 3, "the argument wins on every system"
    assert Topology.this_machine().d == 6
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert Topology.this_machine().d == 1


@pytest.mark.parametrize("devices", [0, -1, 2.5, True, "2"])
def test_this_machine_and_uniform_need_a_whole_number(devices: Any) -> None:
    for make in (Topology.this_machine, Topology.uniform):
        with pytest.raises(TopologyError, match=re.escape(f"devices is {devices!r}; expected a whole number")):
            make(devices)


def test_uniform_devices_and_their_speeds() -> None:
    topology = Topology.uniform(speeds=[1, 0.5], flops_per_s=10, memory_bytes=7, latency=2, bandwidth=4)
    assert [device.kind for device in topology.devices] == ["device", "device*0.5"]
    assert [device.flops_per_s for device in topology.devices] == [10, 5]
    assert topology.memory_bytes.tolist() == [7, 7]
    assert topology.latency.tolist() == [[0, 2], [2, 0]]
    assert topology.bandwidth.tolist() == [[INFINITY, 4], [4, INFINITY]]
    assert topology.name == "2xdevice"
    assert Topology.uniform(3, bandwidth=np.arange(9).reshape(3, 3) + 1).bandwidth[0, 1] == 2


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"speeds": []}, "0 speeds are given for 2 devices"),
        ({"flops_per_s": INFINITY}, "expected FLOP/s from 1e-30"),
        ({"flops_per_s": 1e-300}, "expected FLOP/s from 1e-30"),
        ({"speeds": [1, 0]}, r"flops_per_s is 0\.0; expected a number above 0"),
        ({"speeds": ["fast"]}, r"speeds is \['fast'\]"),
        ({"flops_per_s": "fast"}, "flops_per_s is 'fast'"),
        ({"flops_per_s": [1, 2]}, r"flops_per_s is \[1, 2\]; expected one number"),
        ({"flops_per_s": -1}, r"flops_per_s is -1\.0"),
        ({"bandwidth": 0}, r"the bandwidth from device 0 to 1 is 0\.0; expected a number above 0"),
        ({"bandwidth": NAN}, "bandwidth from device 0 to 1 is nan"),
        ({"bandwidth": "wide"}, "bandwidth is 'wide'"),
        ({"bandwidth": [1, 2]}, r"bandwidth has shape \(2,\), expected one number or \(2, 2\)"),
        ({"bandwidth": [[1, 1], [-5, 1]]}, r"the bandwidth from device 1 to 0 is -5\.0"),
        ({"latency": -1}, r"the latency from device 0 to 1 is -1\.0; expected a number from 0 up, finite"),
        ({"latency": INFINITY}, "latency from device 0 to 1 is inf"),
        ({"latency": NAN}, "latency from device 0 to 1 is nan"),
        ({"memory_bytes": -1}, "memory_bytes is -1"),
        ({"memory_bytes": None}, "memory_bytes is None"),
        ({"contention": "bus"}, "contention is 'bus'; expected none, pair or ports"),
    ],
)
def test_bad_uniform_options_are_named(options: dict[str, Any], words: str) -> None:
    with pytest.raises(TopologyError, match=words) as caught:
        Topology.uniform(2, **options)
    sentence(caught)


def test_the_diagonal_is_not_used() -> None:
    topology = Topology.uniform(2, bandwidth=[[0, 3], [3, -1]], latency=[[9.0, 1.0], [1.0, NAN]])
    assert topology.bandwidth.tolist() == [[INFINITY, 3], [3, INFINITY]]
    assert topology.latency.tolist() == [[0, 1], [1, 0]]
    assert Topology.uniform(1, bandwidth=0).d == 1


@pytest.mark.parametrize("channels", [0, -1, 1.5, NAN, "2", True, None])
def test_channels_are_a_whole_number(channels: Any) -> None:
    with pytest.raises(TopologyError, match=r"channels is .*; expected 1 or more") as caught:
        Topology("x", (Device(), Device()), np.ones((2, 2)), np.zeros((2, 2)), channels=channels)
    sentence(caught)


@pytest.mark.parametrize("field", ["flops_per_s", "memory_bytes_per_s", "memory_bytes", "overhead_s"])
@pytest.mark.parametrize("value", [-1, NAN, "1", None, True])
def test_device_numbers_are_checked(field: str, value: Any) -> None:
    with pytest.raises(TopologyError, match=re.escape(f"device kind gpu: {field} is {value!r}")):
        Device("gpu", **{field: value})


def test_device_limits() -> None:
    assert Device(memory_bytes=0).memory_bytes == 0
    for options, words in (
        ({"flops_per_s": 0}, "flops_per_s is 0; expected a number above 0"),
        ({"memory_bytes_per_s": 0}, "memory_bytes_per_s is 0; expected a number above 0"),
        ({"overhead_s": INFINITY}, "overhead_s is inf; expected a number from 0 up, finite"),
        ({"kind_flops_per_s": {"matmul": 0}}, r"kind_flops_per_s\[matmul\] is 0"),
        ({"kind_flops_per_s": [1]}, r"kind_flops_per_s is \[1\]"),
    ):
        with pytest.raises(TopologyError, match=words):
            Device(**options)


def test_with_links_changes_links_only() -> None:
    before = Topology.preset("mixed")
    after = before.with_links(bandwidth=1e9, contention="pair")
    assert after.devices == before.devices
    assert after.bandwidth[0, 1] == 1e9
    assert np.array_equal(after.latency, before.latency)
    assert (after.contention, before.contention) == ("pair", "ports")
    assert same(before.with_links(), before)
    with pytest.raises(TopologyError, match="latency"):
        before.with_links(latency=-1)


# --- files --------------------------------------------------------------------------------------------

FILE = """
name: two
source: a data sheet
devices:
  - kind: big
    flops_per_s: 1e12       # YAML 1.1 reads this as text
    kind_flops_per_s: {matmul: 4.0e+12}
    memory_bytes: 16e9
    memory_bytes_per_s: 500_000_000_000
    overhead_s: 5.0e-6
  - {kind: small, flops_per_s: 5.0e+11, count: 2}
bandwidth: 1.0e+10
latency: 0.001
contention: pair
channels: 2
"""


def test_a_file_is_read_as_it_stands(tmp_path: Path) -> None:
    path = tmp_path / "two.yaml"
    path.write_text(FILE)
    topology = Topology.from_yaml(path)
    assert topology.devices == (
        Device("big", 1e12, {"matmul": 4e12}, 16e9, 5e11, 5e-6),
        Device("small", 5e11),
        Device("small", 5e11),
    )
    assert (topology.name, topology.source) == ("two", "a data sheet")
    assert (topology.contention, topology.channels) == ("pair", 2)
    assert topology.bandwidth[0].tolist() == [INFINITY, 1e10, 1e10]
    assert topology.latency[0].tolist() == [0, 0.001, 0.001]


def test_defaults_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "one.yaml"
    path.write_text("devices: [{flops_per_s: 2}]\nname:\n")
    topology = Topology.from_yaml(path)
    assert topology.devices == (Device("device", 2.0),)
    assert topology.name == str(path)
    assert (topology.contention, topology.channels) == ("ports", 1)


@pytest.mark.parametrize("name", [*PRESETS, "8xV100-slow", "mixed-ideal"])
def test_topologies_round_trip(name: str, tmp_path: Path) -> None:
    topology = Topology.preset(name)
    assert same(topology, Topology.from_dict(topology.to_dict()))
    assert same(topology, Topology.from_dict(json.loads(json.dumps(topology.to_dict()))))
    (tmp_path / "t.yaml").write_text(yaml.safe_dump(topology.to_dict()))
    assert same(topology, Topology.from_yaml(tmp_path / "t.yaml"))
    for other in (pickle.loads(pickle.dumps(topology)), copy.deepcopy(topology)):
        assert same(topology, other)
        assert not other.bandwidth.flags.writeable
        assert not other.latency.flags.writeable
    lanes = Topology("lanes", topology.devices, topology.bandwidth, topology.latency, "pair", 3)
    assert same(lanes, Topology.from_dict(lanes.to_dict()))


DEVICE: dict[str, Any] = {"kind": "gpu", "flops_per_s": 1.0}


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        (5, "expected keys such as kind and flops_per_s, found 5"),
        (None, "found None"),
        ({}, "flops_per_s is missing"),
        ({"flop_per_s": 1}, "unknown key 'flop_per_s'; did you mean flops_per_s?"),
        ({"colour": 1}, "unknown key 'colour'; valid keys are kind, count, kind_flops_per_s, flops_per_s"),
        ({1: 1}, "unknown key 1"),
        (DEVICE | {"flops_per_s": "fast"}, "flops_per_s is 'fast'; expected a number"),
        (DEVICE | {"flops_per_s": [1]}, "flops_per_s is [1]; expected one number"),
        (DEVICE | {"flops_per_s": None}, "flops_per_s is None; expected a number"),
        (DEVICE | {"flops_per_s": True}, "flops_per_s is True; expected a number"),
        (DEVICE | {"flops_per_s": {"matmul": 1}}, "flops_per_s is {'matmul': 1}; expected a number"),
        (DEVICE | {"flops_per_s": 0}, "flops_per_s is 0.0; expected a number above 0"),
        (DEVICE | {"memory_bytes": "16 GB"}, "memory_bytes is '16 GB'; expected a number"),
        (DEVICE | {"memory_bytes": -1}, "memory_bytes is -1.0"),
        (DEVICE | {"memory_bytes_per_s": 0}, "memory_bytes_per_s is 0.0"),
        (DEVICE | {"overhead_s": -1e-6}, "overhead_s is -1e-06"),
        (DEVICE | {"count": 0}, "count is 0; expected a whole number from 1 up"),
        (DEVICE | {"count": 1.5}, "count is 1.5"),
        (DEVICE | {"count": "2"}, "count is '2'"),
        (DEVICE | {"count": True}, "count is True"),
        (DEVICE | {"kind": ["gpu"]}, "kind is ['gpu']; expected a text"),
        (DEVICE | {"kind": None}, "kind is None; expected a text"),
        (DEVICE | {"kind_flops_per_s": [1]}, "kind_flops_per_s is [1]; expected keys such as matmul"),
        (DEVICE | {"kind_flops_per_s": 1}, "kind_flops_per_s is 1; expected keys such as matmul"),
        (DEVICE | {"kind_flops_per_s": {"matmul": "x"}}, "kind_flops_per_s.matmul is 'x'; expected a number"),
        (DEVICE | {"kind_flops_per_s": {"matmul": [1]}}, "kind_flops_per_s.matmul is [1]; expected one number"),
        (DEVICE | {"kind_flops_per_s": {"matmul": -1}}, "kind_flops_per_s[matmul] is -1.0"),
    ],
)
def test_bad_devices_are_named(entry: Any, words: str) -> None:
    with pytest.raises(TopologyError) as caught:
        Topology.from_dict({"devices": [DEVICE, entry], "bandwidth": 1}, "x.yaml")
    assert sentence(caught).startswith("x.yaml, device 1: ")
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"device": []}, "unknown key 'device'; did you mean devices?"),
        ({"devices": None}, "devices is missing"),
        ({"devices": []}, "devices is missing"),
        ({"devices": "gpu"}, "devices is missing"),
        ({"devices": {"gpu": 1}}, "devices is missing"),
        ({"bandwidth": None}, "bandwidth is None; expected a number"),
        ({"bandwidth": True}, "bandwidth is True"),
        ({"bandwidth": "fast"}, "bandwidth is 'fast'"),
        ({"bandwidth": [[1], [1, 2]]}, "bandwidth is [[1], [1, 2]]"),
        ({"bandwidth": [1, 2]}, "bandwidth has shape (2,), expected one number or (2, 2)"),
        ({"bandwidth": [[1, 2, 3]] * 3}, "bandwidth has shape (3, 3)"),
        ({"bandwidth": [[1, 0], [1, 1]]}, "the bandwidth from device 0 to 1 is 0.0"),
        ({"bandwidth": [[1, None], [1, 1]]}, "the bandwidth from device 0 to 1 is nan"),
        ({"latency": None}, "latency is None"),
        ({"latency": [[0, 1], [-1, 0]]}, "the latency from device 1 to 0 is -1.0"),
        ({"contention": "bus"}, "contention is 'bus'"),
        ({"contention": None}, "contention is None"),
        ({"contention": ["ports"]}, "contention is ['ports']"),
        ({"channels": 0}, "channels is 0"),
        ({"channels": 1.5}, "channels is 1.5"),
        ({"channels": NAN}, "channels is nan"),
        ({"channels": INFINITY}, "channels is inf"),
        ({"channels": [1]}, "channels is [1]"),
        ({"channels": True}, "channels is True"),
        ({"channels": None}, "channels is None"),
    ],
)
def test_bad_keys_of_a_file_are_named(change: dict[str, Any], words: str, tmp_path: Path) -> None:
    path = tmp_path / "t.yaml"
    path.write_text(yaml.safe_dump({"name": "bad", "devices": [DEVICE, DEVICE], "bandwidth": 1.0} | change))
    with pytest.raises(TopologyError) as caught:
        Topology.from_yaml(path)
    text = sentence(caught)
    assert words in text
    assert "bad" in text or str(path) in text


def test_bandwidth_is_needed_between_two_devices() -> None:
    with pytest.raises(TopologyError, match="bandwidth is missing"):
        Topology.from_dict({"devices": [DEVICE | {"count": 2}]})


def test_files_that_are_none(tmp_path: Path) -> None:
    contents: dict[str, bytes] = {"empty": b"", "list": b"[1]", "text": b"hello", "broken": b"a: [", "binary": b"\xff"}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    for name, words in {
        "missing": "cannot be read (No such file",
        ".": "cannot be read (Is a directory",
        "empty": "found NoneType",
        "list": "found list",
        "text": "found str",
        "broken": "is not YAML",
        "binary": "is not YAML",
    }.items():
        with pytest.raises(TopologyError) as caught:
            Topology.from_yaml(tmp_path / name)
        text = sentence(caught)
        assert str(tmp_path / name) in text
        assert words in text


# --- costs --------------------------------------------------------------------------------------------

GPU = Device("GPU", 100.0, {"matmul": 400.0}, memory_bytes=1000, memory_bytes_per_s=50.0, overhead_s=0.25)
CPU = Device("CPU", 10.0, memory_bytes=2000)


def two(bandwidth: float = 8.0, latency: float = 0.5) -> Topology:
    return Topology("two", (GPU, CPU), np.asarray(bandwidth), np.asarray(latency))


def test_the_roofline_by_hand() -> None:
    graph = DataflowGraph.build(
        flops=[800, 800, 100, 0], bytes_moved=[0, 0, 200, 0], kind=["matmul", "softmax", "matmul", "copy"]
    )
    problem = PlacementProblem(graph, two())
    # overhead 0.25 + max(FLOPs / 400 or 100, bytes / 50); the CPU has neither overhead nor a memory rate
    assert problem.compute_s.tolist() == [[2.25, 80], [8.25, 80], [4.25, 10], [0.25, 0]]
    assert problem.best_s.tolist() == [2.25, 8.25, 4.25, 0]
    assert problem.mean_s.tolist() == [41.125, 44.125, 7.125, 0.125]
    assert not problem.compute_s.flags.writeable


def test_measured_seconds_win_where_there_are_any() -> None:
    graph = DataflowGraph.build(flops=[100, 100, 100], seconds={"GPU": [7, NAN, 0], "TPU": [1, 1, 1]})
    assert PlacementProblem(graph, two()).compute_s.tolist() == [[7, 10], [1.25, 10], [0, 10]]


def test_graphs_measured_elsewhere_are_scaled_by_speed() -> None:
    graph = DataflowGraph.build(flops=[0, 0, 7], seconds={"A": [4, NAN, 9], "B": [3, 5, NAN]})
    # the fastest measurement, divided by the device's share of the fastest FLOP/s (CPU: a tenth);
    # an operation with FLOPs has its own price
    seconds = PlacementProblem(graph, two()).compute_s
    assert seconds[:2].tolist() == [[3, 30], [5, 50]]
    assert seconds[2].tolist() == [device.seconds(["op"], np.array([7.0]), np.zeros(1))[0] for device in two().devices]
    left_out = DataflowGraph.build(flops=[0, 0], ids=["a", "b"], seconds={"A": [4, NAN]})
    with pytest.raises(PlacementError, match="operation 'b' has neither measured seconds nor FLOPs"):
        PlacementProblem(left_out, two())
    mixed = DataflowGraph.build(flops=[0, 0], seconds={"CPU": [6, NAN], "A": [NAN, 2]})
    assert PlacementProblem(mixed, two()).compute_s.tolist() == [[6, 6], [2, 20]]


def test_transfers_take_latency_and_bytes_over_bandwidth() -> None:
    graph = DataflowGraph.build(flops=[0, 0], edges=[(0, 1)], edge_bytes=[16])
    problem = PlacementProblem(graph, two())
    assert problem.seconds_per_byte.tolist() == [[0, 0.125], [0.125, 0]]
    assert problem.mean_transfer_s.tolist() == problem.least_transfer_s.tolist() == [2.5]
    schedule = simulate(problem, [1, 0])
    assert (schedule.transfers.start.tolist(), schedule.transfers.end.tolist()) == ([0], [2.5])
    uneven = Topology("uneven", (CPU,) * 3, np.array([[1, 2, 4], [2, 1, 8], [4, 8, 1]]), np.asarray(1.0))
    problem = PlacementProblem(graph, uneven)
    assert problem.least_transfer_s.tolist() == [1 + 16 / 8]
    assert problem.mean_transfer_s.tolist() == [1 + 16 * (1 / 2 + 1 / 4 + 1 / 8) / 3]
    alone = PlacementProblem(graph, Topology.uniform(1))
    assert alone.mean_transfer_s.tolist() == [0]
    assert alone.least_transfer_s.tolist() == [INFINITY]


def test_the_raw_model_takes_costs_as_they_stand() -> None:
    graph = DataflowGraph.build(
        flops=[3, 5, 7], bytes_moved=[1e9] * 3, edges=[(0, 2), (1, 2)], edge_bytes=[4, 6], seconds={"device": [1, 1, 1]}
    )
    problem = PlacementProblem.raw(graph, devices=2)
    assert problem.compute_s.tolist() == [[3, 3], [5, 5], [7, 7]]
    assert problem.seconds_per_byte.tolist() == [[0, 1], [1, 0]]
    assert (problem.contention, problem.memory, problem.share_tensors, problem.time_unit) == ("none", "off", False, 1)
    assert makespans(problem, [[0, 0, 0], [0, 1, 0], [0, 1, 1]]).tolist() == [15, 18, 14]
    assert PlacementProblem.raw(graph).d == 4
    assert PlacementProblem.raw(graph, speeds=[1, 0.5]).compute_s.tolist() == [[3, 6], [5, 10], [7, 14]]
    assert PlacementProblem.raw(DataflowGraph.build(flops=[1e10])).time_unit == 1e10
    assert not problem.graph.bytes_moved.flags.writeable


@pytest.mark.parametrize(
    "options",
    [{"devices": 0}, {"devices": -1}, {"devices": 2.5}, {"speeds": [1, 0]}, {"speeds": ["a"]}, {"contention": "bus"}],
)
def test_bad_raw_options_are_one_sentence(options: dict[str, Any]) -> None:
    with pytest.raises(TopologyError, match=r"topology raw|device kind") as caught:
        PlacementProblem.raw(DataflowGraph.build(flops=[1]), **options)
    sentence(caught)


def test_options_are_checked_and_changed() -> None:
    graph = DataflowGraph.build(flops=[1, 1], edges=[(0, 1)], out_bytes=[600, 0])
    problem = PlacementProblem(graph, two())
    assert (problem.contention, problem.memory) == ("ports", "error")
    other = problem.with_options(contention="pair", memory="off")
    assert (other.contention, other.memory) == ("pair", "off")
    assert (other.graph, other.topology) == (problem.graph, problem.topology)
    assert (problem.with_options().contention, problem.with_options().memory) == ("ports", "error")
    for options, words in (
        ({"contention": "bus"}, "contention is 'bus'; expected none, pair or ports"),
        ({"memory": "swap"}, "memory is 'swap'; expected error, penalty or off"),
    ):
        with pytest.raises(PlacementError, match=words):
            PlacementProblem(graph, two(), **options)  # type: ignore[arg-type]
        with pytest.raises(PlacementError, match=words):
            problem.with_options(**options)  # type: ignore[arg-type]


def test_problems_pickle_and_stay_read_only() -> None:
    graph = DataflowGraph.build(flops=[1, 2], edges=[(0, 1)], edge_bytes=[8], allowed=[[True, True], [False, True]])
    problem = PlacementProblem(graph, two(), contention="pair", memory="penalty")
    before = simulate(problem, [0, 1]).makespan
    for other in (pickle.loads(pickle.dumps(problem)), copy.deepcopy(problem)):
        assert simulate(other, [0, 1]).makespan == before
        assert lower_bounds(other) == lower_bounds(problem)
        assert (other.contention, other.memory) == ("pair", "penalty")
        for array in (other.compute_s, other.allowed, other.seconds_per_byte, other.latency, other.best_s):
            assert not array.flags.writeable
        assert not any(array.flags.writeable for array in other.arrays)


@given(placed(inputs=True), st.sampled_from(("penalty", "off")), st.booleans(), st.sampled_from((1.0, 1e10, 0.3)))
@hypothesis_settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_saved_problem_is_the_problem(
    tmp_path: Path, case: tuple[PlacementProblem, list[int]], memory: MemoryMode, share: bool, unit: float
) -> None:
    """Costs, rules and unit come back, and so do all times, where memory overflows too."""
    problem = replace(case[0], memory=memory, share_tensors=share, time_unit=unit)
    devices = tuple(replace(device, memory_bytes=2.0) for device in problem.topology.devices)
    problem = replace(problem, topology=replace(problem.topology, devices=devices))
    save_problem(tmp_path, problem)
    again = load_problem(tmp_path)
    for name in ("contention", "memory", "share_tensors", "time_unit"):
        assert getattr(again, name) == getattr(problem, name)
    for name in ("compute_s", "seconds_per_byte", "latency", "allowed", "input_bytes"):
        assert np.array_equal(getattr(again, name), getattr(problem, name))
    assert makespans(again, case[1]).tolist() == makespans(problem, case[1]).tolist()


def test_files_of_a_problem_without_its_rules_are_read_and_wrong_ones_named(tmp_path: Path) -> None:
    problem = PlacementProblem.raw(DataflowGraph.build(flops=[1e10, 1]), 2)
    rules = save_problem(tmp_path, problem, "mine")[2]
    assert load_problem(tmp_path, "mine").time_unit == 1e10
    for text, words in (
        ("[1]", "expected keys such as memory"),
        ("memory: all", "memory is 'all'; expected error, penalty, off"),
        ("time_unit: 0", "time_unit is 0; expected a finite number above 0"),
        ("time_unit: yes", "time_unit is True"),
        ("share_tensors: 3", "share_tensors is 3; expected true or false"),
        ("memori: off", "did you mean memory"),
        ("{", "is not YAML"),
    ):
        rules.write_text(text)
        with pytest.raises(PlacementError, match=words) as caught:
            load_problem(tmp_path, "mine")
        assert str(rules) in str(caught.value)
    rules.unlink()
    old = load_problem(tmp_path, "mine")
    assert (old.memory, old.time_unit, old.share_tensors) == ("error", 1.0, True)


def test_assignments_are_checked() -> None:
    problem = PlacementProblem(DataflowGraph.build(flops=[1, 1], ids=["a", "b"], title="g"), two())
    for assignment, words in (
        ([[0], [0, 1]], "rows of assignments differ"),
        (None, "shape ()"),
        ([0, 1, 1], "shape (3,)"),
        ([[[0, 1]]], "shape (1, 1, 2)"),
        ([0, 2], "operation 'b' is on device 2; devices are 0 to 1"),
        ([[0, 0], [-1, 0]], "operation 'a' is on device -1"),
        (["0", "1"], "must be integers"),
        ([True, False], "must be integers, found bool"),
    ):
        with pytest.raises(PlacementError) as caught:
            problem.check_assignment(assignment)  # type: ignore[arg-type]
        assert sentence(caught).startswith("g: ")
        assert words in str(caught.value)
    assert problem.check_assignment(np.array([[0, 1]], dtype=np.uint64)).dtype == np.int32


def test_graphs_that_fit_nowhere_are_refused() -> None:
    def problem(**parts: Any) -> PlacementProblem:
        return PlacementProblem(DataflowGraph.build(flops=[1, 1], ids=["a", "b"], **parts), two())

    def weights(*sizes: float) -> list[GraphInput]:
        return [GraphInput(f"w{i}", size, "parameter") for i, size in enumerate(sizes)]

    assert problem(out_bytes=[0, 2000]).n == 2
    with pytest.raises(MemoryLimitError, match=r"operation 'b' alone needs 2001 bytes, the largest device .* has 2000"):
        problem(out_bytes=[0, 2001])
    with pytest.raises(MemoryLimitError, match=r"operation 'a' alone needs 1001 bytes, .* has 1000"):
        problem(out_bytes=[1001, 0], allowed=[[True, False], [True, True]])
    with pytest.raises(MemoryLimitError, match="take 3001 bytes, all devices together have 3000"):
        problem(inputs=weights(1001, 2000), reads=[[0], [1]])
    assert problem(inputs=weights(1001, 2000, 1e9), reads=[[0], [0]]).n == 2, "what nobody reads takes no room"
    with pytest.raises(MemoryLimitError, match="operation 'a' alone needs 2100 bytes"):
        problem(inputs=weights(2000), reads=[[0], []], out_bytes=[100, 0])
    big = DataflowGraph.build(flops=[1], out_bytes=[5000])
    for memory in ("penalty", "off"):
        assert PlacementProblem(big, two(), memory=memory).n == 1


def test_pins_and_devices_must_agree() -> None:
    graph = DataflowGraph.build(flops=[4], allowed=[[False, True]])
    problem = PlacementProblem(graph, two())
    assert problem.best_s.tolist() == problem.mean_s.tolist() == [0.4]
    with pytest.raises(PlacementError, match="pins speak of 2 devices, the topology has 3"):
        PlacementProblem(graph, Topology.uniform(3))


def test_presets_at_other_speeds() -> None:
    base = Topology.preset("4xP100")
    topology = Topology.at_speeds("4xP100", [1, 0.5], bandwidth=3e9, contention="none")
    assert [device.kind for device in topology.devices] == ["P100", "P100*0.5"]
    assert topology.devices[0] == base.devices[0]
    assert topology.devices[1].flops_per_s == base.devices[0].flops_per_s / 2
    assert topology.devices[1].kind_flops_per_s["matmul"] == base.devices[0].kind_flops_per_s["matmul"] / 2
    assert topology.devices[1].memory_bytes == base.devices[0].memory_bytes
    assert topology.name == "P100 at 1 0.5, 3 GB/s"
    assert topology.bandwidth[0, 1] == 3e9
    assert Topology.at_speeds("mixed", [2]).d == 1
    with pytest.raises(TopologyError, match="flops_per_s is -1"):
        Topology.at_speeds("4xP100", [1, -1])
