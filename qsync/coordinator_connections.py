"""Connections to coordinators, and one command on one of them. Pure: a driver opens and asks.

An idle connection is kept, and the next command of any thread or task takes it. A connection serves
one command at a time. Of several hosts one is preferred, until it fails or does not lead.

A forked process does not use its parent's connections. It does not even send Terminate on them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import psycopg

from quorum_wal.qsync.coordinator_hosts import hosts_of
from quorum_wal.qsync.errors import ENDS, NOT_REACHED, CoordinatorError, first_line
from quorum_wal.qsync.statements import Result
from quorum_wal.qsync.steps import AnyConnection, Ask, Connect, Steps

#: Time allowed for the answer, in addition to the timeout of the command.
ANSWER_SECONDS = 1.0

Row = tuple[str | None, ...]
#: Built when it is sent, so that its timeout is the remaining time.
Command = Callable[[], str]


@dataclass(frozen=True, slots=True)
class HostConnection:
    """`host`: the number of its coordinator in the list of hosts."""

    host: int
    connection: AnyConnection

    def finish(self) -> None:
        self.connection.pgconn.finish()


@dataclass(frozen=True, slots=True)
class Answer:
    """The caller must pass `connection` to keep(), or finish it."""

    row: Row
    connection: HostConnection


class CoordinatorConnections:
    """`clock` is time.monotonic, `process` os.getpid. `loop` returns the running event loop;
    connections of another loop are closed."""

    def __init__(
        self,
        conninfo: str,
        clock: Callable[[], float],
        process: Callable[[], int],
        loop: Callable[[], object] = lambda: None,
    ) -> None:
        self._hosts = hosts_of(conninfo)
        self._preferred = 0
        self._clock = clock
        self._process_now, self._process = process, process()
        self._loop_now: Callable[[], object] = loop
        self._loop: object = None
        self._idle: deque[HostConnection] = deque()
        self._inherited: list[HostConnection] = []  # kept open, so that libpq sends nothing on them

    def ask(self, command: Command, deadline: float) -> Steps[Answer]:
        """The one row that answers `command`. Tries each host once. Raises CoordinatorError."""
        failure = CoordinatorError("no coordinator", sqlstate=NOT_REACHED)
        first = self._preferred
        for step in range(len(self._hosts)):
            host = (first + step) % len(self._hosts)
            try:
                return (yield from self._ask_host(host, command, deadline))
            except CoordinatorError as error:
                if not error.is_temporary:
                    raise
                failure = error
                self._leave(host)
        raise failure

    def keep(self, connection: HostConnection) -> None:
        """Keep an idle connection for the next command, while its host is preferred."""
        if connection.host == self._preferred:
            self._idle.append(connection)
        else:
            connection.finish()

    def close(self) -> None:
        """Close the idle connections. It may be called at any time; new connections are opened when
        needed."""
        self._leave_inherited()
        while (connection := self._pop_idle()) is not None:
            connection.finish()

    def _ask_host(self, host: int, command: Command, deadline: float) -> Steps[Answer]:
        connection = self._take_idle(host)
        if connection is not None:
            try:
                return (yield from self._ask_on(connection, command, deadline))
            except _ConnectionBroke:
                pass  # the connection may have ended while it was idle: try a new one
        try:
            opened = yield Connect(self._hosts[host], max(deadline - self._clock(), 0.0))
            return (yield from self._ask_on(HostConnection(host, opened), command, deadline))
        except (psycopg.Error, OSError, _ConnectionBroke) as error:
            raise CoordinatorError(first_line(error), sqlstate=NOT_REACHED) from error

    def _ask_on(
        self, connection: HostConnection, command: Command, deadline: float
    ) -> Steps[Answer]:
        """A connection that failed, or was interrupted, is closed."""
        is_answered = False
        answer_by = max(deadline, self._clock()) + ANSWER_SECONDS
        try:
            results: list[Result] = yield Ask(
                connection.connection, (command().encode(),), answer_by
            )
            row = _row_of(results)
            is_answered = True
        except psycopg.Error as error:
            raise _ConnectionBroke(first_line(error)) from error
        finally:
            if not is_answered:
                connection.finish()
        return Answer(row, connection)

    def _take_idle(self, host: int) -> HostConnection | None:
        self._leave_inherited()
        if self._loop_now() != self._loop:
            self.close()
            self._loop = self._loop_now()
        while (connection := self._pop_idle()) is not None and connection.host != host:
            connection.finish()  # kept while another thread changed the preferred host
        return connection

    def _pop_idle(self) -> HostConnection | None:
        try:
            return self._idle.pop()
        except IndexError:
            return None

    def _leave(self, host: int) -> None:
        """The host failed, or does not lead. If it was preferred, prefer the next one."""
        if len(self._hosts) > 1 and host == self._preferred:
            self._preferred = (host + 1) % len(self._hosts)
            self.close()

    def _leave_inherited(self) -> None:
        process = self._process_now()
        if process != self._process:
            self._inherited += self._idle
            self._idle = deque()
            self._process = process


class _ConnectionBroke(Exception):
    """The connection broke, perhaps because it was idle for too long."""


def _row_of(results: list[Result]) -> Row:
    """Raises CoordinatorError for an error that the coordinator sent, _ConnectionBroke."""
    result = results[0] if results else Result()
    if result.error is not None:
        diag = result.error.diag
        if result.error.sqlstate == ENDS and diag.severity_nonlocalized == "FATAL":
            raise _ConnectionBroke(first_line(result.error))  # ended while it was idle
        raise CoordinatorError(
            diag.message_primary or first_line(result.error),
            sqlstate=result.error.sqlstate or NOT_REACHED,
            hint=diag.message_hint or "",
        )
    if result.row is None:
        raise _ConnectionBroke("expected one row from the coordinator, got none")
    return result.row
