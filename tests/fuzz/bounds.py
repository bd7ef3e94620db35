"""`bounded`: a call that may take time and memory only in proportion to its input.

A wrong length must not be allocated, and a loop must end. Memory is the peak of Python's
allocators; time is CPU time, so that a busy machine fails no test.
"""

from __future__ import annotations

import signal
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TypeVar

T = TypeVar("T")

BYTES_CONSTANT = 512 << 10
BYTES_PER_UNIT = 1024  # a unit is a byte or a character: each may become a dict
SECONDS_CONSTANT = 2.0
SECONDS_PER_UNIT = 50e-6
SECONDS_ENDLESS = 30.0


class Excess(AssertionError):
    """More time or memory than is allowed for the input."""


def bounded(read: Callable[[], T], length: int) -> T:
    """Call `read` with an input of `length` units. Raises Excess, and the errors of `read`."""
    tracemalloc.start()
    begun = time.thread_time()
    try:
        with _end_of_patience():
            return read()
    finally:
        seconds = time.thread_time() - begun
        _, peak_bytes = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        if seconds > SECONDS_CONSTANT + SECONDS_PER_UNIT * length:
            raise Excess(f"{seconds:.1f} s of processor time for an input of {length}")
        if peak_bytes > BYTES_CONSTANT + BYTES_PER_UNIT * length:
            raise Excess(f"{peak_bytes} bytes of memory for an input of {length}")


@contextmanager
def _end_of_patience() -> Iterator[None]:
    """Interrupts a loop without an end."""

    def interrupt(_: int, __: FrameType | None) -> None:
        raise Excess(f"not done after {SECONDS_ENDLESS:g} s")

    before = signal.signal(signal.SIGALRM, interrupt)
    timer = signal.setitimer(signal.ITIMER_REAL, SECONDS_ENDLESS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, *timer)
        signal.signal(signal.SIGALRM, before)
