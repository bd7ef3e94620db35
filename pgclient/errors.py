"""Errors of `pgclient`.

PgClientError       one sentence, and a hint
|-- NotConnected    no connection could be opened; has a hint if a server answered
|-- ServerError     the server's own message, with its SQLSTATE
`-- ConnectionLost  the connection broke, or an answer was invalid: the connection is unusable
    `-- Silent      no message came within the time limit
"""

from __future__ import annotations

#: WAL or a history that the server has removed, or never had.
UNDEFINED_FILE = "58P01"


class PgClientError(Exception):
    """Base class."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class NotConnected(PgClientError):
    """No server answered, or the server refused the connection."""


class ServerError(PgClientError):
    """A server refused a command, or ended a copy; `sqlstate` is never empty."""

    def __init__(self, message: str, *, sqlstate: str, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.sqlstate = sqlstate


class ConnectionLost(PgClientError):
    """The connection broke, or an answer was invalid."""


class Silent(ConnectionLost):
    """No message came within the time limit."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"no message was received for {seconds:g} s")


def first_line(error: Exception | str) -> str:
    """The first line of a libpq message, without its advice ("Is the server running on that host
    ...?")."""
    lines = str(error).strip().splitlines()
    return lines[0].strip() if lines else type(error).__name__
