"""Errors of `pg_server`. `hint`, if not empty, says what the user can do.

PgServerError            base class
|-- Unavailable          the machine does not have, or does not permit, the requested thing
|-- ProgramFailed        a program that should have succeeded exited with an error
|-- DeadlineExceeded     a condition did not come true in time (also a TimeoutError)
`-- ServerFailed         a server did not start, or ended; carries the end of its log
"""

from __future__ import annotations

from collections.abc import Sequence


class PgServerError(Exception):
    """One sentence for the user, and a hint."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class Unavailable(PgServerError):
    """The user must first install or permit something. A test may be skipped for it."""


class ProgramFailed(PgServerError):
    """A program exited with an error. The message ends with its output."""


class DeadlineExceeded(PgServerError, TimeoutError):
    """A condition did not come true in time. The message names the condition and the time
    waited."""


class ServerFailed(PgServerError):
    """The message ends with the reason from the server's log; `log_tail` holds the last log
    lines."""

    def __init__(self, message: str, *, hint: str, log_tail: Sequence[str]) -> None:
        super().__init__(message, hint=hint)
        self.log_tail = tuple(log_tail)
