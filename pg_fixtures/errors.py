"""Errors of `pg_fixtures`, below those of `pg_server`, which fixtures raise too.

FixtureError             anything below
|-- ProcessEnded         a process ended, or never ran, where a running one was needed
|-- ConfigurationError   Postgres did not accept a setting
`-- WalDiffers           two copies of the WAL are not the same bytes; carries the position
"""

from __future__ import annotations

from pg_server.errors import PgServerError


class FixtureError(PgServerError):
    """A fixture could not do its work."""


class ProcessEnded(FixtureError):
    """A process is not running; the message ends with the tail of its log."""


class ConfigurationError(FixtureError):
    """Postgres did not accept a setting."""


class WalDiffers(FixtureError):
    """Two copies of the WAL differ; `lsn` is the first position where they do."""

    def __init__(self, lsn: int, message: str) -> None:
        super().__init__(message)
        self.lsn = lsn
