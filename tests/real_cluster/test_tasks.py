"""The training jobs of the package: data, that they learn, what they cost; jobs by name, and a user's folders."""

from __future__ import annotations

import hashlib
import math
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hadoppler.envs.cluster.facts import ModelFacts
from hadoppler.envs.errors import GraphError, MissingExtraError, UnknownNameError
from hadoppler.real_system.cluster.learner import Learner, pack
from hadoppler.real_system.cluster.task_facts import task_facts
from hadoppler.real_system.cluster.tasks import grammar, language, scikit_data
from hadoppler.real_system.cluster.tasks.folders import TEST_FILE, TRAIN_FILES, Cifar10, Text
from hadoppler.real_system.cluster.training_job import (
    TASKS,
    Data,
    JobSpec,
    TrainingJob,
    TrainingJobError,
    make_training_job,
)

SHIPPED = ("digits", "language", "translation", "recommendation", "diabetes")
torch.set_num_threads(1)


def trained(task: str, steps: int, seed: int = 0, **options: Any) -> Learner:
    one = Learner(JobSpec("j", task, steps, seed=seed, options=options))
    for at in range(steps):
        one.step(at, 1, slice(0, 32))
    return one


# --- jobs by name -------------------------------------------------------------------------------------


class Mine(TrainingJob):
    """A user's own job."""

    quality = "error"
    higher_is_better = False
    batch_size = 4

    def __init__(self, width: int = 2) -> None:
        self.width = width

    def model(self) -> torch.nn.Module:
        return torch.nn.Linear(self.width, 1)

    def data(self) -> Data:
        inputs = torch.arange(12.0 * self.width).reshape(12, self.width) / 12
        return Data((inputs[:8], inputs[:8, :1]), (inputs[8:], inputs[8:, :1]))

    def step(self, model: torch.nn.Module, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        return (model(batch[0]) - batch[1]).square().mean()

    def evaluate(self, model: torch.nn.Module, samples: tuple[torch.Tensor, ...]) -> dict[str, float]:
        return {"error": self.step(model, samples).item()}


def no_job() -> list[int]:
    """Not a training job."""
    return [1]


MINE = f"{__name__}:Mine"


def test_a_users_own_job_trains() -> None:
    job = make_training_job(MINE, {"width": 3})
    assert (job.batch_size, job.learning_rate(17)) == (4, 1.0)
    one = Learner(JobSpec("own", MINE, 10, batch_size=4, options={"width": 3}))
    first = one.evaluate()["error"]
    for at in range(50):
        one.step(at, 1, slice(0, 4))
    assert one.evaluate()["error"] < first
    assert isinstance(one.optimizer, torch.optim.Adam)


def test_all_names_lead_to_jobs() -> None:
    for name in SHIPPED:
        assert make_training_job(name).batch_size == 32
    assert set(TASKS) == {*SHIPPED, "cifar10", "text"}


@pytest.mark.parametrize(
    ("task", "options", "error", "sentence"),
    [
        ("digit", {}, UnknownNameError, r"did you mean digits\?.*package\.module:Class"),
        ("digits", {"colour": 1}, TrainingJobError, "task digits: it cannot be made with the options .*colour"),
        (f"{__name__}:Nobody", {}, GraphError, "has no 'Nobody'"),
        ("no_such_module:Job", {}, GraphError, "there is no module 'no_such_module'"),
        (f"{__name__}:no_job", {}, TrainingJobError, "it makes a list, expected a TrainingJob; derive from it"),
        ("hadoppler.real_system.cluster.training_job:TrainingJob", {}, TrainingJobError, "abstract"),
        ("text", {"path": "nowhere"}, TrainingJobError, r"nowhere: there is no such folder; expected one with text"),
        ("cifar10", {"path": "nowhere"}, TrainingJobError, "nowhere: CIFAR-10 is not there; expected the folder"),
        ("cifar10", {}, TrainingJobError, "path"),
    ],
)
def test_jobs_that_cannot_be_made(task: str, options: dict[str, Any], error: type[Exception], sentence: str) -> None:
    with pytest.raises(error, match=sentence):
        make_training_job(task, options)


# --- the five -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", SHIPPED)
def test_data_are_the_same_each_time_and_nothing_is_held_out_twice(task: str) -> None:
    data = make_training_job(task).data()
    for part in data:
        assert len({len(tensor) for tensor in part}) == 1
        assert all(tensor.isfinite().all() for tensor in part if tensor.is_floating_point())
    assert make_training_job(task).data() is data, "cached in a process"
    if task != "language":  # a text may repeat itself
        train = {tuple(row.flatten().tolist()) for row in data.train[0]}
        assert not any(tuple(row.flatten().tolist()) in train for row in data.held_out[0])


LEARNS = {
    "digits": (150, "accuracy", 0.6),
    "language": (150, "bits_per_byte", 4.2),
    "translation": (300, "loss", 3.2),
    "recommendation": (300, "rmse", 0.7),
    "diabetes": (300, "squared_error", 0.7),
}
"""Task -> steps, a figure, and what it is after them at the worst."""


@pytest.mark.parametrize("task", SHIPPED)
def test_tasks_learn_and_repeat_themselves(task: str) -> None:
    steps, name, bar = LEARNS[task]
    new, later, sign = trained(task, 0), trained(task, steps), 1 if name == "accuracy" else -1
    assert sign * new.evaluate()[name] < sign * bar < sign * later.evaluate()[name]
    assert pack(trained(task, 3).state()) == pack(trained(task, 3).state())
    assert pack(trained(task, 3).state()) != pack(trained(task, 3, seed=1).state())


DIGEST = """
import hashlib, torch
from hadoppler.real_system.cluster.learner import Learner, pack
from hadoppler.real_system.cluster.training_job import JobSpec
torch.set_num_threads(1)
for task in {tasks}:
    one = Learner(JobSpec("j", task, 2))
    for at in range(2):
        one.step(at, 1, slice(0, 32))
    print(hashlib.sha256(pack(one.state())).hexdigest())
"""


def test_other_processes_train_the_same_bits() -> None:
    environment = {**os.environ, "PYTHONHASHSEED": "7"}
    command = [sys.executable, "-c", DIGEST.format(tasks=SHIPPED)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [hashlib.sha256(pack(trained(task, 2).state())).hexdigest() for task in SHIPPED]


def test_a_python_without_its_sources_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(language.sysconfig, "get_path", lambda name: str(tmp_path))
    language.sources.cache_clear()
    with pytest.raises(TrainingJobError, match=r"argparse\.py: Python's own sources cannot be read"):
        language.sources()


def test_a_language_model_that_knows_nothing_needs_eight_bits() -> None:
    one = trained("language", 0)
    with torch.no_grad():
        one.model.output.weight.zero_()
        one.model.output.bias.zero_()
    assert one.evaluate()["bits_per_byte"] == pytest.approx(8.0, abs=1e-4)


def test_what_is_asked_of_a_user_is_not_given() -> None:
    given, asked = make_training_job("recommendation").data().held_out
    assert not ((given != 0) & (asked != 0)).any(), "nothing that is asked is given"
    assert 0.24 < (given != 0).double().mean() < 0.26
    one = trained("recommendation", 0)
    with torch.no_grad():
        for parameter in one.model.parameters():
            parameter.zero_()
    assert one.evaluate()["rmse"] == pytest.approx(asked[asked != 0].square().mean().sqrt().item(), rel=1e-5)


def test_the_grammar_of_the_translation_by_hand() -> None:
    class Scripted:
        def __init__(self, *numbers: int) -> None:
            self.numbers = list(numbers)

        def integers(self, bound: int) -> int:
            number = self.numbers.pop(0)
            assert 0 <= number < bound
            return number

    # verb 3, adverb 2; determiner 1, noun 5 in the plural with adjective 4; determiner 0, noun 6, singular, without
    source, target = grammar.sentence_pair(Scripted(3, 2, 1, 5, 1, 4, 0, 6, 0, 40 + 4))  # type: ignore[arg-type]
    determiner, adjective, noun, verb, adverb = 3, 5, 45, 205, 245
    assert source == [determiner + 1, adjective + 4, noun + 11, verb + 3, determiner, noun + 12, adverb + 2]
    determiner, adjective, noun, verb, adverb, particle = 3, 11, 171, 331, 411, 419
    assert target == [
        adverb + 2,
        noun + 11, adjective + 4 * 4 + 3, determiner + 4 * 1 + 3,
        noun + 12, determiner + 0,
        particle, verb + 2 * 3 + 1,
    ]  # fmt: skip
    assert (grammar.SOURCE_WORDS, grammar.TARGET_WORDS) == (253, 420)


def test_greedy_decoding_finds_what_a_perfect_model_says() -> None:
    from hadoppler.real_system.cluster.tasks.translation import greedy

    source, target = make_training_job("translation").data().held_out

    class Perfect:
        def encode(self, source: torch.Tensor) -> torch.Tensor:
            return source

        def decode(self, memory: torch.Tensor, source: torch.Tensor, so_far: torch.Tensor) -> torch.Tensor:
            following = target[:, 1 : so_far.shape[1] + 1]
            scores = torch.nn.functional.one_hot(following, grammar.TARGET_WORDS).float()
            scores[following == grammar.PAD] = torch.rand(grammar.TARGET_WORDS)  # whatever comes after the end
            return scores

    assert torch.equal(greedy(Perfect(), source), target)  # type: ignore[arg-type]


def test_scikit_learn_is_an_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "sklearn.datasets", None)
    scikit_data.load.cache_clear()
    with pytest.raises(MissingExtraError, match=r"The wine data need scikit-learn; install hadoppler\[cluster\]"):
        scikit_data.load("wine")


# --- a user's folders ---------------------------------------------------------------------------------


def write_cifar(folder: Path, pictures: int = 6, protocol: int = 2) -> Path:
    folder.mkdir()
    rng = np.random.default_rng(0)
    for number, name in enumerate((*TRAIN_FILES, TEST_FILE)):
        record = {
            b"data": rng.integers(0, 256, (pictures, 3072), dtype=np.uint8),
            b"labels": [(number + k) % 10 for k in range(pictures)],
        }
        (folder / name).write_bytes(pickle.dumps(record, protocol=protocol))
    return folder


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_cifar_is_read_from_its_folder(tmp_path: Path, protocol: int) -> None:
    write_cifar(tmp_path / "cifar-10-batches-py", protocol=protocol)
    one = trained("cifar10", 2, path=str(tmp_path), channels=4)
    (images, labels), held_out = one.data
    assert (images.shape, images.dtype) == ((30, 3, 32, 32), torch.uint8)
    assert labels.tolist()[:8] == [0, 1, 2, 3, 4, 5, 1, 2]
    assert held_out[0].shape == (6, 3, 32, 32)
    assert 0 <= one.evaluate()["accuracy"] <= 1


def test_pickles_that_would_run_code_are_refused(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return eval, ("1 + 1",)

    folder = write_cifar(tmp_path / "evil")
    (folder / TRAIN_FILES[2]).write_bytes(pickle.dumps({b"data": Evil(), b"labels": []}))
    with pytest.raises(TrainingJobError, match=r"data_batch_3: is no file of CIFAR-10.*builtins\.eval"):
        Cifar10(str(folder)).data()


@pytest.mark.parametrize("content", [b"", b"junk", pickle.dumps([1]), pickle.dumps({b"data": [1], b"labels": [1]})])
def test_damaged_cifar_files_are_named(tmp_path: Path, content: bytes) -> None:
    folder = write_cifar(tmp_path / "damaged")
    (folder / TEST_FILE).write_bytes(content)
    with pytest.raises(TrainingJobError, match=r"test_batch: is no file of CIFAR-10's python version"):
        Cifar10(str(folder)).data()


def test_texts_of_a_folder_are_learned(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "a.txt").write_bytes(b"a" * 900 + b"X" * 100)
    (tmp_path / "below" / "b.txt").write_bytes(b"b" * 90 + b"Y" * 10)
    (tmp_path / "c.md").write_text("not read" * 100)
    one = Learner(JobSpec("t", "text", 1, options={"path": str(tmp_path), "hidden": 16}))
    train, held_out = (b"".join(bytes(row[:-1].tolist()) for row in part[0]) for part in one.data)
    assert train == (b"a" * 900 + b"\n" + b"b" * 90)[: len(train)]
    assert held_out == (b"X" * 100 + b"\n" + b"Y" * 10)[: len(held_out)]
    assert one.data.train[0].shape == (990 // 24, 25)
    one.step(0, 1, slice(0, 32))
    assert math.isfinite(one.evaluate()["bits_per_byte"])


def test_a_folder_without_texts_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("short")
    with pytest.raises(TrainingJobError, match=r"1 files \*\.txt with 5 bytes; expected text files with more than 240"):
        Text(str(tmp_path)).data()


# --- what they cost -----------------------------------------------------------------------------------


def test_facts_of_a_linear_layer_by_hand() -> None:
    facts = task_facts(JobSpec("any", MINE, 1, batch_size=4, options={"width": 5}))
    assert facts.flops == 2 * 5
    assert facts.parameter_bytes == 4 * 6
    assert facts.input_bytes == 4 * (5 + 1)
    # kept: the inputs [4, 5] and the difference [4, 1]
    assert facts.bytes_moved == 3 * (4 * (4 * 5 + 4) + 4 * 6) / 4
    assert facts.batch_size == 4


def test_facts_of_the_tasks() -> None:
    found = {task: task_facts(JobSpec("any", task, 1)) for task in SHIPPED}
    for task, facts in found.items():
        assert isinstance(facts, ModelFacts)
        one = Learner(JobSpec("any", task, 1))
        assert facts.parameter_bytes == sum(4 * parameter.numel() for parameter in one.model.parameters())
        assert facts.bytes_moved > facts.parameter_bytes / 32
        assert facts is task_facts(JobSpec("other", task, 99, seed=5)), "counted once"
    # digits: two convolutions on 8 x 8 pixels and a linear layer
    assert found["digits"].flops == 2 * (64 * 16 * 9 + 64 * 32 * 16 * 9 + 512 * 10)
    # language: 24 steps of an LSTM of 64 with inputs of 32, and the output layer
    assert found["language"].flops == 2 * 24 * (4 * 64 * (32 + 64) + 64 * 256)
    assert found["diabetes"].flops == 2 * (10 * 64 + 64 * 64 + 64)
    assert found["recommendation"].flops == 2 * 2 * 256 * 48
