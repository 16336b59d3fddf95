"""Between world and scheduler: what may be seen, what may be decided, and who decides."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

import numpy as np
from numba import njit
from numpy.typing import ArrayLike, NDArray

from ..errors import AllocationError
from .cluster import Cluster

if TYPE_CHECKING:
    from .workload import Workload

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]
MixedRate = Literal["proportional", "min"]
WHOLE = np.dtype(np.int64)


@dataclass(frozen=True, eq=False)
class Allocation:
    """A gangs and the GPUs that each of them gets; jobs without a gang wait.

    Attributes:
        job: [A] rows of the workload. Gangs of one job stand next to each other.
        copy: [A] number of the job's copy; 0 for ordinary schedulers, which give a job one gang.
        ptr: [A + 1] a gang's GPUs are the entries ``ptr[a]:ptr[a + 1]``.
        node, gpu_type, count: [E] entries: so many GPUs of a type on a node.
        share: [A] steps that a copy is to do in this round; NaN: as the simulator splits them.
        why: reasons by name (price, payoff, slack, ...), each [A], for ``rounds.csv``.
        refused: rows of jobs that shall never run (admission control); they are reported and left out.

    The entries of a gang ascend by node, then type, so that equal placements are equal arrays.

    Raises:
        AllocationError: an array holds something else than whole numbers, or its length does not fit the others'.
    """

    job: Integers
    copy: Integers
    ptr: Integers
    node: Integers
    gpu_type: Integers
    count: Integers
    share: Floats | None = None
    why: Mapping[str, Floats] = field(default_factory=dict)
    refused: Sequence[int] = ()

    def __post_init__(self) -> None:
        for name in ("job", "copy", "ptr", "node", "gpu_type", "count"):
            values = getattr(self, name)
            if not isinstance(values, np.ndarray) or values.dtype != WHOLE or values.ndim != 1:
                object.__setattr__(self, name, _whole_numbers(name, values))
        if self.share is not None:
            object.__setattr__(self, "share", np.asarray(self.share, dtype=np.float64))
        gangs, entries = len(self.job), len(self.node)
        sizes = {"copy": gangs, "ptr": gangs + 1, "gpu_type": entries, "count": entries}
        for name, size in sizes.items():
            _check_length(name, getattr(self, name), size)
        for name, values in (("share", self.share), *self.why.items()):
            if values is not None:
                _check_length(name, values, gangs)
        if not _ascends(self.ptr, entries):
            raise AllocationError(
                f"an allocation's ptr is {self.ptr.tolist()}; expected numbers that ascend from 0 to its {entries} "
                "entries."
            )

    def __len__(self) -> int:
        return len(self.job)

    @classmethod
    def empty(cls) -> Allocation:
        """Nothing runs."""
        none = np.zeros(0, dtype=np.int64)
        return cls(none, none, np.zeros(1, dtype=np.int64), none, none, none)

    @classmethod
    def from_rows(cls, rows: Iterable[tuple[int, int, ArrayLike]], share: Sequence[float] | None = None) -> Allocation:
        """Build an allocation from (job, copy, gpus [H, R]) rows.

        Raises:
            AllocationError: a row's GPUs are not a matrix of whole numbers from 0 up.
        """
        jobs, copies, ptr = [], [], [0]
        entries: list[tuple[int, int, int]] = []
        for job, copy, gpus in rows:
            matrix = np.asarray(gpus)
            if matrix.ndim != 2 or (matrix < 0).any() or (matrix != matrix.astype(np.int64)).any():
                raise AllocationError(
                    f"job row {job}, copy {copy}: gpus has shape {matrix.shape}; expected whole numbers from 0 up, "
                    "nodes by types."
                )
            jobs.append(job)
            copies.append(copy)
            entries.extend((int(h), int(r), int(matrix[h, r])) for h, r in np.argwhere(matrix > 0))
            ptr.append(len(entries))
        flat = np.array(entries, dtype=np.int64).reshape(-1, 3).T.copy()
        order = _ints(jobs), _ints(copies), _ints(ptr)
        return cls(*order, flat[0], flat[1], flat[2], None if share is None else np.array(share, dtype=np.float64))

    def gpus(self, cluster: Cluster) -> Integers:
        """[A, H, R] GPUs of every gang."""
        dense = np.zeros((len(self), *cluster.capacity.shape), dtype=np.int64)
        gang = np.repeat(np.arange(len(self)), np.diff(self.ptr))
        dense[gang, self.node, self.gpu_type] = self.count
        return dense

    def describe(self, gang: int, cluster: Cluster) -> str:
        """A gang's GPUs in words: ``n0:v100x4 n3:k80x2``."""
        entries = range(self.ptr[gang], self.ptr[gang + 1])
        return " ".join(
            f"{cluster.nodes[self.node[e]].name}:{cluster.types[self.gpu_type[e]]}x{self.count[e]}" for e in entries
        )


@dataclass(frozen=True, eq=False)
class ClusterView:
    """What a scheduler may see when it decides: N jobs that arrived and are not finished.

    At a round's start every gang may be moved, and ``free`` counts all GPUs of usable nodes. In
    mid-round (early refill) running gangs stay, the jobs are those that do not run, and ``free``
    counts only GPUs on nodes that were freed at this instant.

    Attributes:
        time: seconds.
        round_s, restart_s: length of a round, and cost of a changed placement.
        mixed_rate: how fast a gang on several types is (``gang_rate``).
        cluster: nodes and types.
        free: [H, R] GPUs that may be given.
        mid_round: whether this is a refill.
        job: [N] rows of the workload, ascending, which is by arrival.
        arrival: [N] seconds.
        workers: [N] GPUs of a gang.
        steps, remaining: [N] all steps, and those still to do now.
        attained_s: [N] GPU-seconds held so far.
        running_s: [N] seconds in which the job held its GPUs.
        weight: [N] priority weights.
        slo: [N] wanted completion time as a multiple of the time on the fastest type; NaN for none.
        rates, spread_rates: [N, R] steps/s on each type, in one node and spread; 0: does not fit.
        held: placements of this moment.
        held_gang: [N] number of the job's first gang in ``held``, or -1.
        explain: whether the scheduler is asked to give its reasons in ``Allocation.why``.
        consolidation_s: seconds at a round's end in which copies of one job average their weights.
        guessed: [N] whether nothing was measured yet of the rates shown; None: they are the true ones.
    """

    time: float
    round_s: float
    restart_s: float
    mixed_rate: MixedRate
    cluster: Cluster
    free: Integers
    mid_round: bool
    job: Integers
    arrival: Floats
    workers: Integers
    steps: Floats
    remaining: Floats
    attained_s: Floats
    running_s: Floats
    weight: Floats
    slo: Floats
    rates: Floats
    spread_rates: Floats
    held: Allocation
    held_gang: Integers
    explain: bool = False
    consolidation_s: float = 0.0
    guessed: Flags | None = None

    def __len__(self) -> int:
        return len(self.job)

    @property
    def waiting_s(self) -> Floats:
        """[N] seconds since arrival in which the job did not run."""
        return self.time - self.arrival - self.running_s

    @property
    def best_rate(self) -> Floats:
        """[N] steps/s on each job's fastest type."""
        return self.rates.max(axis=1)

    @property
    def gang_rates(self) -> Floats:
        """[N, R] steps/s of a whole gang on one type: spread where no node of the type can hold it."""
        return self._rates_by(self.cluster.capacity)

    @property
    def runnable(self) -> Flags:
        """[N, R] whether a whole gang runs on one type as it is free: in one node if one can hold it, else spread."""
        return self._rates_by(self.free) > 0

    def _rates_by(self, room: Integers) -> Floats:
        """[N, R] rates in one node where a node has room [H, R] for the whole gang, else spread."""
        return np.where(self.workers[:, None] > room.max(axis=0), self.spread_rates, self.rates)

    @property
    def held_type(self) -> Integers:
        """[N] type on which the job's gang runs, -1 if it does not run or runs on several."""
        types = np.full(len(self), -1, dtype=np.int64)
        (running,) = np.nonzero(self.held_gang >= 0)
        gang = self.held_gang[running]
        first, last = self.held.ptr[gang], self.held.ptr[gang + 1]
        if len(gang):
            changes = np.concatenate(([0], np.cumsum(np.diff(self.held.gpu_type) != 0)))
            types[running] = np.where(changes[first] == changes[last - 1], self.held.gpu_type[first], -1)
        return types

    def goes_on_from(self, before: ClusterView) -> bool:
        """Whether it asks for nothing new: the same jobs and free GPUs as in a view before, both at a round's start."""
        at_start = not (self.mid_round or before.mid_round)
        return at_start and np.array_equal(self.job, before.job) and np.array_equal(self.free, before.free)


@runtime_checkable
class Scheduler(Protocol):
    """Decides who runs where. The same object drives the simulator, the environment and real workers.

    Attributes:
        name: for tables.
        mixes: whether it may put one gang on several GPU types; jobs that fit no single type are
            left out of a simulation under schedulers that never mix.
        forks: whether it may give one job several gangs (copies on separate nodes).
    """

    name: str
    mixes: bool
    forks: bool

    def reset(self, cluster: Cluster, round_s: float, rng: np.random.Generator) -> None:
        """Forget everything; a new run on this cluster begins. All random draws come from ``rng``."""

    def schedule(self, view: ClusterView) -> Allocation:
        """Decide. A running job that is left out of the answer at a round's start is preempted."""


def begin(scheduler: Scheduler, workload: Workload, cluster: Cluster, round_s: float, rng: np.random.Generator) -> None:
    """Reset a scheduler for a run of this workload.

    A scheduler that must know the jobs that will come (admission control with prices whose bounds depend
    on them) has a further method ``foresee(workload)``, which is called first.
    """
    foresee = getattr(scheduler, "foresee", None)
    if foresee is not None:
        foresee(workload)
    scheduler.reset(cluster, round_s, rng)


@runtime_checkable
class FractionalPolicy(Protocol):
    """Decides which part of the time each job shall have on each type; Gavel's rounds realise it.

    Attributes:
        name: for tables.
        work_conserving: jobs without a fraction may use GPUs that are left (all but FIFO's policies).
        shuffles_types: the types are served in random order each round (policies blind to types).
    """

    name: str
    work_conserving: bool
    shuffles_types: bool

    def reset(self, cluster: Cluster, round_s: float, rng: np.random.Generator) -> None:
        """Forget everything; a new run on this cluster begins."""

    def fractions(self, view: ClusterView) -> Floats:
        """[N, R] part of the time, 0 to 1, that each job of the view shall have on each type."""


@njit(cache=True, nogil=True)
def _ascends(ptr: Integers, last: int) -> bool:
    """Whether pointers ascend from 0 to ``last``."""
    before = 0
    for here in ptr:
        if here < before:
            return False
        before = here
    return ptr[0] == 0 and before == last


def _check_length(name: str, values: Integers | Floats, size: int) -> None:
    if len(values) != size:
        raise AllocationError(f"an allocation's {name} has length {len(values)}; expected {size}.")


def _whole_numbers(name: str, values: ArrayLike) -> Integers:
    """Values as a one-dimensional array of whole numbers; an empty list will do, whatever its type."""
    array = np.asarray(values)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise AllocationError(
            f"an allocation's {name} has shape {array.shape} and type {array.dtype}; expected whole numbers in one "
            "dimension."
        )
    return array.astype(WHOLE, copy=False)


def _ints(values: Sequence[int]) -> Integers:
    return np.array(values, dtype=np.int64)
