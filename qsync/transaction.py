"""`with q.transaction(pool) as tx`: the block, on a blocking connection.

It may not decide anything: `two_phase.py` does. It takes a connection, runs the protocol, and gives
the connection back idle or closed, whatever has happened.
"""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import psycopg
from psycopg.abc import Params, QueryNoTemplate

from qsync.blocking_driver import give_back, run, take
from qsync.errors import UsageError
from qsync.gid import Gid
from qsync.outcome import Committed, Outcome, Pending
from qsync.two_phase import TwoPhase, note_interruption

if TYPE_CHECKING:
    from psycopg_pool import ConnectionPool


class Handle:
    """Of a transaction that was submitted: prepared, and not awaited yet.

    If nobody calls wait(), the coordinator's janitor finishes it some seconds after its deadline.
    """

    def __init__(
        self, two_phase: TwoPhase, source: psycopg.Connection[Any] | ConnectionPool[Any]
    ) -> None:
        self._two_phase = two_phase
        self._source = source

    @property
    def gid(self) -> Gid | None:
        """None if it had written nothing."""
        return self._two_phase.gid

    def wait(self, timeout: float | None = None) -> Committed:
        """To the outcome; may be called again after TransactionPending. Raises NotCommitted, and
        UsageError while another thread or task waits for the same transaction.

        `timeout`: seconds from now, the transaction's own if None. It takes a connection of the
        transaction's source, which must be idle, only when there is something to finish.
        """
        two_phase = self._two_phase
        with two_phase.waiting():
            if not isinstance(two_phase.outcome, Pending):
                return two_phase.result
            two_phase.set_deadline(timeout)
            run(two_phase.await_verdict())
            if isinstance(two_phase.outcome, Committed):
                return two_phase.result
            try:
                connection = take(self._source)
            except psycopg.Error as error:  # of a pool: exhausted, or closed
                raise two_phase.has_no_connection(error) from error
            try:
                return run(two_phase.conclude(connection))
            finally:
                give_back(self._source, connection)


class Transaction:
    """A context manager, to be used once; in its block a transaction runs on `connection`.

    An exception in the block rolls back, and is raised again; psycopg.Rollback() is not. At the
    end of the block the transaction is prepared, awaited and committed. Raises TransactionRefused,
    TransactionRolledBack, TransactionPending, UsageError.
    """

    def __init__(
        self, two_phase: TwoPhase, source: psycopg.Connection[Any] | ConnectionPool[Any]
    ) -> None:
        self._two_phase = two_phase
        self._source = source
        self._connection: psycopg.Connection[Any] | None = None
        self._is_used = False

    # ---- in the block

    @property
    def connection(self) -> psycopg.Connection[Any]:
        """For all that psycopg can, but commit() and rollback(); connection.transaction() makes
        savepoints. Raises UsageError outside of the block."""
        if self._connection is None:
            raise UsageError("the transaction is not open", hint="Use it in its `with` block.")
        return self._connection

    def execute(
        self, query: QueryNoTemplate, params: Params | None = None, **options: Any
    ) -> psycopg.Cursor[Any]:
        """connection.execute()."""
        cursor: psycopg.Cursor[Any] = self.connection.execute(query, params, **options)
        return cursor

    def cursor(self, *arguments: Any, **options: Any) -> psycopg.Cursor[Any]:
        """connection.cursor()."""
        cursor: psycopg.Cursor[Any] = self.connection.cursor(*arguments, **options)
        return cursor

    # ---- after it

    @property
    def gid(self) -> Gid | None:
        """None before PREPARE, and if the transaction had written nothing."""
        return self._two_phase.gid

    @property
    def outcome(self) -> Outcome | None:
        """The last that is known; None in the block."""
        return self._two_phase.outcome

    @property
    def result(self) -> Committed:
        """Raises NotCommitted for every other outcome."""
        return self._two_phase.result

    @property
    def handle(self) -> Handle:
        """With wait="submit", after the block."""
        if self._two_phase.options.wait != "submit" or self._two_phase.outcome is None:
            raise UsageError(
                "the transaction has no handle",
                hint='A transaction with wait="submit" has one after its block.',
            )
        return Handle(self._two_phase, self._source)

    # ---- the block

    def __enter__(self) -> Self:
        if self._is_used:
            raise UsageError("the transaction was used already", hint="Call transaction() again.")
        self._is_used = True
        connection = take(self._source)
        try:
            run(self._two_phase.begin(connection))
        except BaseException:
            give_back(self._source, connection)
            raise
        self._connection = connection
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        connection = self.connection
        self._connection = None
        try:
            if exc is not None:
                run(self._two_phase.abandon(connection, exc))
                return self._two_phase.swallows(exc)
            run(self._two_phase.end(connection))
        except BaseException as error:
            note_interruption(self._two_phase, error)
            raise
        finally:
            self._two_phase.let_go()
            give_back(self._source, connection)
        return False
