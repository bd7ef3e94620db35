"""Errors of `pg_fixtures`. They derive from those of `pg_server`, which fixtures raise too.

FixtureError             base class
|-- ProcessEnded         a process ended or was not started, but must be running
|-- ConfigurationError   Postgres refused a setting
`-- WalDiffers           two copies of the WAL have different bytes; has the position
"""

from __future__ import annotations

from quorum_wal.pg_server.errors import PgServerError


class FixtureError(PgServerError):
    """A fixture failed."""


class ProcessEnded(FixtureError):
    """A process is not running; the message ends with the tail of its log."""


class ConfigurationError(FixtureError):
    """Postgres refused a setting."""


class WalDiffers(FixtureError):
    """Two copies of the WAL differ; `lsn` is the first position at which they do."""

    def __init__(self, lsn: int, message: str) -> None:
        super().__init__(message)
        self.lsn = lsn
