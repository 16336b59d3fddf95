"""Consolidation: one state of those that the copies of a forked job have ended with.

The HadarE paper averages the copies' parameters, weighted by their steps (arXiv 2503.10918); all else is our choice:

- Floating tensors, of the model and of the optimiser (moments): the weighted mean, computed in double precision and
  cast back. Learning rates and other floating options that copies have changed: likewise.
- ``running_var`` beside a ``running_mean`` (BatchNorm): the variance of what all copies have seen together, the mean of
  variances plus the variance of means.
- Integers, truth values, the optimiser's ``step`` (which is a floating tensor) and the state's ``steps``: the largest.
  A sum would count a running average as older than any copy's is.
- What only some copies have, as the moments of a parameter that had no gradient in the others: the mean over those that
  have it. The model's own entries must be in all.
- Texts and the like must be equal.
- Copies of weight 0 are left out. The order of the copies changes nothing, not even the last bit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ...envs.errors import HadopplerError
from .state import State

if TYPE_CHECKING:
    import torch


class AveragingError(HadopplerError):
    """States cannot be averaged; the weights before are to be kept."""


def average(states: Sequence[State], weights: Sequence[float]) -> State:
    """One state of several, by the rules above.

    Args:
        states: of the copies; they are not altered.
        weights: of the copies, 0 or more, in any unit, as their numbers of steps.

    Raises:
        AveragingError: no copy has a weight above 0; a copy's numbers are not finite; copies are not of one model.
    """
    if len(states) != len(weights) or not all(math.isfinite(weight) and weight >= 0 for weight in weights):
        raise AveragingError(
            f"{len(states)} copies have the weights {list(weights)}; expected one number from 0 up for each."
        )
    numbers = [number for number, weight in enumerate(weights) if weight > 0]
    if not numbers:
        raise AveragingError("no copy has done a step, so there is nothing to average; the weights before are kept.")
    for number in numbers:
        if not is_finite(states[number]):
            raise AveragingError(f"copy {number} has numbers that are not finite; leave it out.")
    total = math.fsum(weights)
    parts = [weights[number] / total for number in numbers]
    chosen = [states[number] for number in numbers]
    names = {frozenset(state["model"]) for state in chosen}
    if len(names) > 1:
        some = sorted(frozenset.union(*names) - frozenset.intersection(*names))
        raise AveragingError(f"the copies are not of one model: only some of them have {', '.join(some[:3])}.")
    return {
        "model": _pooled(_merge([state["model"] for state in chosen], parts, "model"), chosen, parts),
        "optimizer": _merge([state["optimizer"] for state in chosen], parts, "optimizer"),
        "steps": max(state["steps"] for state in chosen),
    }


def is_finite(state: State) -> bool:
    """Whether all floating tensors of the model and of its optimiser are finite."""
    return _finite(state["model"]) and _finite(state["optimizer"])


def _finite(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(_finite(item) for item in value.values())
    if isinstance(value, list | tuple):
        return all(_finite(item) for item in value)
    return bool(value.isfinite().all()) if hasattr(value, "isfinite") else True


def _merge(values: Sequence[Any], parts: Sequence[float], where: str) -> Any:
    """One value of the copies' values at a place in their states."""
    import torch

    first = values[0]
    if isinstance(first, torch.Tensor):
        return _merge_tensors(values, parts, where)
    if any(type(value) is not type(first) for value in values):
        raise AveragingError(f"the copies disagree about {where}: {_shown(values)}; expected one kind of value.")
    if isinstance(first, Mapping):
        return _merge_dicts(values, parts, where)
    if isinstance(first, list | tuple):
        if len({len(value) for value in values}) > 1:
            raise AveragingError(f"the copies disagree about {where}: {_shown(values)}; expected one length.")
        columns = enumerate(zip(*values, strict=True))
        return type(first)(_merge(column, parts, f"{where}[{number}]") for number, column in columns)
    if all(value == first for value in values):
        return first
    if isinstance(first, float):
        return math.fsum(part * value for part, value in zip(parts, values, strict=True))
    if isinstance(first, int):
        return max(values)
    raise AveragingError(f"the copies disagree about {where}: {_shown(values)}; expected one value.")


def _merge_dicts(values: Sequence[Mapping], parts: Sequence[float], where: str) -> dict:
    """Key by key, each over the copies that have it; None is as good as nothing."""
    merged: dict[Any, Any] = {}
    same = all(value.keys() == values[0].keys() for value in values)
    for key in values[0] if same else sorted({key for value in values for key in value}, key=repr):
        having = [number for number, value in enumerate(values) if value.get(key) is not None]
        if not having:
            merged[key] = None
            continue
        total = math.fsum(parts[number] for number in having)
        merged[key] = _merge(
            [values[number][key] for number in having], [parts[number] / total for number in having], f"{where}.{key}"
        )
    return merged


def _merge_tensors(tensors: Sequence[torch.Tensor], parts: Sequence[float], where: str) -> torch.Tensor:
    """Weighted mean of floating tensors; the largest of counters."""
    import torch

    kinds = {(tensor.dtype, tensor.shape) if isinstance(tensor, torch.Tensor) else type(tensor) for tensor in tensors}
    if len(kinds) > 1:
        raise AveragingError(f"the copies are not of one model: {where} is of different kinds or shapes.")
    first = tensors[0]
    if first.is_complex():
        return torch.view_as_complex(_merge_tensors([torch.view_as_real(t) for t in tensors], parts, where))
    counts = where.startswith("optimizer.") and where.endswith(".step")
    if counts or not first.is_floating_point():
        return torch.stack(list(tensors)).amax(0)
    return _mean(tensors, parts).to(first.dtype)


def _mean(tensors: Sequence[torch.Tensor], parts: Sequence[float]) -> torch.Tensor:
    """Weighted mean in double precision; terms are sorted before they are added, so that their order is none."""
    import torch

    terms = [tensor.double() * part for tensor, part in zip(tensors, parts, strict=True)]
    return torch.stack(terms).sort(dim=0).values.sum(dim=0)


def _pooled(merged: dict[str, Any], states: Sequence[State], parts: Sequence[float]) -> dict[str, Any]:
    """The merged model with variances of BatchNorm that know that the copies' means differ."""
    for name, variance in merged.items():
        sibling = f"{name.removesuffix('running_var')}running_mean"
        if not name.endswith("running_var") or sibling not in merged:
            continue
        models = [state["model"] for state in states]
        mean = _mean([model[sibling] for model in models], parts)
        spread = [model[name].double() + (model[sibling].double() - mean).square() for model in models]
        merged[name] = _mean(spread, parts).to(variance.dtype)
    return merged


def _shown(values: Sequence[Any]) -> str:
    return ", ".join(repr(value)[:40] for value in values[:3])
