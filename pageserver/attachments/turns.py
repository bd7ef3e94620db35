"""`Turns`: the one thread in which all cores of a pageserver step, and those that work for it.

    timers, answers of workers, orders  ->  a queue  ->  run()  ->  one call after the other

Law: a core is only ever touched within run(), so none of them needs a lock. What may wait (the
store, the generation service, a replay) is work, and its outcome comes back as another turn.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from queue import Empty, SimpleQueue
from typing import TypeVar

T = TypeVar("T")
Call = Callable[[], None]

WORKERS = 8
IDLE_SECONDS_MAX = 1.0


class Turns:
    """post() may be called by any thread; all else within a turn."""

    def __init__(self, workers: int = WORKERS) -> None:
        self._calls: SimpleQueue[Call] = SimpleQueue()
        self._timers: list[tuple[float, int, Call]] = []
        self._numbers = count()
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="page work")
        self._is_ended = False

    def post(self, call: Call) -> None:
        """It has a turn soon."""
        self._calls.put(call)

    def call_later(self, seconds: float, call: Call) -> None:
        heapq.heappush(self._timers, (time.monotonic() + seconds, next(self._numbers), call))

    def work(
        self,
        attempt: Callable[[], T],
        answered: Callable[[T], None],
        failed: Callable[[Exception], None],
    ) -> None:
        """`attempt` runs on a thread of its own; what comes of it has a turn."""

        def run() -> None:
            try:
                answer = attempt()
            except Exception as error:  # the turn says what becomes of it
                why = error
                self.post(lambda: failed(why))
            else:
                self.post(lambda: answered(answer))

        self._pool.submit(run)

    def end(self) -> None:
        """run() returns soon. Any thread, and a handler of signals: no lock is taken."""
        self._is_ended = True
        self._calls.put(lambda: None)

    def run(self) -> None:
        """Until end(). An error of a turn is a bug: it ends all of it, and is raised."""
        try:
            while not self._is_ended:
                self._turn()
        finally:
            self._is_ended = True
            self._pool.shutdown(wait=False, cancel_futures=True)

    def _turn(self) -> None:
        now = time.monotonic()
        while self._timers and self._timers[0][0] <= now:
            heapq.heappop(self._timers)[2]()
        wait = self._timers[0][0] - now if self._timers else IDLE_SECONDS_MAX
        try:
            call = self._calls.get(timeout=max(0.0, min(wait, IDLE_SECONDS_MAX)))
        except Empty:
            return
        call()
