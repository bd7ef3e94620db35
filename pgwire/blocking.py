"""A server connection on a blocking socket, one thread per connection.

    accept_connection()   socket -> Session     TLS, startup, authentication, greeting
    Session               read_command(), send_rows(), send_error(), start_copy_both()
    CopyStream            drain(), send(): the hot path

The hot path is one system call to receive whatever has arrived and one to send; payloads are views
of the receive buffer, and no payload is copied to be sent. On a plain socket one thread may drain()
while another one sends; a TLS connection belongs to one thread at a time. Any thread may end either
by shutdown().
"""

from __future__ import annotations

import base64
import secrets
import socket
import ssl
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from pgwire.auth import ScramVerifier
from pgwire.connection import NEED_DATA, ServerConnection, State
from pgwire.errors import (
    QUERY_CANCELED,
    ConnectionRefused,
    CopyEnd,
    CopyEnded,
    ProtocolError,
    WireError,
)
from pgwire.framing import MESSAGE_BYTES_MAX
from pgwire.handshake import ServerHandshake, ServerPolicy, greeting
from pgwire.messages import (
    Column,
    CommandComplete,
    CopyBothResponse,
    CopyDone,
    CopyFail,
    DataRow,
    EmptyQueryResponse,
    ErrorResponse,
    Message,
    Query,
    ReadyForQuery,
    RowDescription,
    Terminate,
)
from pgwire.startup import StartupMessage
from pgwire.tls import ALPN, certificate_name
from pgwire.transport import (
    PlainTransport,
    TlsTransport,
    Transport,
    prepare_socket,
    shut_down,
)

HANDSHAKE_TIMEOUT_S = 60.0  # authentication_timeout of Postgres
END_COPY_TIMEOUT_S = 60.0  # wal_receiver_timeout: a client that lives answers within it
COPY_BUFFER_BYTES = 1024 * 1024 + MESSAGE_BYTES_MAX  # one message at its largest, 1 MiB beside it

_NONCE_BYTES = 18  # SCRAM_RAW_NONCE_LEN
_TLS_HANDSHAKE_RECORD = b"\x16"
_TIMEOUT_MIN_S = 0.001  # to a socket, zero means not to block

Value: TypeAlias = str | bytes | int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """What a server is and whom it lets in."""

    # Clients refuse a server newer than themselves, so report the primary's own version. A server
    # of several primaries gives a function of the startup parameters, which may raise
    # ConnectionRefused.
    server_version: str | Callable[[Mapping[str, str]], str]
    tls: ssl.SSLContext | None = None  # see pgwire.tls
    require_tls: bool = False
    require_certificate: bool = False  # of the client, in the user's name
    verifiers: Mapping[str, ScramVerifier] | None = None  # by user; None: trust
    # Called with the startup parameters: before the user must prove anything, and after. Each may
    # raise ConnectionRefused.
    on_startup: Callable[[Mapping[str, str]], None] = lambda _: None
    on_authenticated: Callable[[Mapping[str, str]], None] = lambda _: None
    handshake_timeout_s: float = HANDSHAKE_TIMEOUT_S
    mock_secret: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)

    def __post_init__(self) -> None:
        if self.require_tls and self.tls is None:
            raise ValueError("require_tls needs a TLS context")

    @property
    def policy(self) -> ServerPolicy:
        return ServerPolicy(
            tls_available=self.tls is not None,
            tls_required=self.require_tls,
            certificate_required=self.require_certificate,
            verifiers=self.verifiers,
            mock_secret=self.mock_secret,
        )


def accept_connection(sock: socket.socket, config: ServerConfig) -> Session | None:
    """Take a freshly accepted socket through TLS, startup, authentication and greeting.

    None: the client only sent a CancelRequest, or left. Raises ConnectionRefused and ProtocolError
    after telling the client why. The socket is ours from now on: closed, unless there is a Session.
    """
    channel = _Channel(sock)
    session = None
    try:
        prepare_socket(sock)
        session = _shake_hands(channel, config)
    except (ConnectionRefused, ProtocolError) as error:
        channel.hang_up(error)
        raise
    except OSError:
        pass  # the client left in the middle of it: nobody to tell
    finally:
        if session is None:
            channel.close()
    return session


def _shake_hands(channel: _Channel, config: ServerConfig) -> Session | None:
    deadline = time.monotonic() + config.handshake_timeout_s
    nonce = base64.b64encode(secrets.token_bytes(_NONCE_BYTES)).decode()
    handshake = ServerHandshake(channel.connection, config.policy, nonce)
    try:
        if config.tls is not None and channel.begins_with_tls(_left(deadline)):
            channel.encrypt(config.tls, _left(deadline), direct=True)
        while not handshake.is_over:
            message = channel.read(deadline)
            if message is None:
                return None
            if isinstance(message, StartupMessage):
                config.on_startup(message.parameters)
                handshake.certificate_name = channel.certificate_name
            channel.write(handshake.receive(message))
            if channel.connection.state is State.TLS_HANDSHAKE:
                assert config.tls is not None
                channel.encrypt(config.tls, _left(deadline))
    except TimeoutError as error:
        raise ConnectionRefused(
            f"canceling authentication: not done within {config.handshake_timeout_s} s",
            sqlstate=QUERY_CANCELED,
        ) from error
    if channel.connection.state is State.CLOSED:
        return None
    config.on_authenticated(handshake.parameters)
    status = _parameter_status(config, handshake.parameters)
    # The key is for cancelling, which we do not do.
    process_id, secret_key = secrets.randbelow(2**31), secrets.token_bytes(4)
    channel.send(*greeting(status, process_id, secret_key))
    return Session(channel, handshake.parameters)


def _left(deadline: float) -> float:
    return max(0.0, deadline - time.monotonic())


def _parameter_status(config: ServerConfig, parameters: Mapping[str, str]) -> dict[str, str]:
    """What stock clients depend on: pg_receivewal exits without integer_datetimes, psycopg2 wants
    a DateStyle, libpq picks among several hosts by the last two, ..."""
    version = config.server_version
    return {
        "server_version": version if isinstance(version, str) else version(parameters),
        "server_encoding": "UTF8",
        "client_encoding": "UTF8",
        "application_name": parameters.get("application_name", ""),
        "session_authorization": parameters["user"],
        "is_superuser": "off",
        "DateStyle": "ISO, MDY",
        "IntervalStyle": "postgres",
        "TimeZone": "UTC",
        "integer_datetimes": "on",
        "standard_conforming_strings": "on",
        "default_transaction_read_only": "off",
        "in_hot_standby": "off",
    }


class _Channel:
    """The state machine of a connection joined to its bytes."""

    def __init__(self, sock: socket.socket) -> None:
        self.connection = ServerConnection()
        self.transport: Transport = PlainTransport(sock)
        self.certificate_name: str | None = None  # the client's

    def read(self, deadline: float | None = None) -> Message | None:
        """The client's next message; None when it has left. Raises TimeoutError, ProtocolError."""
        while True:
            message = self.connection.next()
            if isinstance(message, Message):
                return message
            if self.connection.state is State.CLOSED:
                return None
            assert message is NEED_DATA, self.connection.state
            timeout = None if deadline is None else _left(deadline)
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
            # Else another protocol's client could be tricked into talking to us.
            raise ConnectionRefused(f"direct TLS needs ALPN protocol {ALPN!r}")
        self.certificate_name = certificate_name(sock)
        self.transport = TlsTransport(sock)
        self.connection.tls_established()

    def hang_up(self, error: WireError) -> None:
        """Tell the client why the connection ends, if it can still hear, and end it."""
        try:
            self.write(self.connection.farewell(error))
        except OSError:
            pass  # it has left before
        self.close()

    def close(self) -> None:
        self.transport.socket.close()
        self.connection.release()


class Session:
    """An authenticated connection between commands. After every read_command(): an answer.

    `parameters`: of the startup packet and of its `options`. `encrypted`: over TLS.
    What sends raises OSError when the connection is gone.
    """

    def __init__(self, channel: _Channel, parameters: Mapping[str, str]) -> None:
        self.parameters = parameters
        self.encrypted = channel.connection.encrypted
        self._channel = channel

    def read_command(self) -> str | None:
        """The next command; None when the client has left.

        Raises ProtocolError after telling the client, and closing.
        """
        while True:
            try:
                message = self._channel.read()
            except ProtocolError as error:
                self._channel.hang_up(error)
                raise
            except OSError:
                return None
            if not isinstance(message, Query):
                return None
            if message.text.strip(" \t\r\n;"):
                return message.text
            self._channel.send(EmptyQueryResponse(), ReadyForQuery())

    def send_rows(
        self, columns: Sequence[Column], rows: Iterable[Sequence[Value]], *tags: str
    ) -> None:
        """Answer with a result, and be ready for the next command. One tag, but for
        START_REPLICATION of a timeline that has ended: a walreceiver expects two, as Postgres
        sends them."""
        self._channel.send(*_result(columns, rows), *map(CommandComplete, tags), ReadyForQuery())

    def send_complete(self, tag: str) -> None:
        """Answer without a result, and be ready for the next command."""
        self._channel.send(CommandComplete(tag), ReadyForQuery())

    def send_error(
        self,
        sqlstate: str,
        message: str,
        *,
        detail: str | None = None,
        hint: str | None = None,
        position: int | None = None,
    ) -> None:
        """The command or the copy failed; be ready for the next command."""
        report = ErrorResponse("ERROR", sqlstate, message, detail, hint, position)
        self._channel.send(report, ReadyForQuery())

    def send_fatal(self, error: WireError) -> None:
        """The connection ends, and why. Closes it."""
        self._channel.hang_up(error)

    def start_copy_both(self) -> CopyStream:
        """Answer by a stream in both directions, until it has ended."""
        self._channel.send(CopyBothResponse())
        return CopyStream(self._channel)

    def fileno(self) -> int:
        return self._channel.transport.socket.fileno()

    def shutdown(self) -> None:
        """End the connection from any thread; the one that waits on it sees the client leave."""
        shut_down(self._channel.transport.socket)

    def close(self) -> None:
        """Close the socket. Only by the thread that uses it."""
        self._channel.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class CopyStream:
    """CopyData in both directions, until drain() raises CopyEnded or end_copy() returns."""

    def __init__(self, channel: _Channel) -> None:
        self._channel = channel
        self._connection = channel.connection
        self._transport = channel.transport
        self._ended: CopyEnded | None = None
        self._connection.reserve(COPY_BUFFER_BYTES)

    def drain(self, timeout: float | None = None) -> list[memoryview]:
        """The payloads of all CopyData that have arrived, at least one; they may be empty.

        The views are valid until the next drain(): what is kept longer must be copied. An empty
        list: nothing has arrived for `timeout` seconds. Raises CopyEnded, once all data before the
        end were handed out, and ProtocolError after telling the client, and closing.
        """
        frames = self._connection.frames
        while True:
            if frames and (payloads := self._take()):
                return payloads
            if self._ended is not None:
                raise self._ended
            try:
                count = self._transport.receive_into(frames.room(), timeout)
            except OSError as error:
                raise self._end(CopyEnd.DISCONNECT, str(error)) from error
            if count is None:
                return []
            if count == 0:
                raise self._end(CopyEnd.DISCONNECT, "client closed the connection")
            frames.filled(count)

    def has_buffered(self) -> bool:
        """Whether drain() would return or raise without waiting; a poll() would not tell."""
        return self._connection.has_frame or self._transport.pending() > 0

    def fileno(self) -> int:
        """To wait for with others; ask has_buffered() first."""
        return self._transport.socket.fileno()

    def send(self, *parts: bytes | memoryview) -> None:
        """Send one CopyData whose payload is the parts in a row, of bytes; a few, not hundreds.

        Raises CopyEnded if the connection is gone.
        """
        header = self._connection.copy_data_header(sum(map(len, parts)))
        try:
            self._transport.send((header, *parts))
        except OSError as error:
            raise self._end(CopyEnd.DISCONNECT, str(error)) from error

    def end_copy(
        self,
        *,
        columns: Sequence[Column] = (),
        rows: Iterable[Sequence[Value]] = (),
        tags: Sequence[str] = ("START_STREAMING", "START_REPLICATION"),
        timeout: float = END_COPY_TIMEOUT_S,
    ) -> None:
        """End the copy in order, whichever side wished it, and be ready for the next command.

        Says CopyDone, waits for the client's (dropping what it still sends), then gives the result,
        if there are columns, and the tags. A walreceiver expects the two that are the default, and
        at the end of a timeline a row with the next one and its start. Raises CopyEnded if the
        client ends in another way, or says nothing for `timeout` seconds.
        """
        result = _result(columns, rows) if columns else ()
        try:
            self._channel.send(CopyDone())
            self._await_copy_done(timeout)
            self._channel.send(*result, *map(CommandComplete, tags), ReadyForQuery())
        except OSError as error:
            raise self._end(CopyEnd.DISCONNECT, str(error)) from error

    def stop(self) -> None:
        """The server shuts down: nothing more will come. A walreceiver takes it for a clean end."""
        try:
            self._channel.send(CommandComplete("COPY 0"))
        except OSError:
            pass  # the client has left before
        self._channel.close()

    def _await_copy_done(self, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while self._connection.state is State.COPY_SERVER_DONE:
            try:
                payloads = self.drain(_left(deadline))
            except CopyEnded as ended:
                if ended.how is not CopyEnd.COPY_DONE:
                    raise
            else:
                if not payloads:
                    raise self._end(CopyEnd.DISCONNECT, f"no CopyDone came within {timeout} s")

    def _take(self) -> list[memoryview]:
        """All whole CopyData, or else the end, if that comes next."""
        try:
            payloads = self._connection.take_copy_data()
            if not payloads and self._ended is None:
                self._note_end()
        except ProtocolError as error:
            self._channel.hang_up(error)
            raise
        return payloads

    def _note_end(self) -> None:
        match self._connection.next():
            case CopyDone():
                self._end(CopyEnd.COPY_DONE)
            case CopyFail(reason):
                self._end(CopyEnd.COPY_FAIL, reason)
            case Terminate():
                self._end(CopyEnd.TERMINATE)
            case other:
                assert other is NEED_DATA

    def _end(self, how: CopyEnd, message: str = "") -> CopyEnded:
        self._ended = CopyEnded(how, message)
        return self._ended


def _result(columns: Sequence[Column], rows: Iterable[Sequence[Value]]) -> list[Message]:
    return [
        RowDescription(tuple(columns)),
        *(DataRow(tuple(map(_encode_value, row))) for row in rows),
    ]


def _encode_value(value: Value) -> bytes | None:
    return value if value is None or isinstance(value, bytes) else str(value).encode()
