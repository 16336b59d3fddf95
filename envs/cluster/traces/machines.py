"""How full the machines of Alibaba's PAI trace were."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ...errors import TraceError
from .rows import numbered_dicts


@dataclass(frozen=True)
class MachineUse:
    """GPUs in use on each machine, and how many it has.

    Attributes:
        used: GPUs in use (means over the rows of a machine, weighted by their seconds).
        gpus: GPUs of the machine.
    """

    used: Mapping[str, float]
    gpus: Mapping[str, int]

    def share(self, machine: str) -> float:
        """Used part of one machine's GPUs, 0 to 1."""
        return self.used[machine] / self.gpus[machine]

    @property
    def cluster_share(self) -> float:
        """Used part of all GPUs of the machines that were measured."""
        return sum(self.used.values()) / sum(self.gpus[machine] for machine in self.used)


def read_pai_machines(metric: str | Path, spec: str | Path) -> MachineUse:
    """Read ``pai_machine_metric`` and ``pai_machine_spec``, both with a header row.

    ``machine_gpu`` is in percent of one GPU, summed over the machine's GPUs (inferred: values above
    100 occur on machines with several), so 640 on 8 GPUs is 6.4 GPUs in use, 80 %.

    Raises:
        TraceError: a file or a value cannot be read, or a machine has no specification or no GPU.
    """
    metric, spec = Path(metric), Path(spec)
    gpus = {row["machine"]: int(float(row["cap_gpu"])) for _, row in _rows(spec, ("machine", "cap_gpu"))}
    sums: dict[str, list[float]] = {}
    for line, row in _rows(metric, ("machine", "machine_gpu", "start_time", "end_time")):
        machine = row["machine"]
        if gpus.get(machine, 0) < 1:
            raise TraceError(f"{metric}, line {line}: machine {machine!r} has no GPU in {spec}; add its cap_gpu.")
        try:
            seconds = float(row["end_time"]) - float(row["start_time"])
            percent = float(row["machine_gpu"] or 0)
        except ValueError as error:
            raise TraceError(f"{metric}, line {line}: {error}; expected numbers.") from error
        total = sums.setdefault(machine, [0.0, 0.0])
        total[0] += percent / 100 * max(seconds, 0.0)
        total[1] += max(seconds, 0.0)
    used = {machine: work / seconds if seconds > 0 else 0.0 for machine, (work, seconds) in sums.items()}
    return MachineUse(used, gpus)


def _rows(path: Path, needed: tuple[str, ...]) -> list[tuple[int, dict[str, str]]]:
    try:
        return list(numbered_dicts(path.read_text(encoding="utf-8-sig").splitlines(), path, needed))
    except (OSError, csv.Error) as error:
        raise TraceError(f"{path}: cannot be read ({error}).") from error
