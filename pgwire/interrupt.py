"""Signals from other threads to the thread that serves a connection: check again, or cancel.

That thread waits in poll() for its client, and for this. Law: the descriptor is closed under the
lock that every write takes; otherwise a late wake() could write into a file that reuses its number.
"""

from __future__ import annotations

import os
from threading import Lock


class Interrupt:
    """Any thread may call wake() and cancel(); only the thread that waits may call the others."""

    def __init__(self) -> None:
        self.canceled = False  #: a CancelRequest has come since the command began
        self._lock = Lock()
        self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def wake(self) -> None:
        """Makes the present or the next poll() return at once."""
        with self._lock:
            if self._fd >= 0:
                os.eventfd_write(self._fd, 1)

    def cancel(self) -> None:
        """Cancels the running command."""
        self.canceled = True
        self.wake()

    def fileno(self) -> int:
        return self._fd

    def clear(self) -> None:
        """Takes back all wake() calls until now."""
        try:
            os.eventfd_read(self._fd)
        except BlockingIOError:
            pass  # there was none

    def close(self) -> None:
        with self._lock:
            fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
