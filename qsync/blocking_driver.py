"""Performs the requests of a protocol, with psycopg's blocking connections."""

from __future__ import annotations

import math
import time
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, TypeVar

import psycopg

from quorum_wal.qsync.conversation import check_idle, close_if_busy, close_unless_idle, results_of
from quorum_wal.qsync.errors import UsageError
from quorum_wal.qsync.steps import Ask, Commit, Connect, Pause, Request, Rollback, Steps

if TYPE_CHECKING:
    from psycopg_pool import ConnectionPool

T = TypeVar("T")


def run(steps: Steps[T]) -> T:
    """Run a protocol to its end. An interruption such as Ctrl-C ends the protocol, which then makes
    no more requests."""
    try:
        request = next(steps)
        while True:
            try:
                answer = _perform(request)
            except Exception as error:
                request = steps.throw(error)
            else:
                request = steps.send(answer)
    except StopIteration as end:
        value: T = end.value
        return value
    finally:
        steps.close()


def _perform(request: Request) -> Any:
    match request:
        case Ask(psycopg.Connection() as connection):
            try:
                with connection.lock:
                    return connection.wait(results_of(request))
            finally:
                close_if_busy(connection)
        case Connect(conninfo, seconds):
            timeout = max(1, math.ceil(seconds))
            return psycopg.Connection.connect(conninfo, autocommit=True, connect_timeout=timeout)
        case Pause(seconds):
            time.sleep(seconds)
        case Commit(psycopg.Connection() as connection):
            connection.commit()
        case Rollback(psycopg.Connection() as connection):
            connection.rollback()
        case _:
            raise AssertionError(request)


def take(source: psycopg.Connection[Any] | ConnectionPool[Any]) -> psycopg.Connection[Any]:
    """An idle connection of `source`. Raises UsageError, and the errors of the pool."""
    if isinstance(source, psycopg.Connection):
        check_idle(source)
        return source
    getconn = getattr(source, "getconn", None)
    if getconn is None or iscoroutinefunction(getconn):
        raise UsageError(
            f"expected a psycopg Connection or ConnectionPool, got {type(source).__name__}"
        )
    connection: psycopg.Connection[Any] = source.getconn()
    return connection


def give_back(
    source: psycopg.Connection[Any] | ConnectionPool[Any], connection: psycopg.Connection[Any]
) -> None:
    """Return the connection idle, or closed."""
    close_unless_idle(connection)
    if not isinstance(source, psycopg.Connection):
        source.putconn(connection)
