"""Running safekeepers as a source of WAL: WAL that is committed and not archived yet.

They are asked with the replication protocol: IDENTIFY_SYSTEM, TIMELINE_HISTORY, START_REPLICATION.
All are asked at once, and the first that has the whole segment serves it. The source returns only
the beginning of a segment if a majority of the named safekeepers has answered. A quorum has every
committed byte, so a committed segment cannot be missing from a majority.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from operator import itemgetter
from queue import Empty, SimpleQueue

import psycopg
from psycopg import pq

from quorum_wal.backup.wal_source import WalSourceError, check_beginning, check_same_server
from quorum_wal.consensus.messages import ServerFacts
from quorum_wal.pgclient.errors import (
    UNDEFINED_FILE,
    ConnectionLost,
    PgClientError,
    ServerError,
    Silent,
)
from quorum_wal.pgclient.questions import identify_system, read_server_facts, read_timeline_history
from quorum_wal.pgclient.stream import ReplicationStream, start_copy
from quorum_wal.pgwal.errors import WalError
from quorum_wal.pgwal.history import TimelineHistory
from quorum_wal.pgwal.lsn import Lsn
from quorum_wal.pgwal.segment import parse_segment_name
from quorum_wal.pgwire.commands import StartReplication, format_start_replication

ANSWER_SECONDS = 20.0

Connect = Callable[[], psycopg.Connection]


@dataclass(frozen=True, slots=True)
class Safekeeper:
    """`connect` opens a replication connection to the timeline. Its errors are shown to users."""

    name: str
    connect: Connect

    def position(self) -> Position:
        """Asks it. Raises WalSourceError."""
        with _connected(self) as pgconn:
            system = identify_system(pgconn)
            server = read_server_facts(pgconn, system.system_id)
            history = read_timeline_history(pgconn, system.tli)
        return Position(self, server, history, system.flush_lsn)

    def read(self, server: ServerFacts, tli: int, begin_lsn: int, end_lsn: int) -> bytes:
        """[begin_lsn, end_lsn), checked. Empty if the safekeeper has removed it.

        Raises WalSourceError.
        """
        command = format_start_replication(StartReplication(Lsn(begin_lsn), timeline=tli))
        try:
            with _connected(self) as pgconn:
                if not start_copy(pgconn, command):
                    raise ConnectionLost("the server ended the stream")
                content = ReplicationStream(pgconn, begin_lsn, ANSWER_SECONDS).read(end_lsn)
        except _Removed:
            return b""
        try:
            check_beginning(content, tli, begin_lsn // server.wal_seg_size, server)
        except WalError as error:
            raise WalSourceError(f"safekeeper {self.name} has damaged WAL: {error}") from error
        return content


@dataclass(frozen=True, slots=True)
class Position:
    """The log of one safekeeper: `history` up to `commit_lsn`, and the server that wrote it."""

    safekeeper: Safekeeper
    server: ServerFacts
    history: TimelineHistory
    commit_lsn: int

    def read(self, tli: int, begin_lsn: int, end_lsn: int) -> bytes:
        """As `Safekeeper.read` does."""
        return self.safekeeper.read(self.server, tli, begin_lsn, end_lsn)


class SafekeeperWalSource:
    """A WalSource that asks all safekeepers for each segment."""

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
                content = position.read(asked.tli, begin_lsn, end_lsn)
            except WalSourceError as error:
                failures.append(error)
                continue
            if content:
                return content
            removed.append(position)
        if failures:
            raise failures[0]  # that safekeeper has the segment
        if removed and answered < len(self._safekeepers):
            raise _removed(name, removed)
        for end_lsn, begin_lsn, position in sorted(beginnings, key=itemgetter(0), reverse=True):
            content = position.read(asked.tli, begin_lsn, end_lsn)
            if content:
                return content
        return b""

    def _positions(self) -> Iterator[Position]:
        """Positions in the order of the answers. Raises WalSourceError at the end, unless a
        majority answered."""
        answers: SimpleQueue[Position | Exception] = SimpleQueue()
        for safekeeper in self._safekeepers:
            # Daemon threads: an unreachable host takes seconds to fail, and is not waited for.
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
            hint="Without a majority, committed WAL may be missing from these answers.",
            is_transient=True,
        )


def _removed(name: str, positions: Sequence[Position]) -> WalSourceError:
    names = ", ".join(sorted(position.safekeeper.name for position in positions))
    return WalSourceError(
        f"segment {name} has been removed on safekeeper {names}, and a safekeeper that may have it "
        "does not answer",
        hint="Start that safekeeper, or also name the archive.",
        is_transient=True,
    )


def _history_of(history: TimelineHistory, tli: int) -> TimelineHistory | None:
    """The history of `tli`; None if it is unknown, or is the first timeline, which has none."""
    before = tuple(entry for entry in history.entries if entry.tli < tli)
    is_known = tli == history.tli or any(entry.tli == tli for entry in history.entries)
    return TimelineHistory(tli, before) if is_known and before else None


def _range_of(position: Position, tli: int, segno: int) -> tuple[int, int]:
    """The part of this segment that the safekeeper has under timeline `tli`; it can be empty."""
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


class _Removed(WalSourceError):
    """The safekeeper had this WAL and has removed it."""


def _ask(safekeeper: Safekeeper, answers: SimpleQueue[Position | Exception]) -> None:
    """Puts the position or the error into `answers`."""
    try:
        answers.put(safekeeper.position())
    except WalSourceError as error:
        answers.put(error)


@contextmanager
def _connected(safekeeper: Safekeeper) -> Iterator[pq.abc.PGconn]:
    """Every failure of the connection in the block becomes a WalSourceError."""
    try:
        connection = safekeeper.connect()
    except Exception as error:  # any error of `connect`; it is shown to the user
        raise WalSourceError(str(error), is_transient=True) from error
    name = safekeeper.name
    with closing(connection):
        try:
            yield connection.pgconn
        except ServerError as error:
            kind = _Removed if error.sqlstate == UNDEFINED_FILE else WalSourceError
            raise kind(f"safekeeper {name}: {error}", hint=error.hint) from error
        except PgClientError as error:
            what = f"no WAL in {ANSWER_SECONDS:g} s" if isinstance(error, Silent) else str(error)
            raise WalSourceError(f"lost safekeeper {name}: {what}", is_transient=True) from error
