"""Errors of a transaction that did not reach PREPARE, or failed there. Pure."""

from __future__ import annotations

import psycopg
from psycopg.pq import TransactionStatus

from quorum_wal.qsync.errors import TransactionRolledBack, UsageError, first_line
from quorum_wal.qsync.outcome import RolledBack
from quorum_wal.qsync.statements import BUSY, CANNOT_PREPARE, LIMBO_FULL
from quorum_wal.qsync.steps import AnyConnection

#: Hints for an error of PREPARE, by SQLSTATE.
PREPARE_HINTS = {
    CANNOT_PREPARE: "Run this statement in a plain transaction, without qsync.",
    LIMBO_FULL: (
        "Raise max_prepared_transactions, which needs a restart, "
        "or run fewer transactions at the same time."
    ),
    BUSY: "Set max_prepared_transactions, which needs a restart; see `sk qsync check`.",
}
ENDED_INSIDE = "a statement in the block ended the transaction"
DO_NOT_END = (
    "Do not call COMMIT or ROLLBACK in the block. A COMMIT there did not wait for a quorum."
)


def check_status(connection: AnyConnection) -> None:
    """Check the connection at the end of a block without an exception. Raises UsageError,
    TransactionRolledBack."""
    match connection.info.transaction_status:
        case TransactionStatus.IDLE:
            raise UsageError(ENDED_INSIDE, hint=DO_NOT_END)
        case TransactionStatus.INERROR:
            raise failed_statement()
        case TransactionStatus.ACTIVE:
            raise TransactionRolledBack(RolledBack("a statement in the block was still running"))
        case TransactionStatus.UNKNOWN:
            raise TransactionRolledBack(RolledBack("the connection was lost in the block"))
        case TransactionStatus.INTRANS:
            return


def failed_statement() -> TransactionRolledBack:
    """A statement failed, and the program continued after the error."""
    hint = "To continue after an error, run the statement in `with connection.transaction():`."
    return TransactionRolledBack(RolledBack("a statement in the block failed"), hint=hint)


def rolled_back_by(error: psycopg.Error, hint: str = "") -> TransactionRolledBack:
    outcome = RolledBack(first_line(error))
    return TransactionRolledBack(outcome, sqlstate=error.sqlstate or "", hint=hint)
