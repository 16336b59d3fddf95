"""Where the workloads of the cluster environment come from."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ..arguments import check_each
from ..errors import ClusterError, describe
from .generators import check_drawing
from .workload import Workload

WorkloadFactory = Callable[[np.random.Generator], Workload]
WorkloadSource = Workload | Sequence[Workload] | WorkloadFactory | str


def check_source(workload: WorkloadSource, jobs: int | None, per_hour: float | None) -> None:
    """Refuse what no workload can come from.

    Raises:
        ClusterError: it is of another type, or an empty list.
        UnknownNameError, TraceError: it is the name of no generator, or the generator refuses the numbers.
    """
    if isinstance(workload, str):
        check_drawing(workload, jobs, per_hour)
    if isinstance(workload, str | Workload) or callable(workload):
        return
    if not isinstance(workload, Sequence):
        raise ClusterError(
            f"workload is {describe(workload)}; expected a Workload, a list of them, a function that makes one, or a "
            "generator's name."
        )
    check_each("workload", workload, Workload, ClusterError)
