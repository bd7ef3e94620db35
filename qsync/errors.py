"""The errors of the client of qsync.

QsyncError                  one sentence, and a hint
|-- UsageError              the caller's mistake
|-- BarrierFailed           the primary is not known to lead: it may show old data
|-- OutcomeUnknown          the server has no record that decides the outcome of a transaction
|-- CoordinatorError        a coordinator refused a command, or none could be reached
`-- NotCommitted            the outcome of a transaction is not Committed; see `outcome`
    |-- TransactionRefused      the coordinator did not admit it: nothing was prepared
    |-- TransactionRolledBack   rolled back, finally
    `-- TransactionPending      undecided, and not visible: call outcome() until it is decided

Errors of statements in a block are psycopg's own.
"""

from __future__ import annotations

from typing import NoReturn

from quorum_wal.qsync.outcome import Pending, Refused, RolledBack

ENDS = "57P01"
NOT_REACHED = "08001"  # set by this client
#: A retry, here or at another coordinator, may succeed: the coordinator is fenced, is shutting
#: down, does not lead, had to cancel the command, or leads a primary on another timeline.
TEMPORARY_SQLSTATES = frozenset({ENDS, NOT_REACHED, "57P02", "57P03", "57014", "55000"})


class QsyncError(Exception):
    """Base class."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(f"{message}\nHINT:  {hint}" if hint else message)
        self.message = message
        self.hint = hint


class UsageError(QsyncError):
    """The caller's mistake."""


class BarrierFailed(QsyncError):
    """No quorum answered in time."""


class OutcomeUnknown(QsyncError):
    """The server has no record that decides the outcome of a gid."""


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
    """The outcome is not Committed."""

    outcome: Refused | RolledBack | Pending


class TransactionRefused(NotCommitted):
    """Nothing was prepared. `outcome.sqlstate` is 53400 (too many transactions wait) or 57P03 (no
    quorum)."""

    def __init__(self, outcome: Refused) -> None:
        super().__init__(f"transaction refused: {outcome.reason}", hint=outcome.hint)
        self.outcome = outcome


class TransactionRolledBack(NotCommitted):
    """Final: the program may run the transaction again. `sqlstate` is that of Postgres' error, or
    ""."""

    def __init__(self, outcome: RolledBack, *, sqlstate: str = "", hint: str = "") -> None:
        super().__init__(f"transaction rolled back: {outcome.reason}", hint=hint)
        self.outcome = outcome
        self.sqlstate = sqlstate


class TransactionPending(NotCommitted):
    """Undecided. Do not run the transaction again before `outcome(...)` returns RolledBack."""

    outcome: Pending

    def __init__(self, outcome: Pending, reason: str) -> None:
        super().__init__(
            f'transaction "{outcome.gid}" is pending: {reason}',
            hint="The transaction is not visible and keeps its locks. "
            "Call outcome() until it is decided.",
        )
        self.outcome = outcome


def first_line(error: BaseException) -> str:
    """The first line of the error's text, without the advice that libpq adds ("Is the server
    running on that host ...?")."""
    lines = str(error).strip().splitlines()
    return lines[0].strip() if lines else type(error).__name__


def raise_not_committed(outcome: RolledBack | Pending | Refused, reason: str = "") -> NoReturn:
    """Raise the exception for an outcome."""
    match outcome:
        case Refused():
            raise TransactionRefused(outcome)
        case RolledBack():
            raise TransactionRolledBack(outcome)
        case Pending():
            raise TransactionPending(outcome, reason or "it is undecided")
