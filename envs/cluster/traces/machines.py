"""How full the machines of Alibaba's PAI trace were."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ...errors import TraceError
from ..csv_rows import number, numbered_dicts, surplus, whole
from .rows import read_lines


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


def read_pai_machines(metric: str | Path, spec: str | Path) -> MachineUse:
    """Read ``pai_machine_metric`` and ``pai_machine_spec``, both with a header row.

    ``machine_gpu`` is in percent of one GPU, summed over the machine's GPUs (inferred: values above
    100 occur on machines with several), so 640 on 8 GPUs is 6.4 GPUs in use, 80 %.

    Raises:
        TraceError: a file or a value cannot be read, or a machine has no specification or no GPU.
    """
    metric, spec = Path(metric), Path(spec)
    gpus: dict[str, int] = {}
    for line, row in _rows(spec, ("machine", "cap_gpu")):
        count = whole(row["cap_gpu"])
        if count is None or count < 0:
            raise TraceError(f"{spec}, line {line}: cap_gpu is {row['cap_gpu']!r}; expected a whole number from 0 up.")
        gpus[row["machine"]] = count
    sums: dict[str, list[float]] = {}
    for line, row in _rows(metric, ("machine", "machine_gpu", "start_time", "end_time")):
        machine = row["machine"]
        if gpus.get(machine, 0) < 1:
            raise TraceError(f"{metric}, line {line}: machine {machine!r} has no GPU in {spec}; add its cap_gpu.")
        start, end, percent = (number(row[name]) for name in ("start_time", "end_time", "machine_gpu"))
        percent = percent if row["machine_gpu"] else 0.0
        if start is None or end is None or percent is None or end < start or percent < 0:
            raise TraceError(
                f"{metric}, line {line}: machine_gpu is {row['machine_gpu']!r} from {row['start_time']!r} to "
                f"{row['end_time']!r}; expected a percentage (empty: 0), and seconds that do not go back."
            )
        total = sums.setdefault(machine, [0.0, 0.0])
        total[0] += percent / 100 * (end - start)
        total[1] += end - start
    used = {machine: work / seconds if seconds > 0 else 0.0 for machine, (work, seconds) in sums.items()}
    return MachineUse(used, gpus)


def _rows(path: Path, needed: tuple[str, ...]) -> Iterator[tuple[int, dict[str, str]]]:
    for line, row in numbered_dicts(read_lines(path), path, needed):
        if wrong := surplus(row):
            raise TraceError(f"{path}, line {line}: {wrong}.")
        yield line, row
