"""What carries tensors between devices: threads that copy, or a clock that pretends to."""

from __future__ import annotations

import ctypes
import sys
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from heapq import heappop, heappush
from queue import SimpleQueue
from time import perf_counter, sleep
from typing import Any, NamedTuple, Protocol

from .run import Run

PR_SET_TIMERSLACK = 29


class Links(Protocol):
    """Takes transfers from the threads of devices and delivers them to inboxes."""

    def post(self, run: Run, transfer: int, payload: Any) -> None:
        """A tensor was produced that another device waits for."""

    def end(self) -> None:
        """Tell the threads to end, without waiting for them."""

    def close(self) -> None:
        """End the threads."""


class Posted(NamedTuple):
    """A transfer that waits; sorted as the simulator starts them: by time produced, source, target."""

    produced: float
    source: int
    target: int
    number: int
    run: Run
    payload: Any


def deliver(run: Run, transfer: int, payload: Any) -> None:
    """Hand over what a transfer brought, unless the execution has ended."""
    run.arrived[transfer] = perf_counter()
    run.inboxes[run.plan.transfers[transfer].target].put((transfer, payload))


class Couriers:
    """Real copies: one thread per receiving device copies what is sent there, one tensor at a time.

    A device also sends one tensor at a time: each has one port out and one in, as in the simulator's ``ports``.
    Tensors of up to ``inline_bytes`` are copied by the sender, which takes less time than waking a thread (our choice).
    """

    def __init__(self, devices: int, bytes_per_s: float = float("inf"), inline_bytes: int = 16384) -> None:
        self.rate, self.inline_bytes = bytes_per_s, inline_bytes
        self._lock = threading.Lock()
        self._pending: list[list[Posted]] = [[] for _ in range(devices)]
        self._sending = [False] * devices
        self._wake: list[SimpleQueue[bool]] = [SimpleQueue() for _ in range(devices)]
        self.threads = [
            threading.Thread(target=self._carry, args=(d,), name=f"courier-{d}", daemon=True) for d in range(devices)
        ]
        for thread in self.threads:
            thread.start()

    def post(self, run: Run, transfer: int, payload: Any) -> None:
        """Copy at once what is small, else leave it to the target's courier."""
        item, now = run.plan.transfers[transfer], perf_counter()
        run.produced[transfer] = now
        posted = Posted(now, item.operation, item.target, transfer, run, payload)
        if item.bytes <= self.inline_bytes and self.rate == float("inf"):
            self._copy(posted)
            return
        with self._lock:
            self._pending[item.target].append(posted)
        self._wake[item.target].put(True)

    def end(self) -> None:
        """As of ``Links``; a thread that copies ends when it has done so."""
        for queue in self._wake:
            queue.put(False)

    def close(self) -> None:
        """As of ``Links``."""
        self.end()
        for thread in self.threads:
            thread.join(2.0)

    def _carry(self, device: int) -> None:
        while self._wake[device].get():
            while (posted := self._take(device)) is not None:
                self._copy(posted)
                self._let_go(posted)

    def _take(self, device: int) -> Posted | None:
        """The first waiting transfer whose source is not sending; it is then."""
        with self._lock:
            pending = self._pending[device]
            free = [item for item in pending if not self._sending[self._source(item)]]
            if not free:
                return None
            first = min(free, key=lambda item: item[:4])
            pending.remove(first)
            self._sending[self._source(first)] = True
            return first

    def _copy(self, posted: Posted) -> None:
        run, number = posted.run, posted.number
        if run.failed:
            return
        try:
            begin = run.sent[number] = perf_counter()
            copied = run.job.copy(number, posted.payload)
            left = begin + run.plan.transfers[number].bytes / self.rate - perf_counter()
            if left > 0:
                sleep(left)
            deliver(run, number, copied)
        except BaseException as error:
            item = run.plan.transfers[number]
            name = run.plan.problem.graph.names[item.operation]
            run.fail(f"the transfer of {name!r} from device {item.source} to {item.target}", error)

    def _let_go(self, posted: Posted) -> None:
        """The source may send again: wake the couriers that wait for it."""
        source = self._source(posted)
        with self._lock:
            self._sending[source] = False
            waiting = [
                device
                for device, pending in enumerate(self._pending)
                if any(self._source(item) == source for item in pending)
            ]
        for device in waiting:
            self._wake[device].put(True)

    @staticmethod
    def _source(posted: Posted) -> int:
        return posted.run.plan.transfers[posted.number].source


class Mailbox:
    """A queue that one thread empties, with a deadline.

    ``SimpleQueue.get(timeout=...)`` of CPython 3.11 can block for ever: woken by an item that is gone, it goes on
    waiting with what is left of its time, and takes a negative rest for no limit.
    """

    def __init__(self) -> None:
        self._items: deque[Posted | None] = deque()
        self._bell = threading.Lock()
        self._bell.acquire()

    def put(self, item: Posted | None) -> None:
        """Add an item and ring."""
        self._items.append(item)
        with suppress(RuntimeError):  # it rings already
            self._bell.release()

    def take(self, until: float | None) -> Iterator[Posted | None]:
        """All items; where there are none, those that come first, or nothing when the clock shows ``until``."""
        if not self._items:
            rest = -1.0 if until is None else min(max(until - perf_counter(), 0.0), threading.TIMEOUT_MAX)
            self._bell.acquire(timeout=rest)
        while self._items:
            yield self._items.popleft()


class TimedLinks:
    """Emulated links: one thread keeps the time of all transfers under the simulator's rules.

    A transfer takes what ``seconds`` says from the moment at which its ports are free, whenever the thread gets to
    it, so that its own delays do not add up; it arrives ``latency`` later.
    """

    def __init__(self, contention: str, channels: int) -> None:
        self.contention, self.channels = contention, channels
        self._inbox = Mailbox()
        self._run: Run | None = None
        self._clear()
        self.threads = [threading.Thread(target=self._keep_time, name="links", daemon=True)]
        self.threads[0].start()

    def post(self, run: Run, transfer: int, payload: Any) -> None:
        """Leave it to the thread."""
        item, now = run.plan.transfers[transfer], perf_counter()
        run.produced[transfer] = now
        self._inbox.put(Posted(now, item.operation, item.target, transfer, run, payload))

    def end(self) -> None:
        """As of ``Links``."""
        self._inbox.put(None)

    def close(self) -> None:
        """As of ``Links``."""
        self.end()
        self.threads[0].join(2.0)

    def _clear(self) -> None:
        """Forget the transfers of an execution that has ended."""
        self._pending: list[Posted] = []
        self._events: list[tuple[float, bool, int]] = []
        self._held: dict[tuple[str, int] | tuple[int, int], int] = {}

    def _keep_time(self) -> None:
        wake_up_on_time()
        while True:
            for posted in self._inbox.take(until=self._events[0][0] if self._events else None):
                if posted is None:
                    return
                if posted.run is not self._run:
                    self._run = posted.run
                    self._clear()
                self._end(posted.produced)
                heappush(self._pending, posted)
                self._start(posted.produced)
            self._end(perf_counter())

    def _start(self, now: float) -> None:
        """Begin every waiting transfer whose ports are free."""
        run, waiting = self._run, []
        assert run is not None, "transfers belong to one"
        while self._pending:
            posted = heappop(self._pending)
            item = run.plan.transfers[posted.number]
            ports = self._ports(item.source, item.target)
            if any(self._held.get(port, 0) >= self.channels for port in ports):
                waiting.append(posted)
                continue
            for port in ports:
                self._held[port] = self._held.get(port, 0) + 1
            begin = max(now, posted.produced)
            run.sent[posted.number] = begin
            seconds, latency = run.job.copy(posted.number, posted.payload)
            heappush(self._events, (begin + seconds, False, posted.number))
            heappush(self._events, (begin + seconds + latency, True, posted.number))
        self._pending = waiting

    def _end(self, now: float) -> None:
        """Free the ports of transfers that are through, and deliver those that have arrived."""
        run = self._run
        while self._events and self._events[0][0] <= now and run is not None:
            when, arrives, number = heappop(self._events)
            if arrives:
                deliver(run, number, None)
                continue
            item = run.plan.transfers[number]
            for port in self._ports(item.source, item.target):
                self._held[port] -= 1
            self._start(when)

    def _ports(self, source: int, target: int) -> tuple[tuple[str, int] | tuple[int, int], ...]:
        if self.contention == "ports":
            return ("out", source), ("in", target)
        return ((source, target),) if self.contention == "pair" else ()


def wake_up_on_time() -> None:
    """Let this thread's sleeps end on time: Linux otherwise adds up to 50 microseconds."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0)
