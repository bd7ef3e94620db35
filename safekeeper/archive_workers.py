"""The threads that archive, for all timelines together. Each takes one archiver's turn at a time.

    archivers with work ──in the order they came──> workers ──a few segments each──> the store
                 ^----------- behind all others, when there is more -----------'

A turn is short, so a timeline with a long backlog does not delay the others. A turn that takes long
hangs: its disk or its part of the store does not answer. A hanging worker is replaced, at most as
many times as there are workers. Law: the number of threads depends on the number of workers alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from threading import Condition, Thread, current_thread
from typing import Protocol

#: Timelines that are archived at the same time.
WORKERS = 4
#: Uploads of one turn that run at once. Fewer for large segments: a store that answers late is
#: given a packed segment whole.
UPLOADS_MAX = 4
#: A turn that takes longer counts as hanging until it ends.
SLOW_SECONDS = 10.0


class ArchiveJob(Protocol):
    """The part of an archiver that its workers use."""

    def take_turn(self, pool: Executor) -> bool:
        """Returns whether more work may be left. Raises nothing."""


class ArchiveWorkers:
    """Thread-safe. Starts threads when there is work for them."""

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
        self._waiting: dict[ArchiveJob, None] = {}  # in the order they came
        self._since: dict[ArchiveJob, float] = {}  # start times of the turns that run
        self._threads: set[Thread] = set()
        self._stopping = False

    @property
    def slow_count(self) -> int:
        """The number of turns that hang."""
        slow_since = self._clock() - self._slow_seconds
        return sum(since < slow_since for since in list(self._since.values()))

    def is_busy_with(self, job: ArchiveJob) -> bool:
        """True if it waits for a turn or has one."""
        with self._changed:
            return job in self._since or job in self._waiting

    def offer(self, job: ArchiveJob) -> None:
        """Queues an archiver that has work."""
        with self._changed:
            if job not in self._since:
                self._waiting.setdefault(job)
            self._start_thread()

    def replace_hanging(self) -> None:
        """Replaces workers that hang. Called periodically."""
        with self._changed:
            self._start_thread()

    def close(self, timeout_seconds: float) -> None:
        """Waits for turns that run, at most `timeout_seconds`."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
            threads = list(self._threads)
        deadline = time.monotonic() + timeout_seconds
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    # ---- the lock is held

    def _start_thread(self) -> None:
        """Starts a thread if an archiver waits, no thread is free and one more is allowed."""
        if self._stopping:
            return
        free = len(self._threads) - len(self._since)
        if self._waiting and free < len(self._waiting) and not self._has_too_many(1):
            thread = Thread(target=self._work, name="archive", daemon=True)
            thread.start()
            self._threads.add(thread)
        if self._waiting:
            self._changed.notify()

    def _has_too_many(self, more: int = 0) -> bool:
        allowed = self._workers_max + min(self.slow_count, self._workers_max)
        return len(self._threads) + more > allowed

    def _next(self) -> ArchiveJob | None:
        """Waits for an archiver with work. Returns None if the thread must end."""
        while not self._stopping and not self._has_too_many():
            if self._waiting:
                job = next(iter(self._waiting))
                del self._waiting[job]
                self._since[job] = self._clock()
                return job
            self._changed.wait()
        return None

    # ---- a thread

    def _work(self) -> None:
        with ThreadPoolExecutor(UPLOADS_MAX, "upload") as pool:
            more = True
            while more:
                more = self._turn(pool)
        with self._changed:
            self._start_thread()  # this one was one too many; archivers that wait need another

    def _turn(self, pool: Executor) -> bool:
        """Takes one turn. Returns False if the thread must end."""
        with self._changed:
            job = self._next()
            if job is None:
                self._threads.discard(current_thread())
                return False
        has_more = job.take_turn(pool)
        with self._changed:
            del self._since[job]
            if has_more:
                self._waiting[job] = None
        return True
