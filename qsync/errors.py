"""What the client of qsync raises.

QsyncError                  one sentence, and a hint
|-- UsageError              the caller's mistake
|-- BarrierFailed           the primary could not be shown to lead: it may show old data
|-- OutcomeUnknown          the server has no record that decides what became of a transaction
|-- CoordinatorError        a coordinator refused a command, or none was reached
`-- NotCommitted            a transaction has another outcome; `outcome` is its value
    |-- TransactionRefused      nothing happened: the coordinator does not admit it
    |-- TransactionRolledBack   it is not there, and never will be
    `-- TransactionPending      not decided, and not visible: call outcome() until it is decided

Errors of statements in a block are psycopg's own.
"""

from __future__ import annotations

from typing import NoReturn

from qsync.outcome import Pending, Refused, RolledBack

ENDS = "57P01"
NOT_REACHED = "08001"  # of our own: no coordinator could be reached
#: Worth another try, here or at another coordinator: it is fenced, is ending, does not lead, was
#: told to take the question back, or leads a primary on another timeline.
TEMPORARY_SQLSTATES = frozenset({ENDS, NOT_REACHED, "57P02", "57P03", "57014", "55000"})


class QsyncError(Exception):
    """Base of all."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(f"{message}\nHINT:  {hint}" if hint else message)
        self.message = message
        self.hint = hint


class UsageError(QsyncError):
    """The caller's mistake."""


class BarrierFailed(QsyncError):
    """No quorum round was seen in time."""


class OutcomeUnknown(QsyncError):
    """The server has no record that decides what became of a gid."""


class CoordinatorError(QsyncError):
    """`sqlstate` is what the coordinator sent, or NOT_REACHED."""

    def __init__(self, message: str, *, sqlstate: str, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.sqlstate = sqlstate

    @property
    def is_temporary(self) -> bool:
        """Another coordinator, or this one later, may answer."""
        return self.sqlstate in TEMPORARY_SQLSTATES


class NotCommitted(QsyncError):
    """Another outcome than Committed."""

    outcome: Refused | RolledBack | Pending


class TransactionRefused(NotCommitted):
    """Nothing happened; `outcome.sqlstate` is 53400 (too many transactions wait) or 57P03 (no
    quorum)."""

    def __init__(self, outcome: Refused) -> None:
        super().__init__(f"transaction refused: {outcome.reason}", hint=outcome.hint)
        self.outcome = outcome


class TransactionRolledBack(NotCommitted):
    """Final: the transaction may be run again. `sqlstate` is Postgres' reason, or ""."""

    def __init__(self, outcome: RolledBack, *, sqlstate: str = "", hint: str = "") -> None:
        super().__init__(f"transaction rolled back: {outcome.reason}", hint=hint)
        self.outcome = outcome
        self.sqlstate = sqlstate


class TransactionPending(NotCommitted):
    """Not decided yet. Do not run the transaction again before `outcome(...)` says RolledBack."""

    outcome: Pending

    def __init__(self, outcome: Pending, reason: str) -> None:
        super().__init__(
            f'transaction "{outcome.gid}" is pending: {reason}',
            hint="The transaction is not visible and keeps its locks. "
            "Call outcome() until it is decided.",
        )
        self.outcome = outcome


def first_line(error: BaseException) -> str:
    """Of its text; what libpq adds ("Is the server running on that host ...?") is left out."""
    lines = str(error).strip().splitlines()
    return lines[0].strip() if lines else type(error).__name__


def raise_not_committed(outcome: RolledBack | Pending | Refused, reason: str = "") -> NoReturn:
    """The exception of an outcome that is known by value."""
    match outcome:
        case Refused():
            raise TransactionRefused(outcome)
        case RolledBack():
            raise TransactionRolledBack(outcome)
        case Pending():
            raise TransactionPending(outcome, reason or "not decided yet")
