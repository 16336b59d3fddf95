"""One state of several copies: hand-computed values, counters, optimisers, and what must be refused."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from hadoppler.real_system.cluster.averaging import AveragingError, average, is_finite
from hadoppler.real_system.cluster.learner import State, pack

CASE = json.loads((Path(__file__).parent / "cases" / "H22_bn_average.json").read_text())


def state(model: dict[str, Any], optimizer: dict[str, Any] | None = None, steps: int = 0) -> State:
    return {"model": model, "optimizer": optimizer or {"state": {}, "param_groups": []}, "steps": steps}


def weight(*values: float) -> State:
    return state({"weight": torch.tensor(values)})


def batch_norm(copy: dict[str, float]) -> nn.Module:
    """A network of one weight and one BatchNorm, as the case describes it."""
    model = nn.Sequential(nn.Linear(1, 1, bias=False), nn.BatchNorm1d(1))
    with torch.no_grad():
        model[0].weight.fill_(copy["weight"])
        model[1].running_mean.fill_(copy["running_mean"])
        model[1].running_var.fill_(copy["running_var"])
        model[1].num_batches_tracked.fill_(int(copy["num_batches_tracked"]))
    return model


def test_h22_batch_norm_is_averaged_by_the_stated_rules() -> None:
    copies = CASE["copies"]
    states = [state(dict(batch_norm(copy).state_dict())) for copy in copies]
    samples = [copy["samples"] for copy in copies]
    merged = average(states, samples)
    model = merged["model"]
    assert model["0.weight"].item() == 3.0
    assert model["1.running_mean"].item() == 7.5
    assert model["1.running_var"].item() == 22.75  # pooled
    assert model["1.num_batches_tracked"].dtype == torch.int64
    assert model["1.num_batches_tracked"].item() == 8
    assert pack(average(states[::-1], samples[::-1])) == pack(merged)
    batch_norm(copies[0]).load_state_dict(model)


def test_a_pooled_variance_is_that_of_all_samples_together() -> None:
    groups = [torch.randn(size, generator=torch.Generator().manual_seed(size)) * size for size in (5, 7, 20)]
    states = [
        state({"running_mean": part.mean()[None], "running_var": part.var(unbiased=False)[None]}) for part in groups
    ]
    merged = average(states, [len(part) for part in groups])["model"]
    together = torch.cat(groups)
    torch.testing.assert_close(merged["running_mean"], together.mean()[None])
    torch.testing.assert_close(merged["running_var"], together.var(unbiased=False)[None])


def test_any_order_of_copies_gives_the_same_bits() -> None:
    generator = torch.Generator().manual_seed(0)

    def numbers(size: int) -> torch.Tensor:
        return torch.rand(size, generator=generator) + 0.1

    states = [
        state(
            {"w": numbers(50) * 10**n, "running_mean": numbers(4), "running_var": numbers(4)},
            {"state": {0: {"exp_avg": numbers(50)}} if n != 2 else {}, "param_groups": [{"lr": 0.1 * n}]},
        )
        for n in range(5)
    ]
    weights = [1.0, 0.9, 0.5, 0.35, 0.15]
    expected = pack(average(states, weights))
    for order in itertools.islice(itertools.permutations(range(5)), 0, 120, 7):
        assert pack(average([states[n] for n in order], [weights[n] for n in order])) == expected


def test_weights_are_parts_and_copies_of_weight_zero_are_left_out() -> None:
    assert average([weight(1.0), weight(3.0), weight(math.nan)], [30, 10, 0])["model"]["weight"].item() == 1.5
    alone = weight(0.1, 1e-30)
    assert torch.equal(average([alone], [0.3])["model"]["weight"], alone["model"]["weight"])


def test_equal_copies_stay_as_they_are() -> None:
    value = torch.randn(1000, generator=torch.Generator().manual_seed(1))
    copies = [state({"weight": value.clone()}) for _ in range(7)]
    assert torch.equal(average(copies, [1, 2, 3, 4, 5, 6, 7])["model"]["weight"], value)


@pytest.mark.parametrize("weights", [[0, 0], []])
def test_nothing_to_average(weights: list[float]) -> None:
    with pytest.raises(AveragingError, match="no copy has done a step"):
        average([weight(1.0)] * len(weights), weights)


@pytest.mark.parametrize("weights", [[1.0], [1.0, -1.0], [1.0, math.nan], [1.0, math.inf]])
def test_weights_that_are_none(weights: list[float]) -> None:
    with pytest.raises(AveragingError, match="expected one number from 0 up"):
        average([weight(1.0), weight(2.0)], weights)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_copy_that_is_not_finite_is_named(bad: float) -> None:
    assert is_finite(weight(1.0))
    assert not is_finite(weight(bad))
    with pytest.raises(AveragingError, match="copy 1 has numbers that are not finite"):
        average([weight(1.0), weight(bad)], [1, 1])
    moments = state({}, {"state": {0: {"exp_avg": torch.tensor([bad])}}, "param_groups": []})
    assert not is_finite(moments)


def test_other_kinds_of_tensors() -> None:
    def copy(half: float, flag: bool, count: list[int], number: complex) -> State:
        tensors = {"half": torch.tensor([half], dtype=torch.float16), "flag": torch.tensor(flag)}
        tensors |= {"count": torch.tensor(count), "complex": torch.tensor([number]), "empty": torch.zeros(0)}
        return state(tensors)

    copies = [copy(1.0, True, [2, 9], 1 + 2j), copy(2.0, False, [5, 1], 3 - 2j)]
    model = average(copies, [1, 1])["model"]
    assert (model["half"].dtype, model["half"].item()) == (torch.float16, 1.5)
    assert (model["flag"].dtype, model["flag"].item()) == (torch.bool, True)
    assert (model["count"].dtype, model["count"].tolist()) == (torch.int64, [5, 9])
    assert model["complex"].item() == 2 + 0j
    assert model["empty"].shape == (0,)


def test_the_states_are_not_altered() -> None:
    copies = [weight(1.0), weight(2.0)]
    before = [pack(copy) for copy in copies]
    average(copies, [1, 1])
    assert [pack(copy) for copy in copies] == before


# --- optimisers ---------------------------------------------------------------------------------------


def trained(kind: type[torch.optim.Optimizer], steps: int, **options: Any) -> State:
    """Two weights, the second of which has a gradient from the third step on."""
    model = nn.ParameterList([torch.ones(2), torch.ones(1)])
    optimizer = kind(model, lr=0.1, **options)  # type: ignore[call-arg]
    for number in range(steps):
        optimizer.zero_grad()
        ((model[0] * (number + 1)).sum() + (model[1].sum() if number >= 2 else 0.0)).backward()
        optimizer.step()
    return state(model.state_dict(), optimizer.state_dict(), steps)


def test_momentum_is_averaged_by_hand() -> None:
    one, two = trained(torch.optim.SGD, 1, momentum=0.5), trained(torch.optim.SGD, 2, momentum=0.5)
    # momentum after the first step: 1; after the second: 0.5 * 1 + 2
    merged = average([one, two], [1, 3])
    assert merged["optimizer"]["state"][0]["momentum_buffer"].tolist() == [0.25 * 1 + 0.75 * 2.5] * 2
    # weights: 1 - 0.1, and 1 - 0.1 - 0.25
    torch.testing.assert_close(merged["model"]["0"], torch.full((2,), 0.25 * 0.9 + 0.75 * 0.65))
    assert merged["steps"] == 2


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW])
def test_moments_are_averaged_and_steps_are_the_most(kind: type[torch.optim.Optimizer]) -> None:
    one, two = trained(kind, 1, weight_decay=0.0), trained(kind, 4, weight_decay=0.0)
    merged = average([one, two], [1, 1])
    first = merged["optimizer"]["state"][0]
    # first moments: 0.1 * 1, and the same decayed with the gradients 2, 3, 4
    after_four = 0.1 * (1 * 0.9**3 + 2 * 0.9**2 + 3 * 0.9 + 4)
    torch.testing.assert_close(first["exp_avg"], torch.full((2,), (0.1 + after_four) / 2))
    squares = 0.001 * (1 * 0.999**3 + 4 * 0.999**2 + 9 * 0.999 + 16)
    torch.testing.assert_close(first["exp_avg_sq"], torch.full((2,), (0.001 + squares) / 2))
    assert (first["step"].item(), first["step"].dtype) == (4.0, torch.float32)
    assert merged["optimizer"]["param_groups"] == one["optimizer"]["param_groups"]


def test_a_parameter_that_only_one_copy_has_moved_keeps_that_ones_moments() -> None:
    one, two = trained(torch.optim.Adam, 1), trained(torch.optim.Adam, 4)
    assert 1 not in one["optimizer"]["state"]
    merged = average([one, two], [1, 1])
    for name, value in two["optimizer"]["state"][1].items():
        assert torch.equal(merged["optimizer"]["state"][1][name], value)
    assert merged["model"]["1"].item() == pytest.approx((1.0 + two["model"]["1"].item()) / 2)


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW])
def test_a_copy_without_a_step_has_no_moments_and_hinders_nobody(kind: type[torch.optim.Optimizer]) -> None:
    options = {"momentum": 0.9} if kind is torch.optim.SGD else {}
    none, some = trained(kind, 0, **options), trained(kind, 3, **options)
    assert pack(average([none, some], [0, 3])) == pack(some)
    merged = average([none, some], [1, 3])
    assert merged["optimizer"]["state"].keys() == some["optimizer"]["state"].keys()
    model = nn.ParameterList([torch.zeros(2), torch.zeros(1)])
    kind(model, lr=1.0, **options).load_state_dict(merged["optimizer"])  # type: ignore[call-arg]


def test_learning_rates_of_copies_are_averaged_and_texts_must_agree() -> None:
    def copy(lr: float, mode: str = "min") -> State:
        return state({}, {"state": {}, "param_groups": [{"lr": lr, "betas": (0.9, 0.99), "mode": mode, "params": [0]}]})

    group = average([copy(0.1), copy(0.3)], [3, 1])["optimizer"]["param_groups"][0]
    assert group["lr"] == pytest.approx(0.15)
    assert (group["betas"], group["mode"], group["params"]) == ((0.9, 0.99), "min", [0])
    with pytest.raises(AveragingError, match=r"disagree about optimizer.param_groups\[0\].mode: 'min', 'max'"):
        average([copy(0.1), copy(0.1, "max")], [1, 1])


def test_copies_of_other_models_are_refused() -> None:
    with pytest.raises(AveragingError, match=r"not of one model: only some of them have bias"):
        average([weight(1.0), state({"weight": torch.ones(1), "bias": torch.ones(1)})], [1, 1])
    with pytest.raises(AveragingError, match=r"not of one model: model.weight"):
        average([weight(1.0), weight(1.0, 2.0)], [1, 1])
    with pytest.raises(AveragingError, match=r"not of one model: model.weight"):
        average([weight(1.0), state({"weight": torch.ones(1, dtype=torch.float64)})], [1, 1])
