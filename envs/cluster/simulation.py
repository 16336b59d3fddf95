"""One run of the cluster, driven from outside: see, decide, let time pass."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..errors import AllocationError
from . import kernels
from .allocation_checks import check_entries
from .cluster import Cluster
from .estimator import RateEstimator
from .failures import NodeEvent, check_events
from .fork_rounds import begin_forks, book_forks, check_shares, fork_running, lose_copies, mark_forks
from .result import ClusterResult, RoundLog
from .rules import SimulationRules
from .scheduler import Allocation, ClusterView, Floats, Integers
from .state import ClusterState, concatenate_gangs, empty_gangs, new_gangs
from .workload import Workload

TOLERANCE = 1e-9
"""Part of a round's length within which an end counts as at the round's end."""


class Simulation:
    """A run that is driven from outside: ``next_view``, decide, ``apply``, and again.

    A round starts at the first arrival and every ``round_s`` from there. It ends before its time
    when nothing runs any more; then the next one starts at once, or at the next arrival. Jobs that
    arrive inside a round are seen at its end.

    Who runs jobs in another way than by the clock of the table derives from it: ``pass_time`` lets the time
    between two decisions pass, ``steps_left`` counts, and ``admit`` takes in jobs that nobody knew of. Views, checks
    of decisions, the books and the results then are the same.

    Args:
        workload: the jobs.
        cluster: the nodes.
        rules: rules of the world.
        failures: what happens to nodes when.
        mixes: whether a gang may stand on several types; decides which jobs can fit at all.
        explain: ask schedulers for reasons.
        log: keep every decision for ``rounds.csv``.
        estimator: views show its rates instead of the true ones; it is told what every gang did.
    """

    def __init__(
        self,
        workload: Workload,
        cluster: Cluster,
        rules: SimulationRules | None = None,
        *,
        failures: Sequence[NodeEvent] = (),
        mixes: bool = True,
        explain: bool = False,
        log: bool = True,
        estimator: RateEstimator | None = None,
    ) -> None:
        self.workload, self.cluster, self.rules = workload, cluster, rules or SimulationRules()
        self.state = ClusterState(workload, cluster, mixes)
        self.log = RoundLog(keep=log)
        self.estimator = estimator
        self._shown = self.state.jobs if estimator is None else estimator
        self.explain = explain
        self._events = check_events(failures, cluster)
        self._usable = np.ones(len(cluster.nodes), dtype=bool)
        self._slowest = self.rules.mixed_rate == "min"
        self._capacity = cluster.capacity.copy()
        self._gangs, self._held = empty_gangs(), Allocation.empty()
        self._number = 0.0
        self._refill: np.ndarray | None = None
        self._idle, self._worked = 0, 0.0
        self.time = float(workload.arrival[self.state.rows[0]]) if len(self.state.rows) else 0.0
        self._origin = self.time

    @property
    def round_start(self) -> float:
        """When the current round began; computed from its number, so it does not drift."""
        return self._origin + self._number * self.rules.round_s

    @property
    def round_end(self) -> float:
        """When the current round ends at the latest."""
        return self._origin + (self._number + 1) * self.rules.round_s

    def next_view(self) -> ClusterView | None:
        """What a scheduler sees at the next decision; None when no job is left."""
        state = self.state
        if self._refill is not None:
            return self._view(self._refill, mid_round=True)
        self._pass_events(self.time)
        state.arrive(self.time)
        if len(state.active) == 0:
            upcoming = state.next_arrival
            if upcoming is None:
                return None
            self.time = self._origin = upcoming
            self._number = 0.0
            self._pass_events(self.time)
            state.arrive(self.time)
        return self._view(self._all_free(), mid_round=False)

    def apply(self, allocation: Allocation) -> None:
        """Carry a decision out, and let time pass until the next one.

        Raises:
            AllocationError: the decision breaks a rule; the gang and the rule are named, and nothing
                has changed, so another decision may follow.
        """
        rules, state, now, jobs = self.rules, self.state, self.time, self.state.jobs
        mid_round = self._refill is not None
        free = self._refill if self._refill is not None else self._all_free()
        check_entries(allocation, self.cluster, self.workload.jobs)
        added = new_gangs(allocation)
        mark_forks(added)
        self._check_rows(allocation, mid_round)
        old = empty_gangs() if mid_round else self._gangs
        if added.forked.any():
            self._check(kernels.check_gangs(jobs, added, free.copy(), self._slowest), allocation)
            check_shares(added, allocation, state.left)
            fork_running(jobs, old, added, now)
        outcome = kernels.start_gangs(jobs, old, added, free.copy(), now, rules.restart_s, self._slowest)
        self._check(outcome, allocation)
        believed = added.rate if self.estimator is None else self.estimator.gang_rates(allocation)
        begin_forks(jobs, added, allocation, believed, self.round_end, rules.consolidation_s)
        self._refuse(allocation)
        self._gangs = concatenate_gangs(jobs, self._gangs, added) if mid_round else added
        self._held = state.as_allocation(self._gangs)
        restarts = len(added.job) - int(added.kept.sum())
        self.log.add(now, mid_round, len(state.active), len(self._gangs.job), restarts, allocation, added)
        self._refill = None
        self.pass_time()
        if self.estimator is not None:
            self._tell(self.estimator, now)

    def admit(self, workload: Workload, estimator: RateEstimator | None = None) -> None:
        """More jobs have arrived now; they stand behind all others in ``workload``, which takes the old one's place.

        Args:
            estimator: that knows them; needed where there was one.
        """
        self.workload, self.estimator = workload, estimator
        self.state.admit(workload, self.cluster)
        self._shown = self.state.jobs if estimator is None else estimator

    def steps_left(self, rows: Integers) -> Floats:
        """[N] steps that jobs have left now."""
        kernels.remaining_now(self.state.jobs, self._gangs, self.time, rows, self.state.left)
        return self.state.left[rows]

    def pass_time(self) -> None:
        """Advance to the next decision: a refill, the end of the round, or of all that runs."""
        state, gangs, tolerance = self.state, self._gangs, TOLERANCE * self.rules.round_s
        idle = not len(gangs.job)
        while True:
            stop, refill = self.round_end, False
            first = kernels.next_release(gangs) if self.rules.early_refill else stop
            if first < stop - tolerance:
                stop, refill = first, True
            event = bool(self._events) and self._events[0][0] < stop
            if event:
                stop, refill = max(self._events[0][0], self.time), False
            before = gangs.alive.copy()
            alive = kernels.advance(state.jobs, gangs, state.use, self.time, stop, tolerance)
            ended = before & ~gangs.alive
            state.drop_finished()
            if alive == 0 and not idle:
                self._end_round(float(gangs.release[ended].max()))
                return
            self.time = stop
            if event:
                lost = self._pass_events(stop)
                ended[lost] = True
                refill = self.rules.early_refill and len(lost) > 0
                if not idle and not gangs.alive.any():
                    self._end_round(stop)
                    return
            if stop >= self.round_end:
                self._end_round(stop)
                return
            if refill and self._offer(ended):
                return

    def _tell(self, estimator: RateEstimator, begin: float) -> None:
        """Report steps done / seconds of work of the gangs that worked since ``begin``; lost ones tell nothing."""
        gangs = self._gangs
        worked = np.minimum(gangs.end, self.time) > np.maximum(gangs.work_start, begin)
        ended = np.isfinite(self.state.jobs.finish[gangs.job])
        estimator.observe(self._held, np.where(worked & (gangs.alive | ended), gangs.rate, np.nan))

    def _end_round(self, now: float) -> None:
        """Close the round at ``now``, its end or the moment when nothing runs any more."""
        if now < self.round_end:
            self.time = self._origin = now
            self._number = 0.0
        else:
            self._number += 1
            self.time = self.round_start
        book_forks(self.state.jobs, self._gangs, self.time)
        before, self._worked = self._worked, float(self.state.use.worked.sum())
        nothing = self._worked == before and not self._events and self.state.next_arrival is None
        self._idle = self._idle + 1 if nothing else 0
        if self._idle > self.rules.max_idle_rounds + self.rules.restart_s / self.rules.round_s:
            why = "let no job get beyond its restart" if len(self._gangs.job) else "gave it no GPU"
            self.state.give_up(f"the scheduler {why} in {self._idle} rounds without anything else to run")

    def _offer(self, ended: np.ndarray) -> bool:
        """Prepare a refill with the GPUs that the ended gangs left; False if nobody waits for them."""
        state, gangs = self.state, self._gangs
        waiting = state.jobs.gang[state.active] < 0
        if not waiting.any():
            return False
        free = self._all_free()
        touched = np.zeros(len(free), dtype=bool)
        for gang in range(len(gangs.job)):
            entries = slice(gangs.ptr[gang], gangs.ptr[gang + 1])
            if gangs.alive[gang]:
                np.subtract.at(free, (gangs.node[entries], gangs.gpu_type[entries]), gangs.gpus[entries])
            elif ended[gang]:
                touched[gangs.node[entries]] = True
        free[~touched] = 0
        self._refill = np.maximum(free, 0)
        return bool(self._refill.any())

    def _all_free(self) -> Integers:
        """[H, R] the GPUs of all usable nodes."""
        return np.where(self._usable[:, None], self._capacity, 0)

    def _pass_events(self, now: float) -> Integers:
        """Apply the node events up to ``now``; numbers of the gangs that were lost."""
        lost: list[int] = []
        while self._events and self._events[0][0] <= now:
            moment, node, action = self._events.pop(0)
            self._usable[node] = action == "restore"
            if action == "fail":
                before = self._gangs.alive.copy()
                kernels.lose_node(self.state.jobs, self._gangs, node, self.round_start, max(moment, self.time))
                gone = np.flatnonzero(before & ~self._gangs.alive)
                lose_copies(self.state.jobs, self._gangs, gone)
                lost += gone.tolist()
        return np.array(lost, dtype=np.int64)

    def _view(self, free: Integers, mid_round: bool) -> ClusterView:
        state, rules = self.state, self.rules
        jobs = state.jobs
        self.steps_left(state.active)
        rows = state.active[jobs.gang[state.active] < 0] if mid_round else state.active
        return ClusterView(
            time=self.time,
            round_s=rules.round_s,
            restart_s=rules.restart_s,
            mixed_rate=rules.mixed_rate,
            cluster=self.cluster,
            free=free,
            mid_round=mid_round,
            job=rows,
            arrival=self.workload.arrival[rows],
            workers=jobs.workers[rows],
            steps=self.workload.steps[rows],
            remaining=state.left[rows],
            attained_s=jobs.held_s[rows],
            running_s=jobs.running_s[rows],
            weight=self.workload.weight[rows],
            slo=self.workload.slo[rows],
            rates=self._shown.rates[rows],
            spread_rates=self._shown.spread[rows],
            held=self._held,
            held_gang=jobs.gang[rows],
            explain=self.explain,
            consolidation_s=rules.consolidation_s,
            guessed=None if self.estimator is None else self.estimator.guessed(rows),
        )

    def _check_rows(self, allocation: Allocation, mid_round: bool) -> None:
        """Refills go to waiting jobs only, and only jobs that wait are refused."""
        jobs = self.state.jobs
        if mid_round and len(allocation) and (jobs.gang[allocation.job] >= 0).any():
            raise AllocationError(
                "a refill in mid-round gives GPUs to a job that runs; give them to waiting jobs only."
            )
        for row in allocation.refused:
            if not jobs.active[row] or jobs.gang[row] >= 0 or row in allocation.job:
                raise AllocationError(
                    f"job {self.workload.jobs[row].id!r} is refused although it runs, is done or has not arrived; "
                    "refuse waiting jobs only."
                )

    def _refuse(self, allocation: Allocation) -> None:
        """Take out the jobs that the scheduler does not admit."""
        for row in allocation.refused:
            self.state.jobs.active[row] = False
            self.state.reasons[int(row)] = "refused by the scheduler"
        if len(allocation.refused):
            self.state.drop_finished()

    def _check(self, outcome: tuple[int, int], allocation: Allocation) -> None:
        fault, gang = outcome
        if fault == kernels.OK:
            return
        job = self.workload.jobs[allocation.job[gang]]
        where = f"job {job.id!r} on {allocation.describe(gang, self.cluster)}"
        raise AllocationError(
            {
                kernels.INACTIVE: f"{where}: it has not arrived or is finished; give GPUs to jobs of the view only.",
                kernels.OVER_CAPACITY: f"{where}: more GPUs are given than are free; keep to view.free.",
                kernels.WRONG_SIZE: f"{where}: a gang must have exactly {job.workers} GPUs.",
                kernels.NO_RATE: f"{where}: {job.kind} with {job.workers} workers does not run on one of these types.",
                kernels.UNSORTED: f"{where}: a gang's entries must ascend by node, then type, without repetition.",
            }[fault]
        )

    def result(self, scheduler: str = "", decision_s: float = 0.0) -> ClusterResult:
        """Tables and metrics of what was simulated so far; jobs that are not done count as unfinished."""
        if len(self.state.active) or self.state.next_arrival is not None:
            self.state.give_up("the simulation was stopped before it was done")
        self.log.close(self.time)
        return ClusterResult.collect(
            self.workload, self.cluster, self.rules, self.state, self.log, scheduler, decision_s
        )
