"""Errors of `pg_server`; `hint`, when there is one, tells the user what to do.

PgServerError            anything below
|-- Unavailable          the machine does not have, or does not permit, what was asked for
|-- ProgramFailed        a program that should have succeeded exited with an error
|-- DeadlineExceeded     it did not come true in time (also a TimeoutError)
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
    """Something has to be installed, or permitted, first; a test may be skipped for it."""


class ProgramFailed(PgServerError):
    """A program exited with an error; the message ends with its output."""


class DeadlineExceeded(PgServerError, TimeoutError):
    """A condition did not come true in time; the message says which and how long it was awaited."""


class ServerFailed(PgServerError):
    """The message ends with the reason in the server's own words, `log_tail` are its last lines."""

    def __init__(self, message: str, *, hint: str, log_tail: Sequence[str]) -> None:
        super().__init__(message, hint=hint)
        self.log_tail = tuple(log_tail)
