"""The threads that archive, for all timelines together: each takes one archiver's turn at a time.

    archivers with work ──in the order they came──> workers ──a few segments each──> the store
                 ^----------- behind all others, when there is more -----------'

A turn is short, so that a timeline with a long backlog holds up nobody. One that takes long hangs:
its disk or its part of the store does not answer, and then the worker is replaced, up to as many
again. Law: how many threads there are depends on the number of workers alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from threading import Condition, Thread, current_thread
from typing import Protocol

#: Timelines that are archived at the same time.
WORKERS = 4
#: Of the segments of one turn, on their way at once. Such a store as answers after a while is given
#: a packed segment whole, so fewer of large ones.
UPLOADS_MAX = 4
#: A turn that takes longer hangs, until it ends.
SLOW_SECONDS = 10.0


class Archivist(Protocol):
    """An archiver, as its workers know it."""

    def take_turn(self, pool: Executor) -> bool:
        """Raises nothing; whether there may be more to do."""


class ArchiveWorkers:
    """Thread-safe. Threads are started when there is work for them."""

    def __init__(
        self,
        workers_max: int = WORKERS,
        slow_seconds: float = SLOW_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._workers_max = workers_max
        self._slow_seconds = slow_seconds
        self._clock = clock
        self._changed = Condition()
        self._waiting: dict[Archivist, None] = {}  # in the order they came
        self._since: dict[Archivist, float] = {}  # of those at work
        self._threads: set[Thread] = set()
        self._stopping = False

    @property
    def slow_count(self) -> int:
        """Turns that hang."""
        slow_since = self._clock() - self._slow_seconds
        return sum(since < slow_since for since in list(self._since.values()))

    def is_busy_with(self, archivist: Archivist) -> bool:
        """It waits for its turn, or has it."""
        with self._changed:
            return archivist in self._since or archivist in self._waiting

    def offer(self, archivist: Archivist) -> None:
        """It has work: its turn comes."""
        with self._changed:
            if archivist not in self._since:
                self._waiting.setdefault(archivist)
            self._staff()

    def attend(self) -> None:
        """Called now and then: whoever hangs is replaced."""
        with self._changed:
            self._staff()

    def close(self, timeout_seconds: float) -> None:
        """Turns that go on are waited for, not longer than this."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
            threads = list(self._threads)
        deadline = time.monotonic() + timeout_seconds
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    # ---- the lock is held

    def _staff(self) -> None:
        """A thread for who waits, if none is free and one more is allowed; none after the end."""
        if self._stopping:
            return
        free = len(self._threads) - len(self._since)
        if self._waiting and free < len(self._waiting) and not self._is_overstaffed(1):
            thread = Thread(target=self._work, name="archive", daemon=True)
            thread.start()
            self._threads.add(thread)
        if self._waiting:
            self._changed.notify()

    def _is_overstaffed(self, more: int = 0) -> bool:
        allowed = self._workers_max + min(self.slow_count, self._workers_max)
        return len(self._threads) + more > allowed

    def _next(self) -> Archivist | None:
        """Waits for one; None when the thread shall end."""
        while not self._stopping and not self._is_overstaffed():
            if self._waiting:
                archivist = next(iter(self._waiting))
                del self._waiting[archivist]
                self._since[archivist] = self._clock()
                return archivist
            self._changed.wait()
        return None

    # ---- a thread

    def _work(self) -> None:
        with ThreadPoolExecutor(UPLOADS_MAX, "upload") as pool:
            more = True
            while more:
                more = self._turn(pool)
        with self._changed:
            self._staff()  # it went because there were too many; who waits is not forgotten

    def _turn(self, pool: Executor) -> bool:
        """Whether the thread goes on."""
        with self._changed:
            archivist = self._next()
            if archivist is None:
                self._threads.discard(current_thread())
                return False
        has_more = archivist.take_turn(pool)
        with self._changed:
            del self._since[archivist]
            if has_more:
                self._waiting[archivist] = None
        return True
