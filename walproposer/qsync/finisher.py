"""COMMIT PREPARED and ROLLBACK PREPARED by the janitor: a connection and a thread per database.

Postgres lets only the owner or a superuser finish a transaction, in its own database. A role that
is a member of the owner uses SET ROLE. Any other role gets an error, which is reported. `limbo.py`
decides what to finish, and when to retry.

Law: each order is answered once, except after a bug, which is reported. Source: Postgres
`access/transam/twophase.c` (LockGXact: the rights and the errors).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from threading import Lock

import psycopg
import structlog
from psycopg import sql

from quorum_wal.walproposer.errors import WalProposerError
from quorum_wal.walproposer.qsync.limbo_events import Finish
from quorum_wal.walproposer.qsync.limbo_reader import flush_lsn
from quorum_wal.walproposer.qsync.primary_session import PrimarySession
from quorum_wal.walproposer.qsync.worker import Failed, Worker

log = structlog.get_logger()

IDLE_SECONDS = 60.0
#: The SQLSTATE of an error that no server sent: the connection failed.
CONNECTION_FAILURE = "08006"

_OWNER = "SELECT owner FROM pg_prepared_xacts WHERE gid = %s"

#: Called with the order, the SQLSTATE of an error, and the end of the log after the command.
Ended = Callable[[Finish, str | None, int], None]


class Finisher:
    """`ended` and `failed` are called on the thread of the database. `session_of` makes a session
    for a database."""

    def __init__(
        self, session_of: Callable[[str], PrimarySession], ended: Ended, failed: Failed
    ) -> None:
        self._session_of = session_of
        self._ended = ended
        self._failed = failed
        self._databases: dict[str, _Database] = {}
        self._lock = Lock()
        self._is_closed = False

    def finish(self, order: Finish) -> None:
        """Any thread may call it; it does not wait. After `close` it does nothing."""
        with self._lock:
            if self._is_closed:
                return
            database = self._databases.get(order.database)
            if database is None:
                session = self._session_of(order.database)
                database = self._databases[order.database] = _Database(
                    session, self._ended, self._failed
                )
        database.worker.put(partial(database.finish, order))

    def close(self) -> None:
        """Orders given before are still executed."""
        with self._lock:
            self._is_closed = True
            databases, self._databases = self._databases, {}
        for database in databases.values():
            database.worker.close()


class _Database:
    """All methods but `worker`'s are for its thread."""

    def __init__(self, session: PrimarySession, ended: Ended, failed: Failed) -> None:
        self.worker = Worker("qsync-finish", session.close, IDLE_SECONDS, failed)
        self._session = session
        self._ended = ended
        self._last_reason = ""

    def finish(self, order: Finish) -> None:
        verb = "COMMIT" if order.commit else "ROLLBACK"
        try:
            with self._session.opened(f"could not {verb} PREPARED {order.gid}") as connection:
                finish_prepared(connection, order.gid, commit=order.commit)
                end_lsn = flush_lsn(connection)
        except WalProposerError as error:
            if str(error) != self._last_reason:
                log.warning("transaction not finished", sqlstate=error.sqlstate, reason=str(error))
            self._last_reason = str(error)
            self._ended(order, error.sqlstate or CONNECTION_FAILURE, 0)
            return
        self._last_reason = ""
        self._ended(order, None, end_lsn)


def finish_prepared(connection: psycopg.Connection, gid: str, *, commit: bool) -> None:
    """Finish it as its owner, if required. The connection is in autocommit mode, and its commits
    wait for no standby. Raises psycopg.Error."""
    statement = sql.SQL("COMMIT PREPARED {}" if commit else "ROLLBACK PREPARED {}")
    finish = statement.format(sql.Literal(gid))
    try:
        connection.execute(finish)
    except psycopg.errors.InsufficientPrivilege:
        row = connection.execute(_OWNER, (gid,)).fetchone()
        if row is None or row[0] is None:
            raise
        connection.execute(sql.SQL("SET ROLE {}").format(sql.Identifier(row[0])))
        try:
            connection.execute(finish)
        finally:
            connection.execute("RESET ROLE")
