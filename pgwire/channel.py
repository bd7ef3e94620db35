"""The state machine of a server's connection, connected to its socket: one message in, one out.
Used by `blocking.py` and `copy_stream.py`."""

from __future__ import annotations

import socket
import ssl
import time

from quorum_wal.pgwire.connection import NEED_DATA, ServerConnection, State
from quorum_wal.pgwire.errors import ConnectionRefused, WireError
from quorum_wal.pgwire.framing import MESSAGE_BYTES_MAX
from quorum_wal.pgwire.messages import Message
from quorum_wal.pgwire.tls import ALPN, certificate_name
from quorum_wal.pgwire.transport import PlainTransport, TlsTransport, Transport

_TLS_HANDSHAKE_RECORD = b"\x16"
_TIMEOUT_MIN_S = 0.001  # for a socket, zero means non-blocking


def seconds_left(deadline: float) -> float:
    """Seconds until that moment of time.monotonic(); never negative."""
    return max(0.0, deadline - time.monotonic())


class Channel:
    """The state machine of a connection, connected to its socket."""

    def __init__(self, sock: socket.socket, message_bytes_max: int = MESSAGE_BYTES_MAX) -> None:
        self.connection = ServerConnection(message_bytes_max)
        self.transport: Transport = PlainTransport(sock)
        self.certificate_name: str | None = None  # the client's

    def read(self, deadline: float | None = None) -> Message | None:
        """The client's next message; None if it has disconnected. Raises TimeoutError,
        ProtocolError."""
        while True:
            message = self.connection.next()
            if isinstance(message, Message):
                return message
            if self.connection.state is State.CLOSED:
                return None
            assert message is NEED_DATA, self.connection.state
            timeout = None if deadline is None else seconds_left(deadline)
            count = self.transport.receive_into(self.connection.room(), timeout)
            if count is None:
                raise TimeoutError
            if count == 0:
                return None
            self.connection.filled(count)

    def send(self, *messages: Message) -> None:
        self.write(self.connection.send(*messages))

    def write(self, data: bytes) -> None:
        if data:
            self.transport.send((data,))

    def begins_with_tls(self, timeout: float) -> bool:
        """Whether the client skips the SSLRequest (sslnegotiation=direct, since version 17)."""
        sock = self.transport.socket
        sock.settimeout(timeout or _TIMEOUT_MIN_S)
        first = sock.recv(1, socket.MSG_PEEK)
        sock.settimeout(None)
        return first == _TLS_HANDSHAKE_RECORD

    def encrypt(self, context: ssl.SSLContext, timeout: float, *, direct: bool = False) -> None:
        """Raises ConnectionRefused and TimeoutError."""
        self.transport.socket.settimeout(timeout or _TIMEOUT_MIN_S)
        try:
            sock = context.wrap_socket(
                self.transport.socket, server_side=True, do_handshake_on_connect=False
            )
            self.transport.socket = sock  # the plain one is detached
            sock.do_handshake()
        except ssl.SSLError as error:
            raise ConnectionRefused(f"could not accept TLS connection: {error.reason}") from error
        if direct and sock.selected_alpn_protocol() != ALPN:
            # Otherwise a client of another protocol could be made to connect here.
            raise ConnectionRefused(f"direct TLS needs ALPN protocol {ALPN!r}")
        self.certificate_name = certificate_name(sock)
        self.transport = TlsTransport(sock)
        self.connection.tls_established()

    def hang_up(self, error: WireError) -> None:
        """Sends the error to the client, if possible, and closes the connection."""
        try:
            self.write(self.connection.farewell(error))
        except OSError:
            pass  # the client has disconnected before
        self.close()

    def close(self) -> None:
        self.transport.close()
        self.connection.release()
