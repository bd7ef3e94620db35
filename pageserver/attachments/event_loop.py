"""`EventLoop`: the thread that runs all cores of a pageserver, and the workers that block for it.

    timers, answers of workers, calls  ->  a queue  ->  run()  ->  one call after the other

Law: cores are used only within run(), so none of them needs a lock. Calls that may block (the
store, the generation service, a replay) run on a worker. Their outcome is another call on the loop.
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


class EventLoop:
    """post() may be called on any thread; all other methods on the event loop only."""

    def __init__(self, workers: int = WORKERS) -> None:
        self._calls: SimpleQueue[Call] = SimpleQueue()
        self._timers: list[tuple[float, int, Call]] = []
        self._numbers = count()
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="page work")
        self._is_ended = False

    def post(self, call: Call) -> None:
        """Runs `call` on the event loop soon."""
        self._calls.put(call)

    def call_later(self, seconds: float, call: Call) -> None:
        heapq.heappush(self._timers, (time.monotonic() + seconds, next(self._numbers), call))

    def work(
        self,
        attempt: Callable[[], T],
        answered: Callable[[T], None],
        failed: Callable[[Exception], None],
    ) -> None:
        """Runs `attempt` on a worker, then `answered` or `failed` on the event loop."""

        def run() -> None:
            try:
                answer = attempt()
            except Exception as error:  # `failed` handles it
                why = error
                self.post(lambda: failed(why))
            else:
                self.post(lambda: answered(answer))

        self._pool.submit(run)

    def end(self) -> None:
        """run() returns soon. Any thread, or a signal handler, may call it: it takes no lock."""
        self._is_ended = True
        self._calls.put(lambda: None)

    def run(self) -> None:
        """Runs until end(). An exception of a call is a bug: it ends the loop and is raised."""
        try:
            while not self._is_ended:
                self._run_once()
        finally:
            self._is_ended = True
            self._pool.shutdown(wait=False, cancel_futures=True)

    def _run_once(self) -> None:
        now = time.monotonic()
        while self._timers and self._timers[0][0] <= now:
            heapq.heappop(self._timers)[2]()
        wait = self._timers[0][0] - now if self._timers else IDLE_SECONDS_MAX
        try:
            call = self._calls.get(timeout=max(0.0, min(wait, IDLE_SECONDS_MAX)))
        except Empty:
            return
        call()
