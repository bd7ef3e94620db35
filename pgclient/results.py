"""Returns libpq's results and CopyData one by one, and raises a server's error.

These functions let libpq read only what has arrived, and wait for the socket themselves.
PQgetResult would hold the interpreter lock while it waits, and libpq's blocking calls have no time
limit.
"""

from __future__ import annotations

import math
import select
import time

import psycopg
from psycopg import pq

from quorum_wal.pgclient.errors import (
    ConnectionLost,
    PgClientError,
    ServerError,
    Silent,
    first_line,
)

#: TLS may hold decrypted bytes while poll() reports no input, so a wait looks again after this
#: time.
TLS_WAIT_SECONDS = 0.1

COPIES = (pq.ExecStatus.COPY_BOTH, pq.ExecStatus.COPY_OUT, pq.ExecStatus.COPY_IN)


def send_command(pgconn: pq.abc.PGconn, command: str) -> None:
    """Raises ConnectionLost."""
    try:
        pgconn.send_query(command.encode())
    except psycopg.Error as error:
        raise lost(error) from error


def next_result(pgconn: pq.abc.PGconn, timeout: float | None = None) -> pq.abc.PGresult | None:
    """Returns None when the command has no more results. Raises ServerError, ConnectionLost, Silent
    if the result was not complete within `timeout` seconds."""
    deadline = None if timeout is None else time.monotonic() + timeout
    try:
        while pgconn.is_busy():
            if not _read_input(pgconn, deadline):
                assert timeout is not None
                raise Silent(timeout)
        result = pgconn.get_result()
    except psycopg.Error as error:
        raise lost(error) from error
    if result is not None and result.status in (
        pq.ExecStatus.FATAL_ERROR,
        pq.ExecStatus.BAD_RESPONSE,
    ):
        raise result_error(result, pgconn)
    return result


def run_command(
    pgconn: pq.abc.PGconn, command: str, timeout: float | None = None
) -> pq.abc.PGresult:
    """Run `command`. Returns its last result, or the result that begins a copy. After a ServerError
    the connection is ready for the next command. Raises ServerError, ConnectionLost, Silent if a
    result was not complete within `timeout` seconds."""
    send_command(pgconn, command)
    last: pq.abc.PGresult | None = None
    try:
        while (result := next_result(pgconn, timeout)) is not None:
            last = result
            if result.status in COPIES:
                break
    except ServerError:
        _skip_results(pgconn)
        raise
    if last is None:
        raise ConnectionLost("the connection was closed")
    return last


def receive_copy_data(pgconn: pq.abc.PGconn, timeout: float | None = None) -> memoryview | None:
    """The payload of the next CopyData. Returns None at the end of the copy; next_result() then
    says why.

    Raises Silent if no CopyData came within `timeout` seconds, ConnectionLost.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    try:
        while True:
            size, data = pgconn.get_copy_data(1)
            if size != 0:
                return data if size > 0 else None
            if not _read_input(pgconn, deadline):
                assert timeout is not None
                raise Silent(timeout)
    except psycopg.Error as error:
        raise lost(error) from error


def arrived_copy_data(pgconn: pq.abc.PGconn) -> memoryview | None:
    """Like receive_copy_data(), but does not wait. Raises Silent if no CopyData has arrived, and
    ConnectionLost.

    The socket is read only when libpq has no message left: libpq doubles its buffer for all data in
    the socket, and moves all of it at each call.
    """
    try:
        return receive_copy_data(pgconn, 0.0)
    except Silent:
        pass  # libpq has no message left
    try:
        pgconn.consume_input()
    except psycopg.Error as error:
        raise lost(error) from error
    return receive_copy_data(pgconn, 0.0)


def result_error(result: pq.abc.PGresult, pgconn: pq.abc.PGconn) -> PgClientError:
    """Convert a failed result to an error. A result without a SQLSTATE comes from libpq, not from a
    server."""

    def field(code: pq.DiagnosticField) -> str:
        return (result.error_field(code) or b"").decode(errors="replace")

    message = field(pq.DiagnosticField.MESSAGE_PRIMARY)
    sqlstate = field(pq.DiagnosticField.SQLSTATE)
    if not sqlstate:
        return ConnectionLost(message or first_line(pgconn.get_error_message()))
    return ServerError(message, sqlstate=sqlstate, hint=field(pq.DiagnosticField.MESSAGE_HINT))


def lost(error: psycopg.Error) -> ConnectionLost:
    """The text of libpq, without the operation that psycopg adds."""
    return ConnectionLost(first_line(error).removeprefix("consuming input failed: "))


def _skip_results(pgconn: pq.abc.PGconn) -> None:
    """Read the remaining results of the command."""
    while True:
        try:
            if next_result(pgconn) is None:
                return
        except ServerError:
            continue
        except ConnectionLost:
            return  # the caller raises the server's error, which came first


def _read_input(pgconn: pq.abc.PGconn, deadline: float | None) -> bool:
    """Wait for input and read it. Returns False when `deadline`, a time of time.monotonic(), has
    passed.

    Raises psycopg.Error.
    """
    seconds = math.inf if deadline is None else deadline - time.monotonic()
    if seconds <= 0:
        return False
    if pgconn.ssl_in_use:
        seconds = min(seconds, TLS_WAIT_SECONDS)
    poll = select.poll()
    poll.register(pgconn.socket, select.POLLIN)
    poll.poll(None if seconds == math.inf else math.ceil(seconds * 1000))
    pgconn.consume_input()
    return True
