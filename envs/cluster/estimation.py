"""Throughputs without profiling: an estimate from what is published of GPUs and models.

The Hadar papers (arXiv 2503.10918) state what goes into it: the GPU's performance-memory index, the
batch size, the PCIe capacity and the model's complexity. The formula is our choice:

    t_step = max(3 F b / (eta P), A b / B) + D b / C,    rate = 1 / t_step

F forward FLOP a sample, b batch size, P and B the GPU's FLOP/s and memory bandwidth, A bytes moved a
sample, D input bytes a sample, C PCIe bytes/s, eta = 0.35; three times F for forward and backward.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Literal, TypeVar, get_args

import numpy as np

from ..errors import ThroughputError
from .cluster import Cluster
from .facts import GPUS, MODELS, GpuFacts, ModelFacts
from .job import split_kind
from .throughput import ThroughputTable
from .workload import Workload

EFFICIENCY = 0.35
"""Part of the peak FLOP/s that training reaches (eta)."""
NETWORK_BYTES_PER_S = 1.25e9
"""Between nodes: 10 Gbit/s (our choice)."""
Prior = Literal["formula", "disturbed"]
Facts = TypeVar("Facts", GpuFacts, ModelFacts)


def step_seconds(model: ModelFacts, gpu: GpuFacts, batch_size: int | None = None) -> float:
    """Seconds of one training step of one worker; without a batch size, with the model's own."""
    samples = model.batch_size if batch_size is None else batch_size
    compute = 3 * model.flops / (EFFICIENCY * gpu.flops_per_s)
    memory = model.bytes_moved / gpu.memory_bytes_per_s
    return samples * (max(compute, memory) + model.input_bytes / gpu.pcie_bytes_per_s)


def exchange_seconds(model: ModelFacts, workers: int, bytes_per_s: float) -> float:
    """Seconds in which a ring of workers adds up its gradients: 2 (W - 1) / W of their bytes go through a link."""
    return 2 * (workers - 1) / workers * model.parameter_bytes / bytes_per_s


def estimate_table(
    kinds: Iterable[tuple[str, int]],
    types: Sequence[str],
    *,
    models: Mapping[str, ModelFacts] = MODELS,
    gpus: Mapping[str, GpuFacts] = GPUS,
) -> ThroughputTable:
    """Estimated rates of models with so many workers on each GPU type.

    W workers do W steps in the time of one step and one exchange of gradients (our choice), through
    PCIe in one node, and through PCIe and the network where they are spread.

    Args:
        kinds: (model with its batch size, as in ``Job.kind``; workers).
        types: GPU types; the first is the reference for relative speeds.
        models, gpus: facts; one's own stand beside the bundled ones as ``{**MODELS, "mine": ...}``.

    Raises:
        ThroughputError: a model or a GPU type has no facts; it is named.
    """
    entries = []
    for kind, workers in dict.fromkeys(kinds):
        name, batch_size = split_kind(kind)
        model = _facts(models, name, "model")
        for gpu_type in types:
            gpu = _facts(gpus, gpu_type, "GPU type")
            alone = step_seconds(model, gpu, batch_size)
            near = exchange_seconds(model, workers, gpu.pcie_bytes_per_s)
            far = exchange_seconds(model, workers, min(NETWORK_BYTES_PER_S, gpu.pcie_bytes_per_s))
            spread = workers / (alone + far) if workers > 1 else np.nan
            entries.append((kind, workers, gpu_type, workers / (alone + near), spread))
    return ThroughputTable.build(entries, "estimated from published figures")


def disturbed(table: ThroughputTable, factor: float = 3.0, seed: int = 0) -> ThroughputTable:
    """The table with every rate multiplied or divided by ``factor``, at random per kind, workers and type.

    For studies of schedulers that know the rates badly. A gang's rates in one node and spread err alike.

    Raises:
        ThroughputError: the factor is not a number from 1 up.
    """
    if not (np.isfinite(factor) and factor >= 1):
        raise ThroughputError(f"the factor is {factor}; expected a number from 1 up by which rates are wrong.")
    sign = np.random.default_rng(seed).integers(0, 2, table.rates.shape) * 2 - 1
    wrong = float(factor) ** sign
    source = f"{table.source or 'throughputs'}, wrong by {factor:g}x at random"
    return ThroughputTable(table.types, table.rows, table.rates * wrong, table.spread * wrong, source)


def prior_table(
    prior: Prior, workload: Workload, cluster: Cluster, *, factor: float = 3.0, seed: int = 0
) -> ThroughputTable:
    """First estimates for ``simulate(..., estimates=...)``: by the formula, or the true table disturbed.

    Raises:
        ThroughputError: the formula has no facts of a model or a GPU type; or another prior is asked for.
    """
    if prior == "disturbed":
        return disturbed(workload.throughputs, factor, seed)
    if prior != "formula":
        raise ThroughputError(f"the prior is {prior!r}; expected one of {', '.join(get_args(Prior))}.")
    known = workload.throughputs.types
    types = [known[0]] if set(cluster.types) - set(known) else []  # relative speeds refer to the first
    types += [gpu_type for gpu_type in cluster.types if gpu_type in known and gpu_type not in types]
    return estimate_table(((job.kind, job.workers) for job in workload.jobs), types)


def _facts(facts: Mapping[str, Facts], name: str, what: str) -> Facts:
    if name in facts:
        return facts[name]
    near = get_close_matches(name, facts, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(facts)}."
    raise ThroughputError(f"the throughput estimate has no facts of the {what} {name!r}; {hint}")
