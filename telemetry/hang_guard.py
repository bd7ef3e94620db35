"""A guard against a service that hangs: another process, which kills it when it is silent.

    service --a byte a second--> pipe --> hang_killer.py     silence for the timeout: kill -9
            --end of file------------------->                the service has ended, and so does this

Why: the kernel goes on for a process that is stopped. It takes connections and bytes in its name,
and its clients wait. A standby's WAL receiver waits for ever: it ends a stream that is silent
(wal_receiver_timeout) and connects again, the kernel takes that connection, too, and for the answer
to it there is no timeout (libpqwalreceiver.c, libpqrcv_connect: connect_timeout is not looked at).
A process that is gone refuses connections, and clients go to the next server.

Law: the byte is written by a thread that does nothing else; a disk that is slow is no hang.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread

import structlog

from telemetry import hang_killer

log = structlog.get_logger()

HANG_TIMEOUT_SECONDS = 30.0
INIT_PID = 1


@contextmanager
def hang_guard(timeout_seconds: float) -> Iterator[None]:
    """This process is killed when it is silent for so long inside the block; 0: never."""
    if timeout_seconds and os.getpid() == INIT_PID:
        log.warning("no guard against a hang: process 1 cannot be killed; run it under an init")
        timeout_seconds = 0
    if not timeout_seconds:
        yield
        return
    beats, writer = os.pipe()
    program = (sys.executable, "-I", "-S", Path(hang_killer.__file__), str(timeout_seconds))
    killer = subprocess.Popen(program, stdin=beats)
    os.close(beats)
    os.set_blocking(writer, False)
    ended = Event()
    thread = Thread(target=_beat, args=(writer, ended), name="hang_guard", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        os.close(writer)
        killer.wait()


def _beat(writer: int, ended: Event) -> None:
    while not ended.wait(hang_killer.BEAT_SECONDS / 2):
        try:
            os.write(writer, b".")
        except BlockingIOError:
            pass  # the pipe is full: it is the killer that hangs, and it will find much to read
        except BrokenPipeError:
            log.warning("no guard against a hang any more: its process has ended")
            return
