"""An executor in a process of its own, which can be ended whatever its threads are doing."""

from __future__ import annotations

import multiprocessing
import pickle
import signal
from collections.abc import Callable, Mapping
from math import isinf
from multiprocessing.connection import Connection
from time import perf_counter
from typing import TYPE_CHECKING, Any

from numpy.typing import ArrayLike

from ...envs.errors import HadopplerError
from ...envs.placement import PlacementProblem
from . import settings
from .executor import Execution, ExecutionError, ExecutionTimeoutError, Executor, Options, closed

if TYPE_CHECKING:
    import torch

START_S = 60.0
"""Longest time that the process may take until it is ready (our choice)."""
GRACE_S = 0.5
"""How long after a time-out the process may still tell what was under way; then it is ended (our choice)."""


class IsolatedExecutor(Executor):
    """Hands placements to an executor in a child process (started afresh, so that CUDA can be used there).

    Slower to start, and inputs and outputs are copied between the processes; but an operation that does not return is
    really ended with the process, and a crash inside native code is an error here. The next execution starts another
    process.

    Args:
        problem: that placements belong to.
        make: makes the executor in the child; a function of a module, or ``functools.partial`` of one.
        timeout: seconds for one execution.
    """

    def __init__(self, problem: PlacementProblem, make: Callable[[], Executor], timeout: float = 60.0) -> None:
        self.problem, self.make, self.timeout = problem, make, settings.time_out(timeout)
        self._process: Any = None
        self._pipe: Connection | None = None
        self._busy = self._closed = False

    def _execute(self, assignment: ArrayLike, inputs: Mapping[str, torch.Tensor] | None, options: Options) -> Execution:
        self._busy = True
        try:
            pipe = self._start()
            pipe.send_bytes(pickle.dumps((assignment, inputs, options)))
            found = self._receive(pipe, options.timeout)
        except BaseException as error:
            self._kill()
            if self._closed and isinstance(error, Exception):
                raise closed(self.problem) from None
            raise
        finally:
            self._busy = self._closed = False
        if isinstance(found, Execution):
            return found
        if isinstance(found, ExecutionError) or not isinstance(found, HadopplerError):
            self._kill()  # threads may be stuck in there
        raise found

    def close(self) -> None:
        """End the process; from another thread also while it executes, whose thread then tidies up."""
        if self._busy:
            self._closed = True
            if self.process_id is not None:
                self._process.kill()
            return
        if self._pipe is not None and self._process.is_alive():
            self._pipe.send_bytes(pickle.dumps(None))
            self._process.join(2.0)
        self._kill()

    @property
    def process_id(self) -> int | None:
        """Of the child, while there is one."""
        return None if self._process is None else self._process.pid

    def _start(self) -> Connection:
        """The pipe to a process that is ready."""
        if self._pipe is not None:
            return self._pipe
        context = multiprocessing.get_context("spawn")
        mine, its = context.Pipe()
        self._process = context.Process(target=_serve, args=(its, self.make), name="placed-graph", daemon=True)
        self._process.start()
        its.close()
        self._pipe = mine
        if self._closed:  # before there was a process to be ended
            raise closed(self.problem)
        ready = self._receive(mine, START_S)
        if isinstance(ready, BaseException):
            raise ready
        return mine

    def _receive(self, pipe: Connection, seconds: float) -> Any:
        """What the process says.

        Raises:
            ExecutionError: it has died, or says nothing.
        """
        deadline = perf_counter() + seconds + GRACE_S
        try:
            if pipe.poll(None if isinf(seconds) else max(deadline - perf_counter(), 0.0)):
                return pickle.loads(pipe.recv_bytes())
        except (EOFError, OSError):
            self._process.join(1.0)
            raise ExecutionError(
                f"{self.problem.graph.title}: the process of its devices has died ({_how(self._process.exitcode)}); "
                "the next execution starts another one."
            ) from None
        raise ExecutionTimeoutError(
            f"{self.problem.graph.title}: the execution did not end within {seconds:g} s and its process was ended; "
            "give more time with timeout=."
        )

    def _kill(self) -> None:
        process, pipe, self._process, self._pipe = self._process, self._pipe, None, None
        if process is not None:
            process.kill()
            process.join()
            process.close()
        if pipe is not None:
            pipe.close()


def _how(code: int | None) -> str:
    """An exit code for people."""
    return f"signal {-code}, {signal.Signals(-code).name}" if code is not None and code < 0 else f"exit code {code}"


def _serve(pipe: Connection, make: Callable[[], Executor]) -> None:
    """The child: run what is asked for until there is no more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    try:
        executor = make()
    except Exception as error:
        pipe.send_bytes(_packed(error))
        return
    pipe.send_bytes(pickle.dumps(True))
    while (asked := _asked(pipe)) is not None:
        assignment, inputs, options = asked
        try:
            pipe.send_bytes(pickle.dumps(executor.run(assignment, inputs, **options._asdict())))
        except Exception as error:
            pipe.send_bytes(_packed(error))
    executor.close()


def _asked(pipe: Connection) -> Any:
    """What to run next; None at the end, also if nobody holds the other end of the pipe any more."""
    try:
        return pickle.loads(pipe.recv_bytes())
    except EOFError:
        return None


def _packed(error: Exception) -> bytes:
    """An error as bytes; one that cannot be pickled as its text."""
    try:
        return pickle.dumps(error)
    except Exception:
        return pickle.dumps(ExecutionError(f"{type(error).__name__}: {error}"))
