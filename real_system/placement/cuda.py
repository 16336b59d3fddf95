"""The executor of GPUs: a stream per device, driven by one thread of the host."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Iterable, Sequence
from typing import Any, Literal, get_args

import numpy as np

from ...envs.errors import PlacementError
from ...envs.placement import PlacementProblem, simulate
from .cuda_ahead import Ahead
from .cuda_calls import CudaCalls, TorchCuda
from .cuda_driven import Driven
from .cuda_streams import Clock, Streams
from .cuda_tensors import CudaDevices, CudaJob
from .executor import ExecutionError, ExecutionTimeoutError, explain
from .interference import waited_seconds
from .phased import PhasedExecutor
from .run import Run

LaunchMode = Literal["driven", "ahead"]
PATIENCE_S = 1.0
"""How long what is on the GPUs gets to end when an execution is ended from outside."""


class CudaExecutor(PhasedExecutor):
    """Executes placements on GPUs; no thread or process is started, and the calling thread is busy until the end.

    Outputs stay on their GPUs. What runs on a GPU cannot be interrupted: after a time-out, an error or Ctrl-C nothing
    more is enqueued, and what already was gets a second to end. If a kernel still runs then, it is left behind with
    its streams, and the next execution begins when it has ended, or says that it has not.
    """

    def __init__(
        self,
        problem: PlacementProblem,
        calls: CudaCalls,
        gpus: Sequence[int],
        launch: LaunchMode = "driven",
        timeout: float = 60.0,
    ) -> None:
        """See ``cuda_executor``; ``gpus`` [D] names the GPU of each device."""
        super().__init__(problem, CudaDevices(problem, calls, gpus), timeout)
        self.calls, self.launch = calls, launch
        self._streams: Streams | None = None

    def waited_s(self) -> float:
        """As of ``PhasedExecutor``: of the calling thread."""
        return waited_seconds([threading.get_native_id()])

    def carry_on(self, run: Run, phase: int, timeout: float | None = None) -> None:
        """As of ``PhasedExecutor``; when something failed, nothing more is enqueued, and no tensor is kept."""
        self.under_way = run
        with self.calls.restored(sorted(set(self.kind.gpus))):
            try:
                self._carry_on(run, phase, self.timeout if timeout is None else timeout)
            except BaseException as error:
                run.job.stop()
                self._drain()
                if error.__cause__ is not None:  # its frames hold tensors
                    traceback.clear_frames(error.__cause__.__traceback__)
                traceback.clear_frames(error.__traceback__)
                raise
            finally:
                self.under_way = None

    def _carry_on(self, run: Run, phase: int, timeout: float) -> None:
        deadline = self.calls.now() + timeout
        if self._streams is None:
            self._streams = Streams(self.calls, self.kind.gpus)
        self._rest(deadline)
        self._job(run).send_inputs()
        self._rest(deadline)
        order = self._order(run) if self.launch == "ahead" else []
        clock = Clock(self.calls, dict(zip(self.kind.gpus, self._streams.compute, strict=True)))
        run.resumed = self.calls.now()
        if phase == 0:
            run.begun = run.resumed
        if self.launch == "ahead":
            Ahead(run, phase, self._streams, clock, deadline).go(order)
        else:
            Driven(run, phase, self._streams, clock, deadline).go()

    @staticmethod
    def _job(run: Run) -> CudaJob:
        assert isinstance(run.job, CudaJob), "jobs come from this executor's kind"
        return run.job

    def _order(self, run: Run) -> list[int]:
        """The order in which everything is enqueued ahead: the priorities, or the starts of the simulated schedule."""
        if run.rank is not None:
            return np.argsort(run.rank).tolist()
        graph, relaxed = self.problem.graph, self.problem.with_options(memory="off")
        position = np.empty(graph.n)
        position[graph.topological_order] = np.arange(graph.n)
        start = simulate(relaxed, run.plan.assignment).start
        return np.lexsort((position, start)).tolist()

    def _rest(self, deadline: float) -> None:
        """Wait until nothing is under way on the executor's streams, and on those that the user has made current.

        So an execution reads what the user has computed, measures itself alone, and may use the memory of everything
        that was freed before.
        """
        assert self._streams is not None, "made before"
        try:
            events = self._streams.marks()
            while not all(map(self.calls.done, events)):
                if self.calls.now() > deadline:
                    raise ExecutionTimeoutError(
                        f"{self.problem.graph.title}: the GPUs are still busy with what they were given before; "
                        "wait for it, or give more time with timeout=."
                    )
                self.calls.pause()
        except ExecutionError:
            raise
        except Exception as error:
            raise explain(f"{self.problem.graph.title}: waiting for what the GPUs did before", error) from error

    def _drain(self) -> None:
        """Give what is on the GPUs time to end.

        What does not is left behind. The tensors that it uses are freed all the same: their memory goes back to the
        executor's streams, which are in order, and which get nothing new before they have come to rest.
        """
        if self._streams is None:
            return
        try:
            self._rest(self.calls.now() + PATIENCE_S)
        except ExecutionError:
            return

    def close(self) -> None:
        """Wait for what is on the GPUs, within reason, and forget inputs and streams.

        From another thread while one executes: that execution ends with ``ExecutionClosedError`` and keeps the streams.
        """
        if (run := self.under_way) is not None:
            run.failed = True
            return
        self._drain()
        self.kind.clear()
        self._streams, self._plans = None, {}


def cuda_executor(
    problem: PlacementProblem,
    *,
    devices: Iterable[int] | None = None,
    launch: LaunchMode = "driven",
    timeout: float = 60.0,
) -> CudaExecutor:
    """An executor of GPUs; each device of the problem is a stream of one.

    Args:
        devices: [D] GPU of each device; by default one each, in turn where there are fewer. Devices on one GPU are
            different streams of it, and tensors between them are copied.
        launch: ``driven`` looks at run time what is ready, as the other executors do; ``ahead`` enqueues everything in
            a fixed order: less work for the host, but a device waits for its next operation though another is ready.
        timeout: seconds.

    Raises:
        ExecutionError: there is no GPU.
        PlacementError: devices or launch are not usable.
        GraphError: the graph has no kernels.
    """
    return on_gpus(problem, TorchCuda(), devices, launch, timeout)


def on_gpus(
    problem: PlacementProblem, calls: CudaCalls, devices: Iterable[int] | None, launch: LaunchMode, timeout: float
) -> CudaExecutor:
    """``cuda_executor`` with the calls given."""
    count = calls.count()
    if launch not in get_args(LaunchMode):
        raise PlacementError(f"launch is {launch!r}; expected {', '.join(get_args(LaunchMode))}.")
    if not count:
        raise ExecutionError("torch sees no GPU here; use executor=cpu or emulated.")
    given: Any = devices
    if given is not None and (isinstance(given, str) or not isinstance(given, Iterable)):
        raise PlacementError(f"devices is {devices!r}; expected a list with the GPU of each device, or null.")
    gpus = [device % count for device in range(problem.d)] if devices is None else list(devices)
    if len(gpus) != problem.d or not all(gpu in range(count) for gpu in gpus):
        raise PlacementError(
            f"devices are {gpus}; expected the GPU, 0 to {count - 1}, of each of the problem's {problem.d} devices."
        )
    return CudaExecutor(problem, calls, gpus, launch, timeout)
