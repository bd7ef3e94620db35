"""After a promotion: every prepared transaction of qsync that the elected log has is committed.

    the elected log   ... P(a) ... P(b) ... K(a) ... P(c) | promoted here
    pg_prepared_xacts of the new primary: b, c            -> COMMIT PREPARED b, c

Law (PromotionCommits): it is done before clients are let in, and never is one rolled back here. The
old primary may have committed and shown any of them, its record of that being lost. A client that
was told `rolled back` was told so when the quorum had the record of that, so it is not in the list.

The sessions have synchronous_commit = local: what they do is done again at the next failover,
should the quorum lack it. One session a database, as Postgres demands. When it is done: see
`failover/opening.py`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing
from itertools import groupby

import psycopg
import structlog
from psycopg import sql

from walproposer.connection import refusing
from walproposer.errors import Refusal, Unreachable, WalProposerError
from walproposer.primary.prepared_transactions import PreparedTransaction
from walproposer.primary.primary_address import PrimaryAddress

log = structlog.get_logger()

#: A session that is about to end a transaction holds its gid, until the quorum has the end.
BUSY_POLL_SECONDS = 0.02
BY_HAND = "To end it by hand, in that database: COMMIT PREPARED '...';"


def commit_limbo(
    address: PrimaryAddress, limbo: Sequence[PreparedTransaction], timeout_seconds: float
) -> None:
    """COMMIT PREPARED of each. What somebody else has ended meanwhile has ended.

    Raises Refusal, which names the transaction and what is missing; Unreachable.
    """
    for database, entries in groupby(sorted(limbo, key=_database), _database):
        _commit_in(address, database, list(entries), timeout_seconds)


def _database(entry: PreparedTransaction) -> str:
    return entry.database


def _commit_in(
    address: PrimaryAddress,
    database: str,
    entries: Sequence[PreparedTransaction],
    timeout_seconds: float,
) -> None:
    with closing(_connect(address, database, entries[0])) as connection:
        for entry in entries:
            _commit(connection, entry, timeout_seconds)
            log.info("committed, as the log has it", gid=entry.gid, database=database)


def _connect(
    address: PrimaryAddress, database: str, entry: PreparedTransaction
) -> psycopg.Connection:
    try:
        return address.connect(dbname=database)
    except Unreachable as error:
        raise Unreachable(
            f'prepared transaction "{entry.gid}" cannot be committed: {error}',
            hint="Let our role connect to that database (pg_hba.conf). " + BY_HAND,
        ) from error


def _commit(
    connection: psycopg.Connection, entry: PreparedTransaction, timeout_seconds: float
) -> None:
    began = time.monotonic()
    while (error := _try_commit(connection, entry)) is not None:
        if time.monotonic() - began > timeout_seconds:
            raise Unreachable(
                f'prepared transaction "{entry.gid}" is busy: another session holds it',
                hint="pg_stat_activity shows who.",
            ) from error
        time.sleep(BUSY_POLL_SECONDS)


def _try_commit(
    connection: psycopg.Connection, entry: PreparedTransaction
) -> WalProposerError | None:
    """Why it is busy; None when it is no more prepared."""
    statement = sql.SQL("COMMIT PREPARED {}").format(sql.Literal(entry.gid))
    try:
        with refusing(f'could not commit prepared transaction "{entry.gid}"'):
            connection.execute(statement)
    except WalProposerError as error:
        if error.sqlstate == psycopg.errors.UndefinedObject.sqlstate:
            return None
        if error.sqlstate == psycopg.errors.ObjectNotInPrerequisiteState.sqlstate:
            return error
        raise _refused(error, entry, connection.info.user) from error
    return None


def _refused(error: WalProposerError, entry: PreparedTransaction, role: str) -> WalProposerError:
    """In the server's words, with what to do about it."""
    if isinstance(error, Unreachable):
        return error
    if error.sqlstate == psycopg.errors.InsufficientPrivilege.sqlstate:
        return Refusal(
            f'role "{role}" may not commit prepared transaction "{entry.gid}" of role '
            f'"{entry.owner}" in database "{entry.database}"',
            hint=f'Give the proposer a superuser, or end it as "{entry.owner}": COMMIT PREPARED.',
            sqlstate=error.sqlstate,
        )
    return Refusal(str(error), hint=error.hint or BY_HAND, sqlstate=error.sqlstate)
