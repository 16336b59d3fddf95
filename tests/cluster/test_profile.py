"""``hadoppler profile``: measures real training steps on this processor, and extends a file of throughputs."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from hadoppler.envs.cluster import ThroughputTable  # noqa: E402
from hadoppler.envs.errors import GraphError, ThroughputError  # noqa: E402
from hadoppler.real_system.cluster import (  # noqa: E402
    Measurement,
    ProfileError,
    Timing,
    extend,
    find_devices,
    measure,
    profile as profiling,
)
from hadoppler.real_system.cluster.profile import gpu_type_of  # noqa: E402
from hadoppler.real_system.cluster.training_step import TrainingStep  # noqa: E402
from hadoppler.scripts import cli, profile_model as command  # noqa: E402

OWN = """
import time
import torch
from torch import nn

made = []

def tiny(batch_size):
    made.append(nn.Linear(4, 2))
    labels = torch.zeros(batch_size, dtype=torch.long)
    return made[-1], (torch.ones(batch_size, 4),), lambda out: nn.functional.cross_entropy(out, labels)

class Sleeps(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, x):
        time.sleep(0.02)
        return {"loss": self.weight * x["x"].sum()}

def slow(batch_size):
    return Sleeps(), [{"x": torch.ones(batch_size)}]

def named(batch_size):
    return Sleeps(), (), {"x": {"x": torch.ones(batch_size)}}

def named_with_loss(batch_size):
    return nn.Linear(4, 2), (), {"input": torch.ones(batch_size, 4)}, lambda out: out.square().sum()

def five(batch_size):
    return nn.Linear(4, 2), (), {"input": torch.ones(batch_size, 4)}, lambda out: out.square().sum(), 5

def unnamed(batch_size):
    return nn.Linear(4, 2), (), {0: torch.ones(batch_size, 4)}

def frozen(batch_size):
    return nn.Linear(4, 2).requires_grad_(False), (torch.ones(batch_size, 4),)

class Detached(nn.Linear):
    def forward(self, x):
        return super().forward(x).detach()

def detached(batch_size):
    return Detached(4, 2), (torch.ones(batch_size, 4),)

def many(batch_size):
    return nn.Linear(4, 2), (torch.ones(batch_size, 4),), lambda out: out

def wrong_shape(batch_size):
    return nn.Linear(4, 2), (torch.ones(batch_size, 5),)

def alone(batch_size):
    return nn.Linear(4, 2)

def no_module(batch_size):
    return "model", ()

def no_argument():
    return nn.Linear(4, 2), ()

number = 3
"""
QUICK = Timing(warm_up=1, repeats=2, seconds=0.01)
SHORT = ["seconds=0.01", "repeats=2", "warm_up=1", "devices=[cpu]"]


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Run in a folder with models of one's own, on one thread."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    (tmp_path / "steps_to_measure.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def results() -> dict[str, Any]:
    """Of the run in the current folder."""
    (path,) = Path().glob("runs/profile/*/results.json")
    return json.loads(path.read_text())


# --- measuring ----------------------------------------------------------------------------------------


def test_a_step_that_takes_twenty_milliseconds() -> None:
    found = measure("steps_to_measure:slow", 3, ["cpu"], timing=Timing(1, 3, 0.1))
    assert 10 < found.steps_per_s < 50  # at most one in 20 ms
    assert found.variation >= 0
    assert 1 <= found.steps <= 6


@pytest.mark.parametrize("name", ["named", "named_with_loss"])
def test_arguments_may_have_names(name: str) -> None:
    assert measure(f"steps_to_measure:{name}", 3, ["cpu"], timing=QUICK).steps_per_s > 0


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_step_trains(optimizer: str) -> None:
    step = TrainingStep("steps_to_measure:tiny", 8, torch.device("cpu"), optimizer)
    import steps_to_measure  # type: ignore[import-not-found]

    weight = steps_to_measure.made[-1].weight
    before = weight.detach().clone()
    step()
    assert not torch.equal(weight, before)
    assert steps_to_measure.made[-1].training


def test_the_median_of_the_repeats_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    took = iter([0.5, 1.0, 4.0, 2.0])  # one step to find how many fill a repeat, then three repeats of two
    monkeypatch.setattr(profiling, "_seconds", lambda *_: next(took))
    found = measure("steps_to_measure:tiny", 8, ["cpu"], timing=Timing(1, 3, 1.0))
    assert found == Measurement(steps_per_s=1.0, variation=1.5, steps=2)


def test_two_workers_train_together() -> None:
    begin = time.perf_counter()
    found = measure("steps_to_measure:slow", 2, ["cpu", "cpu"], timing=Timing(1, 2, 0.05))
    assert 10 < found.steps_per_s < 100  # two, each at most one in 20 ms
    assert time.perf_counter() - begin < 60


def test_gpu_memory_that_does_not_suffice_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: TrainingStep) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(TrainingStep, "__call__", full)
    assert measure("steps_to_measure:tiny", 8, ["cpu"], timing=QUICK) == Measurement(0.0)


def test_devices_and_their_names(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_devices(["cpu"]) == {"cpu": ["cpu"]}
    names = ["Tesla V100-SXM2-16GB", "NVIDIA L40S", "Tesla V100-SXM2-16GB"]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: names[int(device[-1])])
    assert find_devices() == {"cpu": ["cpu"], "v100": ["cuda:0", "cuda:2"], "l40s": ["cuda:1"]}
    assert find_devices(["cuda:1"]) == {"l40s": ["cuda:1"]}
    assert find_devices(["cuda", "cuda:0"]) == {"v100": ["cuda:0", "cuda:2"], "l40s": ["cuda:1"]}
    with pytest.raises(ProfileError, match=r"no device 'cuda:7' here; found are cpu, cuda:0, cuda:1, cuda:2\."):
        find_devices(["cuda:7"])
    assert gpu_type_of("NVIDIA GeForce RTX 3090") == "rtx3090"
    assert gpu_type_of("NVIDIA A100-SXM4-40GB") == "a100"
    assert gpu_type_of("Quadro M6000 24GB") == "quadro-m6000-24gb"


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("steps_to_measure:frozen", ProfileError, "has no parameters to train"),
        ("steps_to_measure:detached", ProfileError, "the loss does not depend on the module's parameters"),
        ("steps_to_measure:many", ProfileError, r"the loss is \[8, 2\] numbers, expected one number"),
        ("steps_to_measure:wrong_shape", ProfileError, "a first training step on cpu failed .RuntimeError"),
        ("steps_to_measure:alone", ProfileError, "it returned Linear; expected .module, args."),
        ("steps_to_measure:five", ProfileError, "it returned Linear, tuple, dict, function, int; expected"),
        ("steps_to_measure:unnamed", ProfileError, "it returned Linear, tuple, dict; expected"),
        ("steps_to_measure:no_module", ProfileError, "it returned str, tuple; expected"),
        ("steps_to_measure:no_argument", ProfileError, "it must take one argument, the batch size"),
        ("steps_to_measure:number", GraphError, "'number' is a int"),
        ("steps_to_measure:tinny", GraphError, "did you mean 'tiny'"),
        ("no_such_file:tiny", GraphError, "there is no module 'no_such_file'"),
        ("tiny", GraphError, "not of the form"),
    ],
)
def test_what_is_no_training_step(name: str, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        measure(name, 8, ["cpu"], timing=QUICK)


def test_refused_settings() -> None:
    with pytest.raises(ProfileError, match="optimizer is 'lion'; expected one of sgd, adam"):
        measure("steps_to_measure:tiny", 8, ["cpu"], optimizer="lion")
    for wrong in ({"warm_up": 0}, {"repeats": 0}, {"seconds": float("nan")}):
        with pytest.raises(ProfileError, match="expected whole numbers from 1 up"):
            Timing(**wrong)  # type: ignore[arg-type]


# --- the file -----------------------------------------------------------------------------------------


def test_a_file_is_extended_and_keeps_what_was_in_it(tmp_path: Path) -> None:
    path = tmp_path / "rates.json"
    pairs = {"('LM', 1)": {"null": 2.0, "('LM', 1)": [0.5, 0.5]}}
    path.write_text(json.dumps({"v100": pairs, "v100_unconsolidated": {}}))
    assert extend(path, [("LM", 1, "v100", 3.0), ("mine (batch size 8)", 2, "cpu", 0.0)]) == (1, 1)
    content = json.loads(path.read_text())
    assert content["v100"] == {"('LM', 1)": {"null": 3.0, "('LM', 1)": [0.5, 0.5]}}
    assert content["v100_unconsolidated"] == {}
    table = ThroughputTable.read(path)
    assert table.job_rates("LM", 1)[0].tolist() == [3.0, 0.0]
    assert table.job_rates("mine (batch size 8)", 2)[0].tolist() == [0.0, 0.0]
    assert [file.name for file in tmp_path.iterdir() if file.name.startswith((".", "rates"))] == ["rates.json"]


@pytest.mark.parametrize(
    ("name", "content", "kind", "message"),
    [
        ("rates.csv", None, ProfileError, "ends in .json"),
        ("none/rates.json", None, ProfileError, "its folder does not exist"),
        ("rates.json", "model,workers\n", ProfileError, "is not a JSON file of throughputs"),
        ("rates.json", "{", ThroughputError, "is not JSON"),
        ("rates.json", '{"v100": 3}', ThroughputError, "cannot read it as Gavel's throughputs"),
    ],
)
def test_a_file_that_is_none_stays_as_it_is(
    name: str, content: str | None, kind: type[Exception], message: str
) -> None:
    if content is not None:
        Path(name).write_text(content)
    with pytest.raises(kind, match=message):
        extend(name, [("m", 1, "cpu", 1.0)])
    assert (Path(name).read_text() if content is not None else Path(name).exists()) == (content or False)


# --- the command --------------------------------------------------------------------------------------


def test_the_command_measures_prints_and_writes(capsys: pytest.CaptureFixture[str]) -> None:
    many = 10_000
    assert cli.main(["profile", "model=steps_to_measure:tiny", "batch_sizes=[4,8]", f"workers=[1,{many}]", *SHORT]) == 0
    found = results()
    assert [(row["model"], row["batch_size"], row["workers"], row["gpu_type"]) for row in found["rows"]] == [
        ("tiny", 4, 1, "cpu"), ("tiny", 8, 1, "cpu")
    ]  # fmt: skip
    assert found["rows"][1]["samples_per_s"] == 8 * found["rows"][1]["steps_per_s"]
    assert set(found["failed"]) == {f"cpu, batch size {size}, workers {many}" for size in (4, 8)}
    text = capsys.readouterr().out
    assert f"workers {many}: not measured. {many} workers need as many processor cores" in text
    assert "throughputs.json: 2 added, 0 replaced." in text
    assert "│ tiny  │          8 │       1 │ cpu " in text
    table = ThroughputTable.read("throughputs.json")
    assert table.types == ("cpu",)
    assert table.job_rates("tiny (batch size 8)", 1)[0].tolist() == [found["rows"][1]["steps_per_s"]]
    assert {path.name for path in Path().glob("runs/profile/*/*")} >= {"run.json", "results.json"}


@pytest.mark.parametrize(("rates", "warned"), [((1.0, 3.8), True), ((1.0, 1.1), False)])
def test_repeats_that_differ_much_are_told(
    rates: tuple[float, float], warned: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    low, high = rates
    monkeypatch.setattr(profiling, "_timed", lambda *_: Measurement(low, (high - low) / low, 1))
    assert command.main(["model=steps_to_measure:tiny", "batch_sizes=4", *SHORT]) == 0
    told = "The repeats of tiny (batch size 4) on cpu differ by more than 30% of their median"
    assert warned == (told in capsys.readouterr().out)


def test_names_of_ones_own_extend_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    Path("rates.json").write_text(json.dumps({"v100": {"('LM', 1)": {"null": 2.0}}}))
    own = ["name=my model", "gpu_type=toaster", "output=rates.json", "batch_sizes=[2]"]
    assert command.main(["model=steps_to_measure:tiny", *own, *SHORT]) == 0
    table = ThroughputTable.read("rates.json")
    assert table.types == ("v100", "toaster")
    assert table.knows("my model (batch size 2)")
    assert table.job_rates("LM", 1)[0].tolist() == [2.0, 0.0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "model is missing"),
        (["model=steps_to_measure:tinny"], "did you mean 'tiny'"),
        (["model=steps_to_measure:frozen"], "no parameters to train"),
        (["model=steps_to_measure:tiny", "devices=[tpu]"], "there is no device 'tpu' here; found are cpu"),
        (["model=steps_to_measure:tiny", "batch_sizes=[0]"], "batch_sizes is [0]; expected whole numbers from 1 up"),
        (["model=steps_to_measure:tiny", "workers=[]"], "workers is []"),
        (["model=steps_to_measure:tiny", "workers=[10000]"], "nothing could be measured: 10000 workers need"),
        (["model=steps_to_measure:tiny", "optimizer=lion"], "expected one of sgd, adam"),
        (["model=steps_to_measure:tiny", "output=rates.csv"], "ends in .json"),
        (["model=steps_to_measure:tiny", "seconds=0"], "seconds above 0"),
        (["model=steps_to_measure:tiny", "batchsizes=[2]"], "did you mean batch_sizes"),
    ],
)
def test_mistakes_are_one_sentence(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main([*SHORT, *arguments]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1, lines
    assert lines[0].startswith("hadoppler profile: ")
    assert message in lines[0]
    assert not Path("throughputs.json").exists()


def test_the_function_of_the_documentation_is_measured() -> None:
    text = (Path(__file__).resolve().parents[2] / "docs" / "cluster.md").read_text()
    program = next(part for part in text.split("```python\n") if "def training" in part).split("```")[0]
    Path("my_module.py").write_text(program)
    assert measure("my_module:training", 4, ["cpu"], timing=QUICK).steps_per_s > 0
