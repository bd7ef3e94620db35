"""One primary, one coordinator, one transaction, all in memory: what the protocol's driver meets.

It executes requests as a driver would, and knows the truth. A fault may strike at any request: the
connection breaks before or after the command took effect, nobody answers, or it is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeVar

import psycopg
from psycopg.errors import lookup
from psycopg.pq import TransactionStatus

from quorum_wal.qsync.coordinator_client import CoordinatorClient
from quorum_wal.qsync.options import Options
from quorum_wal.qsync.outcome import Committed
from quorum_wal.qsync.statements import (
    FACTS,
    FLUSH_LSN,
    IN_RECOVERY,
    MARK,
    SESSION,
    Result,
    parse_lsn,
)
from quorum_wal.qsync.steps import Ask, Commit, Connect, Pause, Request, Rollback, Silent, Steps
from quorum_wal.qsync.two_phase import TwoPhase

T = TypeVar("T")

BEGIN_LSN, PREPARED_LSN, FINISHED_LSN = "0/1000", "0/2000", "0/3000"
NEVER = float("inf")


class Fault(Enum):
    BREAKS_BEFORE = "the connection breaks, and the command was not executed"
    BREAKS_AFTER = "the connection breaks, and the command was executed"
    SILENCE = "nobody answers in time; the command is executed later"
    REFUSED = "an error, and the connection goes on"


class Truth(Enum):
    """Of the transaction on the primary."""

    NONE = "not begun"
    OPEN = "open"
    PREPARED = "prepared"
    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"


@dataclass
class FakeInfo:
    transaction_status: TransactionStatus = TransactionStatus.IDLE


class FakeConnection:
    """The attributes of a psycopg connection that the protocol uses."""

    isolation_level: psycopg.IsolationLevel | None = None
    read_only: bool | None = None
    deferrable: bool | None = None
    backend_pid = 77

    def __init__(self, of: str) -> None:
        self.of = of
        self.info = FakeInfo()
        self.pgconn = self
        self.is_open = True
        self.speaks = False  # for the gid, by a WAIT_LSN
        self.in_hot_standby: bytes | None = b"off"

    def parameter_status(self, name: bytes) -> bytes | None:
        assert name == b"in_hot_standby"
        return self.in_hot_standby

    def finish(self) -> None:
        self.is_open = False
        self.info.transaction_status = TransactionStatus.UNKNOWN


def error_of(sqlstate: str) -> psycopg.Error:
    return lookup(sqlstate)("refused by the test")


class TwoPhaseWorld:
    """`confirms_at`: the time from which on the quorum has everything; `faults`: by the number of a
    request. `asked`: the requests executed or tried, in order."""

    def __init__(
        self,
        options: Options | None = None,
        *,
        confirms_at: float = 0.0,
        faults: dict[int, Fault] | None = None,
        coordinator: str = "a:5455",
        writes: bool = True,
    ) -> None:
        self.now = 0.0
        self.truth = Truth.NONE
        self.confirms_at = confirms_at
        self.faults = faults or {}
        self.asked: list[str] = []
        self.requests = 0
        self.is_admitting = True
        self.is_marked = True
        self.prepare_tag = "PREPARE TRANSACTION"
        self.has_standby_names = False
        self.has_pooler = False
        self.is_in_recovery = False
        self.tli = 1
        self.has_spoken = False
        self.ends_at_once = False  # as soon as it is prepared, another session commits it
        self.seconds_of: dict[str, float] = {}  # by the first word: how long it takes
        self.commits_late = False  # the janitor does, at the moment of the deadline
        self.sqlstates: dict[str, list[str]] = {}  # by the first word: errors to come
        self.primary = FakeConnection("primary")
        self.speakers: list[FakeConnection] = []
        self.coordinator = CoordinatorClient(coordinator, lambda: self.now, lambda: 0)
        self.two_phase = TwoPhase(
            self.coordinator, options or Options(), lambda: self.now, lambda size: b"\x01" * size
        )
        self._writes = writes
        self._later: list[Callable[[], object]] = []

    # ---- the driver

    def run(self, steps: Steps[T]) -> T:
        try:
            request = next(steps)
            while True:
                try:
                    answer = self._perform(request)
                except Exception as error:
                    request = steps.throw(error)
                else:
                    request = steps.send(answer)
        except StopIteration as end:
            value: T = end.value
            return value

    def begin(self) -> None:
        connection: Any = self.primary
        self.run(self.two_phase.begin(connection))

    def end(self) -> None:
        """As a block does."""
        connection: Any = self.primary
        try:
            self.run(self.two_phase.end(connection))
        finally:
            self.two_phase.release()

    def wait(self, timeout: float = 5.0) -> None:
        """As a handle does, with another connection of a pool."""
        with self.two_phase.waiting():
            self.two_phase.set_deadline(timeout)
            self.run(self.two_phase.await_verdict())
            if not isinstance(self.two_phase.outcome, Committed):
                self.primary = FakeConnection("primary")
                connection: Any = self.primary
                self.run(self.two_phase.conclude(connection))

    def janitor(self) -> Truth:
        """Much later, when the quorum has answered and no connection holds the gid: the final
        state."""
        for late in self._later:
            late()
        if self.truth is Truth.OPEN:
            self.truth = Truth.ROLLED_BACK  # its session has ended
        if self.truth is Truth.PREPARED:
            self.truth = Truth.COMMITTED
        return self.truth

    def _perform(self, request: Request) -> Any:
        if isinstance(request, Pause):
            self.now += request.seconds
            return None
        number, self.requests = self.requests, self.requests + 1
        fault = self.faults.get(number)
        match request:
            case Connect():
                if fault is not None:
                    raise psycopg.OperationalError("connection refused")
                self.asked.append("connect")
                connection = FakeConnection("coordinator")
                self.speakers.append(connection)
                return connection
            case Commit() | Rollback():
                self.asked.append(type(request).__name__.upper())
                is_commit = isinstance(request, Commit)
                return self._strike(
                    fault, self.primary, lambda: self._end_plainly(is_commit=is_commit)
                )
            case Ask():
                asked_of: Any = request.connection
                asked_of.speaks |= request.statements[0].startswith(b"WAIT_LSN")
                self.has_spoken |= asked_of.speaks
                if fault is Fault.REFUSED:
                    return self._refused(request, asked_of)
                return self._strike(fault, asked_of, lambda: self._answers(request))
        raise AssertionError(request)

    def _strike(
        self, fault: Fault | None, connection: FakeConnection, execute: Callable[[], Any]
    ) -> Any:
        if not connection.is_open:
            raise psycopg.OperationalError("the connection is closed")
        match fault:
            case None:
                return execute()
            case Fault.SILENCE:
                self._later.append(execute)
                self.now += 10
            case Fault.BREAKS_AFTER:
                execute()
        connection.finish()
        if self.truth is Truth.OPEN and connection is self.primary and not self._later:
            self.truth = Truth.ROLLED_BACK
        raise Silent("silent") if fault is Fault.SILENCE else psycopg.OperationalError("broken")

    def _refused(self, ask: Ask, connection: FakeConnection) -> list[Result]:
        """The statement, or each of a pipeline, is cancelled; a coordinator does not lead."""
        if not connection.is_open:
            raise psycopg.OperationalError("the connection is closed")
        if connection is not self.primary:
            return [Result(error=error_of("57P03"))]
        if self.truth is Truth.OPEN:
            is_prepare = b"PREPARE TRANSACTION" in ask.statements[0]
            status = TransactionStatus.IDLE if is_prepare else TransactionStatus.INERROR
            connection.info.transaction_status = status
            self.truth = Truth.ROLLED_BACK
        return [Result(error=error_of("57014"))] * len(ask.statements)

    # ---- the servers

    def _answers(self, ask: Ask) -> list[Result]:
        if len(ask.statements) > 1:
            return [self._answer(statement.decode()) for statement in ask.statements]
        found: list[Result] = []
        for statement in ask.statements[0].decode().split("; "):
            found.append(self._answer(statement))
            if found[-1].error is not None:
                break
        return found

    def _answer(self, statement: str) -> Result:
        name = _name_of(statement)
        self.asked.append(name)
        self.now += self.seconds_of.get(name, 0.0)
        if self.ends_at_once and name == "FIND":
            self._set(Truth.COMMITTED)
        if self.sqlstates.get(name):
            return Result(error=error_of(self.sqlstates[name].pop(0)))
        match name:
            case "BEGIN":
                self._set(Truth.OPEN)
                return Result("BEGIN")
            case "PREPARE":
                return self._prepare()
            case "COMMIT PREPARED" | "ROLLBACK PREPARED":
                return self._finish(name)
            case "ADMIT" if self.is_admitting:
                return Result(row=("7", "0"))
            case "ADMIT":
                return Result(error=error_of("53400"))
            case "WAIT_LSN":
                _, lsn, _, timeout_ms, *_ = statement.split()
                return self._wait(parse_lsn(lsn), int(timeout_ms))
            case "OUTCOME":
                return self._outcome()
        return self._answer_of_query(name)

    def _answer_of_query(self, name: str) -> Result:
        match name:
            case "FACTS":
                return self._facts()
            case "SESSION":
                return self._session()
            case "IN_RECOVERY":
                return Result(row=("t" if self.is_in_recovery else "f",))
            case "MARK":
                return Result(row=("on" if self.is_marked else "",))
            case "FIND" if self.truth is not Truth.PREPARED:
                return Result("SELECT 0")
            case "OWNER":
                return Result(row=("owner",))
            case "FIND" | "FLUSH":
                is_over = self.truth in (Truth.COMMITTED, Truth.ROLLED_BACK)
                return Result(row=(FINISHED_LSN if is_over else PREPARED_LSN,))
        return Result("SET")

    def _prepare(self) -> Result:
        if self.prepare_tag == "PREPARE TRANSACTION" and self.truth is Truth.OPEN:
            self._set(Truth.PREPARED)
        else:
            self._set(Truth.ROLLED_BACK)
        return Result(self.prepare_tag)

    def _finish(self, name: str) -> Result:
        if self.commits_late:
            self._set(Truth.COMMITTED)
        if self.truth is not Truth.PREPARED:
            return Result(error=error_of("42704"))
        self._set(Truth.COMMITTED if name.startswith("COMMIT") else Truth.ROLLED_BACK)
        return Result(name)

    def _session(self) -> Result:
        if self.is_in_recovery:
            return Result(error=error_of("55000"))
        standby = "s1" if self.has_standby_names else ""
        pid = str(FakeConnection.backend_pid + self.has_pooler)
        return Result(row=(f"{self.tli:08X}{0:016X}", standby, pid))

    def _facts(self) -> Result:
        if self.is_in_recovery:
            return Result(error=error_of("55000"))
        mark = "on" if self.is_marked else ""
        xid = "725" if self._writes else None
        standby = "s1" if self.has_standby_names else ""
        pid = str(FakeConnection.backend_pid + self.has_pooler)
        place = (BEGIN_LSN, f"{1:08X}{0:016X}", "1.000400", "0.000001")
        return Result(row=(mark, xid, *place, standby, pid))

    def _wait(self, lsn: int, timeout_ms: int) -> Result:
        if lsn <= parse_lsn(BEGIN_LSN):
            return Result(error=error_of("22023"))
        is_confirmed = self.confirms_at <= self.now + timeout_ms / 1000
        self.now = max(self.now, self.confirms_at) if is_confirmed else self.now + timeout_ms / 1000
        return Result(row=("confirmed" if is_confirmed else "pending", PREPARED_LSN, "7"))

    def _outcome(self) -> Result:
        if self._is_orphan and self.now >= self.confirms_at:
            self._set(Truth.COMMITTED)
        if self.truth is Truth.PREPARED or self.now < self.confirms_at or self._later:
            return Result(row=("pending", None))
        name = "committed" if self.truth is Truth.COMMITTED else "rolled_back"
        return Result(row=(name, FINISHED_LSN))

    def _end_plainly(self, *, is_commit: bool) -> None:
        self._set(Truth.COMMITTED if is_commit else Truth.ROLLED_BACK)

    def _set(self, truth: Truth) -> None:
        self.truth = truth
        status = TransactionStatus.INTRANS if truth is Truth.OPEN else TransactionStatus.IDLE
        if self.primary.is_open:
            self.primary.info.transaction_status = status

    @property
    def _is_orphan(self) -> bool:
        """No connection holds it now, or none has by its deadline: the janitor finishes it."""
        is_abandoned = self.has_spoken or self.now >= self.two_phase.options.timeout
        return self.truth is Truth.PREPARED and is_abandoned and not self.is_spoken_for

    @property
    def is_spoken_for(self) -> bool:
        """The coordinator considers its client connected."""
        return any(speaker.is_open and speaker.speaks for speaker in self.speakers)

    @property
    def lsn_of_prepare(self) -> int:
        return parse_lsn(PREPARED_LSN)


_NAMES = {
    FACTS: "FACTS",
    FLUSH_LSN: "FLUSH",
    IN_RECOVERY: "IN_RECOVERY",
    MARK: "MARK",
    SESSION: "SESSION",
}


def _name_of(statement: str) -> str:
    if (name := _NAMES.get(statement.encode())) is not None:
        return name
    if "pg_prepared_xacts" in statement:
        return "OWNER" if "owner" in statement else "FIND"
    words = statement.split()
    return f"{words[0]} PREPARED" if words[1:2] == ["PREPARED"] else words[0]
