"""`PendingCommit`: a commit in its own thread, because it may wait for the quorum."""

from __future__ import annotations

from threading import Thread

import psycopg

from quorum_wal.pg_fixtures.postgres import Postgres
from quorum_wal.pg_fixtures.waiting import wait_until

# It has a transaction id, so its commit waits. It needs no table.
STATEMENT = "SELECT pg_logical_emit_message(true, 'pending', 'commit')"


class PendingCommit:
    """Begins when created. Its connection ends with the statement, or with the server."""

    def __init__(self, postgres: Postgres, statement: str = STATEMENT) -> None:
        self._postgres = postgres
        self._connection = postgres.connect()
        self._notices: list[str] = []
        self._error: psycopg.Error | None = None
        self.pid = self._connection.info.backend_pid
        self._thread = Thread(target=self._run, args=(statement,), daemon=True)
        self._thread.start()

    def _run(self, statement: str) -> None:
        notices = self._notices
        self._connection.add_notice_handler(lambda n: notices.append(n.message_primary or ""))
        try:
            with self._connection:
                self._connection.execute(statement)
        except psycopg.Error as error:
            self._error = error

    @property
    def has_returned(self) -> bool:
        """Also if it failed."""
        return not self._thread.is_alive()

    @property
    def is_blocked(self) -> bool:
        """Whether Postgres reports that it waits for its synchronous standby."""
        rows = self._postgres.execute(
            "SELECT 1 FROM pg_stat_activity WHERE pid = %s AND wait_event = 'SyncRep'", (self.pid,)
        )
        return bool(rows) and not self.has_returned

    @property
    def notices(self) -> list[str]:
        """The notices that Postgres has sent to the client."""
        return list(self._notices)

    def wait_blocked(self, timeout: float) -> None:
        """Return when the commit waits. Fails if it returns instead."""
        wait_until(lambda: self.has_returned or self.is_blocked, timeout, "a commit to wait")
        assert not self.has_returned, "the commit returned without a quorum"

    def wait_returned(self, timeout: float) -> None:
        """Return when the commit has succeeded. Raises its error."""
        wait_until(lambda: self.has_returned, timeout, "a commit to return")
        if self._error is not None:
            raise self._error
        assert self._notices == []
