"""Live safekeepers as a source of WAL: what is committed and not archived yet.

They are asked as any replica asks a walsender: IDENTIFY_SYSTEM, TIMELINE_HISTORY,
START_REPLICATION; all at once, and the first that has the whole segment serves it. That there is
no more than a beginning is believed only when a majority of those named has answered: a quorum has
every committed byte, so no committed segment can be missing from a majority.
"""

from __future__ import annotations

import select
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from operator import itemgetter
from queue import Empty, SimpleQueue

import psycopg
from psycopg import pq

from backup.errors import BackupError
from backup.wal_source import WalSourceError, check_beginning, check_same_server
from consensus.messages import ServerFacts
from pgwal.errors import WalError
from pgwal.history import TimelineHistory
from pgwal.lsn import Lsn, format_lsn
from pgwal.segment import parse_segment_name
from pgwire.errors import ProtocolError
from pgwire.replication import XLogData, parse_server_message

ANSWER_SECONDS = 20.0
UNDEFINED_FILE = "58P01"
_UNITS = {"kB": 10, "MB": 20, "GB": 30}

Connect = Callable[[], psycopg.Connection]


@dataclass(frozen=True, slots=True)
class Safekeeper:
    """`connect` opens a replication connection to the timeline; what it raises is shown."""

    name: str
    connect: Connect


@dataclass(frozen=True, slots=True)
class Position:
    """What one has: its log up to `commit_lsn`, and whose it is."""

    safekeeper: Safekeeper
    server: ServerFacts
    history: TimelineHistory
    commit_lsn: int


class SafekeeperWalSource:
    """A WalSource."""

    def __init__(self, safekeepers: Sequence[Safekeeper]) -> None:
        self._safekeepers = safekeepers
        self._server: ServerFacts | None = None

    @property
    def server(self) -> ServerFacts | None:
        return self._server

    def history(self, tli: int) -> bytes | None:
        for position in self._positions():
            ancestors = _history_of(position.history, tli)
            if ancestors is not None:
                return ancestors.format().encode()
        return None

    def segment(self, name: str) -> bytes:
        beginnings: list[tuple[int, int, Position]] = []
        failures: list[WalSourceError] = []
        removed: list[Position] = []
        answered = 0
        for position in self._positions():
            answered += 1
            asked = parse_segment_name(name, position.server.wal_seg_size)
            begin_lsn, end_lsn = _range_of(position, asked.tli, asked.segno)
            if end_lsn - begin_lsn < position.server.wal_seg_size:
                if begin_lsn < end_lsn:
                    beginnings.append((end_lsn, begin_lsn, position))
                continue
            try:
                content = _read(position, asked.tli, begin_lsn, end_lsn)
            except WalSourceError as error:
                failures.append(error)
                continue
            if content:
                return content
            removed.append(position)
        if failures:
            raise failures[0]  # somebody has it
        if removed and answered < len(self._safekeepers):
            raise _removed(name, removed)
        for end_lsn, begin_lsn, position in sorted(beginnings, key=itemgetter(0), reverse=True):
            content = _read(position, asked.tli, begin_lsn, end_lsn)
            if content:
                return content
        return b""

    def _positions(self) -> Iterator[Position]:
        """As they answer. Raises WalSourceError at the end when fewer than a majority has."""
        answers: SimpleQueue[Position | Exception] = SimpleQueue()
        for safekeeper in self._safekeepers:
            # Nobody waits for the last one: a host that is gone takes seconds to be noticed.
            threading.Thread(target=_ask, args=(safekeeper, answers), daemon=True).start()
        deadline = time.monotonic() + ANSWER_SECONDS
        errors: list[Exception] = []
        answered = 0
        for _ in self._safekeepers:
            try:
                answer = answers.get(timeout=max(0.0, deadline - time.monotonic()))
            except Empty:
                errors.append(WalSourceError(f"no answer in {ANSWER_SECONDS:g} s"))
                break
            if isinstance(answer, Exception):
                errors.append(answer)
                continue
            self._check(answer)
            answered += 1
            yield answer
        if answered * 2 <= len(self._safekeepers):
            raise self._too_few(errors, answered)

    def _check(self, position: Position) -> None:
        self._server = self._server or position.server
        check_same_server(self._server, position.server, f"safekeeper {position.safekeeper.name}")

    def _too_few(self, errors: Sequence[Exception], answered: int) -> WalSourceError:
        reasons = "; ".join(" ".join(str(error).split()) for error in errors)
        return WalSourceError(
            f"only {answered} of {len(self._safekeepers)} safekeepers answered: {reasons}",
            hint="Without a majority there may be WAL that nobody told of.",
            is_transient=True,
        )


def _removed(name: str, positions: Sequence[Position]) -> WalSourceError:
    names = ", ".join(position.safekeeper.name for position in positions)
    return WalSourceError(
        f"segment {name} has been removed on safekeeper {names}, and another one, which may have "
        "it, does not answer",
        hint="Start it, or name the archive, too.",
        is_transient=True,
    )


def _history_of(history: TimelineHistory, tli: int) -> TimelineHistory | None:
    """That of `tli`, an ancestor or itself; the first of all has none."""
    before = tuple(entry for entry in history.entries if entry.tli < tli)
    is_known = tli == history.tli or any(entry.tli == tli for entry in history.entries)
    return TimelineHistory(tli, before) if is_known and before else None


def _range_of(position: Position, tli: int, segno: int) -> tuple[int, int]:
    """What it has of this segment under the name of this timeline; empty: nothing."""
    seg_size, history = position.server.wal_seg_size, position.history
    begin_lsn = segno * seg_size
    end_lsn = min(begin_lsn + seg_size, position.commit_lsn)
    starts_lsn = 0
    for entry in history.entries:
        if entry.tli == tli:
            return begin_lsn, min(end_lsn, entry.switch_lsn)
        if entry.tli < tli:
            starts_lsn = int(entry.switch_lsn)
    is_its = tli == history.tli and begin_lsn + seg_size > starts_lsn
    return begin_lsn, end_lsn if is_its else begin_lsn


# ---- one safekeeper


def _ask(safekeeper: Safekeeper, answers: SimpleQueue[Position | Exception]) -> None:
    """Whatever comes of it is an answer."""
    try:
        with closing(safekeeper.connect()) as connection:
            answers.put(_position(safekeeper, connection.pgconn))
    except Exception as error:  # of `connect`, whatever it is; it is shown to the user
        answers.put(error)


def _position(safekeeper: Safekeeper, pgconn: pq.abc.PGconn) -> Position:
    system_id, tli_text, commit_lsn, *_ = _row(pgconn, "IDENTIFY_SYSTEM")
    (size,) = _row(pgconn, "SHOW wal_segment_size")
    tli = int(tli_text)
    history = TimelineHistory(tli)
    if tli > 1:
        history = TimelineHistory.parse(tli, _row(pgconn, f"TIMELINE_HISTORY {tli}")[1])
    version = (pgconn.parameter_status(b"server_version") or b"0").decode()
    major, _, minor = version.split()[0].partition(".")
    server = ServerFacts(
        int(system_id), int(major) * 10000 + int(minor or 0), int(size[:-2]) << _UNITS[size[-2:]]
    )
    return Position(safekeeper, server, history, int(Lsn.parse(commit_lsn)))


def _row(pgconn: pq.abc.PGconn, command: str) -> list[str]:
    """The only row of an answer. Raises WalSourceError with the server's words."""
    result = pgconn.exec_(command.encode())
    if result.status != pq.ExecStatus.TUPLES_OK or result.ntuples != 1:
        raise _refused(result, pgconn)
    return [(result.get_value(0, column) or b"").decode() for column in range(result.nfields)]


class _Refused(WalSourceError):
    """By a server, with its SQLSTATE."""

    def __init__(self, message: str, hint: str, sqlstate: str) -> None:
        super().__init__(message, hint=hint)
        self.sqlstate = sqlstate


def _refused(result: pq.abc.PGresult, pgconn: pq.abc.PGconn) -> _Refused:
    fields = pq.DiagnosticField
    message, hint, sqlstate = (
        (result.error_field(code) or b"").decode(errors="replace")
        for code in (fields.MESSAGE_PRIMARY, fields.MESSAGE_HINT, fields.SQLSTATE)
    )
    return _Refused(message or pgconn.get_error_message().strip(), hint, sqlstate)


def _read(position: Position, tli: int, begin_lsn: int, end_lsn: int) -> bytes:
    """[begin_lsn, end_lsn), checked; empty when it has been removed there.

    Raises WalSourceError.
    """
    name = position.safekeeper.name
    try:
        with closing(position.safekeeper.connect()) as connection:
            content = _stream(connection.pgconn, tli, begin_lsn, end_lsn)
    except _Refused as error:
        if error.sqlstate == UNDEFINED_FILE:
            return b""
        raise WalSourceError(f"safekeeper {name}: {error}", hint=error.hint) from error
    except (psycopg.Error, ProtocolError, BackupError) as error:
        raise WalSourceError(f"lost safekeeper {name}: {error}", is_transient=True) from error
    seg_size = position.server.wal_seg_size
    try:
        check_beginning(content, tli, begin_lsn // seg_size, position.server)
    except WalError as error:
        raise WalSourceError(f"safekeeper {name} has damaged WAL: {error}") from error
    return content


def _stream(pgconn: pq.abc.PGconn, tli: int, begin_lsn: int, end_lsn: int) -> bytes:
    pgconn.send_query(f"START_REPLICATION PHYSICAL {format_lsn(begin_lsn)} TIMELINE {tli}".encode())
    result = pgconn.get_result()
    if result is None or result.status != pq.ExecStatus.COPY_BOTH:
        raise _refused(result, pgconn) if result else WalSourceError("the connection was closed")
    wal = bytearray()
    deadline = time.monotonic() + ANSWER_SECONDS
    while begin_lsn + len(wal) < end_lsn:
        size, data = pgconn.get_copy_data(1)
        if size < 0:
            ended = pgconn.get_result()
            raise _refused(ended, pgconn) if ended else WalSourceError("the stream ended")
        if size == 0:
            timeout = deadline - time.monotonic()
            if timeout <= 0 or not select.select([pgconn.socket], [], [], timeout)[0]:
                raise WalSourceError(f"no WAL in {ANSWER_SECONDS:g} s", is_transient=True)
            pgconn.consume_input()
            continue
        deadline = time.monotonic() + ANSWER_SECONDS
        message = parse_server_message(data)
        if isinstance(message, XLogData):
            if message.start_lsn != begin_lsn + len(wal):
                raise ProtocolError(
                    f"WAL at {format_lsn(message.start_lsn)} came, expected "
                    f"{format_lsn(begin_lsn + len(wal))}"
                )
            wal += message.data
    return bytes(wal[: end_lsn - begin_lsn])
