"""`FileLease`: a process that opens the file waits until this process lets it (fcntl(2), leases).

So a test stops another process at a known place, without a change of its code. The kernel ends a
lease after 45 s (/proc/sys/fs/lease-break-time).
"""

from __future__ import annotations

import fcntl
import os
import signal
from pathlib import Path


class FileLease:
    """Call take() first. Close it."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDONLY)
        # The kernel reports a waiting process by this signal, which would end this one.
        signal.signal(signal.SIGIO, signal.SIG_IGN)

    def take(self) -> bool:
        """Returns False if another process has the file open."""
        try:
            fcntl.fcntl(self._fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        except BlockingIOError:
            return False
        return True

    def has_waiter(self) -> bool:
        """A process waits in open()."""
        return fcntl.fcntl(self._fd, fcntl.F_GETLEASE) == fcntl.F_RDLCK

    def let_in(self) -> None:
        """Waiting processes go on."""
        fcntl.fcntl(self._fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)

    def close(self) -> None:
        """Waiting processes go on, too."""
        os.close(self._fd)
