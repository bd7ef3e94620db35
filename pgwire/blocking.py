"""A server connection on a blocking socket, one thread per connection.

    authenticate()        socket -> Authenticated     TLS, startup, authentication, greeting
    accept_connection()   the same, as a Session
    Session               read_command(), send_rows(), send_error(), start_copy_both()

Another thread may cancel a running stream, and any thread may end a connection by shutdown().
"""

from __future__ import annotations

import base64
import secrets
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from quorum_wal.pgwire.auth import ScramVerifier
from quorum_wal.pgwire.channel import Channel, seconds_left
from quorum_wal.pgwire.connection import State
from quorum_wal.pgwire.copy_stream import CopyStream, Value, result_messages
from quorum_wal.pgwire.errors import (
    PROTOCOL_VIOLATION,
    QUERY_CANCELED,
    ConnectionRefused,
    ProtocolError,
    WireError,
)
from quorum_wal.pgwire.extended_query import (
    Flush,
    FunctionCall,
    Sync,
)
from quorum_wal.pgwire.framing import MESSAGE_BYTES_MAX
from quorum_wal.pgwire.handshake import ServerHandshake, ServerPolicy, greeting
from quorum_wal.pgwire.interrupt import Interrupt
from quorum_wal.pgwire.messages import (
    BackendKeyData,
    Column,
    CommandComplete,
    CopyBothResponse,
    EmptyQueryResponse,
    ErrorResponse,
    Message,
    ParameterStatus,
    Query,
    ReadyForQuery,
    Terminate,
)
from quorum_wal.pgwire.startup import CancelRequest, StartupMessage, cancel_key_bytes
from quorum_wal.pgwire.tls import ServerTls
from quorum_wal.pgwire.transport import prepare_socket, shut_down

HANDSHAKE_TIMEOUT_S = 60.0  # authentication_timeout of Postgres

_NONCE_BYTES = 18  # SCRAM_RAW_NONCE_LEN


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """The properties of a server, and its rules for connections."""

    # Clients refuse a server newer than themselves, so report the primary's own version. For
    # several primaries, pass a function of the startup parameters. It may raise ConnectionRefused.
    server_version: str | Callable[[Mapping[str, str]], str]
    tls: ServerTls | None = None
    require_tls: bool = False
    require_certificate: bool = False  # of the client, in the user's name
    verifiers: Mapping[str, ScramVerifier] | None = None  # by user; None: trust
    # Called with the startup parameters: before authentication, and after it. Each may raise
    # ConnectionRefused. The client gets that error before AuthenticationOk: with 57P03
    # (cannot_connect_now) libpq then tries the next host, and only then.
    on_startup: Callable[[Mapping[str, str]], None] = lambda _: None
    on_authenticated: Callable[[Mapping[str, str]], None] = lambda _: None
    process_id: int = 0  # a CancelRequest names this connection by it
    on_cancel: Callable[[int, bytes], None] = lambda _, __: None  # CancelRequest: process id, key
    handshake_timeout_s: float = HANDSHAKE_TIMEOUT_S
    message_bytes_max: int = MESSAGE_BYTES_MAX  # of a client's message after authentication
    mock_secret: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)

    def __post_init__(self) -> None:
        if self.require_tls and self.tls is None:
            raise ValueError("require_tls needs TLS files")

    @property
    def policy(self) -> ServerPolicy:
        return ServerPolicy(
            tls_available=self.tls is not None,
            tls_required=self.require_tls,
            certificate_required=self.require_certificate,
            certificate_hash=None if self.tls is None else self.tls.certificate_hash,
            verifiers=self.verifiers,
            mock_secret=self.mock_secret,
        )


@dataclass(frozen=True, slots=True)
class Authenticated:
    """A connection that is authenticated and may send its first command. `parameters`: of the
    startup packet and of its `options`. `key`: a CancelRequest must repeat it."""

    channel: Channel
    parameters: Mapping[str, str]
    key: BackendKeyData


def accept_connection(sock: socket.socket, config: ServerConfig) -> Session | None:
    """Like authenticate()."""
    client = authenticate(sock, config)
    if client is None:
        return None
    try:
        return Session(client.channel, client.parameters, client.key)
    except OSError:  # no file descriptor is left for its interrupt
        client.channel.close()
        raise


def authenticate(sock: socket.socket, config: ServerConfig) -> Authenticated | None:
    """Performs TLS, startup, authentication and greeting on an accepted socket. It blocks.

    Returns None if the client only sent a CancelRequest, or disconnected. Raises ConnectionRefused
    and ProtocolError after it has sent the error to the client. Takes over the socket: it is
    closed, unless a connection is returned.
    """
    channel = Channel(sock, config.message_bytes_max)
    client = None
    try:
        prepare_socket(sock)
        client = _shake_hands(channel, config)
    except (ConnectionRefused, ProtocolError) as error:
        channel.hang_up(error)
        raise
    except OSError:
        pass  # the client disconnected meanwhile: no error can be sent
    finally:
        if client is None:
            channel.close()
    return client


def _shake_hands(channel: Channel, config: ServerConfig) -> Authenticated | None:
    deadline = time.monotonic() + config.handshake_timeout_s
    nonce = base64.b64encode(secrets.token_bytes(_NONCE_BYTES)).decode()
    handshake = ServerHandshake(channel.connection, config.policy, nonce)
    status: Mapping[str, str] = {}
    try:
        if config.tls is not None and channel.begins_with_tls(seconds_left(deadline)):
            channel.encrypt(config.tls.context, seconds_left(deadline), direct=True)
        while not handshake.is_over:
            message = channel.read(deadline)
            if message is None:
                return None
            if isinstance(message, CancelRequest):
                config.on_cancel(message.process_id, message.secret_key)
            if isinstance(message, StartupMessage):
                config.on_startup(message.parameters)
                handshake.certificate_name = channel.certificate_name
            reply = handshake.receive(message)
            if channel.connection.state is State.GREETING:  # the client is not told yet
                config.on_authenticated(handshake.parameters)
                status = _parameter_status(config, handshake.parameters)
            channel.write(reply)
            if channel.connection.state is State.TLS_HANDSHAKE:
                assert config.tls is not None
                channel.encrypt(config.tls.context, seconds_left(deadline))
    except TimeoutError as error:
        raise ConnectionRefused(
            f"canceling authentication: not done within {config.handshake_timeout_s} s",
            sqlstate=QUERY_CANCELED,
        ) from error
    if channel.connection.state is State.CLOSED:
        return None
    secret = secrets.token_bytes(cancel_key_bytes(handshake.minor))
    key = BackendKeyData(config.process_id, secret)
    channel.send(*greeting(status, key))
    return Authenticated(channel, handshake.parameters, key)


def _answer(message: Message) -> tuple[Message, ...]:
    """The answer to a message that is no command, as a walsender gives it
    (`forbidden_in_wal_sender` in `postgres.c`)."""
    match message:
        case Query():
            return EmptyQueryResponse(), ReadyForQuery()
        case Sync():
            return (ReadyForQuery(),)
        case Flush():
            return ()
        case FunctionCall():
            return _refusal("fastpath function calls not supported"), ReadyForQuery()
        case _:
            return (_refusal("extended query protocol not supported"),)


def _refusal(what: str) -> ErrorResponse:
    return ErrorResponse(
        "ERROR",
        PROTOCOL_VIOLATION,
        f"{what} in a replication connection",
        hint="Send commands by the simple query protocol, without parameters.",
    )


def _parameter_status(config: ServerConfig, parameters: Mapping[str, str]) -> dict[str, str]:
    """Parameters that stock clients need: pg_receivewal exits without integer_datetimes, psycopg2
    needs a DateStyle, libpq chooses among several hosts by the last two, ..."""
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


class Session:
    """An authenticated connection between commands. Every read_command() must be answered.

    `parameters`: of the startup packet and of its `options`. `encrypted`: over TLS. `key`: a
    CancelRequest must repeat it. Methods that send raise OSError if the connection is closed.
    """

    def __init__(
        self, channel: Channel, parameters: Mapping[str, str], key: BackendKeyData
    ) -> None:
        self.parameters = parameters
        self.key = key
        self._interrupt = Interrupt()
        self.encrypted = channel.connection.encrypted
        self._channel = channel

    def read_command(self) -> str | None:
        """Returns the next command, or None if the client has disconnected.

        Raises ProtocolError after it has sent the error to the client and closed the connection.
        """
        while True:
            try:
                message = self._channel.read()
            except ProtocolError as error:
                self._channel.hang_up(error)
                raise
            except OSError:
                return None
            if message is None or isinstance(message, Terminate):
                return None
            if isinstance(message, Query) and message.text.strip(" \t\r\n;"):
                self._interrupt.canceled = False  # earlier requests were not for this command
                return message.text
            self._channel.send(*_answer(message))

    def send_rows(
        self, columns: Sequence[Column], rows: Iterable[Sequence[Value]], *tags: str
    ) -> None:
        """Answers with a result, and is ready for the next command. One tag; two for
        START_REPLICATION of a timeline that has ended, which a walreceiver expects from
        Postgres."""
        self._channel.send(
            *result_messages(columns, rows), *map(CommandComplete, tags), ReadyForQuery()
        )

    def set_parameter(self, name: str, value: str) -> None:
        """Answers SET: the client's parameter now has that value. Is ready for the next
        command."""
        self.parameters = {**self.parameters, name: value}
        self._channel.send(CommandComplete("SET"), ParameterStatus(name, value), ReadyForQuery())

    def send_complete(self, tag: str) -> None:
        """Answers without a result, and is ready for the next command."""
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
        """The command or the copy failed. Is ready for the next command."""
        report = ErrorResponse("ERROR", sqlstate, message, detail, hint, position)
        self._channel.send(report, ReadyForQuery())

    def send_fatal(self, error: WireError) -> None:
        """Sends the reason and closes the connection."""
        self._channel.hang_up(error)

    def start_copy_both(self) -> CopyStream:
        """Answers with a stream in both directions, and returns the stream."""
        self._channel.send(CopyBothResponse())
        return CopyStream(self._channel, self._interrupt)

    def fileno(self) -> int:
        return self._channel.transport.socket.fileno()

    def cancel(self, key: bytes) -> bool:
        """Ends a running stream with 57014, if the key is this session's. From any thread."""
        is_ours = secrets.compare_digest(key, self.key.secret_key)
        if is_ours:
            self._interrupt.cancel()
        return is_ours

    def shutdown(self) -> None:
        """Ends the connection from any thread; its own thread then sees a disconnected client."""
        shut_down(self._channel.transport.socket)

    def close(self) -> None:
        """Closes the socket. Only for the thread that uses it."""
        self._channel.close()
        self._interrupt.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
