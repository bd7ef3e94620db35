"""A connection to one database of the primary, opened when needed, and again after an error.

Its commits wait for no standby: a coordinator that waited for the quorum here would wait for
itself. Law: answers of another server are not used, even at the same address. So the session first
checks that the server is the primary of the incarnation that leads.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from quorum_wal.walproposer.connection import converting_errors
from quorum_wal.walproposer.errors import Unreachable
from quorum_wal.walproposer.primary.primary import Primary, describe_server
from quorum_wal.walproposer.primary.primary_address import PrimaryAddress
from quorum_wal.walproposer.primary.server_facts import START_US

APPLICATION_NAME = "sk_qsync"
# No statement here takes long. A server that hangs would block the thread forever.
STATEMENT_TIMEOUT_MS = 30_000
OPTIONS = f"-c synchronous_commit=local -c statement_timeout={STATEMENT_TIMEOUT_MS}"

_WHO = (
    "SELECT (SELECT system_identifier::text FROM pg_control_system()), CASE WHEN"
    " pg_is_in_recovery() THEN '0' ELSE left(pg_walfile_name(pg_current_wal_lsn()), 8) END,"
    f" {START_US}"
)


class PrimarySession:
    """For one thread, connected to `primary` and no other server. `database` "": that of the DSN.
    With `replicates` it also accepts replication commands, but no query parameters."""

    def __init__(
        self,
        address: PrimaryAddress,
        primary: Primary,
        database: str = "",
        *,
        replicates: bool = False,
    ) -> None:
        self._address = address
        self._who = (primary.server.system_id, primary.tli_history.tli, primary.start_us)
        self._overrides = {"dbname": database} if database else {}
        if replicates:
            self._overrides["replication"] = "database"
        self._connection: psycopg.Connection | None = None

    @contextmanager
    def opened(self, doing: str) -> Iterator[psycopg.Connection]:
        """A connection in autocommit mode. Raises WalProposerError, also for an error in the
        block."""
        with converting_errors(doing):
            if self._connection is None:
                self._connection = self._open()
            try:
                yield self._connection
            finally:
                if self._connection.broken:
                    self.close()

    def close(self) -> None:
        """It is opened again when needed."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _open(self) -> psycopg.Connection:
        connection = self._address.connect(
            application_name=APPLICATION_NAME, options=OPTIONS, **self._overrides
        )
        try:
            row = connection.execute(_WHO).fetchone()
            assert row is not None
            found = (int(row[0]), int(row[1], 16), int(row[2]))
            if found != self._who:
                raise Unreachable(
                    f"the primary ({self._address}) is another server now, or was restarted: "
                    f"{_describe(found)}, expected {_describe(self._who)}"
                )
        except BaseException:
            connection.close()
            raise
        return connection


def _describe(who: tuple[int, int, int]) -> str:
    system_id, tli, start_us = who
    return f"system {system_id}, {describe_server(tli, start_us)}"
