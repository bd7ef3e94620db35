"""`AsyncQsync`: transactions that commit when a quorum has them, for asyncio.

    q = AsyncQsync("proposer:5455", timeout=5)
    async with q.transaction(pool) as tx:
        await tx.execute("UPDATE accounts SET ...")
    tx.result  # Committed(lsn)

Tasks may share an AsyncQsync. It opens connections for one event loop, so only one loop at a time
may use it.
"""

from __future__ import annotations

import asyncio
import os
import time
import weakref
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import psycopg

from quorum_wal.qsync.async_transaction import AsyncTransaction
from quorum_wal.qsync.asyncio_driver import run
from quorum_wal.qsync.conversation import check_idle
from quorum_wal.qsync.coordinator_client import CoordinatorClient, pending_of
from quorum_wal.qsync.errors import TransactionPending
from quorum_wal.qsync.gid import Gid
from quorum_wal.qsync.options import TIMEOUT_SECONDS, Confirm, OnTimeout, Options, Wait
from quorum_wal.qsync.outcome import Committed, Pending, RolledBack
from quorum_wal.qsync.read_barrier import read_barrier
from quorum_wal.qsync.two_phase import TwoPhase

if TYPE_CHECKING:
    from psycopg_pool import AsyncConnectionPool


class AsyncQsync:
    """A client of the coordinator at `coordinator`: HOST:PORT, a comma-separated list of these, or
    a libpq connection string. `timeout` and the other options are the defaults of each transaction
    (`options.Options`). Raises UsageError."""

    def __init__(
        self,
        coordinator: str,
        *,
        timeout: float = TIMEOUT_SECONDS,
        on_timeout: OnTimeout = "detach",
        confirm: Confirm = "durable",
    ) -> None:
        self._options = Options(timeout, on_timeout, confirm)
        self._coordinator = CoordinatorClient(
            coordinator, time.monotonic, os.getpid, asyncio.get_running_loop
        )
        weakref.finalize(self, self._coordinator.close)

    def transaction(
        self,
        source: psycopg.AsyncConnection[Any] | AsyncConnectionPool[Any],
        *,
        timeout: float | None = None,
        on_timeout: OnTimeout | None = None,
        confirm: Confirm | None = None,
        wait: Wait | None = None,
    ) -> AsyncTransaction:
        """Use it in an `async with`. `source` is a connection, or a pool, which gets its connection
        back idle. Raises UsageError; the block raises NotCommitted."""
        options = self._options.with_changes(timeout, on_timeout, confirm, wait)
        two_phase = TwoPhase(self._coordinator, options, time.monotonic, os.urandom)
        return AsyncTransaction(two_phase, source)

    async def outcome(
        self,
        of: Gid | str | Pending | TransactionPending,
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - the coordinator gets the timeout
    ) -> Committed | RolledBack | Pending:
        """The outcome of a transaction. Raises GidError, OutcomeUnknown, CoordinatorError.

        Pass the Pending, or the exception, if you have it. It has the position of PREPARE, with
        which the coordinator can answer in more cases.
        """
        pending = pending_of(of)
        return await run(self._coordinator.outcome(pending.gid, pending.lsn, self._until(timeout)))

    async def barrier(
        self,
        connection: psycopg.AsyncConnection[Any],
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - the coordinator gets the timeout
    ) -> int:
        """Wait until the primary of this idle connection is known to lead now. A transaction that
        begins on the connection afterwards sees every transaction that was reported as Committed
        before. Returns the commit_lsn.

        Costs two round trips, and one of a quorum. Raises BarrierFailed, UsageError, psycopg.Error.
        """
        check_idle(connection)
        return await run(read_barrier(self._coordinator, connection, self._until(timeout)))

    def _until(self, timeout: float | None) -> float:
        return time.monotonic() + (self._options.timeout if timeout is None else timeout)

    def close(self) -> None:
        """Close the connections to coordinators."""
        self._coordinator.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
