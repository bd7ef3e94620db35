"""System calls of a stream that never blocks, for the modules that may be compiled.

`copy_calls.pxd` has the same functions in C. None raises: the caller checks the result, and the
general path finds the error.
"""

from __future__ import annotations

import os
import select
import time

#: Results of `receive_some`: no data, or an error. 0 is the end of the stream.
NOTHING = -1
FAILED = -2
READABLE = select.EPOLLIN


def receive_some(fd: int, memory: memoryview, at: int) -> int:
    """Receives bytes to `at`; returns their count, NOTHING or FAILED."""
    try:
        return os.readv(fd, [memory[at:]])
    except BlockingIOError:
        return NOTHING
    except OSError:
        return FAILED


def send_some(fd: int, memory: memoryview, count: int) -> int:
    """Returns how many of the first `count` bytes the socket took, or FAILED."""
    try:
        return os.write(fd, memory[:count])
    except BlockingIOError:
        return 0
    except OSError:
        return FAILED


def wait_ready(epoll: select.epoll, fds: memoryview, masks: memoryview, seconds: float) -> int:
    """Returns the number of ready files; puts them and their events into the arrays."""
    ready = epoll.poll(seconds, len(fds))
    for index, (fd, mask) in enumerate(ready):
        fds[index], masks[index] = fd, mask
    return len(ready)


def time_us() -> int:
    """Microseconds since 1970."""
    return time.time_ns() // 1000
