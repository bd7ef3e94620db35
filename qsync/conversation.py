"""Sends statements on a psycopg connection without cursors, as generators that psycopg can wait
for.

They begin no transaction and do not convert results. So they work alike on a connection of the
user, with any autocommit setting, and on a connection to a coordinator. Nothing here blocks:
psycopg's `Connection.wait` runs the generators, and sends a cancel request when it is interrupted.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

import psycopg
from psycopg import generators, pq
from psycopg.abc import PQGen
from psycopg.errors import error_from_result
from psycopg.pq.abc import PGconn, PGresult

from quorum_wal.qsync.errors import UsageError
from quorum_wal.qsync.statements import Result
from quorum_wal.qsync.steps import AnyConnection, Ask, Silent

T = TypeVar("T")

_SUCCESS = (pq.ExecStatus.COMMAND_OK, pq.ExecStatus.TUPLES_OK)


def results_of(ask: Ask) -> PQGen[list[Result]]:
    """A generator that performs `ask`, for Connection.wait(). Raises psycopg.Error when the
    connection breaks, Silent."""
    if len(ask.statements) > 1:
        return _until(ask.deadline, _pipeline(ask.connection, ask.statements))
    return _until(ask.deadline, _simple(ask.connection, ask.statements[0]))


def check_idle(connection: AnyConnection) -> None:
    """Raises UsageError if the connection is in use."""
    pgconn = connection.pgconn
    if pgconn.pipeline_status != pq.PipelineStatus.OFF:
        raise UsageError(
            "the connection is in pipeline mode", hint="End its pipeline() block first."
        )
    if pgconn.transaction_status in (pq.TransactionStatus.INTRANS, pq.TransactionStatus.INERROR):
        raise UsageError(
            "the connection is in a transaction already",
            hint="End that transaction first, or pass another connection or a pool.",
        )


def close_if_busy(connection: AnyConnection) -> None:
    """After an interruption: close the connection if a statement still runs, or its result was not
    read to the end."""
    pgconn = connection.pgconn
    is_idle = pgconn.transaction_status != pq.TransactionStatus.ACTIVE
    if not is_idle or pgconn.pipeline_status != pq.PipelineStatus.OFF:
        pgconn.finish()


def close_unless_idle(connection: AnyConnection) -> None:
    """Close the connection unless it is idle, so that a pool gets back only idle connections."""
    pgconn = connection.pgconn
    is_idle = pgconn.transaction_status == pq.TransactionStatus.IDLE
    if not is_idle or pgconn.pipeline_status != pq.PipelineStatus.OFF:
        pgconn.finish()


def _simple(connection: AnyConnection, statement: bytes) -> PQGen[list[Result]]:
    pgconn = _open(connection)
    pgconn.send_query(statement)
    return list(_results(connection, (yield from generators.execute(pgconn))))


def _pipeline(connection: AnyConnection, statements: Sequence[bytes]) -> PQGen[list[Result]]:
    pgconn = _open(connection)
    pgconn.enter_pipeline_mode()
    for statement in statements:
        pgconn.send_query_params(statement, None)
        pgconn.pipeline_sync()  # ends its transaction; an error does not skip the next one
    yield from generators.send(pgconn)
    found: list[Result] = []
    for _ in statements:
        found += _results(connection, (yield from generators.fetch_many(pgconn)))
        yield from generators.fetch_many(pgconn)  # the result of the sync
    pgconn.exit_pipeline_mode()
    return found


def _until(deadline: float, words: PQGen[T]) -> PQGen[T]:
    """psycopg resumes the generator every 0.1 s while it waits."""
    try:
        waits_for = next(words)
        while True:
            ready = yield waits_for
            if not ready and time.monotonic() >= deadline:
                raise Silent("the server did not answer in time")
            waits_for = words.send(ready)
    except StopIteration as end:
        found: T = end.value
        return found


def _open(connection: AnyConnection) -> PGconn:
    if connection.closed:
        raise psycopg.OperationalError("the connection is closed")
    return connection.pgconn


def _results(connection: AnyConnection, found: Iterable[PGresult]) -> Iterator[Result]:
    for result in found:
        if result.status not in _SUCCESS:
            yield Result(error=error_from_result(result, encoding=connection.info.encoding))
        else:
            tag = (result.command_status or b"").decode()
            yield Result(tag, _first_row(result) if result.ntuples else None)


def _first_row(result: PGresult) -> tuple[str | None, ...]:
    values = (result.get_value(0, column) for column in range(result.nfields))
    return tuple(None if value is None else bytes(value).decode() for value in values)
