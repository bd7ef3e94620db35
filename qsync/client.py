"""`Qsync`: transactions that are committed when the quorum has them, for blocking programs.

    q = Qsync("proposer:5455", timeout=5)
    with q.transaction(pool) as tx:
        tx.execute("UPDATE accounts SET ...")
    tx.result  # Committed(lsn)

Threads may share one. After a fork the child may go on with it, too; a pool of psycopg's may not.
"""

from __future__ import annotations

import os
import time
import weakref
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import psycopg

from qsync.blocking_driver import run
from qsync.conversation import check_idle
from qsync.coordinator_client import CoordinatorClient, pending_of
from qsync.errors import TransactionPending
from qsync.gid import Gid
from qsync.options import TIMEOUT_SECONDS, Confirm, OnTimeout, Options, Wait
from qsync.outcome import Committed, Pending, RolledBack
from qsync.read_barrier import read_barrier
from qsync.transaction import Transaction
from qsync.two_phase import TwoPhase

if TYPE_CHECKING:
    from psycopg_pool import ConnectionPool


class Qsync:
    """A client of the coordinator at `coordinator`: HOST:PORT, several of them with commas, or a
    libpq connection string. `timeout` and the other options are those of each transaction
    (`options.Options`), unless it says otherwise. Raises UsageError."""

    def __init__(
        self,
        coordinator: str,
        *,
        timeout: float = TIMEOUT_SECONDS,
        on_timeout: OnTimeout = "detach",
        confirm: Confirm = "durable",
    ) -> None:
        self._options = Options(timeout, on_timeout, confirm)
        self._coordinator = CoordinatorClient(coordinator, time.monotonic, os.getpid)
        weakref.finalize(self, self._coordinator.close)

    def transaction(
        self,
        source: psycopg.Connection[Any] | ConnectionPool[Any],
        *,
        timeout: float | None = None,
        on_timeout: OnTimeout | None = None,
        confirm: Confirm | None = None,
        wait: Wait | None = None,
    ) -> Transaction:
        """To be used in a `with`. `source` gives the connection: itself, or a pool that takes it
        back idle. Raises UsageError; its block raises NotCommitted."""
        options = self._options.but(timeout, on_timeout, confirm, wait)
        two_phase = TwoPhase(self._coordinator, options, time.monotonic, os.urandom)
        return Transaction(two_phase, source)

    def outcome(
        self, of: Gid | str | Pending | TransactionPending, *, timeout: float | None = None
    ) -> Committed | RolledBack | Pending:
        """What became of it. Raises GidError, OutcomeUnknown, CoordinatorError.

        Pass the Pending, or the exception, if you have it: it holds the position of PREPARE, so the
        coordinator can answer more often.
        """
        pending = pending_of(of)
        return run(self._coordinator.outcome(pending.gid, pending.lsn, self._until(timeout)))

    def barrier(self, connection: psycopg.Connection[Any], *, timeout: float | None = None) -> int:
        """The primary of this idle connection leads now: what a transaction sees that begins on it
        afterwards includes all that was told Committed before. Returns the commit_lsn.

        Two round trips, and one of a quorum. Raises BarrierFailed, UsageError, psycopg.Error.
        """
        check_idle(connection)
        return run(read_barrier(self._coordinator, connection, self._until(timeout)))

    def _until(self, timeout: float | None) -> float:
        return time.monotonic() + (self._options.timeout if timeout is None else timeout)

    def close(self) -> None:
        """End the connections to coordinators."""
        self._coordinator.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
