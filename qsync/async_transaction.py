"""`async with q.transaction(pool) as tx`: the block, on a connection for asyncio.

It makes no decisions: `two_phase.py` does. It takes a connection, runs the protocol, and in every
case returns the connection idle or closed.
"""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import psycopg
from psycopg.abc import Params, QueryNoTemplate

from quorum_wal.qsync.asyncio_driver import give_back, run, take
from quorum_wal.qsync.errors import UsageError
from quorum_wal.qsync.gid import Gid
from quorum_wal.qsync.outcome import Committed, Outcome, Pending
from quorum_wal.qsync.two_phase import TwoPhase, note_interruption

if TYPE_CHECKING:
    from psycopg_pool import AsyncConnectionPool


class AsyncHandle:
    """The handle of a submitted transaction: prepared, and not waited for yet.

    If the program does not call wait(), the coordinator's janitor finishes the transaction some
    seconds after its deadline.
    """

    def __init__(
        self, two_phase: TwoPhase, source: psycopg.AsyncConnection[Any] | AsyncConnectionPool[Any]
    ) -> None:
        self._two_phase = two_phase
        self._source = source

    @property
    def gid(self) -> Gid | None:
        """None if the transaction wrote nothing."""
        return self._two_phase.gid

    async def wait(
        self,
        timeout: float | None = None,  # noqa: ASYNC109 - the coordinator gets the timeout
    ) -> Committed:
        """Wait for the outcome. It may be called again after TransactionPending. Raises
        NotCommitted, and UsageError while another thread or task waits for the same transaction.

        `timeout`: seconds from now; None: that of the transaction. It takes a connection from the
        transaction's source, which must be idle, only when there is a transaction to finish.
        """
        two_phase = self._two_phase
        with two_phase.waiting():
            if not isinstance(two_phase.outcome, Pending):
                return two_phase.result
            two_phase.set_deadline(timeout)
            await run(two_phase.await_verdict())
            if isinstance(two_phase.outcome, Committed):
                return two_phase.result
            try:
                connection = await take(self._source)
            except psycopg.Error as error:  # a pool is exhausted or closed
                raise two_phase.pool_failed(error) from error
            try:
                return await run(two_phase.conclude(connection))
            finally:
                await give_back(self._source, connection)


class AsyncTransaction:
    """A context manager for one use. The transaction of its block runs on `connection`.

    An exception in the block rolls the transaction back and is raised again, except
    psycopg.Rollback(). At the end of the block the transaction is prepared, waits for the quorum
    and is committed. Raises TransactionRefused, TransactionRolledBack, TransactionPending,
    UsageError.
    """

    def __init__(
        self, two_phase: TwoPhase, source: psycopg.AsyncConnection[Any] | AsyncConnectionPool[Any]
    ) -> None:
        self._two_phase = two_phase
        self._source = source
        self._connection: psycopg.AsyncConnection[Any] | None = None
        self._is_used = False

    # ---- in the block

    @property
    def connection(self) -> psycopg.AsyncConnection[Any]:
        """The psycopg connection. Do not call commit() or rollback() on it;
        connection.transaction() makes savepoints. Raises UsageError outside the block."""
        if self._connection is None:
            raise UsageError(
                "the transaction is not open", hint="Use it in its `async with` block."
            )
        return self._connection

    async def execute(
        self, query: QueryNoTemplate, params: Params | None = None, **options: Any
    ) -> psycopg.AsyncCursor[Any]:
        """connection.execute()."""
        cursor: psycopg.AsyncCursor[Any] = await self.connection.execute(query, params, **options)
        return cursor

    def cursor(self, *arguments: Any, **options: Any) -> psycopg.AsyncCursor[Any]:
        """connection.cursor()."""
        cursor: psycopg.AsyncCursor[Any] = self.connection.cursor(*arguments, **options)
        return cursor

    # ---- after the block

    @property
    def gid(self) -> Gid | None:
        """None before PREPARE, and if the transaction wrote nothing."""
        return self._two_phase.gid

    @property
    def outcome(self) -> Outcome | None:
        """The last known outcome; None in the block."""
        return self._two_phase.outcome

    @property
    def result(self) -> Committed:
        """Raises NotCommitted for every other outcome."""
        return self._two_phase.result

    @property
    def handle(self) -> AsyncHandle:
        """After the block of a transaction with wait="submit"."""
        if self._two_phase.options.wait != "submit" or self._two_phase.outcome is None:
            raise UsageError(
                "the transaction has no handle",
                hint='A transaction with wait="submit" has one after its block.',
            )
        return AsyncHandle(self._two_phase, self._source)

    # ---- the block

    async def __aenter__(self) -> Self:
        if self._is_used:
            raise UsageError("the transaction was already used", hint="Call transaction() again.")
        self._is_used = True
        connection = await take(self._source)
        try:
            await run(self._two_phase.begin(connection))
        except BaseException:
            await give_back(self._source, connection)
            raise
        self._connection = connection
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        connection = self.connection
        self._connection = None
        try:
            if exc is not None:
                await run(self._two_phase.abandon(connection, exc))
                return self._two_phase.suppresses(exc)
            await run(self._two_phase.end(connection))
        except BaseException as error:
            note_interruption(self._two_phase, error)
            raise
        finally:
            self._two_phase.release()
            await give_back(self._source, connection)
        return False
