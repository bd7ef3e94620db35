"""A connection to one database of the primary, opened when it is needed, and again after an error.

Its commits wait for no standby: a coordinator that waited for the quorum here would wait for
itself. Law: whatever another server says is nobody's business, even behind the same address; so it
is asked first whether it is the primary of the incarnation that leads.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from walproposer.connection import refusing
from walproposer.errors import Unreachable
from walproposer.primary.primary_address import PrimaryAddress

APPLICATION_NAME = "sk_qsync"
# Nothing that is asked here takes long; a server that hangs would keep the thread for ever.
STATEMENT_TIMEOUT_MS = 30_000
OPTIONS = f"-c synchronous_commit=local -c statement_timeout={STATEMENT_TIMEOUT_MS}"

_WHO = (
    "SELECT (SELECT system_identifier::text FROM pg_control_system()), CASE WHEN"
    " pg_is_in_recovery() THEN '0' ELSE left(pg_walfile_name(pg_current_wal_lsn()), 8) END"
)


class PrimarySession:
    """For one thread. `system_id` and `tli` are those of the primary; `database` "": the DSN's."""

    def __init__(
        self, address: PrimaryAddress, system_id: int, tli: int, database: str = ""
    ) -> None:
        self._address = address
        self._who = (system_id, tli)
        self._database = {"dbname": database} if database else {}
        self._connection: psycopg.Connection | None = None

    @contextmanager
    def opened(self, doing: str) -> Iterator[psycopg.Connection]:
        """In autocommit mode. Raises WalProposerError; what fails in the block becomes one."""
        with refusing(doing):
            if self._connection is None:
                self._connection = self._open()
            try:
                yield self._connection
            finally:
                if self._connection.broken:
                    self.close()

    def close(self) -> None:
        """It is opened again when it is needed."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _open(self) -> psycopg.Connection:
        connection = self._address.connect(
            application_name=APPLICATION_NAME, options=OPTIONS, **self._database
        )
        try:
            row = connection.execute(_WHO).fetchone()
            assert row is not None
            found = (int(row[0]), int(row[1], 16))
            if found != self._who:
                raise Unreachable(
                    f"the primary ({self._address}) is another server now: system {found[0]} on "
                    f"timeline {found[1]}, expected {self._who[0]} on {self._who[1]}"
                )
        except BaseException:
            connection.close()
            raise
        return connection
