"""The commands of the coordinator's port, for both drivers: ADMIT, WAIT_LSN, BARRIER, OUTCOME.
Pure.

A WAIT_LSN that names a gid also makes its connection a holder of that gid: the janitor leaves the
gid alone while the connection is open. So the connection becomes idle again only when the gid is
finished. Otherwise it is closed, and the janitor takes over.

Each WAIT_LSN names its gid, which has the timeline and the server that prepared it. Of two
primaries only one continues that timeline, and a coordinator of the other may not confirm the
position.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from quorum_wal.qsync.coordinator_connections import CoordinatorConnections, HostConnection
from quorum_wal.qsync.errors import (
    BarrierFailed,
    CoordinatorError,
    OutcomeUnknown,
    TransactionPending,
    TransactionRefused,
)
from quorum_wal.qsync.gid import Gid
from quorum_wal.qsync.outcome import Committed, Pending, Refused, RolledBack
from quorum_wal.qsync.statements import format_lsn, parse_lsn
from quorum_wal.qsync.steps import Pause, Steps

#: An admission is valid for this long, for all transactions of this client, so few of them ask.
ADMISSION_SECONDS = 0.1
_PAUSE_SECONDS, _PAUSE_SECONDS_MAX = 0.02, 0.5


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer to a WAIT_LSN. If it confirms, `holder` is the connection that holds the gid;
    else `reason` says why it does not."""

    holder: HostConnection | None = None
    reason: str = ""

    @property
    def is_confirmed(self) -> bool:
        return self.holder is not None


class CoordinatorClient:
    """One for each Qsync; any thread or task may use it. For the arguments see
    CoordinatorConnections."""

    def __init__(
        self,
        conninfo: str,
        clock: Callable[[], float],
        process: Callable[[], int],
        loop: Callable[[], object] = lambda: None,
    ) -> None:
        self._connections = CoordinatorConnections(conninfo, clock, process, loop)
        self._clock = clock
        self._admitted_until = -math.inf

    def close(self) -> None:
        """Close the idle connections. It may be called at any time; new connections are opened when
        needed."""
        self._connections.close()

    def admit(self, deadline: float) -> Steps[None]:
        """Raises TransactionRefused."""
        if self._clock() < self._admitted_until:
            return
        try:
            answer = yield from self._connections.ask(lambda: "ADMIT", deadline)
        except CoordinatorError as error:
            refused = Refused(error.sqlstate, error.message, error.hint)
            raise TransactionRefused(refused) from error
        self._connections.keep(answer.connection)
        self._admitted_until = self._clock() + ADMISSION_SECONDS

    def wait(self, lsn: int, gid: Gid, deadline: float) -> Steps[Verdict]:
        """Ask at least once. Ask again when a coordinator is lost or does not lead, until the
        deadline. Raises nothing. The caller must pass a verdict that confirms to release()."""

        def command() -> str:
            return f"WAIT_LSN {format_lsn(lsn)} TIMEOUT {self._left_ms(deadline)} GID '{gid}'"

        reason = "the quorum did not confirm it in time"
        for pause in _pauses():
            try:
                answer = yield from self._connections.ask(command, deadline)
            except CoordinatorError as error:
                reason = error.message
                if not error.is_temporary:
                    break
            else:
                if answer.row[0] == "confirmed":
                    return Verdict(answer.connection)
                answer.connection.finish()
            self._admitted_until = -math.inf
            if self._clock() + pause >= deadline:
                break
            yield Pause(pause)
        return Verdict(reason=reason)

    def release(self, verdict: Verdict, *, is_finished: bool) -> None:
        """Release the gid of a verdict. Call it once for every verdict."""
        if verdict.holder is None:
            return
        if is_finished:
            self._connections.keep(verdict.holder)
        else:
            verdict.holder.finish()

    def barrier(self, lsn: int, tli: int, server_start_us: int, deadline: float) -> Steps[int]:
        """Returns the commit_lsn. Raises BarrierFailed."""

        def command() -> str:
            left_ms, server = self._left_ms(deadline), f"TLI {tli} START {server_start_us}"
            return f"BARRIER {format_lsn(lsn)} TIMEOUT {left_ms} {server}"

        reason = "no quorum answered in time"
        for pause in _pauses():
            try:
                answer = yield from self._connections.ask(command, deadline)
            except CoordinatorError as error:
                reason = error.message
                if not error.is_temporary:
                    break
            else:
                self._connections.keep(answer.connection)
                verdict, commit_lsn, *_ = answer.row
                if verdict == "confirmed" and commit_lsn is not None:
                    return parse_lsn(commit_lsn)
            if self._clock() + pause >= deadline:
                break
            yield Pause(pause)
        raise BarrierFailed(f"could not verify that the primary leads: {reason}")

    def outcome(
        self, gid: Gid, lsn: int, deadline: float, *, until_decided: bool = False
    ) -> Steps[Committed | RolledBack | Pending]:
        """Raises CoordinatorError, OutcomeUnknown; with `until_decided` only after the deadline."""
        command = f"OUTCOME '{gid}'" + (f" LSN {format_lsn(lsn)}" if lsn else "")
        for pause in _pauses():
            is_last = self._clock() + pause >= deadline
            try:
                answer = yield from self._connections.ask(lambda: command, deadline)
            except CoordinatorError as error:
                if is_last or not error.is_temporary:
                    raise
            else:
                self._connections.keep(answer.connection)
                name, at, *_ = answer.row
                is_decided = name in ("committed", "rolled_back")
                if is_decided or is_last or not until_decided:
                    return _outcome(name, at, gid, lsn)
            yield Pause(pause)
        raise AssertionError("pauses have no end")

    def _left_ms(self, deadline: float) -> int:
        return max(0, math.floor((deadline - self._clock()) * 1000))


def pending_of(named: Gid | str | Pending | TransactionPending) -> Pending:
    """The gid of a transaction, with the position of PREPARE if `named` has it. Raises GidError."""
    match named:
        case TransactionPending():
            return named.outcome
        case Pending():
            return named
        case Gid():
            return Pending(named, 0)
        case _:
            return Pending(Gid.parse(named), 0)


def _outcome(
    name: str | None, at: str | None, gid: Gid, lsn: int
) -> Committed | RolledBack | Pending:
    match name:
        case "committed":
            return Committed(parse_lsn(at) if at else lsn)
        case "rolled_back":
            return RolledBack("it was rolled back, or its PREPARE is not in the log")
        case "pending":
            return Pending(gid, lsn)
        case _:
            raise OutcomeUnknown(
                f'the outcome of "{gid}" is unknown',
                hint="The server has no record that decides it. Ask the coordinator of the primary "
                "that leads now, or check for a row that the transaction wrote.",
            )


def _pauses() -> Iterator[float]:
    pause = _PAUSE_SECONDS
    while True:
        yield pause
        pause = min(2 * pause, _PAUSE_SECONDS_MAX)
