"""What other threads may tell the one that serves a connection: look again, or give up.

That thread waits in poll() for its client, and for this. Law: the descriptor is closed under the
lock that every write takes, or a late wake() could write into the file that has its number next.
"""

from __future__ import annotations

import os
from threading import Lock


class Interrupt:
    """Any thread may call wake() and cancel(); the others are for the one that waits."""

    def __init__(self) -> None:
        self.canceled = False  #: a CancelRequest has come since the command began
        self._lock = Lock()
        self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def wake(self) -> None:
        """Who waits, or will wait next, returns at once."""
        with self._lock:
            if self._fd >= 0:
                os.eventfd_write(self._fd, 1)

    def cancel(self) -> None:
        """The command that runs shall end."""
        self.canceled = True
        self.wake()

    def fileno(self) -> int:
        return self._fd

    def clear(self) -> None:
        """What was said until now was heard."""
        try:
            os.eventfd_read(self._fd)
        except BlockingIOError:
            pass  # nothing was said

    def close(self) -> None:
        with self._lock:
            fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
