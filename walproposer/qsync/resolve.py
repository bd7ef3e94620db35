"""After a promotion: commits every prepared transaction of qsync that the elected log has.

    the elected log   ... P(a) ... P(b) ... K(a) ... P(c) | promoted here
    pg_prepared_xacts of the new primary: b, c            -> COMMIT PREPARED b, c

Law (PromotionCommits): this is done before clients can write, and no transaction is rolled back
here. The old primary may have committed and shown any of them, and the record of that may be lost.
A client gets `rolled back` only when the quorum has the record of that, so such a transaction is
not in the list. The sessions have synchronous_commit = local. If the quorum lacks their commits at
the next failover, they are made again. Postgres requires one session per database. For the time of
this step see `failover/completion.py`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import groupby

import psycopg
import structlog

from quorum_wal.walproposer.errors import Refusal, Unreachable, WalProposerError
from quorum_wal.walproposer.primary.prepared_transactions import PreparedTransaction
from quorum_wal.walproposer.qsync.finisher import finish_prepared
from quorum_wal.walproposer.qsync.primary_session import PrimarySession

log = structlog.get_logger()

#: A session that is finishing a transaction holds its gid until the quorum has the end.
BUSY_POLL_SECONDS = 0.02
BY_HAND = "Or commit it by hand in that database: COMMIT PREPARED."

#: Makes a session for a database.
SessionOf = Callable[[str], PrimarySession]


def commit_limbo(
    session_of: SessionOf, limbo: Sequence[PreparedTransaction], busy_seconds_max: float
) -> None:
    """COMMIT PREPARED of each. A transaction that another session has finished meanwhile is
    skipped.

    Raises Refusal, with the transaction and the reason; Unreachable.
    """
    for database, entries in groupby(sorted(limbo, key=_database), _database):
        session = session_of(database)
        try:
            for entry in entries:
                _commit(session, entry, busy_seconds_max)
                log.info("prepared transaction committed", gid=entry.gid, database=database)
        finally:
            session.close()


def _database(entry: PreparedTransaction) -> str:
    return entry.database


def _commit(session: PrimarySession, entry: PreparedTransaction, busy_seconds_max: float) -> None:
    began = time.monotonic()
    while (error := _try_commit(session, entry)) is not None:
        if time.monotonic() - began > busy_seconds_max:
            raise Unreachable(
                f'prepared transaction "{entry.gid}" is busy: another session holds it',
                hint="Find the session in pg_stat_activity.",
            ) from error
        time.sleep(BUSY_POLL_SECONDS)


def _try_commit(session: PrimarySession, entry: PreparedTransaction) -> WalProposerError | None:
    """The error if it is busy; None if it is no longer prepared."""
    try:
        with session.opened(_cannot(entry)) as connection:
            finish_prepared(connection, entry.gid, commit=True)
    except WalProposerError as error:
        if error.sqlstate == psycopg.errors.UndefinedObject.sqlstate:
            return None
        if error.sqlstate == psycopg.errors.ObjectNotInPrerequisiteState.sqlstate:
            return error
        raise _explained(error, entry) from error
    return None


def _explained(error: WalProposerError, entry: PreparedTransaction) -> WalProposerError:
    """The server's error, with a hint."""
    if error.sqlstate == psycopg.errors.InsufficientPrivilege.sqlstate:
        return Refusal(
            f'{_cannot(entry)}: it belongs to role "{entry.owner}", database "{entry.database}"',
            hint="Use a superuser, or a member of that role, for the proposer. " + BY_HAND,
            sqlstate=error.sqlstate,
        )
    if isinstance(error, Unreachable) and str(entry.gid) not in str(error):
        return Unreachable(
            f'{_cannot(entry)}: database "{entry.database}": {error}',
            hint=error.hint or BY_HAND,
        )
    return error


def _cannot(entry: PreparedTransaction) -> str:
    return f'prepared transaction "{entry.gid}" cannot be committed'
