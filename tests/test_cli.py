"""The command line: what it prints, what it writes, how it refuses, and many runs at once."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import hydra
import numpy as np
import pytest
from omegaconf import OmegaConf

from hadoppler import PLACEMENTS, __version__, place
from hadoppler.envs.placement import DataflowGraph, PlacementProblem, Topology, make_graph, write_graph
from hadoppler.envs.placement.workloads import WORKLOADS
from hadoppler.scripts import cli, demo, place as place_command, simulate as simulate_command
from hadoppler.scripts.report import git_state, write_json

ROOT = Path(__file__).resolve().parents[1]
GOLDEN = json.loads((ROOT / "tests" / "golden" / "doppler_makespans.json").read_text())["makespans"]
GROUPS = {
    group: sorted(
        path.name.removesuffix(".yaml") for path in resources.files("hadoppler.conf").joinpath(group).iterdir()
    )
    for group in ("graph", "topology", "method", "executor")
}
QUICK = ["graph=chain", "method=[round_robin]", "pictures=false"]
KEYS = {
    "graph", "topology", "method", "seed", "makespan", "bound", "ratio_bound", "ratio_best", "decision_s",
    "peak_memory_bytes", "bytes_moved",
}  # fmt: skip


pytestmark = pytest.mark.usefixtures("own_folder")


def read(path: Path) -> Any:
    """Strict JSON, as other programs read it."""
    return json.loads(path.read_text(), parse_constant=lambda name: pytest.fail(f"{path}: {name} is not JSON"))


def run_folders(folder: Path) -> list[Path]:
    """The folders in which a run left its results."""
    return sorted(path.parent for path in folder.glob("runs/place/**/results.json"))


def run(arguments: Sequence[str], folder: Path) -> tuple[dict[str, Any], Path]:
    """Run ``hadoppler place`` in this process; its results and its folder."""
    before = run_folders(folder)
    assert place_command.main(arguments) == 0
    (new,) = [path for path in run_folders(folder) if path not in before]
    return read(new / "results.json"), new


def python(*arguments: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=120, cwd=folder)


# --- hadoppler ----------------------------------------------------------------------------------------


def test_help_is_quick_and_loads_little() -> None:
    code = (
        "import sys; from hadoppler.scripts.cli import main; code = main(['--help']); "
        "print({name.partition('.')[0] for name in sys.modules} "
        "& {'numba', 'torch', 'hydra', 'omegaconf', 'scipy', 'matplotlib', 'networkx', 'ray', 'wandb'}); sys.exit(code)"
    )
    durations = []
    for _ in range(3):
        begin = time.perf_counter()
        done = python("-c", code)
        durations.append(time.perf_counter() - begin)
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines()[-1] == "set()"
    assert min(durations) < 1
    for command in cli.COMMANDS:
        assert re.search(rf"^  {command} +\w", done.stdout, flags=re.MULTILINE)


@pytest.mark.parametrize("words", [[], ["-h"], ["--help"], ["help"]])
def test_every_way_to_ask_for_help(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(words) == 0
    assert capsys.readouterr().out.startswith("hadoppler COMMAND")


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"hadoppler {__version__}\n"


@pytest.mark.parametrize(
    ("word", "words"), [("plaice", "did you mean place?"), ("--verbose", "choose one of place"), ("", "choose one of")]
)
def test_unknown_commands(word: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([word]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith(f"hadoppler: there is no command {word!r}; ")
    assert words in err


@pytest.mark.usefixtures("others_compile_nothing")
def test_the_installed_command_gives_the_exit_code(tmp_path: Path) -> None:
    command = Path(sys.executable).with_name("hadoppler")
    if not command.exists():
        pytest.skip("hadoppler is not installed as a command beside this Python")
    done = subprocess.run([command, "place", "graph=chian"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert done.stderr.startswith("hadoppler place: there is no graph called 'chian'; choose one of ")
    assert "Traceback" not in done.stderr + done.stdout
    assert list(tmp_path.iterdir()) == [], "nothing is written"


def test_the_demo_takes_no_arguments(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert cli.main(["demo", "x"]) == 2
    assert cli.main(["demo", "--help"]) == 0
    assert "takes no arguments" in capsys.readouterr().out
    asked: list[list[str]] = []

    def refuse(words: list[str]) -> int:
        asked.append(words)
        return 2

    monkeypatch.setattr(simulate_command, "main", refuse)
    assert demo.main([]) == 2
    assert len(asked) == 1, "a step that fails is the last one"


def test_the_demo_ends_with_a_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both levels and a real run; every table and picture is in one page that needs no other file."""
    pytest.importorskip("torch_geometric", reason="needs the policy's packages")
    pytest.importorskip("sklearn", reason="needs scikit-learn")
    monkeypatch.chdir(tmp_path)
    assert cli.main(["demo"]) == 0
    path = Path(capsys.readouterr().out.rstrip().rpartition("Report: ")[2].replace("\n", ""))
    page = path.read_text()
    for step in demo.STEPS:
        assert step.title in page
    assert page.count("<table>") == len(demo.STEPS)
    assert page.count("data:image/png;base64,") == sum(len(step.pictures) for step in demo.STEPS)
    for word in ("hadar_horizon", "doppler", "hadare"):
        assert f"<td>{word}</td>" in page


def test_ctrl_c_ends_with_130_and_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(place_command, "place", interrupt)
    for arguments in (QUICK, ["-m", *QUICK, "seed=0,1"]):
        assert place_command.main(arguments) == 130
        assert capsys.readouterr().err == "hadoppler place: stopped.\n"
    monkeypatch.setattr(cli, "import_module", interrupt)
    assert cli.main(["place"]) == 130
    assert capsys.readouterr().err == "hadoppler place: stopped.\n"


# --- hadoppler place ----------------------------------------------------------------------------------


def test_place_help_is_readable(capsys: pytest.CaptureFixture[str]) -> None:
    assert place_command.main(["--help"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("hadoppler place: put the operations")
    for group, choices in GROUPS.items():
        assert f"{group}: {', '.join(choices)}\n" in text
    for line in ("seed: 0", "order: fifo", "contention: null", "memory: error", "pictures: true", "model: null"):
        assert f"\n{line}\n" in text
    examples = [shlex.split(line)[2:] for line in text.splitlines() if line.startswith("  hadoppler place ")]
    assert len(examples) >= 3
    for words in examples:
        words = [re.sub(r"=(\w+),.*", r"=\1", word) for word in words if word != "-m"]
        with hydra.initialize_config_module("hadoppler.conf", version_base="1.3"):
            assert hydra.compose("place", words).method


def test_the_state_of_a_repository(tmp_path: Path) -> None:
    """Of any folder in one, or of its root only: a package in somebody's environment is not their commit."""
    inner = tmp_path / "repository" / "site-packages"
    inner.mkdir(parents=True)
    root, git = inner.parent, ["git", "-C", inner, "-c", "user.name=a", "-c", "user.email=a@b"]
    assert git_state(root) is None
    subprocess.run([*git, "init", "-q", root], check=True)
    assert git_state(root) is None, "no commit yet"
    (root / "file").write_text("1")
    subprocess.run([*git, "add", "-A", root], check=True)
    subprocess.run([*git, "commit", "-qm", "first"], check=True)
    head = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    clean = {"commit": head, "changed": False}
    assert git_state(root, root=True) == git_state(root) == git_state(inner) == clean
    assert git_state(inner, root=True) is None
    (root / "file").write_text("2")
    assert git_state(root, root=True) == {"commit": head, "changed": True}
    assert git_state(tmp_path / "absent") is None


def test_place_end_to_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["graph=fork_join", "topology=mixed", "seed=3", "method=[heft,single_device,random]"]
    results, folder = run(arguments, tmp_path)
    assert results["command"] == ["hadoppler place", *arguments]
    assert (results["config"]["seed"], results["config"]["graph"]["seed"]) == (3, 0)
    assert results["failed"] == {}
    assert [row["method"] for row in results["rows"]] == ["heft", "single_device", "random"]
    graph = make_graph("fork_join", branches=4, length=2, stages=2, seed=0)
    problem = PlacementProblem(graph, Topology.preset("mixed"))
    best = min(row["makespan"] for row in results["rows"])
    for row in results["rows"]:
        assert set(row) >= KEYS
        expected = place(row["method"], problem, seed=3)
        schedule = expected.simulate(problem)
        assert (row["graph"], row["topology"], row["seed"]) == ("fork_join", "mixed", 3)
        assert row["makespan"] == expected.makespan
        assert row["ratio_bound"] == row["makespan"] / row["bound"] >= 1
        assert row["ratio_best"] == row["makespan"] / best
        assert row["peak_memory_bytes"] == schedule.peak_memory.tolist()
        assert row["bytes_moved"] == schedule.bytes_moved
        assert row["decision_s"] > 0
    # one placement a method, the best on top
    stored = {name: read(folder / "placements" / f"{name}.json") for name in ("heft", "single_device", "random")}
    chosen = read(folder / "placement.json")
    assert chosen == stored[chosen["method"]]
    assert chosen["makespan"] == best
    assert [item["id"] for item in sorted(chosen["operations"], key=lambda item: item["id"])] == list(graph.ids)
    events = read(folder / "trace.json")["traceEvents"]
    assert sum(event["ph"] == "X" and event["tid"] == 0 for event in events) == graph.n
    assert (folder / "gantt.png").read_bytes().startswith(b"\x89PNG")
    record = read(folder / "run.json")
    assert record["command"] == results["command"]
    assert record["config"] == results["config"]
    assert record["seed"] == 3
    assert record["python"] == sys.version.split()[0]
    assert {"hadoppler", "numpy", "numba", "hydra-core"} <= set(record["versions"])
    assert "machine" in record
    assert record["git"] is None, "the folder is in no repository"
    assert record["hadoppler_git"] == git_state(ROOT, root=True), "the package may be in one"
    assert not [path.name for path in folder.rglob(".*") if path.is_file()], "no temporary file stays"
    # what is printed
    text = capsys.readouterr().out
    assert f"fork_join: {graph.n} operations" in text
    told = "peak memory: of each device in turn; moved: bytes sent between devices.\n"
    for header in ("method", "/ bound", "/ best", "decided [s]", "peak memory [", "moved", told):
        assert header in text
    for name in ("placement.json", "trace.json", "gantt.png"):
        assert f"  {folder / name}\n" in text


def test_pictures_can_be_left_out(tmp_path: Path) -> None:
    _, folder = run(QUICK, tmp_path)
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        [".hydra", "place.log", "placement.json", "placements", "results.json", "run.json", "trace.json"]
    )


def test_numbers_that_json_lacks_become_text(tmp_path: Path) -> None:
    _, folder = run([*QUICK, "topology=uniform"], tmp_path)
    assert read(folder / "run.json")["config"]["topology"]["memory_bytes"] == "inf"
    write_json(tmp_path / "x.json", {"a": [np.int64(5), np.float32(0.5), -np.inf], 1: np.array([[np.nan, 2.0]])})
    assert read(tmp_path / "x.json") == {"a": [5, 0.5, "-inf"], "1": [["nan", 2.0]]}


def test_a_folder_with_brackets_is_printed_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    odd = tmp_path / "[red] runs"
    odd.mkdir()
    monkeypatch.chdir(odd)
    _, folder = run(QUICK, odd)
    assert f"  {folder / 'placement.json'}\n" in capsys.readouterr().out


def test_graph_files_and_topology_files(tmp_path: Path) -> None:
    graph = DataflowGraph.build(
        flops=[4, 2, 6], ids=["a", 7, "c"], edges=[("a", "c"), (7, "c")], edge_bytes=[1, 1], title="three"
    )
    write_graph(graph, tmp_path / "three.json")
    (tmp_path / "two.yaml").write_text("name: my two\ndevices: [{flops_per_s: 1, count: 2}]\nbandwidth: 1\n")
    arguments = ["graph=file", "graph.path=three.json", "topology=file", "topology.path=two.yaml", "pictures=false"]
    results, folder = run([*arguments, "method=[annealing]", "method.annealing.calls=200"], tmp_path)
    (row,) = results["rows"]
    assert (row["graph"], row["topology"], row["makespan"]) == ("three", "my two", 10)
    assert {item["id"] for item in read(folder / "placement.json")["operations"]} == {"a", 7, "c"}


def test_a_placement_is_read_back(tmp_path: Path) -> None:
    graph = ["graph=layered_random", "topology=mixed", "pictures=false"]
    results, folder = run([*graph, "order=priority", "method=[peft]"], tmp_path)
    path = folder / "placement.json"
    again, other = run([*graph, "order=priority", "method=[file]", f"method.file.path={path}"], tmp_path)
    assert again["rows"][0]["makespan"] == results["rows"][0]["makespan"]
    assert read(other / "placement.json")["operations"] == read(path)["operations"]


def test_a_users_module(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    (tmp_path / "my_cli_model.py").write_text(
        "import torch\n"
        "def make():\n"
        "    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))\n"
        "    return model, (torch.zeros(32, 8),)\n"
        "def named():\n"
        "    return torch.nn.Linear(8, 4), (), {'input': torch.zeros(32, 8)}\n"
    )
    arguments = ["graph=module", "model=my_cli_model:make", "topology=uniform", "method=[heft]", "pictures=false"]
    results, folder = run(arguments, tmp_path)
    assert results["rows"][0]["makespan"] > 0
    names = [item["name"] for item in read(folder / "placement.json")["operations"]]
    assert len(names) == 3
    cut, _ = run([*arguments, "graph.cuts=2"], tmp_path)
    assert cut["rows"][0]["ratio_bound"] >= 1
    named, _ = run([*arguments, "model=my_cli_model:named"], tmp_path)
    assert named["rows"][0]["makespan"] > 0
    assert place_command.main(["graph=module", "model=my_cli_model:mkae"]) == 2


@pytest.mark.usefixtures("others_compile_nothing")
def test_warnings_are_sentences(tmp_path: Path) -> None:
    """Of this package; others' name the file and the line of code, as ever."""
    pytest.importorskip("torch", reason="torch is not installed")
    (tmp_path / "odd_model.py").write_text(
        "import warnings\nimport torch\n"
        "class Spectrum(torch.nn.Module):\n    def forward(self, x):\n        return torch.fft.fft(x).abs()\n"
        "def make():\n    warnings.warn('from outside')\n    return Spectrum(), (torch.zeros(4, 8),)\n"
    )
    words = ["place", "graph=module", "model=odd_model:make", "topology=uniform", "method=[heft]", "pictures=false"]
    command = [sys.executable, "-m", "hadoppler.scripts.cli", *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0
    lines = done.stderr.splitlines()
    assert lines[0].endswith("odd_model.py:7: UserWarning: from outside")
    told = [line.partition(" _fft_")[0] for line in lines if "Spectrum" in line]
    assert told == ["hadoppler place: Spectrum: no FLOP formula is known for"]


def test_raw_topologies_use_published_costs(tmp_path: Path) -> None:
    golden = GOLDEN["gdp_chain_mm_112nodes.txt"]
    (one_device,) = [value for key, value in golden.items() if key.startswith("a")]
    arguments = ["graph=chainmm", "method=[single_device]", "pictures=false"]
    results, _ = run([*arguments, "topology=raw"], tmp_path)
    assert results["rows"][0]["makespan"] / 1e10 == one_device
    assert results["config"]["graph"]["costs"] == "published"
    real, _ = run([*arguments, "topology=4xP100"], tmp_path)
    assert real["config"]["graph"]["costs"] == "real"
    assert real["rows"][0]["makespan"] < 1
    eight, _ = run([*arguments, "topology=raw", "topology.devices=8", "contention=ports"], tmp_path)
    assert len(eight["rows"][0]["peak_memory_bytes"]) == 8


def test_methods_that_fail_are_listed_with_the_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    graph = DataflowGraph.build(flops=[1] * 4, out_bytes=[10] * 4, edges=[(0, 3), (1, 3), (2, 3)], title="[b]tight[/b]")
    write_graph(graph, tmp_path / "tight.json")
    arguments = ["graph=file", "graph.path=tight.json", "topology=uniform", "topology.devices=2", "pictures=false"]
    roomy = [*arguments, "topology.memory_bytes=40"]
    results, folder = run([*roomy, "method=[tensor_parallel,heft]"], tmp_path)
    assert [row["method"] for row in results["rows"]] == ["heft"]
    assert list(results["failed"]) == ["tensor_parallel"]
    assert "needs a graph with shards" in results["failed"]["tensor_parallel"]
    assert not (folder / "placements" / "tensor_parallel.json").exists()
    printed = capsys.readouterr().out
    assert f"tensor_parallel: no placement. {results['failed']['tensor_parallel']}\n" in printed
    assert "[b]tight[/b]: 4 operations" in printed
    assert place_command.main([*arguments, "topology.memory_bytes=12", "method=[heft,etf,tensor_parallel]"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("hadoppler place: no method gave a placement: ")
    assert "bytes" in err
    assert "needs a graph with shards" in err
    assert err.count("\n") == 1


def test_a_missing_extra_is_listed_with_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "hadoppler.baselines.placement.cp_sat", raising=False)
    for name in [name for name in sys.modules if name.partition(".")[0] == "ortools"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "ortools", None)
    results, _ = run([*QUICK, "method=[cp_sat,heft]"], tmp_path)
    assert [row["method"] for row in results["rows"]] == ["heft"]
    assert "'ortools" in results["failed"]["cp_sat"]
    assert "pip install 'hadoppler[all]'" in results["failed"]["cp_sat"]


# --- refusals -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["graph=chian"], ["no graph called 'chian'", *GROUPS["graph"]]),
        (["graph="], ["no graph called ''", *GROUPS["graph"]]),
        (["topology=foo"], ["no topology called 'foo'", *GROUPS["topology"]]),
        (["method=[heft,foo]"], ["no method called 'foo'", *GROUPS["method"]]),
        (["graph=null"], ["Config group override must be"]),
        (["graph=chain", "+method.mine={}"], ["no placement method is called 'mine'", *PLACEMENTS]),
        (["graph=chain", "+method.hefd={}"], ["did you mean heft?"]),
        (["graph=chain", "graf=1"], ["no setting 'graf'; did you mean graph?"]),
        (["graph=chain", "xyz=1"], ["no setting 'xyz'; valid ones are graph, topology, method, tracking, model, seed"]),
        (
            ["graph=chain", "+xyz=1"],
            ["no setting 'xyz'; valid ones are graph, topology, method, tracking, model, seed"],
        ),
        (["graph=chain", "length=3"], ["no setting 'length'; did you mean graph.length?"]),
        (["graph=chain", "graph.lenght=3"], ["no setting 'graph.lenght'; did you mean graph.length?"]),
        (["graph=chain", "graph.zzz=3"], ["no setting 'graph.zzz'; valid ones are graph.name, graph.length"]),
        (["-m", "graph=chain,ladder", "graph.lenght=3"], ["no setting 'graph.lenght'; did you mean graph.length?"]),
        (["graph=chain", "method=[heft]", "method.heft.insertoin=1"], ["did you mean method.heft.insertion?"]),
        (["graph=chain", "method=[heft]", "method.etf.x=1"], ["no setting 'method.etf.x'; valid ones are method.heft"]),
        (["graph=chain", "method=[heft]", "+method.heft.x=1"], ["no option 'x'; its options are insertion"]),
        (["graph=chain", "method=[etf]", "+method.etf.x=1"], ["no option 'x'; it has no options"]),
        (["graph=chain", "method=[heft]", "method.heft=5"], ["method.heft is 5; expected its options"]),
        (
            ["graph=chain", "method=[annealing]", "method.annealing.calls=many"],
            ["calls='many'; expected int, found str"],
        ),
        (["graph=chain", "method=[annealing]", "method.annealing.calls=0"], ["calls"]),
        (
            ["graph=chain", "method=[annealing]", "method.annealing.seconds=no"],
            ["seconds='no'; expected float | None, found str"],
        ),
        (["graph=chain", "method=[]"], ["no method is chosen", *PLACEMENTS]),
        (["graph=file"], ["graph.path is missing; give it as graph.path=VALUE"]),
        (["graph=chain", "topology=file"], ["topology.path is missing; give it as topology.path=VALUE"]),
        (["graph=chain", "method=[file]"], ["method.file.path is missing; give it as method.file.path=VALUE"]),
        (["~graph"], ["graph is missing; give it as graph=VALUE"]),
        (["graph=module"], ["needs model=package.module:factory"]),
        (["graph=module", "model=foo"], ["'foo' is not of the form"]),
        (["graph=file", "graph.path=none.json"], ["none.json: cannot be read"]),
        (["graph=chain", "topology=file", "topology.path=none.yaml"], ["none.yaml: cannot be read"]),
        (["graph=chain", "method=[file]", "method.file.path=none.json"], ["none.json: cannot be read"]),
        (["graph=chain", "topology.name=9xB9"], ["no topology is called '9xB9'", "4xP100", "-slow"]),
        (["graph=chain", "+topology.x=1"], ["Topology.preset", "x=1", "unexpected keyword argument"]),
        (["graph=chain", "+graph.x=1"], ["chain has no option 'x'", "length"]),
        (["graph=chain", "graph.length=0"], ["length is 0"]),
        (["graph=chain", "graph.length=long"], ["length=long"]),
        (["graph=chain", "topology=uniform", "topology.devices=two"], ["devices is 'two'"]),
        (["graph=chain", "topology=uniform", "topology.bandwidth=-1"], ["bandwidth from device 0 to 1 is -1.0"]),
        (["graph=chain", "topology=uniform", "topology.speeds=[1,-1]"], ["flops_per_s is -"]),
        (["graph=chain", "topology=uniform", "topology.memory_bytes=1"], ["operation 0 alone needs", "memory=off"]),
        (["graph=chain", "topology=this_machine", "topology.devices=0"], ["devices is 0"]),
        (["graph=chain", "topology=raw", "topology.devices=0"], ["devices is 0"]),
        (["graph=chain", "topology=raw", "memory=foo"], ["memory is 'foo'; expected error, penalty, off"]),
        (["graph=chain", "topology=raw", "contention=foo"], ["contention is 'foo'; expected none, pair or ports"]),
        (["graph=chain", "memory=foo"], ["memory is 'foo'"]),
        (["graph=chain", "contention=foo"], ["contention is 'foo'"]),
        (["graph=chain", "order=foo"], ["order is 'foo'; expected fifo, priority, random"]),
        (["graph=chain", "seed=-1"], ["seed is -1; expected a whole number from 0 up"]),
        (["graph=chain", "seed=abc"], ["seed: Value 'abc'", "Integer"]),
        (["graph=chain", "seed=1.5"], ["seed: Value '1.5'", "Integer"]),
        (["graph=chain", "pictures=maybe"], ["pictures: Value 'maybe'", "bool"]),
        (["graph=chain", "graph.seed=${nothing}"], ["'nothing' not found"]),
        (["chain"], ["'chain' cannot be read; give name=value"]),
        (["graph=chain", "method=[heft"], ["'method=[heft' cannot be read", "[a,b]"]),
        (["graph=chain", "hydra.run.dir=a_file/x", "method=[heft]"], ["a_file/x: Not a directory"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) and "=" in value[0] else None,
)
def test_mistakes_are_one_sentence(
    arguments: list[str], words: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "a_file").touch()
    assert place_command.main(arguments) == 2
    _, err = capsys.readouterr()
    lines = [line for line in err.splitlines() if not line.startswith("Error executing job with overrides")]
    assert len(lines) == 1, err
    assert lines[0].startswith("hadoppler place: ")
    assert lines[0][-1] in ".?"
    for word in words:
        assert word in lines[0]
    assert run_folders(tmp_path) == [], "no results are written"


def test_unknown_flags_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert place_command.main(["--foo"]) == 2
    assert capsys.readouterr().err.endswith("hadoppler place: error: unrecognized arguments: --foo\n")


def test_defects_keep_their_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise ValueError("a defect")

    monkeypatch.setattr(place_command, "place", broken)
    with pytest.raises(ValueError, match="a defect"):
        place_command.main(QUICK)


def test_command_line_and_hydra_are_left_clean(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    before = list(sys.argv)
    for arguments in (["graph=chian"], QUICK, ["graph=file"], QUICK):
        place_command.main(arguments)
        assert sys.argv == before
    assert len(run_folders(tmp_path)) == 2


# --- sweeps and runs at once --------------------------------------------------------------------------


def test_a_sweep_gives_a_folder_per_member(tmp_path: Path) -> None:
    arguments = ["-m", "graph=chain,ladder", "seed=0,1", "method=[random]", "pictures=false"]
    assert place_command.main(arguments) == 0
    folders = run_folders(tmp_path)
    assert [folder.name for folder in folders] == ["0", "1", "2", "3"]
    assert len({folder.parent for folder in folders}) == 1
    rows = [read(folder / "results.json")["rows"][0] for folder in folders]
    assert [(row["graph"], row["seed"]) for row in rows] == [("chain", 0), ("chain", 1), ("ladder", 0), ("ladder", 1)]
    assert len({row["makespan"] for row in rows}) == 4
    assert all((folder / "placement.json").exists() for folder in folders)


def test_the_others_of_a_sweep_run_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["-m", "graph=chain,ladder", "order=bogus,fifo,false", "method=[round_robin]", "pictures=false"]
    assert place_command.main(arguments) == 2
    assert [folder.name for folder in run_folders(tmp_path)] == ["1", "4"]
    err = capsys.readouterr().err
    assert "Traceback" not in err
    sentences = [line for line in err.splitlines() if line.startswith("hadoppler place: ")]
    assert len(sentences) == 4, "every member that failed is named with its reason"
    for graph in ("chain", "ladder"):
        assert any(f"graph={graph}" in line and "order is 'bogus'" in line for line in sentences)


@pytest.mark.usefixtures("others_compile_nothing")
def test_members_that_fail_in_other_processes_are_not_lost(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher", reason="hydra-joblib-launcher is not installed")
    arguments = ["-m", "hydra/launcher=joblib", *QUICK, "order=bogus,fifo"]
    assert place_command.main(arguments) == 2
    assert [folder.name for folder in run_folders(tmp_path)] == ["1"]
    assert "hadoppler place: order is 'bogus'" in capfd.readouterr().err


@pytest.mark.usefixtures("others_compile_nothing")
def test_two_runs_at_the_same_moment_never_share_a_folder(tmp_path: Path) -> None:
    """H19: five times two processes give ten folders with one result each."""
    code = "import sys; from hadoppler.scripts.place import main; sys.exit(main(sys.argv[1:]))"
    lengths = iter(range(2, 12))
    for _ in range(5):
        pair = [
            subprocess.Popen(
                [sys.executable, "-c", code, *QUICK, f"graph.length={next(lengths)}"],
                cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
            )
            for _ in range(2)
        ]  # fmt: skip
        for process in pair:
            _, err = process.communicate(timeout=120)
            assert process.returncode == 0, err
    folders = run_folders(tmp_path)
    assert len(folders) == len(list((tmp_path / "runs" / "place").iterdir())) == 10
    found = [read(folder / "results.json") for folder in folders]
    assert sorted(result["config"]["graph"]["length"] for result in found) == list(range(2, 12))
    assert all(len(result["rows"]) == 1 for result in found)
    for folder, result in zip(folders, found, strict=True):
        assert len(read(folder / "placement.json")["operations"]) == result["config"]["graph"]["length"]


def test_folders_differ_within_one_microsecond(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    register = OmegaConf.register_new_resolver

    def stop_the_clock(name: str, resolver: Any, **options: Any) -> None:
        register(name, (lambda _: "now") if name == "now" else resolver, **options)

    monkeypatch.setattr(OmegaConf, "register_new_resolver", stop_the_clock)
    for _ in range(3):
        assert place_command.main(QUICK) == 0
    names = [folder.name for folder in run_folders(tmp_path)]
    assert len(names) == 3
    assert all(name.startswith("now_") for name in names)


@pytest.mark.usefixtures("others_compile_nothing")
def test_the_script_runs_as_a_file(tmp_path: Path) -> None:
    done = python(str(ROOT / "scripts" / "place.py"), *QUICK, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(run_folders(tmp_path)) == 1


# --- configuration ------------------------------------------------------------------------------------


def compose(*overrides: str) -> Any:
    with hydra.initialize_config_module("hadoppler.conf", version_base="1.3"):
        return hydra.compose("place", list(overrides))


@pytest.mark.parametrize("name", GROUPS["graph"])
def test_every_graph_of_the_configuration_is_made(name: str, tmp_path: Path) -> None:
    overrides = [f"graph={name}"]
    if name == "file":
        write_graph(make_graph("chain", length=3), tmp_path / "g.json")
        overrides.append(f"graph.path={tmp_path / 'g.json'}")
    elif name == "module":
        pytest.importorskip("torch", reason="torch is not installed")
        overrides.append("model=hadoppler.scripts.example_model:perceptron")
    else:
        assert name in WORKLOADS
    for topology in ("8xV100", "raw"):
        problem = place_command.build_problem(compose(*overrides, f"topology={topology}"))
        assert problem.graph.n > 1
        assert problem.d == (8 if topology == "8xV100" else 4)


@pytest.mark.parametrize("name", GROUPS["topology"])
def test_every_topology_of_the_configuration_is_made(name: str, tmp_path: Path) -> None:
    overrides = ["graph=chain", f"topology={name}"]
    if name == "file":
        (tmp_path / "t.yaml").write_text("devices: [{flops_per_s: 1e9, count: 2}]\nbandwidth: 1e9\n")
        overrides.append("topology.path=t.yaml")
    problem = place_command.build_problem(compose(*overrides))
    assert problem.d >= 1
    assert problem.contention == ("none" if name == "raw" or name.endswith("-ideal") else "ports")
    assert problem.memory == ("off" if name == "raw" else "error")


def test_every_method_of_the_configuration_runs(tmp_path: Path) -> None:
    assert set(GROUPS["method"]) == set(PLACEMENTS), "each method has a file, and each file a method"
    first, folder = run([*QUICK, "graph=llama_block"], tmp_path)
    limits = ["method.annealing.calls=400", "method.cp_sat.seconds=1", "method.critical_path.runs=2"]
    chosen = f"method=[{','.join(GROUPS['method'])}]"
    results, folder = run(
        [*QUICK, "graph=llama_block", chosen, f"method.file.path={folder / 'placement.json'}", *limits], tmp_path
    )
    assert results["failed"] == {}
    rows = {row["method"]: row for row in results["rows"]}
    assert set(rows) == set(PLACEMENTS)
    assert rows["file"]["makespan"] == first["rows"][0]["makespan"]
    assert min(row["ratio_bound"] for row in rows.values()) >= 1
    assert min(row["ratio_best"] for row in rows.values()) == 1
    assert [row["repeatable"] for row in rows.values()].count(False) == 1, "CP-SAT with several workers"


# --- methods of other packages ------------------------------------------------------------------------

PACKAGE = """
import numpy as np
from hadoppler.envs.placement import Placement

def last_device(problem, *, rng, execution, note: str = "none"):
    assignment = np.full(problem.n, problem.d - 1)
    notes = {"note": note, "count": np.int64(3), "device": np.arange(2)}
    return Placement(assignment, problem.graph.topological_order, notes=notes)

def wanting(problem, *, rng, execution, level):
    raise AssertionError("level is not given")

def wrong(problem, *, rng, execution):
    return [0] * problem.n

def backwards(problem, *, rng, execution):
    return Placement(np.zeros(problem.n, int), problem.graph.topological_order[::-1])
"""


@pytest.fixture
def other_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A distribution with entry points, on the import path."""
    site = tmp_path / "site"
    metadata = site / "theirs-1.0.dist-info"
    metadata.mkdir(parents=True)
    (site / "theirs_placements.py").write_text(PACKAGE)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    entries = [f"{name} = theirs_placements:{name}" for name in ("last_device", "wanting", "wrong", "backwards")]
    entries += ["gone = theirs_placements:gone", "absent = no_such_package_of_theirs:method"]
    (metadata / "entry_points.txt").write_text("\n".join(["[hadoppler.placements]", *entries]))
    monkeypatch.syspath_prepend(site)
    monkeypatch.delitem(sys.modules, "theirs_placements", raising=False)


@pytest.mark.usefixtures("other_package")
def test_methods_of_other_packages_run(tmp_path: Path) -> None:
    results, folder = run([*QUICK, "+method.last_device={note: hello}"], tmp_path)
    row = {row["method"]: row for row in results["rows"]}["last_device"]
    assert row["notes"] == {"note": "hello", "count": 3, "device": [0, 1]}
    stored = read(folder / "placements" / "last_device.json")
    assert {item["device"] for item in stored["operations"]} == {3}
    assert stored["notes"] == row["notes"]


@pytest.mark.usefixtures("other_package")
@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("+method.last_device={note: 5}", "the method 'last_device' has note=5; expected str, found int"),
        ("+method.last_device={nota: 5}", "no option 'nota'; its options are note"),
        ("+method.wanting={}", "the method 'wanting' needs the option 'level'"),
        ("+method.last_devise={}", "did you mean last_device?"),
    ],
)
def test_their_options_are_checked_before_anything_runs(
    override: str, words: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert place_command.main([*QUICK, override]) == 2
    assert words in capsys.readouterr().err
    assert run_folders(tmp_path) == []


@pytest.mark.usefixtures("other_package")
def test_their_mistakes_are_listed(tmp_path: Path) -> None:
    overrides = [f"+method.{name}={{}}" for name in ("wrong", "backwards", "gone", "absent")]
    results, _ = run([*QUICK, *overrides], tmp_path)
    assert [row["method"] for row in results["rows"]] == ["round_robin"]
    for name, words in {
        "wrong": "returned a list; expected a Placement",
        "backwards": "does not respect the graph's edges",
        "gone": "cannot be loaded from theirs_placements:gone",
        "absent": "No module named 'no_such_package_of_theirs'",
    }.items():
        assert words in results["failed"][name]


@pytest.mark.parametrize("seed", [-1, 1.5, "x", None, True])
def test_seeds_of_place_are_whole_numbers(seed: Any) -> None:
    problem = PlacementProblem(make_graph("chain", length=2), Topology.preset("4xP100"))
    with pytest.raises(ValueError, match=re.escape(f"seed is {seed!r}; expected a whole number")):
        place("heft", problem, seed=seed)
    assert place("heft", problem, seed=np.int64(3)).seed == 3  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["graph=chain", "model=own:factory"], "add graph=module"),
        (["graph=module", "model=own:factory", "graph.training=maybe"], "graph.training is 'maybe'; expected true"),
        (["topology=uniform", "topology.devices=3", "topology.speeds=[1,1]"], "2 speeds are given for 3 devices"),
        (["topology=devices.yaml"], "topology=file topology.path=devices.yaml"),
        (["graph=chainmm", "graph.size=0"], "chainmm: size is 0; expected a whole number from 1 up"),
        (["method=[annealing]", "method.annealing.seconds=nan"], "seconds is nan; expected a number above 0"),
    ],
)
def test_settings_that_would_be_ignored_are_refused(
    arguments: list[str],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert place_command.main(arguments) == 2
    assert words in " ".join(capsys.readouterr().err.split())
    assert not run_folders(tmp_path)


def test_a_method_that_fails_costs_only_its_own_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "boom.py").write_text("def place(problem, *, rng, execution):\n    raise RuntimeError('boom')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(PLACEMENTS, "boom", "boom:place")
    assert place_command.main(["graph=chain", "method=[heft]", "+method.boom={}", "pictures=false"]) == 2
    (folder,) = run_folders(tmp_path)
    results = read(folder / "results.json")
    assert [row["method"] for row in results["rows"]] == ["heft"]
    assert "RuntimeError: boom" in results["failed"]["boom"]
    assert "Traceback" in (folder / "boom.traceback.txt").read_text()
