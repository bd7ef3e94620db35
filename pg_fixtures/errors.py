"""Errors of `pg_fixtures`; `hint`, when there is one, tells the user what to do.

FixtureError             anything below
|-- Unavailable          the machine lacks what the fixture needs: a test may be skipped for it
|-- ProgramFailed        a program that should have succeeded exited with an error
|-- ProcessEnded         a process ended, or never ran, where a running one was needed
|-- DeadlineExceeded     a condition did not come true in time (also a TimeoutError)
|-- ConfigurationError   Postgres did not accept a setting
`-- WalDiffers           two copies of the WAL are not the same bytes; carries the position
"""

from __future__ import annotations


class FixtureError(Exception):
    """A fixture could not do its work."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class Unavailable(FixtureError):
    """The machine does not have, or does not permit, what was asked for."""


class ProgramFailed(FixtureError):
    """A program exited with an error; the message ends with its output."""


class ProcessEnded(FixtureError):
    """A process is not running; the message ends with the tail of its log."""


class DeadlineExceeded(FixtureError, TimeoutError):
    """A condition did not come true in time; the message says which and how long it was awaited."""


class ConfigurationError(FixtureError):
    """Postgres did not accept a setting."""


class WalDiffers(FixtureError):
    """Two copies of the WAL differ; `lsn` is the first position where they do."""

    def __init__(self, lsn: int, message: str) -> None:
        super().__init__(message)
        self.lsn = lsn
