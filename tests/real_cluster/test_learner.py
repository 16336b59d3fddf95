"""A step depends on its number alone: unbroken and resumed runs, gangs and single workers, states and mistakes."""

from __future__ import annotations

import io
import math
import threading
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from torch import nn
from torch.nn import functional

from hadoppler.envs.errors import CheckpointError, MissingExtraError
from hadoppler.real_system.cluster.batches import batch_indices
from hadoppler.real_system.cluster.learner import Learner, pack, unpack
from hadoppler.real_system.cluster.training_job import Data, JobSpec, TrainingJob, TrainingJobError

HERE = f"{__name__}:"
torch.set_num_threads(1)


class Small(TrainingJob):
    """A user's job: every part may be told to go wrong.

    Args:
        wrong: what goes wrong.
        normed: with BatchNorm.
        dropped: part of the hidden values that drop out.
    """

    quality: ClassVar[str] = "error"
    higher_is_better: ClassVar[bool] = False

    def __init__(self, wrong: str = "", normed: bool = True, dropped: float = 0.2, adam: bool = True) -> None:
        self.wrong, self.normed, self.dropped, self.adam = wrong, normed, dropped, adam

    def model(self) -> nn.Module:
        if self.wrong == "model":
            raise RuntimeError("no model\nat all")
        norm = nn.BatchNorm1d(8) if self.normed else nn.Identity()
        model = nn.Sequential(nn.Linear(3, 8), norm, nn.Tanh(), nn.Dropout(self.dropped), nn.Linear(8, 1))
        if self.wrong == "mask":
            model.register_buffer("mask", torch.tensor([0.0, -torch.inf]))
        return model

    def data(self) -> Data:
        if self.wrong == "data":
            raise OSError("no data")
        generator = torch.Generator().manual_seed(7)
        inputs = torch.randn(100, 3, generator=generator)
        target = inputs.prod(1, keepdim=True) + inputs[:, :1]
        return {
            "list": [inputs],
            "short": Data((inputs, target[:50]), (inputs, target)),
            "empty": Data((inputs[:0], target[:0]), (inputs, target)),
            "arrays": Data((inputs.numpy(),), (target,)),  # type: ignore[arg-type]
        }.get(self.wrong, Data((inputs[:80], target[:80]), (inputs[80:], target[80:])))  # type: ignore[return-value]

    def step(self, model: nn.Module, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        loss = functional.mse_loss(model(batch[0]), batch[1])
        wrong: dict[str, Callable[[], Any]] = {
            "step": lambda: 1 / 0,
            "nan": lambda: loss * torch.nan,
            "item": loss.item,
            "many": lambda: loss.repeat(3),
            "detached": loss.detach,
        }
        return wrong.get(self.wrong, lambda: loss)()

    def evaluate(self, model: nn.Module, samples: tuple[torch.Tensor, ...]) -> dict[str, float]:
        if self.wrong == "evaluate":
            raise KeyError("figure")
        assert not model.training
        assert not torch.is_grad_enabled()
        error = functional.mse_loss(model(samples[0]), samples[1])
        return {"other" if self.wrong == "quality" else "error": error}  # type: ignore[dict-item]

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        if self.wrong == "optimizer":
            raise TypeError("no optimizer")
        rate = np.float64(0.01)  # as it comes out of a schedule of numpy's
        if self.adam:
            return torch.optim.Adam(model.parameters(), lr=rate)
        return torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)

    def learning_rate(self, step: float) -> float:
        return math.nan if self.wrong == "rate" else 1.0 / (1.0 + step / 40)


class Wave(nn.Module):
    """A layer with complex weights."""

    def __init__(self) -> None:
        super().__init__()
        self.wave = nn.Parameter(torch.tensor([1 + 1j, -2j, 0.5], dtype=torch.complex64))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return (inputs * self.wave).abs()


class Waves(Small):
    def model(self) -> nn.Module:
        return nn.Sequential(Wave(), nn.Linear(3, 1))


def learner(batch_size: int = 8, seed: int = 3, **options: Any) -> Learner:
    return Learner(JobSpec("one", HERE + "Small", 100, batch_size=batch_size, seed=seed, options=options))


def run(one: Learner, first: int, last: int) -> list[float]:
    whole = slice(0, one.spec.batch_size)
    return [one.step(at, 1, whole) for at in range(first, last)]


# --- which samples ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("samples", "batch"), [(100, 8), (96, 8), (5, 8), (1, 3), (7, 7)])
def test_the_stream_is_one_epoch_after_the_other(samples: int, batch: int) -> None:
    count = 3 * samples // batch + 2
    stream = np.concatenate([batch_indices(samples, batch, 0, number) for number in range(count)])
    assert stream.dtype == np.int64
    assert len(stream) == count * batch
    for begin in range(0, len(stream) - samples + 1, samples):
        assert sorted(stream[begin : begin + samples]) == list(range(samples))
    assert np.array_equal(batch_indices(samples, batch, 0, 1, count - 1), stream[batch:])


def test_epochs_and_seeds_have_their_own_order() -> None:
    orders = [tuple(batch_indices(50, 50, seed, epoch)) for seed in (0, 1) for epoch in (0, 1)]
    assert len(set(orders)) == 4
    assert orders[0] == tuple(batch_indices(50, 50, 0, 0))


# --- resuming -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("adam", [True, False])
def test_a_run_resumed_after_any_step_is_the_unbroken_run(adam: bool) -> None:
    unbroken = learner(adam=adam)
    saved, losses = [pack(unbroken.state())], []
    for at in range(12):
        losses += run(unbroken, at, at + 1)
        saved.append(pack(unbroken.state()))
    assert len(set(losses)) == 12
    resumed = learner(adam=adam)
    for killed in (11, 3, 0, 7, 1):
        torch.manual_seed(killed)
        resumed.load(unpack(saved[killed]))
        assert resumed.steps == killed
        assert run(resumed, killed, 12) == losses[killed:]
        assert pack(resumed.state()) == saved[12]


def test_plain_torch_reads_what_was_saved() -> None:
    one = learner()
    run(one, 0, 2)
    state = torch.load(io.BytesIO(pack(one.state())), weights_only=True)
    rate = state["optimizer"]["param_groups"][0]["lr"]
    assert (type(rate), rate) == (float, 0.01)
    assert state["steps"] == 2


def test_numbers_of_numpy_and_configurations_are_made_plain() -> None:
    config = OmegaConf.create({"rates": [1, 2.5], "name": "x", "none": None})
    state = {"model": {"a": np.arange(3)}, "optimizer": {"config": config, "rate": np.float64(0.5)}, "steps": 1}
    found = unpack(pack(state))  # type: ignore[arg-type]
    assert found["optimizer"] == {"config": {"rates": [1, 2.5], "name": "x", "none": None}, "rate": 0.5}
    assert found["model"]["a"].tolist() == [0, 1, 2]
    with pytest.raises(CheckpointError, match="a state holds a module"):
        pack({"model": {"a": io}, "optimizer": {}, "steps": 0})


@pytest.mark.parametrize("cut", [0, 1, 100, -1, -30])
def test_a_cut_state_is_refused(cut: int) -> None:
    packed = pack(learner().state())[:cut]
    with pytest.raises(CheckpointError, match=f"a state of {len(packed)} bytes"):
        unpack(packed)


@pytest.mark.parametrize("foreign", [b"PK\x03\x04nothing", b"text", {"weights": 1}, [1], {"model": {}, "steps": 1}])
def test_something_else_is_refused(foreign: Any) -> None:
    buffer = io.BytesIO()
    if not isinstance(foreign, bytes):
        torch.save(foreign, buffer)
    with pytest.raises(CheckpointError, match=r"a state of \d+ bytes"):
        unpack(foreign if isinstance(foreign, bytes) else buffer.getvalue())


def test_a_state_that_would_run_code_is_refused() -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return print, ("executed",)

    buffer = io.BytesIO()
    torch.save({"model": {"a": Evil()}, "optimizer": {}, "steps": 0}, buffer)
    with pytest.raises(CheckpointError, match="cannot be read"):
        unpack(buffer.getvalue())


def test_a_state_of_another_model_is_refused_and_states_are_copies() -> None:
    one, other = learner(), learner(normed=False)
    with pytest.raises(CheckpointError, match=r"job 'one' .* does not fit its model"):
        other.load(one.state())
    before = one.state()
    packed = pack(before)
    run(one, 0, 3)
    assert pack(before) == packed
    one.load(before)
    run(one, 0, 3)
    assert pack(before) == packed


def test_seeds_make_weights_and_order_and_nothing_else_does() -> None:
    torch.manual_seed(1)
    one = learner()
    torch.manual_seed(2)
    assert pack(learner().state()) == pack(one.state())
    assert pack(learner(seed=4).state()) != pack(one.state())


def test_the_learning_rate_follows_the_position_and_states_carry_the_base() -> None:
    one, two = (learner(adam=False, dropped=0.0) for _ in range(2))
    before = [p.detach().clone() for p in one.model.parameters()]
    one.step(0, 1, slice(0, 8))
    two.step(0, 1, slice(0, 8), rate_at=10.0)
    for start, whole, part in zip(before, one.model.parameters(), two.model.parameters(), strict=True):
        torch.testing.assert_close(part - start, (whole - start) * 0.8, rtol=1e-3, atol=1e-7)
    assert two.optimizer.param_groups[0]["lr"] == 0.01


# --- gangs --------------------------------------------------------------------------------------------


class Meeting:
    """Ranks as threads; each adds its buffer."""

    def __init__(self, ranks: int) -> None:
        self._parts: list[Any] = [None] * ranks
        self._barrier = threading.Barrier(ranks)

    def of(self, rank: int) -> Callable[[torch.Tensor], None]:
        def add_up(flat: torch.Tensor) -> None:
            self._parts[rank] = flat.clone()
            self._barrier.wait(20)
            total = sum(self._parts[1:], self._parts[0])
            self._barrier.wait(20)
            flat.copy_(total)

        return add_up


def in_threads(count: int, work: Callable[[int], None]) -> None:
    failed: list[BaseException] = []

    def guarded(rank: int) -> None:
        try:
            work(rank)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=guarded, args=(rank,)) for rank in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]


@pytest.mark.parametrize("shares", [(11, 10, 7, 4), (16, 16, 0, 0), (1, 1, 1, 29)])
def test_a_gang_takes_the_steps_of_one_worker(shares: tuple[int, ...]) -> None:
    options = {"normed": False, "dropped": 0.0}
    alone, gang, meeting = learner(**options), [learner(**options) for _ in shares], Meeting(4)
    ends = np.cumsum(shares)
    expected = [alone.step(at, 4, slice(0, 32)) for at in range(0, 40, 4)]
    losses: list[list[float]] = [[] for _ in shares]

    def work(rank: int) -> None:
        part = slice(int(ends[rank] - shares[rank]), int(ends[rank]))
        losses[rank] += [gang[rank].step(at, 4, part, meeting.of(rank)) for at in range(0, 40, 4)]

    in_threads(4, work)
    for rank in range(4):
        assert losses[rank] == pytest.approx(expected, rel=1e-5)
        assert gang[rank].steps == alone.steps == 40
        assert pack(gang[rank].state()) == pack(gang[0].state())
        for ours, theirs in zip(gang[rank].model.parameters(), alone.model.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_a_parameter_without_gradient_on_all_ranks_is_not_moved() -> None:
    gang, meeting = [learner() for _ in range(2)], Meeting(2)
    for one in gang:
        one.model[4].bias.requires_grad_(False)

    def work(rank: int) -> None:
        gang[rank].step(0, 2, slice(8 * rank, 8 * rank + 8), meeting.of(rank))

    in_threads(2, work)
    assert gang[0].model[4].bias.grad is None
    assert 5 not in gang[0].state()["optimizer"]["state"]


def test_a_loss_that_is_none_on_one_rank_ends_the_step_on_all() -> None:
    gang, meeting = [learner(), learner(wrong="nan")], Meeting(2)
    found = []

    def work(rank: int) -> None:
        before = pack({**gang[rank].state(), "model": dict(gang[rank].model.named_parameters())})
        with pytest.raises(TrainingJobError, match="the loss is nan"):
            gang[rank].step(0, 2, slice(8 * rank, 8 * rank + 8), meeting.of(rank))
        after = pack({**gang[rank].state(), "model": dict(gang[rank].model.named_parameters())})
        found.append(before == after)

    in_threads(2, work)
    assert found == [True, True]


def test_buffers_become_their_weighted_mean_and_counters_the_largest() -> None:
    gang, meeting = [learner() for _ in range(3)], Meeting(3)
    for rank, one in enumerate(gang):
        one.model[1].running_mean.fill_(float(rank))
        one.model[1].running_var.fill_(2.0**rank)
        one.model[1].num_batches_tracked.fill_((5, 1_000_000, 999_999)[rank])
        one.model.register_buffer("signed", torch.tensor([-3 - rank, rank, 0, (-1) ** rank * 7]))
        one.model.register_buffer("flags", torch.tensor([rank == 1, False]))

    in_threads(3, lambda rank: gang[rank].merge_buffers(meeting.of(rank), (0.5, 0.25, 0.25)[rank]))
    for one in gang:
        assert one.model[1].running_mean.tolist() == [0.75] * 8
        assert one.model[1].running_var.tolist() == [0.5 + 0.5 + 1.0] * 8
        assert one.model[1].num_batches_tracked.item() == 1_000_000
        assert one.model.signed.tolist() == [-3, 2, 0, 7]
        assert one.model.flags.tolist() == [True, False]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (torch.tensor([[1 + 2j, 3j], [-4.0, 0]], dtype=torch.complex64), "mean"),
        (torch.tensor([1 - 2j], dtype=torch.complex128).conj(), "mean"),
        (torch.tensor([0.5, -8.0], dtype=torch.float16), "mean"),
        (torch.tensor([0.5, -8.0], dtype=torch.bfloat16), "mean"),
        (torch.tensor([1e300, -8.0], dtype=torch.float64), "mean"),
        (torch.zeros(0), "mean"),
        (torch.tensor([0, 200], dtype=torch.uint8), "largest"),
        (torch.tensor([-128, 60], dtype=torch.int8), "largest"),
        (torch.tensor([-(2**63), 2**62, -1, 2**53 + 1]), "largest"),
        (torch.tensor([True, False]), "largest"),
        (torch.zeros(0, dtype=torch.int64), "largest"),
    ],
)
def test_buffers_of_every_kind_keep_their_numbers(values: torch.Tensor, expected: str) -> None:
    """Rank 0 has the values, rank 1 half of them; alone among the buffers, and beside those of BatchNorm."""
    halves = values / 2 if expected == "mean" else values & 1 if values.dtype == torch.bool else values // 2
    for normed in (True, False):
        gang, meeting = [learner(normed=normed) for _ in range(2)], Meeting(2)
        for one, own in zip(gang, (values, halves.to(values.dtype)), strict=True):
            one.model.register_buffer("kept", own.clone())
        in_threads(2, lambda rank: gang[rank].merge_buffers(meeting.of(rank), (0.75, 0.25)[rank]))  # noqa: B023
        for one in gang:
            assert one.model.kept.dtype == values.dtype
            right = values * 0.875 if expected == "mean" else torch.maximum(values, halves.to(values.dtype))
            assert torch.equal(one.model.kept, right)


def test_a_gang_sums_gradients_of_complex_numbers() -> None:
    spec = JobSpec("one", HERE + "Waves", 100, batch_size=8, options={"dropped": 0.0})
    alone, gang, meeting = Learner(spec), [Learner(spec) for _ in range(2)], Meeting(2)
    expected = alone.step(0, 2, slice(0, 16))
    losses = {}

    def work(rank: int) -> None:
        losses[rank] = gang[rank].step(0, 2, slice(8 * rank, 8 * rank + 8), meeting.of(rank))

    in_threads(2, work)
    for rank, one in enumerate(gang):
        assert losses[rank] == pytest.approx(expected, rel=1e-5)
        for ours, theirs in zip(one.model.parameters(), alone.model.parameters(), strict=True):
            torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-5)
    assert alone.model[0].wave.grad.imag.abs().max() > 0


# --- quality, and mistakes ----------------------------------------------------------------------------


def test_evaluation_leaves_every_part_of_the_model_in_its_mode() -> None:
    one = learner()
    one.model[1].eval()
    run(one, 0, 5)
    packed, modes = pack(one.state()), [module.training for module in one.model.modules()]
    assert one.evaluate() == one.evaluate()
    assert [module.training for module in one.model.modules()] == modes
    assert modes.count(False) == 1
    assert pack(one.state()) == packed


def test_a_small_job_learns() -> None:
    one = learner(dropped=0.0)
    before = one.evaluate()["error"]
    run(one, 0, 300)
    assert one.evaluate()["error"] < 0.6 * before


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ("model", r"its model failed \(RuntimeError: no model\)\.$"),
        ("data", r"its data failed \(OSError: no data\)"),
        ("optimizer", r"its optimizer failed \(TypeError: no optimizer\)"),
        ("mask", "'mask' is not finite; register a constant such as a mask with persistent=False"),
        ("list", "data returned a list; expected Data"),
        ("short", "train has tensors of 100, 50 samples"),
        ("empty", "train has tensors of 0, 0 samples"),
        ("arrays", "train is no tuple of tensors"),
    ],
)
def test_a_job_that_cannot_be_made(wrong: str, sentence: str) -> None:
    with pytest.raises(TrainingJobError, match=sentence) as caught:
        learner(wrong=wrong)
    assert str(caught.value).startswith(f"job 'one' (task {HERE}Small): ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ("step", r"its step at batch 5 failed \(ZeroDivisionError"),
        ("nan", "the loss is nan at batch 5"),
        ("item", "step returned a float"),
        ("many", r"step returned \[3\] numbers"),
        ("rate", "learning_rate returned nan at step 5"),
        ("detached", "does not depend on the model's parameters"),
    ],
)
def test_a_step_that_fails(wrong: str, sentence: str) -> None:
    one = learner(wrong=wrong)
    before = pack({**one.state(), "model": dict(one.model.named_parameters())})
    with pytest.raises(TrainingJobError, match=sentence) as caught:
        one.step(5, 1, slice(0, 8))
    assert str(caught.value).startswith("job 'one' (task ")
    assert pack({**one.state(), "model": dict(one.model.named_parameters())}) == before


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [("evaluate", r"evaluate failed \(KeyError"), ("quality", "evaluate returned other; expected 'error'")],
)
def test_an_evaluation_that_fails(wrong: str, sentence: str) -> None:
    one = learner(wrong=wrong)
    with pytest.raises(TrainingJobError, match=sentence):
        one.evaluate()
    assert one.model.training


def test_torch_is_an_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    with pytest.raises(MissingExtraError, match=r"install hadoppler\[cluster\]"):
        learner()
