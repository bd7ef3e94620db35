"""SIGTERM and SIGINT as an event to wait for.

A signal handler runs between two bytecodes of the main thread, which may hold any lock. So this
module uses no lock (threading.Event has one, and can deadlock here), but a flag and a socket that
wakes the waiters.
"""

from __future__ import annotations

import select
import signal
import socket
from collections.abc import Callable


class StopSignal:
    """An event that is set once."""

    def __init__(self) -> None:
        self.is_set = False
        self._callbacks: list[Callable[[], None]] = []
        self._receiver, self._sender = socket.socketpair()
        self._sender.setblocking(False)

    def install(self) -> StopSignal:
        """From now on the two signals set it. Call it in the main thread only."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self.set())
        # The kernel may deliver the signal to any thread. Then it does not interrupt the wait of
        # the main thread, and the handler, which only the main thread runs, would run too late.
        signal.set_wakeup_fd(self._sender.fileno(), warn_on_full_buffer=False)
        return self

    def close(self) -> None:
        """Call it after the last wait."""
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
        """`callback` is called in the handler, or now if the signal came before. It may set flags
        and wake loops. It may be called twice."""
        self._callbacks.append(callback)
        if self.is_set:
            callback()

    def wait(self, timeout_seconds: float | None = None) -> bool:
        """True as soon as it is set, False after the timeout."""
        if not self.is_set:
            select.select([self._receiver], [], [], timeout_seconds)
        return self.is_set
