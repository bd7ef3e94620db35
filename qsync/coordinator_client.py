"""The client of a coordinator's port: ADMIT, WAIT_LSN, BARRIER and OUTCOME, for both drivers.

Connections are kept when they are idle and taken by whoever asks next, any thread or task; each
serves one question at a time. Of several hosts one is preferred until it is gone, or does not lead.

A wait that names a gid also tells that its client lives: the janitor leaves that gid alone while
the connection is open. So a connection whose wait was not confirmed, or was interrupted, is closed.

A forked process leaves its parent's connections alone: not even a farewell is sent on them.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import psycopg

from qsync.coordinator_hosts import hosts_of
from qsync.errors import (
    NOT_REACHED,
    BarrierFailed,
    CoordinatorError,
    OutcomeUnknown,
    TransactionPending,
    TransactionRefused,
    first_line,
)
from qsync.gid import Gid
from qsync.outcome import Committed, Pending, Refused, RolledBack
from qsync.statements import Result, format_lsn, parse_lsn
from qsync.steps import AnyConnection, Ask, Connect, Pause, Steps

#: An admission counts for this long, for all transactions of this client: few of them ask.
ADMISSION_SECONDS = 0.1
#: What a coordinator may take for its answer, beyond the wait that it was asked for.
ANSWER_SECONDS = 1.0
_PAUSE_SECONDS, _PAUSE_SECONDS_MAX = 0.02, 0.5

ENDS = "57P01"  # also what a server told a connection that was idle when it ended

Row = tuple[str | None, ...]
#: Its timeout is reckoned when it is sent.
Command = Callable[[], str]


@dataclass(frozen=True, slots=True)
class Verdict:
    """`reason` says why it is not confirmed."""

    is_confirmed: bool
    reason: str = ""


def _always(row: Row) -> bool:
    return True


class CoordinatorClient:
    """`owner` names the process, or the event loop, that connections belong to: in another one
    they are of no use. `clock` is time.monotonic."""

    def __init__(
        self, conninfo: str, owner: Callable[[], object], clock: Callable[[], float]
    ) -> None:
        self._hosts = hosts_of(conninfo)
        self._owner_of = owner
        self._owner: object = None
        self._clock = clock
        self._idle: deque[AnyConnection] = deque()
        self._inherited: list[AnyConnection] = []  # kept, so that nothing is sent on them
        self._preferred = 0
        self._admitted_until = -math.inf

    def close(self) -> None:
        """End idle connections; legal at any time, they are opened again."""
        self._leave_inherited()
        while self._idle:
            self._idle.pop().pgconn.finish()

    # ---- the verbs

    def admit(self, deadline: float) -> Steps[None]:
        """Raises TransactionRefused."""
        if self._clock() < self._admitted_until:
            return
        try:
            yield from self._ask(lambda: "ADMIT", deadline)
        except CoordinatorError as error:
            refused = Refused(error.sqlstate, error.message, error.hint)
            raise TransactionRefused(refused) from error
        self._admitted_until = self._clock() + ADMISSION_SECONDS

    def wait(self, lsn: int, deadline: float, gid: Gid | None = None) -> Steps[Verdict]:
        """Asked at least once, and again when a coordinator is lost, or does not lead, until the
        deadline. Raises nothing."""
        named = "" if gid is None else f" GID '{gid}'"

        def command() -> str:
            return f"WAIT_LSN {format_lsn(lsn)} TIMEOUT {self._left_ms(deadline)}{named}"

        reason = "the quorum has not confirmed it in time"
        for pause in _pauses():
            try:
                verdict, *_ = yield from self._ask(command, deadline, keep=_is_confirmed)
                if verdict == "confirmed":
                    return Verdict(True)
            except CoordinatorError as error:
                reason = error.message
                if not error.is_temporary:
                    break
            self._admitted_until = -math.inf
            if self._clock() + pause >= deadline:
                break
            yield Pause(pause)
        return Verdict(False, reason)

    def barrier(self, lsn: int, deadline: float) -> Steps[int]:
        """The commit_lsn. Raises BarrierFailed."""

        def command() -> str:
            return f"BARRIER {format_lsn(lsn)} TIMEOUT {self._left_ms(deadline)}"

        reason = "no quorum has answered in time"
        for pause in _pauses():
            try:
                verdict, commit_lsn, *_ = yield from self._ask(command, deadline)
                if verdict == "confirmed":
                    assert commit_lsn is not None
                    return parse_lsn(commit_lsn)
            except CoordinatorError as error:
                reason = error.message
                if not error.is_temporary:
                    break
            if self._clock() + pause >= deadline:
                break
            yield Pause(pause)
        raise BarrierFailed(f"the primary could not be shown to lead: {reason}")

    def outcome(
        self, gid: Gid, lsn: int, deadline: float, *, until_decided: bool = False
    ) -> Steps[Committed | RolledBack | Pending]:
        """Raises CoordinatorError, OutcomeUnknown; with `until_decided` only after the deadline."""
        command = f"OUTCOME '{gid}'" + (f" LSN {format_lsn(lsn)}" if lsn else "")
        for pause in _pauses():
            is_last = self._clock() + pause >= deadline
            try:
                name, at = (yield from self._ask(lambda: command, deadline))[:2]
                if name in ("committed", "rolled_back") or is_last or not until_decided:
                    return _outcome(name, at, gid, lsn)
            except CoordinatorError as error:
                if is_last or not error.is_temporary:
                    raise
            yield Pause(pause)
        raise AssertionError("pauses have no end")

    # ---- asking

    def _ask(
        self, command: Command, deadline: float, keep: Callable[[Row], bool] = _always
    ) -> Steps[Row]:
        """The one row that answers `command`; each host is tried once. Raises CoordinatorError."""
        failure = CoordinatorError("no coordinator", sqlstate=NOT_REACHED)
        for _ in self._hosts:
            number = self._preferred
            try:
                return (yield from self._ask_host(number, command, deadline, keep))
            except CoordinatorError as error:
                if not error.is_temporary:
                    raise
                failure = error
                self._prefer((number + 1) % len(self._hosts))
        raise failure

    def _ask_host(
        self, number: int, command: Command, deadline: float, keep: Callable[[Row], bool]
    ) -> Steps[Row]:
        connection = self._take_idle()
        if connection is not None:
            try:
                return (yield from self._ask_on(connection, command, deadline, keep))
            except _ConnectionBroke:
                pass  # while it was idle: once more on a new one
            except CoordinatorError as error:
                if error.sqlstate != ENDS:
                    raise
        seconds = max(deadline - self._clock(), 0.0)
        try:
            connection = yield Connect(self._hosts[number], seconds)
            return (yield from self._ask_on(connection, command, deadline, keep))
        except (psycopg.Error, OSError, _ConnectionBroke) as error:
            raise CoordinatorError(first_line(error), sqlstate=NOT_REACHED) from error

    def _ask_on(
        self,
        connection: AnyConnection,
        command: Command,
        deadline: float,
        keep: Callable[[Row], bool],
    ) -> Steps[Row]:
        is_kept = False
        answer_by = max(deadline, self._clock()) + ANSWER_SECONDS
        try:
            results: list[Result] = yield Ask(connection, (command().encode(),), answer_by)
            row = _row_of(results)
            is_kept = keep(row)
        except psycopg.Error as error:
            raise _ConnectionBroke(first_line(error)) from error
        finally:
            if not is_kept:
                connection.pgconn.finish()
        self._idle.append(connection)
        return row

    def _take_idle(self) -> AnyConnection | None:
        self._leave_inherited()
        while self._idle:
            try:
                return self._idle.pop()
            except IndexError:  # another thread was quicker
                break
        return None

    def _prefer(self, number: int) -> None:
        if len(self._hosts) > 1:
            self._preferred = number
            self.close()

    def _leave_inherited(self) -> None:
        owner = self._owner_of()
        if owner != self._owner:
            self._inherited += self._idle
            self._idle = deque()
            self._owner = owner

    def _left_ms(self, deadline: float) -> int:
        return max(0, math.floor((deadline - self._clock()) * 1000))


class _ConnectionBroke(Exception):
    """Perhaps only because it was idle for too long."""


def _row_of(results: list[Result]) -> Row:
    """Raises CoordinatorError for an error that a coordinator sent, _ConnectionBroke."""
    result = results[0] if results else Result()
    if result.error is not None:
        diag = result.error.diag
        raise CoordinatorError(
            diag.message_primary or first_line(result.error),
            sqlstate=result.error.sqlstate or NOT_REACHED,
            hint=diag.message_hint or "",
        )
    if result.row is None:
        raise _ConnectionBroke("expected one row from the coordinator, got none")
    return result.row


def pending_of(named: Gid | str | Pending | TransactionPending) -> Pending:
    """What is known of a transaction by who names it so. Raises GidError."""
    match named:
        case TransactionPending():
            return named.outcome
        case Pending():
            return named
        case Gid():
            return Pending(named, 0)
        case _:
            return Pending(Gid.parse(named), 0)


def _is_confirmed(row: Row) -> bool:
    return row[0] == "confirmed"


def _outcome(
    name: str | None, at: str | None, gid: Gid, lsn: int
) -> Committed | RolledBack | Pending:
    match name:
        case "committed":
            return Committed(parse_lsn(at) if at else lsn)
        case "rolled_back":
            return RolledBack("the log has it not, or its ROLLBACK PREPARED")
        case "pending":
            return Pending(gid, lsn)
        case _:
            raise OutcomeUnknown(
                f'the outcome of "{gid}" is not known',
                hint="Ask the coordinator of the primary that leads now.",
            )


def _pauses() -> Iterator[float]:
    pause = _PAUSE_SECONDS
    while True:
        yield pause
        pause = min(2 * pause, _PAUSE_SECONDS_MAX)
