"""Both clients of qsync with one interface: a test that uses it runs with each of them.

The asyncio client runs on its own loop, one call at a time. Behaviour of several tasks has its own
tests.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg_pool import (
    AsyncConnectionPool,
    AsyncNullConnectionPool,
    ConnectionPool,
    NullConnectionPool,
)

from quorum_wal.qsync import AsyncQsync, AsyncTransaction, Committed, Qsync, Transaction

POOL_SIZE = 4
POOL_TIMEOUT = 20.0


class OpenTransaction(ABC):
    """The operations inside a block."""

    def __init__(self, tx: Any) -> None:
        self.tx: Transaction | AsyncTransaction = tx

    @abstractmethod
    def execute(self, query: str, params: Any = None) -> list[Any]:
        """The rows of a statement in the block."""

    @abstractmethod
    def wait(self, timeout: float | None = None) -> Committed:
        """Wait with its handle."""


class Twin(ABC):
    """One client, and a pool for it."""

    @abstractmethod
    def transaction(self, **options: Any) -> Any:
        """A context manager with an OpenTransaction. `source`: instead of the pool."""

    @abstractmethod
    def query(self, statement: str) -> list[Any]:
        """Run a query on a connection of the pool, as a plain transaction."""

    @abstractmethod
    def call(self, method: str, *arguments: Any, **options: Any) -> Any:
        """`outcome` or `barrier`."""

    @abstractmethod
    def borrow(self) -> Any:
        """A context manager: a connection of the pool."""


class _Blocking(OpenTransaction):
    tx: Transaction

    def execute(self, query: str, params: Any = None) -> list[Any]:
        cursor = self.tx.execute(query.encode(), params)
        return cursor.fetchall() if cursor.description else []

    def wait(self, timeout: float | None = None) -> Committed:
        return self.tx.handle.wait(timeout)


class BlockingTwin(Twin):
    def __init__(self, q: Qsync, pool: ConnectionPool[Any]) -> None:
        self.q = q
        self.pool = pool

    @contextmanager
    def transaction(self, source: Any = None, **options: Any) -> Iterator[_Blocking]:
        with self.q.transaction(source or self.pool, **options) as tx:
            yield _Blocking(tx)

    def query(self, statement: str) -> list[Any]:
        with self.pool.connection() as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def call(self, method: str, *arguments: Any, **options: Any) -> Any:
        return getattr(self.q, method)(*arguments, **options)

    @contextmanager
    def borrow(self) -> Iterator[psycopg.Connection[Any]]:
        connection = self.pool.getconn()
        yield connection
        self.pool.putconn(connection)


class _Awaited(OpenTransaction):
    tx: AsyncTransaction

    def __init__(self, tx: AsyncTransaction, runner: asyncio.Runner) -> None:
        super().__init__(tx)
        self._runner = runner

    def execute(self, query: str, params: Any = None) -> list[Any]:
        async def rows() -> list[Any]:
            cursor = await self.tx.execute(query.encode(), params)
            return await cursor.fetchall() if cursor.description else []

        return self._runner.run(rows())

    def wait(self, timeout: float | None = None) -> Committed:
        return self._runner.run(self.tx.handle.wait(timeout))


class AwaitedTwin(Twin):
    def __init__(self, q: AsyncQsync, pool: AsyncConnectionPool[Any], runner: asyncio.Runner):
        self.q = q
        self.pool = pool
        self._runner = runner

    @contextmanager
    def transaction(self, source: Any = None, **options: Any) -> Iterator[_Awaited]:
        tx = self.q.transaction(source or self.pool, **options)
        self._runner.run(tx.__aenter__())
        try:
            yield _Awaited(tx, self._runner)
        except BaseException as error:
            swallows = self._runner.run(tx.__aexit__(type(error), error, error.__traceback__))
            if not swallows:
                raise
        else:
            self._runner.run(tx.__aexit__(None, None, None))

    def query(self, statement: str) -> list[Any]:
        async def rows() -> list[Any]:
            async with self.pool.connection() as connection:
                cursor = await connection.execute(statement.encode())
                return await cursor.fetchall() if cursor.description else []

        return self._runner.run(rows())

    def call(self, method: str, *arguments: Any, **options: Any) -> Any:
        return self._runner.run(getattr(self.q, method)(*arguments, **options))

    @contextmanager
    def borrow(self) -> Iterator[psycopg.AsyncConnection[Any]]:
        connection = self._runner.run(self.pool.getconn())
        yield connection
        self._runner.run(self.pool.putconn(connection))


def _reset(connection: psycopg.Connection[Any]) -> None:
    """What a program may have its pool do with a returned connection."""
    connection.execute("RESET ALL")
    connection.commit()


async def _reset_awaited(connection: psycopg.AsyncConnection[Any]) -> None:
    await connection.execute("RESET ALL")
    await connection.commit()


@contextmanager
def blocking_twin(
    coordinator: str,
    dsn: str,
    *,
    is_null: bool = False,
    resets: bool = False,
    max_size: int = POOL_SIZE,
    **attributes: Any,
) -> Iterator[BlockingTwin]:
    pool: ConnectionPool[Any] = (NullConnectionPool if is_null else ConnectionPool)(
        dsn,
        kwargs=attributes,
        reset=_reset if resets else None,
        min_size=0 if is_null else 1,
        max_size=max_size,
        timeout=POOL_TIMEOUT,
        check=ConnectionPool.check_connection,  # those that the test closed while they were idle
        open=True,
    )
    with pool, Qsync(coordinator) as q:
        yield BlockingTwin(q, pool)


@contextmanager
def awaited_twin(
    coordinator: str,
    dsn: str,
    *,
    is_null: bool = False,
    resets: bool = False,
    max_size: int = POOL_SIZE,
    **attributes: Any,
) -> Iterator[AwaitedTwin]:
    with asyncio.Runner() as runner:
        pool: AsyncConnectionPool[Any] = (
            AsyncNullConnectionPool if is_null else AsyncConnectionPool
        )(
            dsn,
            kwargs=attributes,
            reset=_reset_awaited if resets else None,
            min_size=0 if is_null else 1,
            max_size=max_size,
            timeout=POOL_TIMEOUT,
            check=AsyncConnectionPool.check_connection,
            open=False,
        )
        runner.run(pool.open())
        q = AsyncQsync(coordinator)
        try:
            yield AwaitedTwin(q, pool, runner)
        finally:
            q.close()
            runner.run(pool.close())


TWINS = {"blocking": blocking_twin, "asyncio": awaited_twin}
