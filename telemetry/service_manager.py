"""What systemd is told: that we are ready, what we do, and that we live. Elsewhere nobody is told.

    READY=1                at the end of the start          NOTIFY_SOCKET: where to
    STATUS=text            one line of `systemctl status`
    WATCHDOG=1             while there is a sign of life    WATCHDOG_USEC: how often at least
    STOPPING=1             at the begin of the end          WATCHDOG_PID: whose, if not everybody's

A thread that only says "alive" proves that it runs itself: so the watchdog is told by when the loop
that does the work turned last. One datagram a message.

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

#: Of the watchdog's time: between two looks, and for how long a loop may stand before it is told.
LOOK_SHARE = 1 / 6
SILENCE_SHARE = 1 / 2


class ServiceManager:
    """Does nothing when the environment names none. A message that cannot be sent is logged."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        address = environ.get("NOTIFY_SOCKET", "")
        # A name, or one of the kernel's own, without a file.
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
            log.warning("could not tell the service manager", reason=str(error))

    @contextmanager
    def watched(self, what: str, silent_seconds: Callable[[], float]) -> Iterator[None]:
        """In the block the watchdog, if there is one, is told that we live, while `what` moves;
        after it, that we end. `silent_seconds`: since it moved last; 0 when it need not now."""
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
                self.notify(f"STATUS={what} stands: the watchdog is told nothing")
            stood = stands
            ended.wait(self.watchdog_seconds * LOOK_SHARE)


def _watchdog_seconds(environ: Mapping[str, str]) -> float:
    """0 without one."""
    usec, pid = environ.get("WATCHDOG_USEC", ""), environ.get("WATCHDOG_PID", "")
    if not usec.isdecimal() or pid not in ("", str(os.getpid())):
        return 0.0
    return int(usec) / 1e6
