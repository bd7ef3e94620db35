"""Notifies systemd: the service is ready, what it does, and that it is alive.

    READY=1                at the end of the start          NOTIFY_SOCKET: the address
    STATUS=text            one line of `systemctl status`
    WATCHDOG=1             while there is progress          WATCHDOG_USEC: the longest pause
    STOPPING=1             when the service begins to stop  WATCHDOG_PID: the watched process, or
                                                            empty for any

A thread that only sends "alive" proves nothing but that the thread runs. So WATCHDOG=1 is sent only
while the loop that does the work makes progress. Each message is one datagram. Without
NOTIFY_SOCKET nothing is sent.

Source: sd_notify(3), sd_watchdog_enabled(3).
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from threading import Event, Thread

import structlog

log = structlog.get_logger()

#: Shares of the watchdog's time: the pause between two checks, and the longest stall of a loop.
LOOK_SHARE = 1 / 6
SILENCE_SHARE = 1 / 2


class ServiceManager:
    """Does nothing without NOTIFY_SOCKET. Logs a message that cannot be sent."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        address = environ.get("NOTIFY_SOCKET", "")
        # A path, or an abstract socket without a file.
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self.watchdog_seconds = _watchdog_seconds(environ) if address else 0.0

    def notify(self, *assignments: str) -> None:
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
                sock.settimeout(1.0)
                sock.sendto("\n".join(assignments).encode(), self._address)
        except OSError as error:
            log.warning("could not notify the service manager", reason=str(error))

    @contextmanager
    def watched(self, what: str, silent_seconds: Callable[[], float]) -> Iterator[None]:
        """Sends WATCHDOG=1 inside the block while `what` makes progress, and STOPPING=1 after it.
        `silent_seconds` returns the time since the last progress; 0 if none is needed now."""
        ended = Event()
        thread = Thread(
            target=self._ping, args=(what, silent_seconds, ended), name="watchdog", daemon=True
        )
        if self.watchdog_seconds:
            thread.start()
        try:
            yield
        finally:
            self.notify("STOPPING=1")
            ended.set()

    def _ping(self, what: str, silent_seconds: Callable[[], float], ended: Event) -> None:
        stood = False
        while not ended.is_set():
            stands = silent_seconds() > self.watchdog_seconds * SILENCE_SHARE
            if not stands:
                self.notify("WATCHDOG=1")
            elif not stood:
                self.notify(f"STATUS={what} makes no progress: the watchdog is not notified")
            stood = stands
            ended.wait(self.watchdog_seconds * LOOK_SHARE)


def _watchdog_seconds(environ: Mapping[str, str]) -> float:
    """0 without a watchdog."""
    usec, pid = environ.get("WATCHDOG_USEC", ""), environ.get("WATCHDOG_PID", "")
    if not usec.isdecimal() or pid not in ("", str(os.getpid())):
        return 0.0
    return int(usec) / 1e6
