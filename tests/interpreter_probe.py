"""`InterpreterProbe`: how long a thread holds the interpreter, so that no other thread can run.

A thread that wants to run every millisecond measures its waits. A busy machine also makes it wait,
but a thread that holds the interpreter uses the processor meanwhile. So of each wait only the CPU
time of the watched thread counts: this is at most the time of the hold, and all of it if nothing
else ran. Waiting for the disk does not hold the interpreter.
"""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable
from threading import Event, Thread, get_ident
from types import TracebackType
from typing import Self

TICK_SECONDS = 0.001
TRIES = 3
HELD_SECONDS_MAX = 0.05
MEMORY_BYTES_MAX = 8 << 20


class InterpreterProbe:
    """Watches the thread that enters it; afterwards `held_seconds` is the longest hold."""

    def __init__(self) -> None:
        self.held_seconds = 0.0
        self._is_done = Event()
        self._watched_clock = 0
        self._thread = Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._watched_clock = time.pthread_getcpuclockid(get_ident())
        self._thread.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._is_done.set()
        self._thread.join()

    def _watch(self) -> None:
        waited_from, used_from = time.monotonic(), time.clock_gettime(self._watched_clock)
        while not self._is_done.is_set():
            time.sleep(TICK_SECONDS)
            now, used = time.monotonic(), time.clock_gettime(self._watched_clock)
            held_seconds = min(now - waited_from - TICK_SECONDS, used - used_from)
            self.held_seconds = max(self.held_seconds, held_seconds)
            waited_from, used_from = now, used


def assert_bounds(action: Callable[[], object], make: Callable[[], object]) -> str:
    """Its memory and its longest hold are within limits, each time after a `make`. Returns both, as
    a text."""
    make()
    tracemalloc.start()
    try:
        action()
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < MEMORY_BYTES_MAX
    held_seconds = longest_hold(action, make, HELD_SECONDS_MAX)
    assert held_seconds < HELD_SECONDS_MAX
    return f"{peak_bytes / (1 << 20):.2f} MiB, {1e3 * held_seconds:.1f} ms"


def longest_hold(
    action: Callable[[], object], make: Callable[[], object] = lambda: None, enough: float = 0.0
) -> float:
    """In seconds; the median of TRIES, each after a `make`. If enough of them are below `enough`,
    the others are skipped.

    A hold in most of them counts; a single one may be caused by a busy machine.
    """
    found: list[float] = []
    while len(found) < TRIES and sum(held < enough for held in found) <= TRIES // 2:
        make()
        with InterpreterProbe() as probe:
            action()
        found.append(probe.held_seconds)
    return sorted(found)[TRIES // 2]
