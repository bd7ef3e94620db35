"""SIGTERM and SIGINT as something to wait for.

A handler runs between two bytecodes of the main thread, which may hold any lock; so this uses no
lock (threading.Event does, and can deadlock here), only a flag and a socket to wake waiters.
"""

from __future__ import annotations

import select
import signal
import socket
from collections.abc import Callable


class StopSignal:
    """Set once."""

    def __init__(self) -> None:
        self.is_set = False
        self._callbacks: list[Callable[[], None]] = []
        self._receiver, self._sender = socket.socketpair()
        self._sender.setblocking(False)

    def install(self) -> StopSignal:
        """From now on the two signals set it. Only in the main thread."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self.set())
        # The kernel may give the signal to any thread; then nothing interrupts the main thread's
        # wait, and the handler, which only the main thread runs, would come too late.
        signal.set_wakeup_fd(self._sender.fileno(), warn_on_full_buffer=False)
        return self

    def close(self) -> None:
        """After the last wait."""
        self._receiver.close()
        self._sender.close()

    def set(self) -> None:
        self.is_set = True
        try:
            self._sender.send(b"\0")
        except BlockingIOError:
            pass  # full: every waiter is awake already
        for callback in self._callbacks:
            callback()

    def on_set(self, callback: Callable[[], None]) -> None:
        """Called in the handler, or now if that was before: it may set flags and wake loops. It may
        be called twice."""
        self._callbacks.append(callback)
        if self.is_set:
            callback()

    def wait(self, timeout_seconds: float | None = None) -> bool:
        """True as soon as it is set, False after the timeout."""
        if not self.is_set:
            select.select([self._receiver], [], [], timeout_seconds)
        return self.is_set
