"""A job's own code in a process of its own: whatever it does there, the run goes on."""

from __future__ import annotations

import json
import os
import select
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ...envs.errors import HadopplerError
from .python_process import start_python
from .training_job import JobSpec

START_S = 60.0
"""How long the process may take to begin."""
PATIENCE_S = 60.0
"""How long one question to a job's code may take (our choice)."""
TOLD_S = 5.0
"""How long a job's code may take before it is told that it is being asked."""
LOOK_S = 0.2
"""How often who waits for an answer is told that it is waited for."""
Question = tuple[str, JobSpec, str]
"""``facts``, ``seconds`` or ``quality``; of which job; path of a saved state, for ``quality``."""
Answer = dict[str, Any] | str
"""Figures, or a sentence where a job's code failed, ended its process or hung."""
Waiting = Callable[[JobSpec, float], None]
"""Called every ``LOOK_S`` with the job that is being asked and for how many seconds; what it raises ends the asking."""


def ask_apart(
    questions: Sequence[Question], patience_s: float = PATIENCE_S, waiting: Waiting | None = None
) -> list[Answer]:
    """Answers to questions about jobs, in order.

    Raises:
        OSError: no process can be started; nothing is left open.
    """
    answers = list[Answer]()
    while len(answers) < len(questions):
        answers += _ask_some(questions[len(answers) :], patience_s, waiting)
    return answers


def _ask_some(questions: Sequence[Question], patience_s: float, waiting: Waiting | None) -> list[Answer]:
    """Answers up to the first that ends the process."""
    process, asking, answering = _start()
    found = list[Answer]()
    lines = Lines(answering)
    try:
        with os.fdopen(asking, "w") as told:  # open until all is answered: as long as it is, somebody listens
            told.write(json.dumps([[kind, asdict(spec), path] for kind, spec, path in questions]) + "\n")
            told.flush()
            begun = _next(lines, START_S, questions[0][1], waiting) is not None
            for _, spec, _ in questions:
                line = _next(lines, patience_s, spec, waiting) if begun else None
                if line is None:
                    ended, silent = _ended(process), patience_s if begun else START_S
                    what = f"ended its process ({process.poll()})" if ended else f"said nothing for {silent:g} s"
                    found.append(f"job {spec.id!r} (task {spec.task}): its code {what}.")
                    break
                found.append(json.loads(line))
    finally:
        os.close(answering)
        process.kill()
        process.wait()
    return found


def _start() -> tuple[subprocess.Popen[bytes], int, int]:
    """A process that answers; this process's ends of the pipes to it and from it."""
    ends = list[int]()
    try:
        for _ in range(2):
            ends += os.pipe()
        its_questions, asking, answering, its_answers = ends
        process = start_python(serve, [its_questions, its_answers])
    except OSError:
        for end in ends:
            os.close(end)
        raise
    os.close(its_questions)
    os.close(its_answers)
    return process, asking, answering


def _next(lines: Lines, seconds: float, spec: JobSpec, waiting: Waiting | None) -> bytes | None:
    """The next line about a job; None if it does not come, or the pipe is closed."""
    begin = time.monotonic()
    while (line := lines.next(min(LOOK_S, begin + seconds - time.monotonic()))) is None and not lines.closed:
        took = time.monotonic() - begin
        if took >= seconds:
            break
        if waiting is not None:
            waiting(spec, took)
    return line


class SlowAnswers:
    """A ``Waiting`` that tells whose code takes long, every ``TOLD_S``."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell, self._last = tell, 0.0

    def __call__(self, spec: JobSpec, seconds: float) -> None:
        """A job has been asked for so long."""
        if seconds < self._last:  # another question
            self._last = 0.0
        if seconds >= self._last + TOLD_S:
            self._last = seconds
            self._tell(f"job {spec.id!r} (task {spec.task}): its code is asked; no answer for {seconds:.0f} s yet")


class _NotNeeded(Exception):
    """Nobody wants the answers any more."""


class Inquiry:
    """Questions that are being asked while something else goes on."""

    def __init__(self, questions: Sequence[Question]) -> None:
        self.questions = questions
        self.answers = list[Answer]()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._ask, name="inquiry", daemon=True)
        if questions:
            self._thread.start()

    def stop(self) -> None:
        """Ask no more: the process that runs the job's code ends within ``LOOK_S``; it is not waited for."""
        self._stopped.set()

    def _look(self, spec: JobSpec, seconds: float) -> None:
        if self._stopped.is_set():
            raise _NotNeeded

    def _ask(self) -> None:
        try:
            self.answers = ask_apart(self.questions, waiting=self._look)
        except _NotNeeded:
            pass
        except OSError as error:  # no process can be started just now
            self.answers = [
                f"job {spec.id!r} (task {spec.task}): could not be asked ({error})." for _, spec, _ in self.questions
            ]

    @property
    def done(self) -> bool:
        """Whether ``answers`` are there."""
        return not self._thread.is_alive()


class Lines:
    """Lines that come through a pipe, each waited for no longer than is allowed; ``closed`` when no more will come."""

    def __init__(self, number: int) -> None:
        self._number, self._rest = number, b""
        self.closed = False

    def next(self, seconds: float) -> bytes | None:
        """The next line; None if it does not come, or the pipe is closed."""
        until = time.monotonic() + seconds
        while b"\n" not in self._rest:
            ready, _, _ = select.select([self._number], [], [], max(0.0, until - time.monotonic()))
            part = os.read(self._number, 1 << 16) if ready else b""
            self.closed = bool(ready) and not part
            if not part:
                return None
            self._rest += part
        line, _, self._rest = self._rest.partition(b"\n")
        return line


def _ended(process: subprocess.Popen) -> bool:
    """Whether it is over, a moment after it closed its end."""
    until = time.monotonic() + 1.0
    while process.poll() is None and time.monotonic() < until:
        time.sleep(0.01)
    return process.poll() is not None


def serve(questions: int, answers: int) -> None:
    """What the process does: say that it is ready, then answer each question of one line with a line.

    It ends when nobody holds the other end of ``questions`` any more, whatever the job's code is doing then.
    """
    import torch

    torch.set_num_threads(1)
    with suppress(BrokenPipeError), os.fdopen(answers, "w") as told:  # nobody listens
        told.write("ready\n")
        told.flush()
        asked = json.loads(os.fdopen(questions, closefd=False).readline())
        threading.Thread(target=_leave_at_end, args=(questions,), name="watch", daemon=True).start()
        for kind, spec, path in asked:
            try:
                answer: Any = ANSWERS[kind](JobSpec(**spec), path)
            except HadopplerError as error:
                answer = str(error)
            except Exception as error:
                answer = f"job {spec['id']!r} (task {spec['task']}): its code failed ({type(error).__name__}: {error})."
            told.write(json.dumps(answer) + "\n")
            told.flush()


def _leave_at_end(number: int) -> None:
    """End the process when the pipe is closed: nothing more is ever written to it."""
    os.read(number, 1)
    os._exit(1)


def _facts(spec: JobSpec, path: str) -> dict[str, Any]:
    from .task_facts import task_facts

    return asdict(task_facts(spec))


def _seconds(spec: JobSpec, path: str) -> dict[str, float]:
    """Median seconds that a step takes to compute, on one thread."""
    from .learner import Learner

    learner, times = Learner(spec), list[float]()
    for number in range(13):
        begin = time.perf_counter()
        learner.step(number, 1, slice(0, spec.batch_size))
        times.append(time.perf_counter() - begin)
    return {"seconds": sorted(times[3:])[5]}


def _quality(spec: JobSpec, path: str) -> dict[str, float]:
    from .learner import Learner, unpack

    learner = Learner(spec)
    learner.load(unpack(Path(path).read_bytes()))
    return {name: float(value) for name, value in learner.evaluate().items()}


ANSWERS = {"facts": _facts, "seconds": _seconds, "quality": _quality}
