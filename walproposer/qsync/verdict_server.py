"""The coordinator's port: a listener of the Postgres protocol for questions about quorum commits.

The loop's thread serves all clients after their handshakes. It shares the interpreter with the loop
that commits wait for, so it wakes up only for events, and several answers share a wake-up.
Handshakes may block, so each has a short-lived thread and a deadline, and there are at most
`unauthenticated_max` of them.

Law: the server itself answers no question. `Verdicts` does.
"""

from __future__ import annotations

import socket
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from errno import EAGAIN
from functools import partial
from itertools import count
from threading import Lock, Thread

import structlog

from quorum_wal.access.access import Access, AccessConfig
from quorum_wal.access.admission import ConnectionLimits
from quorum_wal.access.open_files import FILES_OF_UNAUTHENTICATED, raise_limit
from quorum_wal.access.refusal_log import RefusalLog
from quorum_wal.pgwire.blocking import Authenticated, ServerConfig, authenticate
from quorum_wal.pgwire.errors import ConnectionRefused, WireError
from quorum_wal.telemetry.accept_trouble import RETRY_SECONDS, AcceptTrouble
from quorum_wal.walproposer.errors import WalProposerError
from quorum_wal.walproposer.qsync.port_session import MESSAGE_BYTES_MAX, PortSession
from quorum_wal.walproposer.qsync.question import Verdicts
from quorum_wal.walproposer.stream.event_loop import EventLoop

log = structlog.get_logger()

LISTEN_BACKLOG = 128
ACCEPTS_A_TURN = 16
HANDSHAKE_TIMEOUT_SECONDS = 15.0
#: Time for handshakes in progress to end when the port closes.
STOP_TIMEOUT_SECONDS = 2.0
#: Other open files of the process: safekeepers, the primary, HTTP, logical streams.
FILES_BESIDE = 256
#: A client has one connection for each transaction that waits at the same time.
PORT_LIMITS = ConnectionLimits(
    connections_max=500,
    connections_per_user_max=480,
    connections_per_role_max=480,
    connections_reserved=20,
)
#: Every client may ask anything; for loopback.
OPEN_ACCESS = AccessConfig(limits=PORT_LIMITS)
#: Accepted by clients. The primary's own version is unknown before the first connection to it.
SERVER_VERSION = "16.0"


@dataclass(frozen=True, slots=True)
class PortConfig:
    """`port` 0: any free port."""

    host: str
    port: int
    access: AccessConfig = OPEN_ACCESS
    handshake_timeout_seconds: float = HANDSHAKE_TIMEOUT_SECONDS


class PortClosed(WireError):
    """admin_shutdown: the answer to the question is unknown."""

    sqlstate = "57P01"


class VerdictServer:
    """Listens from the start; serves while `loop` runs. Any thread may call `post`. The other
    methods are for the loop's thread, or for any thread while the loop does not run. Close it
    before the loop."""

    def __init__(self, config: PortConfig, verdicts: Verdicts, loop: EventLoop) -> None:
        """Raises WalProposerError, AccessError."""
        limits = config.access.limits
        raise_limit(files_needed(limits), limits)
        self.verdicts = verdicts
        self.loop = loop
        self.access = Access(config.access)
        self.refusals = RefusalLog()
        self._server_config = ServerConfig(
            server_version=SERVER_VERSION,
            on_cancel=lambda process_id, key: self.post(partial(self._cancel, process_id, key)),
            handshake_timeout_s=config.handshake_timeout_seconds,
            message_bytes_max=MESSAGE_BYTES_MAX,
        )
        self._numbers = count(1)
        self._sessions: dict[int, PortSession] = {}
        self._handshakes: dict[int, Thread] = {}
        self._inbox: deque[Callable[[], None]] = deque()
        self._inbox_lock = Lock()
        self._is_told = False  # a wake-up for the inbox is pending
        self._is_closing = False
        self._trouble = AcceptTrouble(log, "qsync")
        self._listener = _listen(config.host, config.port)
        self.address = f"{config.host}:{self._listener.getsockname()[1]}"
        loop.watch(self._listener, self._accept, lambda: None)
        log.info("qsync port listens", listen=self.address)

    @property
    def connections(self) -> int:
        """The number of connected users."""
        return len(self._sessions)

    def close(self, reason: str = "the coordinator is shutting down") -> None:
        """Waiting clients get an error: the outcome is not known."""
        self._is_closing = True
        self.loop.unwatch(self._listener)
        self._listener.close()
        self.access.admission.close_unauthenticated()
        deadline = time.monotonic() + STOP_TIMEOUT_SECONDS
        for thread in list(self._handshakes.values()):
            thread.join(max(0.0, deadline - time.monotonic()))
        try:
            self._take_inbox()
        finally:
            for session in list(self._sessions.values()):
                session.close(PortClosed(f"terminating connection: {reason}"))

    def post(self, callback: Callable[[], None]) -> None:
        """Call `callback` on the loop, soon. Several of them share one wake-up."""
        with self._inbox_lock:
            self._inbox.append(callback)
            is_told, self._is_told = self._is_told, True
        if not is_told:
            self.loop.call_after_events(self._take_inbox)

    def left(self, number: int, *, has_asked: bool) -> None:
        """A session has closed."""
        self._sessions.pop(number, None)
        self.access.leave(number)
        if has_asked:
            self.verdicts.leave(number)

    def _take_inbox(self) -> None:
        with self._inbox_lock:
            callbacks, self._inbox = self._inbox, deque()
            self._is_told = False
        for callback in callbacks:
            callback()

    # ---- new connections

    def _accept(self) -> None:
        for _ in range(ACCEPTS_A_TURN):
            try:
                sock, address = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                self._pause_accepting(error)
                return
            try:
                self._arrive(sock, address[0], f"{address[0]}:{address[1]}")
            except (OSError, RuntimeError) as error:  # no file descriptor or no thread is available
                sock.close()
                self._pause_accepting(error)
                return
            self._trouble.accepted()

    def _arrive(self, sock: socket.socket, host: str, address: str) -> None:
        """Raises OSError, RuntimeError."""
        number = next(self._numbers)
        self.access.admission.arrive(number, sock)
        thread = Thread(
            target=self._shake_hands, args=(sock, host, address, number),
            name=f"qsync-client-{number}", daemon=True,
        )  # fmt: skip
        self._handshakes[number] = thread
        try:
            thread.start()
        except RuntimeError:
            del self._handshakes[number]
            self.access.leave(number)
            raise

    def _pause_accepting(self, error: Exception) -> None:
        if not isinstance(error, OSError):
            error = OSError(EAGAIN, "no thread can be started")
        self._trouble.failed(error)
        self.loop.set_interest(self._listener, reads=False, writes=False)
        self.loop.call_later(RETRY_SECONDS, self._go_on_accepting)

    def _go_on_accepting(self) -> None:
        if not self._is_closing:
            self.loop.set_interest(self._listener, reads=True, writes=False)

    def _shake_hands(self, sock: socket.socket, host: str, address: str, number: int) -> None:
        """In a thread of its own."""
        client, config = None, self.access.server_config(self._server_config, number, host)
        try:
            client = authenticate(sock, config)
        except ConnectionRefused as error:
            self.access.admission.fail(number, host, error)
            self.refusals.note(
                "connection refused", address, sqlstate=error.sqlstate, reason=str(error)
            )
        except (WireError, OSError) as error:
            log.debug("client lost", client=address, reason=str(error))
        finally:
            if client is None:
                self.access.leave(number)
            else:
                self.post(partial(self._enter, client, number, address))
            self._handshakes.pop(number, None)

    def _enter(self, client: Authenticated, number: int, address: str) -> None:
        session = self._sessions[number] = PortSession(self, client, number, address)
        if not self._is_closing:
            session.start()

    def _cancel(self, process_id: int, key: bytes) -> None:
        """The sender of a CancelRequest gets no answer."""
        if (session := self._sessions.get(process_id)) is not None:
            session.cancel(key)


def files_needed(limits: ConnectionLimits) -> int:
    """The number of files for the greatest number of connections."""
    return (
        limits.connections_max
        + FILES_OF_UNAUTHENTICATED * limits.unauthenticated_max
        + FILES_BESIDE
    )


def _listen(host: str, port: int) -> socket.socket:
    """Raises WalProposerError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=LISTEN_BACKLOG)
    except OSError as error:
        raise WalProposerError(
            f"could not listen on {host}:{port}: {error.strerror}",
            hint="Stop the other process that listens there, or choose another --qsync.",
        ) from error
    listener.setblocking(False)
    return listener
