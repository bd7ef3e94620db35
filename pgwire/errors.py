"""Errors of `pgwire`, each with the SQLSTATE to send for it.

WireError
|-- ProtocolError        the peer's bytes are not the protocol                 08P01
|-- ConnectionRefused    the peer may not connect                              28000, ...
|-- CommandSyntaxError   the text is not a replication command; has the position   42601
|-- CopyEnded            a copy has ended: how, and the other side's reason
`-- LocalProtocolError   this side would violate the protocol: our bug
"""

from __future__ import annotations

from enum import Enum

# The codes that this package itself sends (Postgres errcodes.txt).
PROTOCOL_VIOLATION = "08P01"
FEATURE_NOT_SUPPORTED = "0A000"
INVALID_PARAMETER_VALUE = "22023"
INVALID_AUTHORIZATION = "28000"
INVALID_PASSWORD = "28P01"
SYNTAX_ERROR = "42601"
QUERY_CANCELED = "57014"
INTERNAL_ERROR = "XX000"


class WireError(Exception):
    """Base of the errors on the wire. `hint` is a second sentence: what the user can do."""

    sqlstate = INTERNAL_ERROR
    position: int | None = None

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


class ProtocolError(WireError):
    """The peer violated the protocol. The connection stops for good."""

    sqlstate = PROTOCOL_VIOLATION


class ConnectionRefused(WireError):
    """The peer may not connect: wrong password, no TLS, unknown version, handshake too slow."""

    def __init__(
        self, message: str, *, sqlstate: str = INVALID_AUTHORIZATION, hint: str | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.sqlstate = sqlstate


class CommandSyntaxError(WireError):
    """The text is not a replication command. `position` counts characters from 1, like Postgres."""

    sqlstate = SYNTAX_ERROR

    def __init__(self, message: str, *, position: int, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.position = position


class CopyEnd(Enum):
    """How a copy ended."""

    COPY_DONE = "CopyDone"  # the client requests an orderly end: answer with end_copy()
    COPY_FAIL = "CopyFail"  # the client gives up: answer with send_error()
    TERMINATE = "Terminate"  # the client has disconnected
    CANCELED = "CancelRequest"  # by the client: answer with send_error() (57014)
    DISCONNECT = "disconnect"  # the connection is lost; no answer is possible


class CopyEnded(WireError):
    """No more CopyData will come. Not a fault: every copy ends in one of these ways."""

    def __init__(self, how: CopyEnd, message: str = "") -> None:
        super().__init__(f"copy ended by {how.value}" + (f": {message}" if message else ""))
        self.how = how


class LocalProtocolError(WireError):
    """The message is not legal in this state; nothing was sent. Never the peer's fault."""
