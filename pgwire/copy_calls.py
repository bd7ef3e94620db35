"""System calls of a stream that never blocks, for the modules that may be compiled.

`copy_calls.pxd` says the same in C. None raises: the caller looks at the result, and asks the
general path what is wrong.
"""

from __future__ import annotations

import os
import select
import time

#: Of `receive_some`: nothing has come, or it failed. 0 is the end of the stream.
NOTHING = -1
FAILED = -2
READABLE = select.EPOLLIN


def receive_some(fd: int, memory: memoryview, at: int) -> int:
    """Puts what has come behind `at`: how many bytes."""
    try:
        return os.readv(fd, [memory[at:]])
    except BlockingIOError:
        return NOTHING
    except OSError:
        return FAILED


def send_some(fd: int, memory: memoryview, count: int) -> int:
    """How many of the first `count` bytes the socket took; FAILED."""
    try:
        return os.write(fd, memory[:count])
    except BlockingIOError:
        return 0
    except OSError:
        return FAILED


def wait_ready(epoll: select.epoll, fds: memoryview, masks: memoryview, seconds: float) -> int:
    """How many files are ready; which, and for what, is put into the arrays."""
    ready = epoll.poll(seconds, len(fds))
    for index, (fd, mask) in enumerate(ready):
        fds[index], masks[index] = fd, mask
    return len(ready)


def time_us() -> int:
    """Microseconds since 1970."""
    return time.time_ns() // 1000
