"""A guard against a service that hangs: another process, which kills the service if it is silent.

    service --a byte a second--> pipe --> hang_killer.py     silence for the timeout: kill -9
            --end of file------------------->                the service has ended: so does this

Why: the kernel accepts connections and bytes for a stopped process, and its clients wait. A
standby's WAL receiver waits for ever. It ends a silent stream (wal_receiver_timeout) and connects
again. The kernel accepts that connection too, and the receiver waits for the answer without a
timeout (libpqwalreceiver.c, libpqrcv_connect, does not use connect_timeout). If the process has
ended, the kernel refuses connections, and clients try the next server.

Law: a thread that does nothing else writes the byte; so a slow disk is not taken for a hang.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread

import structlog

from quorum_wal.telemetry import hang_killer

log = structlog.get_logger()

HANG_TIMEOUT_SECONDS = 30.0
INIT_PID = 1


@contextmanager
def hang_guard(timeout_seconds: float) -> Iterator[None]:
    """Kills this process if it is silent for that long inside the block; 0 means never."""
    if timeout_seconds and os.getpid() == INIT_PID:
        log.warning("no guard against hangs: process 1 cannot be killed; run it under an init")
        timeout_seconds = 0
    if not timeout_seconds:
        yield
        return
    beats, writer = os.pipe()
    program = (sys.executable, "-I", "-S", Path(hang_killer.__file__), str(timeout_seconds))
    # A new process has the mask of the thread that starts it.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT))
    killer = subprocess.Popen(program, stdin=beats)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
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
            pass  # the pipe is full: the killer hangs, and will find enough to read
        except BrokenPipeError:
            log.warning("no guard against hangs any more: the process of the guard has ended")
            return
