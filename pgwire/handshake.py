"""From the first byte to "authenticated": the server's and the client's half of the handshake.

Each half takes the messages that its connection returns, and returns the bytes to send. It only
decides: the connection knows which messages are legal, and the shell encrypts. Nonces are inputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from quorum_wal.pgwire.auth import ScramClient, ScramServer, ScramVerifier, mock_verifier
from quorum_wal.pgwire.connection import ClientConnection, ServerConnection, State
from quorum_wal.pgwire.errors import ConnectionRefused, LocalProtocolError
from quorum_wal.pgwire.messages import (
    AuthenticationOk,
    AuthenticationSasl,
    AuthenticationSaslContinue,
    AuthenticationSaslFinal,
    BackendKeyData,
    ErrorResponse,
    Message,
    ParameterStatus,
    ReadyForQuery,
    SaslInitialResponse,
    SaslResponse,
)
from quorum_wal.pgwire.startup import (
    PROTOCOL_MINOR_MAX,
    CancelRequest,
    EncryptionAnswer,
    GSSENCRequest,
    SSLRequest,
    StartupMessage,
    check_replication,
    negotiation,
    parse_options,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerPolicy:
    """The server's rules for connections. Without verifiers every user may connect (trust);
    otherwise only with SCRAM-SHA-256, or SCRAM-SHA-256-PLUS over TLS.

    `certificate_required` also demands a client certificate whose common name is the user's name
    (clientcert=verify-full in Postgres's pg_hba.conf).
    """

    tls_available: bool = False
    tls_required: bool = False
    certificate_required: bool = False
    verifiers: Mapping[str, ScramVerifier] | None = None
    # Of the server's certificate, for channel binding; None: it is not offered.
    certificate_hash: bytes | None = None
    # Derives the salts of users that do not exist; keep it the same as long as possible.
    mock_secret: bytes = b""


class ServerHandshake:
    """The server's half. Over when the connection is in GREETING, or CLOSED (a CancelRequest).

    `parameters`: of the startup packet and of its `options`; names are case-insensitive. Empty
    before the packet has come.
    `minor`: the protocol version is 3.`minor`.
    `certificate_name`: of the client's verified certificate, set once TLS is established.
    """

    def __init__(self, connection: ServerConnection, policy: ServerPolicy, nonce: str) -> None:
        """`nonce`: at least 18 random bytes, in base64."""
        self.parameters: dict[str, str] = {}
        self.minor = 0
        self.certificate_name: str | None = None
        self._connection = connection
        self._policy = policy
        self._nonce = nonce
        self._scram: ScramServer | None = None

    @property
    def is_over(self) -> bool:
        """Whether no more messages will be received."""
        return self._connection.state in (State.GREETING, State.CLOSED)

    def receive(self, message: Message) -> bytes:
        """The answer to a client's message. Raises ConnectionRefused and ProtocolError."""
        send = self._connection.send
        match message:
            case SSLRequest():
                return send(EncryptionAnswer(self._policy.tls_available))
            case GSSENCRequest():
                return send(EncryptionAnswer(False))
            case CancelRequest():
                return b""
            case StartupMessage():
                return self._start(message)
            case SaslInitialResponse():
                return self._challenge(message)
            case SaslResponse():
                assert self._scram is not None
                outcome = self._scram.final(message.data)
                return send(AuthenticationSaslFinal(outcome), AuthenticationOk())
            case _:
                raise LocalProtocolError(f"{type(message).__name__} is not part of a handshake")

    def _start(self, message: StartupMessage) -> bytes:
        options = parse_options(message.parameters.get("options", ""))
        given = {name.lower(): value for name, value in message.parameters.items()}
        self.parameters = {**options, **given}
        check_replication(message.parameters.get("replication", "false"))
        self.minor = min(message.minor, PROTOCOL_MINOR_MAX)
        reply = negotiation(message)
        negotiated = b"" if reply is None else self._connection.send(reply)
        user = message.parameters.get("user", "")
        if not user:
            raise ConnectionRefused("no PostgreSQL user name specified in startup packet")
        if self._policy.tls_required and not self._connection.encrypted:
            raise ConnectionRefused(
                f'connection of user "{user}" is not encrypted, and this server requires TLS',
                hint="Connect with sslmode=require, or better with verify-full.",
            )
        if self._policy.certificate_required:
            self._check_certificate(user)
        if self._policy.verifiers is None:
            return negotiated + self._connection.send(AuthenticationOk())
        verifier = self._policy.verifiers.get(user)
        if verifier is None:
            verifier = mock_verifier(user, self._policy.mock_secret)
        binding = self._policy.certificate_hash if self._connection.encrypted else None
        self._scram = ScramServer(user, verifier, self._nonce, binding)
        return negotiated + self._connection.send(AuthenticationSasl(self._scram.mechanisms))

    def _check_certificate(self, user: str) -> None:
        if self.certificate_name is None:
            raise ConnectionRefused(
                "connection requires a valid client certificate",
                hint="Connect with sslcert and sslkey.",
            )
        if self.certificate_name != user:
            raise ConnectionRefused(
                f'certificate authentication failed for user "{user}": '
                "the certificate has another name"
            )

    def _challenge(self, message: SaslInitialResponse) -> bytes:
        assert self._scram is not None
        challenge = self._scram.first(message.data, message.mechanism)
        return self._connection.send(AuthenticationSaslContinue(challenge))


def greeting(parameters: Mapping[str, str], key: BackendKeyData) -> tuple[Message, ...]:
    """The messages that a server sends between "authenticated" and the first command."""
    return (
        *(ParameterStatus(name, value) for name, value in parameters.items()),
        key,
        ReadyForQuery(),
    )


class ClientHandshake:
    """The client's half: start(), then receive() until the connection is IDLE."""

    def __init__(
        self,
        connection: ClientConnection,
        startup: StartupMessage,
        *,
        password: str | None = None,
        nonce: str = "",
        tls: bool = False,
        certificate_hash: bytes | None = None,
    ) -> None:
        """With `tls`, the shell encrypts in TLS_HANDSHAKE and calls start() again.
        `certificate_hash`: of the certificate that the server sends then."""
        self._connection = connection
        self._startup = startup
        self._tls = tls
        self._scram = None if password is None else ScramClient(password, nonce, certificate_hash)

    def start(self) -> bytes:
        """The first message, on the plain connection and again on the encrypted one."""
        if self._tls and not self._connection.encrypted:
            return self._connection.send(SSLRequest())
        return self._connection.send(self._startup)

    def receive(self, message: Message) -> bytes:
        """The answer to a server's message. Raises ConnectionRefused and ProtocolError."""
        match message:
            case EncryptionAnswer(accepted=False):
                raise ConnectionRefused("server does not support TLS, but TLS was required")
            case AuthenticationSasl():
                return self._prove(message)
            case AuthenticationSaslContinue():
                assert self._scram is not None
                return self._connection.send(SaslResponse(self._scram.respond(message.data)))
            case AuthenticationSaslFinal():
                assert self._scram is not None
                self._scram.verify(message.data)
            case ErrorResponse():
                raise ConnectionRefused(
                    message.message, sqlstate=message.sqlstate, hint=message.hint
                )
            case _:
                pass  # a protocol version or a parameter: no answer needed
        return b""

    def _prove(self, message: AuthenticationSasl) -> bytes:
        if self._scram is None:
            raise ConnectionRefused("server requests a password, but none was given")
        mechanism = self._scram.choose(message.mechanisms)
        if mechanism is None:
            raise ConnectionRefused(f"server offers {message.mechanisms}, expected SCRAM-SHA-256")
        return self._connection.send(SaslInitialResponse(mechanism, self._scram.first()))
