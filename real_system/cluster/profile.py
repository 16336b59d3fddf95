"""Steps per second of a user's own model on the devices of this machine."""

from __future__ import annotations

import math
import multiprocessing
import re
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from ...envs.cluster.facts import GPUS
from ...envs.processors import processors
from .training_step import OPTIMIZERS, ProfileError, TrainingStep, import_torch

if TYPE_CHECKING:
    import torch

MOST_WAIT = timedelta(minutes=10)
"""How long workers wait for each other."""


@dataclass(frozen=True, slots=True)
class Timing:
    """How long is measured: ``repeats`` times some ``seconds`` of steps each, after ``warm_up`` steps."""

    warm_up: int = 3
    repeats: int = 5
    seconds: float = 1.0

    def __post_init__(self) -> None:
        if self.warm_up < 1 or self.repeats < 1 or not (math.isfinite(self.seconds) and self.seconds > 0):
            raise ProfileError(
                f"warm_up is {self.warm_up}, repeats {self.repeats}, seconds {self.seconds}; expected whole numbers "
                "from 1 up, and seconds above 0."
            )


@dataclass(frozen=True, slots=True)
class Measurement:
    """What was measured of one model on one type of device.

    Attributes:
        steps_per_s: of all workers together, the median over the repeats; 0: it does not fit in memory.
        variation: (largest - smallest) / median over the repeats.
        steps: of each worker in a repeat.
    """

    steps_per_s: float
    variation: float = 0.0
    steps: int = 0


def find_devices(wanted: Sequence[str] | None = None) -> dict[str, list[str]]:
    """Type -> devices of this machine, such as ``{"cpu": ["cpu"], "v100": ["cuda:0", "cuda:1"]}``.

    A GPU whose name has one of the types in it that the estimate knows is called so (``Tesla
    V100-SXM2-16GB``: v100), any other by its name in lower case.

    Args:
        wanted: some of ``cpu``, ``cuda`` (all of them), ``cuda:N``; None: all that are there.

    Raises:
        ProfileError: one of them is not there.
    """
    torch = import_torch()
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    there = ["cpu", *(f"cuda:{number}" for number in range(count))]
    chosen = []
    for name in there if wanted is None else wanted:
        matching = [device for device in there if name in (device, device.partition(":")[0])]
        if not matching:
            raise ProfileError(f"there is no device {name!r} here; found are {', '.join(there)}.")
        chosen += matching
    types: dict[str, list[str]] = {}
    for device in dict.fromkeys(chosen):
        kind = "cpu" if device == "cpu" else gpu_type_of(torch.cuda.get_device_name(device))
        types.setdefault(kind, []).append(device)
    return types


def gpu_type_of(name: str) -> str:
    """The type that a device's name stands for."""
    words = re.findall(r"[a-z0-9]+", name.lower())
    joined = "".join(words)
    known = [kind for kind in GPUS if kind in words or (kind.startswith("rtx") and kind in joined)]
    return max(known, key=len) if known else "-".join(words)


def measure(
    model: str,
    batch_size: int,
    devices: Sequence[str],
    *,
    optimizer: str = "sgd",
    timing: Timing | None = None,
    seed: int = 0,
) -> Measurement:
    """Time training steps of one worker per device; several train together, as ``DistributedDataParallel``.

    Args:
        model: ``package.module:function`` (``TrainingStep``).
        batch_size: samples a step of each worker.
        devices: of the workers; ``["cpu"] * W`` divides the processor's cores among W of them.
        optimizer: ``sgd`` or ``adam``.
        timing: how long is measured.
        seed: of torch's random numbers.

    Raises:
        ProfileError: there is no such optimizer, or the model is no training step.
        GraphError: there is no function of the model's name.
    """
    if optimizer not in OPTIMIZERS:
        raise ProfileError(f"optimizer is {optimizer!r}; expected one of {', '.join(OPTIMIZERS)}.")
    what = (model, batch_size, list(devices), optimizer, timing or Timing(), seed)
    if len(devices) == 1:
        return _work(0, "", *what)
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder, ProcessPoolExecutor(len(devices), mp_context=context) as pool:
        meeting = (Path(folder) / "meeting").resolve().as_uri()
        workers = [pool.submit(_work, rank, meeting, *what) for rank in range(len(devices))]
        try:
            first, *_ = [worker.result() for worker in workers]
            return first
        except BrokenProcessPool as error:
            raise ProfileError(f"{model}: a worker was ended from outside, most likely for lack of memory.") from error


def _work(
    rank: int, meeting: str, model: str, batch_size: int, devices: list[str], optimizer: str, timing: Timing, seed: int
) -> Measurement:
    """One worker's part; all of them measure the same."""
    torch = import_torch()
    device, workers = torch.device(devices[rank]), len(devices)
    torch.manual_seed(seed)
    parallel = None
    if workers > 1:
        if device.type == "cpu":
            torch.set_num_threads(max(1, processors() // workers))
        parallel = _join(rank, meeting, workers, device)
    try:
        step = TrainingStep(model, batch_size, device, optimizer, parallel)
        for _ in range(timing.warm_up):
            step.try_once()
        return _timed(step, device, workers, timing)
    except torch.OutOfMemoryError:
        return Measurement(0.0)
    finally:
        if workers > 1:
            torch.distributed.destroy_process_group()
        if device.type == "cuda":
            torch.cuda.empty_cache()


def _join(rank: int, meeting: str, workers: int, device: torch.device) -> Any:
    """Meet the other workers; what wraps a module so that they train together."""
    import torch.distributed

    if device.type == "cuda":
        torch.cuda.set_device(device)
    backend = "nccl" if device.type == "cuda" else "gloo"
    torch.distributed.init_process_group(backend, init_method=meeting, rank=rank, world_size=workers, timeout=MOST_WAIT)
    ids = [device.index] if device.type == "cuda" else None
    return lambda module: torch.nn.parallel.DistributedDataParallel(module, device_ids=ids)


def _timed(step: TrainingStep, device: torch.device, workers: int, timing: Timing) -> Measurement:
    """Find how many steps fill a repeat, and time the repeats."""
    import torch

    steps = torch.tensor([max(1, math.ceil(timing.seconds / _seconds(step, 1, device)))], device=device)
    if workers > 1:
        torch.distributed.broadcast(steps, src=0)  # or they would wait for each other for ever
    count = int(steps.item())
    rates = [workers * count / _seconds(step, count, device) for _ in range(timing.repeats)]
    middle = median(rates)
    return Measurement(middle, (max(rates) - min(rates)) / middle, count)


def _seconds(step: TrainingStep, count: int, device: torch.device) -> float:
    """Wall seconds of so many steps, the device's queue included."""
    import torch

    if device.type == "cuda":
        torch.cuda.synchronize(device)
    begin = time.perf_counter()
    for _ in range(count):
        step()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - begin
