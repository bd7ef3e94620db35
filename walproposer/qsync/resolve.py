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
from collections.abc import Callable, Sequence
from itertools import groupby

import psycopg
import structlog

from walproposer.errors import Refusal, Unreachable, WalProposerError
from walproposer.primary.prepared_transactions import PreparedTransaction
from walproposer.qsync.finisher import finish_prepared
from walproposer.qsync.primary_session import PrimarySession

log = structlog.get_logger()

#: A session that is about to end a transaction holds its gid, until the quorum has the end.
BUSY_POLL_SECONDS = 0.02
BY_HAND = "Or end it by hand, in that database: COMMIT PREPARED."

#: Of a database.
SessionOf = Callable[[str], PrimarySession]


def commit_limbo(
    session_of: SessionOf, limbo: Sequence[PreparedTransaction], busy_seconds_max: float
) -> None:
    """COMMIT PREPARED of each. What somebody else has ended meanwhile has ended.

    Raises Refusal, which names the transaction and what is missing; Unreachable.
    """
    for database, entries in groupby(sorted(limbo, key=_database), _database):
        session = session_of(database)
        try:
            for entry in entries:
                _commit(session, entry, busy_seconds_max)
                log.info("committed, as the log has it", gid=entry.gid, database=database)
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
                hint="pg_stat_activity shows who.",
            ) from error
        time.sleep(BUSY_POLL_SECONDS)


def _try_commit(session: PrimarySession, entry: PreparedTransaction) -> WalProposerError | None:
    """Why it is busy; None when it is no more prepared."""
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
    """In the server's words, with what to do about it."""
    if error.sqlstate == psycopg.errors.InsufficientPrivilege.sqlstate:
        return Refusal(
            f'{_cannot(entry)}: it is of role "{entry.owner}", database "{entry.database}"',
            hint="Give the proposer a superuser, or a member of that role. " + BY_HAND,
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
