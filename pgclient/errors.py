"""Errors of `pgclient`.

PgClientError       one sentence, and a hint
|-- NotConnected    no connection could be opened; the hint is for a server that answers
|-- ServerError     the server's own words, with their SQLSTATE
`-- ConnectionLost  it broke, or what came is no answer: the connection is of no use any more
    `-- Silent      nothing came for too long
"""

from __future__ import annotations

#: WAL or a history that the server has removed, or never had.
UNDEFINED_FILE = "58P01"


class PgClientError(Exception):
    """Base of all."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class NotConnected(PgClientError):
    """Nobody answers there, or the one that does does not let us in."""


class ServerError(PgClientError):
    """A server refused a command, or ended a copy; `sqlstate` is never empty."""

    def __init__(self, message: str, *, sqlstate: str, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.sqlstate = sqlstate


class ConnectionLost(PgClientError):
    """It broke, or what came is no answer."""


class Silent(ConnectionLost):
    """Nothing came for too long."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"nothing was heard for {seconds:g} s")


def first_line(error: Exception | str) -> str:
    """What libpq says, without its advice ("Is the server running on that host ...?")."""
    lines = str(error).strip().splitlines()
    return lines[0].strip() if lines else type(error).__name__
