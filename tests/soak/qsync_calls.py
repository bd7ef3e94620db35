"""The package qsync as a client of the soak calls it: its blocking half, or the asyncio one.

Both do the same with the same arguments.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, Protocol, TypeVar

from psycopg_pool import AsyncConnectionPool, ConnectionPool

from quorum_wal.qsync.async_client import AsyncQsync
from quorum_wal.qsync.client import Qsync
from quorum_wal.qsync.outcome import Committed, Pending, RolledBack

CONNECT_SECONDS = 3
_POOL: dict[str, Any] = {
    "min_size": 0,
    "max_size": 2,
    "timeout": CONNECT_SECONDS,
    "reconnect_timeout": CONNECT_SECONDS,
    "kwargs": {"connect_timeout": CONNECT_SECONDS},
}

T = TypeVar("T")
Statement = tuple[str, tuple[int, ...]]


class Calls(Protocol):
    """`tx` is a Transaction, or an AsyncTransaction."""

    def transaction(self, **options: Any) -> Any: ...

    def run(self, tx: Any, statements: Sequence[Statement]) -> None:
        """The whole block."""

    def wait(self, tx: Any, timeout: float | None) -> Committed:
        """Wait with its handle."""

    def outcome(self, pending: Pending, timeout: float) -> Committed | RolledBack | Pending: ...


class BlockingCalls:
    def __init__(self, dsn: str, coordinator: str) -> None:
        self._qsync = Qsync(coordinator)
        self._pool = ConnectionPool(dsn, check=ConnectionPool.check_connection, open=True, **_POOL)

    def transaction(self, **options: Any) -> Any:
        return self._qsync.transaction(self._pool, **options)

    def run(self, tx: Any, statements: Sequence[Statement]) -> None:
        with tx:
            for text, values in statements:
                tx.execute(text, values or None)

    def wait(self, tx: Any, timeout: float | None) -> Committed:
        result: Committed = tx.handle.wait(timeout)
        return result

    def outcome(self, pending: Pending, timeout: float) -> Committed | RolledBack | Pending:
        return self._qsync.outcome(pending, timeout=timeout)


class AsyncCalls:
    """Its event loop runs only during a call."""

    def __init__(self, dsn: str, coordinator: str) -> None:
        self._runner = asyncio.Runner()
        self._qsync = AsyncQsync(coordinator)
        self._pool: AsyncConnectionPool[Any] = self._do(self._opened(dsn))

    @staticmethod
    async def _opened(dsn: str) -> AsyncConnectionPool[Any]:
        pool = AsyncConnectionPool(
            dsn, check=AsyncConnectionPool.check_connection, open=False, **_POOL
        )
        await pool.open()
        return pool

    def _do(self, what: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(what)

    def transaction(self, **options: Any) -> Any:
        return self._qsync.transaction(self._pool, **options)

    def run(self, tx: Any, statements: Sequence[Statement]) -> None:
        async def block() -> None:
            async with tx:
                for text, values in statements:
                    await tx.execute(text, values or None)

        self._do(block())

    def wait(self, tx: Any, timeout: float | None) -> Committed:
        result: Committed = self._do(tx.handle.wait(timeout))
        return result

    def outcome(self, pending: Pending, timeout: float) -> Committed | RolledBack | Pending:
        return self._do(self._qsync.outcome(pending, timeout=timeout))
