"""Performs the requests of a protocol, with psycopg's connections for asyncio."""

from __future__ import annotations

import asyncio
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, TypeVar

import psycopg

from quorum_wal.qsync.conversation import check_idle, close_if_busy, close_unless_idle, results_of
from quorum_wal.qsync.errors import UsageError
from quorum_wal.qsync.steps import Ask, Commit, Connect, Pause, Request, Rollback, Silent, Steps

if TYPE_CHECKING:
    from psycopg_pool import AsyncConnectionPool

T = TypeVar("T")


async def run(steps: Steps[T]) -> T:
    """Run a protocol to its end. A cancellation ends the protocol, which then makes no more
    requests."""
    try:
        request = next(steps)
        while True:
            try:
                answer = await _perform(request)
            except Exception as error:
                request = steps.throw(error)
            else:
                request = steps.send(answer)
    except StopIteration as end:
        value: T = end.value
        return value
    finally:
        steps.close()


async def _perform(request: Request) -> Any:
    match request:
        case Ask(psycopg.AsyncConnection() as connection):
            try:
                async with connection.lock:
                    return await connection.wait(results_of(request))
            finally:
                close_if_busy(connection)
        case Connect(conninfo, seconds):
            try:
                async with asyncio.timeout(max(1.0, seconds)):
                    return await psycopg.AsyncConnection.connect(conninfo, autocommit=True)
            except TimeoutError as error:
                raise Silent("no connection could be opened in time") from error
        case Pause(seconds):
            await asyncio.sleep(seconds)
        case Commit(psycopg.AsyncConnection() as connection):
            await connection.commit()
        case Rollback(psycopg.AsyncConnection() as connection):
            await connection.rollback()
        case _:
            raise AssertionError(request)


async def take(
    source: psycopg.AsyncConnection[Any] | AsyncConnectionPool[Any],
) -> psycopg.AsyncConnection[Any]:
    """An idle connection of `source`. Raises UsageError, and the errors of the pool."""
    if isinstance(source, psycopg.AsyncConnection):
        check_idle(source)
        return source
    if not iscoroutinefunction(getattr(source, "getconn", None)):
        raise UsageError(
            "expected a psycopg AsyncConnection or AsyncConnectionPool, "
            f"got {type(source).__name__}"
        )
    connection: psycopg.AsyncConnection[Any] = await source.getconn()
    return connection


async def give_back(
    source: psycopg.AsyncConnection[Any] | AsyncConnectionPool[Any],
    connection: psycopg.AsyncConnection[Any],
) -> None:
    """Return the connection idle, or closed; also if the task is cancelled meanwhile."""
    close_unless_idle(connection)
    if not isinstance(source, psycopg.AsyncConnection):
        await asyncio.shield(source.putconn(connection))
