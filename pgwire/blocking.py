"""A server connection on a blocking socket, one thread per connection.

    authenticate()        socket -> Authenticated     TLS, startup, authentication, greeting
    accept_connection()   the same, as a Session
    Session               read_command(), send_rows(), send_error(), start_copy_both()

What runs may be canceled by another thread, and any thread may end a connection by shutdown().
"""

from __future__ import annotations

import base64
import secrets
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pgwire.auth import ScramVerifier
from pgwire.channel import Channel, seconds_left
from pgwire.connection import State
from pgwire.copy_stream import CopyStream, Value, result_messages
from pgwire.errors import (
    PROTOCOL_VIOLATION,
    QUERY_CANCELED,
    ConnectionRefused,
    ProtocolError,
    WireError,
)
from pgwire.extended_query import (
    Flush,
    FunctionCall,
    Sync,
)
from pgwire.framing import MESSAGE_BYTES_MAX
from pgwire.handshake import ServerHandshake, ServerPolicy, greeting
from pgwire.interrupt import Interrupt
from pgwire.messages import (
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
from pgwire.startup import CancelRequest, StartupMessage, cancel_key_bytes
from pgwire.tls import ServerTls
from pgwire.transport import prepare_socket, shut_down

HANDSHAKE_TIMEOUT_S = 60.0  # authentication_timeout of Postgres

_NONCE_BYTES = 18  # SCRAM_RAW_NONCE_LEN


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """What a server is and whom it lets in."""

    # Clients refuse a server newer than themselves, so report the primary's own version. A server
    # of several primaries gives a function of the startup parameters, which may raise
    # ConnectionRefused.
    server_version: str | Callable[[Mapping[str, str]], str]
    tls: ServerTls | None = None
    require_tls: bool = False
    require_certificate: bool = False  # of the client, in the user's name
    verifiers: Mapping[str, ScramVerifier] | None = None  # by user; None: trust
    # Called with the startup parameters: before the user must prove anything, and after. Each may
    # raise ConnectionRefused. The client hears of it before it hears that it is authenticated: with
    # 57P03 (cannot_connect_now) libpq goes on to the next host then, and only then.
    on_startup: Callable[[Mapping[str, str]], None] = lambda _: None
    on_authenticated: Callable[[Mapping[str, str]], None] = lambda _: None
    process_id: int = 0  # by which a CancelRequest will name this connection
    on_cancel: Callable[[int, bytes], None] = lambda _, __: None  # a CancelRequest: of whom, key
    handshake_timeout_s: float = HANDSHAKE_TIMEOUT_S
    message_bytes_max: int = MESSAGE_BYTES_MAX  # of a client's message, once it is authenticated
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
    """A connection whose client was greeted and may send its first command. `parameters`: of the
    startup packet and of its `options`. `key`: what a CancelRequest must repeat."""

    channel: Channel
    parameters: Mapping[str, str]
    key: BackendKeyData


def accept_connection(sock: socket.socket, config: ServerConfig) -> Session | None:
    """As authenticate()."""
    client = authenticate(sock, config)
    if client is None:
        return None
    try:
        return Session(client.channel, client.parameters, client.key)
    except OSError:  # no file descriptor is left for its interrupt
        client.channel.close()
        raise


def authenticate(sock: socket.socket, config: ServerConfig) -> Authenticated | None:
    """Take a freshly accepted socket through TLS, startup, authentication and greeting. It blocks.

    None: the client only sent a CancelRequest, or left. Raises ConnectionRefused and ProtocolError
    after telling the client why. The socket is ours from now on: closed, unless somebody is
    returned.
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
        pass  # the client left in the middle of it: nobody to tell
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
            if channel.connection.state is State.GREETING:  # proven, and not told so yet
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
    """To what is no command: as a walsender (`forbidden_in_wal_sender` in `postgres.c`)."""
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


class Session:
    """An authenticated connection between commands. After every read_command(): an answer.

    `parameters`: of the startup packet and of its `options`. `encrypted`: over TLS. `key`: what a
    CancelRequest must repeat. What sends raises OSError when the connection is gone.
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
            if message is None or isinstance(message, Terminate):
                return None
            if isinstance(message, Query) and message.text.strip(" \t\r\n;"):
                self._interrupt.canceled = False  # what came before was not for this command
                return message.text
            self._channel.send(*_answer(message))

    def send_rows(
        self, columns: Sequence[Column], rows: Iterable[Sequence[Value]], *tags: str
    ) -> None:
        """Answer with a result, and be ready for the next command. One tag, but for
        START_REPLICATION of a timeline that has ended: a walreceiver expects two, as Postgres
        sends them."""
        self._channel.send(
            *result_messages(columns, rows), *map(CommandComplete, tags), ReadyForQuery()
        )

    def set_parameter(self, name: str, value: str) -> None:
        """Answer SET: from here on the client's parameter is that; and be ready for the next
        command."""
        self.parameters = {**self.parameters, name: value}
        self._channel.send(CommandComplete("SET"), ParameterStatus(name, value), ReadyForQuery())

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
        return CopyStream(self._channel, self._interrupt)

    def fileno(self) -> int:
        return self._channel.transport.socket.fileno()

    def cancel(self, key: bytes) -> bool:
        """A stream that runs ends with 57014, if this is our key; any thread may call it."""
        is_ours = secrets.compare_digest(key, self.key.secret_key)
        if is_ours:
            self._interrupt.cancel()
        return is_ours

    def shutdown(self) -> None:
        """End the connection from any thread; the one that waits on it sees the client leave."""
        shut_down(self._channel.transport.socket)

    def close(self) -> None:
        """Close the socket. Only by the thread that uses it."""
        self._channel.close()
        self._interrupt.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
