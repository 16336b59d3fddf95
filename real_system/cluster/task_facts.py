"""What the throughput formula needs to know of a training job, counted on one of its batches."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ...envs.cluster.facts import ModelFacts
from .training_job import JobSpec

if TYPE_CHECKING:
    import torch

    from .learner import Learner
    from .training_job import Tensors

PASSES = 3
"""Times that a tensor passes the memory in a step: written forward, read backward, and the same of its gradient."""


def task_facts(spec: JobSpec) -> ModelFacts:
    """What the throughput formula (the paper's, with our numbers) needs to know of a job's model.

    FLOPs are those of the forward pass of one batch, as ``torch.utils.flop_counter`` counts them (products of matrices
    and convolutions). Bytes moved are our estimate: all that the forward pass keeps for the backward pass and all
    parameters, three times, over the samples of the batch. Counted once per task, options and batch size.

    Raises:
        TrainingJobError: the job's code failed.
        UnknownNameError, GraphError, MissingExtraError: as ``Learner``.
    """
    key = spec.task, json.dumps(dict(spec.options), sort_keys=True, default=str), spec.batch_size
    if key not in _counted:
        _counted[key] = _count(replace(spec, steps=1, workers=1, seed=0))
    return _counted[key]


_counted: dict[tuple[str, str, int], ModelFacts] = {}
"""By task, options and batch size."""


def _count(spec: JobSpec) -> ModelFacts:
    from .learner import Learner

    learner, batch_size = Learner(spec), spec.batch_size
    batch = learner.batch(0)
    flops, kept = _forward(learner, batch)
    trained = [parameter for parameter in learner.model.parameters() if parameter.requires_grad]
    parameter_bytes = sum(_bytes(parameter) for parameter in trained)
    return ModelFacts(
        flops=flops / batch_size,
        bytes_moved=PASSES * (kept + parameter_bytes) / batch_size,
        input_bytes=sum(_bytes(part) for part in batch) / batch_size,
        parameter_bytes=float(parameter_bytes),
        batch_size=batch_size,
        source=f"task {spec.task}: counted on one batch; bytes moved: our estimate",
    )


def _forward(learner: Learner, batch: Tensors) -> tuple[float, int]:
    """FLOPs of a forward pass, and bytes that it keeps for the backward pass besides the parameters."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    known = {parameter.data_ptr() for parameter in learner.model.parameters()}
    kept: dict[int, int] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.data_ptr() not in known:
            kept[tensor.data_ptr()] = _bytes(tensor)
        return tensor

    counter = FlopCounterMode(display=False)
    with _without_onednn(), counter, torch.autograd.graph.saved_tensors_hooks(note, _same):
        loss = learner.loss(batch)
    del loss  # it was alive until here, so that no memory was used twice
    return float(counter.get_total_flops()), sum(kept.values())


@contextmanager
def _without_onednn() -> Iterator[None]:
    """It computes a recurrent layer in one call, in which nothing can be counted."""
    import torch

    onednn: Any = torch.backends.mkldnn
    before = onednn.enabled
    onednn.enabled = False
    try:
        yield
    finally:
        onednn.enabled = before


def _same(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()
