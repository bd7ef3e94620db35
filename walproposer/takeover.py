"""One proposer hands over to the next one on its machine, which is prepared before that.

    successor                                      predecessor
    prepares all that it can
    -- connects, TAKE_OVER ----------------------> stops its incarnation, releases its lock
    <- GONE -------------------------------------- ends, with exit code 0
    wins the next term

The socket is an abstract one, named by the timeline, so a crash leaves no file. Each side checks
the account of the other (SO_PEERCRED): its own or root's.

Law: this saves time, and safety does not depend on it. Only the vote decides which proposer may
acknowledge. The election of the successor fences a predecessor that does not answer, or was not
asked.
"""

from __future__ import annotations

import os
import select
import socket
import struct
from collections.abc import Callable
from threading import Event, Thread

import structlog

from quorum_wal.consensus.ids import TimelineId

log = structlog.get_logger()

TAKE_OVER = b"take over\n"
GONE = b"gone\n"
#: Time for a predecessor to stop, before it is fenced instead.
STOP_SECONDS = 5.0
REQUEST_SECONDS = 1.0
#: The name is in use until a predecessor that was not asked has ended.
RETRY_SECONDS = 0.5

_CREDENTIALS = struct.Struct("3i")  # struct ucred: pid, uid, gid


def ask_predecessor(timeline: TimelineId) -> bool:
    """Returns True when the proposer of this machine has stopped. Returns False if there is none,
    or it does not stop: then the election takes the term from it."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(STOP_SECONDS)
        try:
            sock.connect(socket_address(timeline))
            predecessor = _trusted_pid(sock)
            if predecessor is None:
                return False
            sock.sendall(TAKE_OVER)
            has_stopped = sock.recv(len(GONE)) == GONE
        except OSError as error:
            if not isinstance(error, ConnectionRefusedError):
                log.warning("the predecessor does not stop", reason=str(error))
            return False
    log.info("the predecessor has stopped", pid=predecessor, answered=has_stopped)
    return has_stopped


class TakeOverListener:
    """A context manager. In the block, a successor's request calls `release`. The block must end
    when everything is released; the successor is then told."""

    def __init__(self, timeline: TimelineId, release: Callable[[], None]) -> None:
        self._address = socket_address(timeline)
        self._release = release
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.setblocking(False)
        # shutdown() would not wake a thread that waits for a connection on a socket of this family.
        self._wake, self._waker = socket.socketpair()
        self._successor: socket.socket | None = None
        self._ended = Event()
        self._thread = Thread(target=self._run, name="take_over", daemon=True)

    def __enter__(self) -> TakeOverListener:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._waker.close()
        self._thread.join()
        self._socket.close()  # this frees the name
        self._wake.close()
        if self._successor is not None:
            _send_gone(self._successor)

    def _run(self) -> None:
        if not self._listen():
            return
        while True:
            if self._wake in select.select([self._socket, self._wake], [], [])[0]:
                return
            try:
                sock, _ = self._socket.accept()
            except OSError:
                self._ended.wait(RETRY_SECONDS)  # it disconnected, or there are too many files
                continue
            pid = _trusted_pid(sock)
            if pid is None or not _is_request(sock):
                sock.close()
                continue
            log.info("a successor takes over", pid=pid)
            self._successor = sock
            self._release()
            return

    def _listen(self) -> bool:
        """Returns False if the block has ended before."""
        while not self._ended.is_set():
            try:
                self._socket.bind(self._address)
                self._socket.listen()
                return True
            except OSError:
                self._ended.wait(RETRY_SECONDS)
        return False


def socket_address(timeline: TimelineId) -> str:
    """Of the proposer of this machine. Other releases use the same."""
    return f"\0sk-proposer-{timeline.tenant_id.hex()}.{timeline.timeline_id.hex()}"


def _trusted_pid(sock: socket.socket) -> int | None:
    """The pid of the other side; None if it has another account."""
    credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(credentials)
    if uid in (0, os.geteuid()):
        return int(pid)
    log.warning("a process of another account uses the take-over socket", pid=pid, uid=uid)
    return None


def _is_request(sock: socket.socket) -> bool:
    sock.settimeout(REQUEST_SECONDS)
    try:
        return sock.recv(len(TAKE_OVER)) == TAKE_OVER
    except OSError:
        return False


def _send_gone(sock: socket.socket) -> None:
    with sock:
        try:
            sock.sendall(GONE)
        except OSError as error:
            log.warning("the successor has disconnected", reason=str(error))
