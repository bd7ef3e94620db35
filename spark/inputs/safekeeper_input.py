"""Running safekeepers as an input: the log up to the position that a quorum has.

    safekeeper 1  |==========| lost
    safekeeper 2             |======|   continues where the first one stopped
    safekeeper 3

Laws. One running safekeeper is enough, for the WAL that it has. Reading can change from one to
another, because committed WAL is the same on all. No byte is read twice. WAL is lost if every
safekeeper has removed it. They keep WAL for slots of their own, so one that does not answer may
have WAL that the others have removed.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from typing import TypeVar

from quorum_wal.consensus.messages import ServerFacts
from quorum_wal.pgclient.errors import UNDEFINED_FILE
from quorum_wal.pgwal.lsn import format_lsn
from quorum_wal.pgwal.page import WAL_PAGE_SIZE
from quorum_wal.spark.errors import WalInputError
from quorum_wal.spark.inputs.safekeeper_session import (
    Position,
    SafekeeperAddress,
    SafekeeperRefused,
    SafekeeperSession,
)
from quorum_wal.spark.inputs.wal_input import LostWal, WalChunk

CHUNK_BYTES = 1 << 20
#: the longest wait for committed WAL, over all safekeepers
WAIT_SECONDS = 60.0
RETRY_SECONDS = 0.2
#: after this time without a new commit LSN, another safekeeper is asked
STALL_SECONDS = 5.0

T = TypeVar("T")


class SafekeeperInput:
    """`addresses` in the order in which they are tried. The process that asks keeps one connection
    open; it is not pickled for executors."""

    poll_seconds = 0.1
    ends_at_record = True

    def __init__(self, addresses: Sequence[SafekeeperAddress]) -> None:
        self.addresses = tuple(addresses)
        self._order = deque(self.addresses)
        self._commit_lsn = 0
        self._moved_at = 0.0
        self._session: SafekeeperSession | None = None
        self._server: ServerFacts | None = None

    def __reduce__(self) -> tuple[type[SafekeeperInput], tuple[tuple[SafekeeperAddress, ...]]]:
        return type(self), (self.addresses,)

    def __del__(self) -> None:
        self._forget_session()

    def __repr__(self) -> str:
        return f"SafekeeperInput({', '.join(address.name for address in self.addresses)})"

    def facts(self) -> ServerFacts:
        if self._server is None:
            self._server = self._ask(SafekeeperSession.position).server
        return self._server

    def end(self) -> tuple[int, int]:
        position = self._ask(SafekeeperSession.position)
        return position.history.tli, position.commit_lsn

    def extent(self, from_lsn: int | None = None) -> tuple[int, int]:
        end_lsn = self.newest_lsn()
        seg_size = self.facts().wal_seg_size
        if from_lsn is not None:
            return from_lsn - from_lsn % seg_size, max(end_lsn, from_lsn)
        return self._first_lsn(end_lsn), end_lsn

    def newest_lsn(self, from_lsn: int = 0) -> int:
        commit_lsn = self._ask(SafekeeperSession.commit_lsn)
        now = time.monotonic()
        if commit_lsn > self._commit_lsn:
            self._commit_lsn, self._moved_at = commit_lsn, now
        elif now - self._moved_at > STALL_SECONDS:
            # Nothing is written, or this one is disconnected: the next one may know more.
            self._moved_at = now
            self._forget_session()
            self._order.rotate(-1)
        return max(from_lsn, self._commit_lsn)

    def read(self, lsn: int, end_lsn: int | None = None) -> Iterator[WalChunk]:
        stream = _Stream(self.addresses, lsn, end_lsn, WAIT_SECONDS)
        with closing(stream.pieces()) as pieces:
            gathered, name = bytearray(), ""
            for name, piece in pieces:
                gathered += piece
                if len(gathered) >= CHUNK_BYTES:
                    # Streams begin at a page or a timeline; the rest waits for the next chunk.
                    whole = (lsn + len(gathered)) // WAL_PAGE_SIZE * WAL_PAGE_SIZE - lsn
                    yield WalChunk(lsn, bytes(gathered[:whole]), name)
                    lsn += whole
                    del gathered[:whole]
            if gathered:
                yield WalChunk(lsn, bytes(gathered), name)

    def _first_lsn(self, end_lsn: int) -> int:
        """The start of the oldest readable segment. No safekeeper reports it: a binary search."""
        position = self._ask(SafekeeperSession.position)
        seg_size = position.server.wal_seg_size
        # nothing is below low; high can be read
        low, high = position.timeline_start_lsn // seg_size, end_lsn // seg_size
        while low < high:
            middle = (low + high) // 2
            if self._has(middle * seg_size):
                high = middle
            else:
                low = middle + 1
        return high * seg_size

    def _has(self, lsn: int) -> bool:
        try:
            with closing(_Stream(self.addresses, lsn, lsn + 1, wait_seconds=0.0).pieces()) as s:
                return next(s, None) is not None
        except LostWal:
            return False

    def _ask(self, question: Callable[[SafekeeperSession], T]) -> T:
        """Asks the safekeeper of the last question; if it is lost, the first that answers."""
        if self._session is not None:
            try:
                return question(self._session)
            except WalInputError:
                self._forget_session()
        errors = []
        for address in self._order:
            try:
                session = SafekeeperSession(address)
            except WalInputError as error:
                errors.append(error)
                continue
            try:
                answer = question(session)
            except WalInputError as error:
                session.close()
                errors.append(error)
                continue
            self._session = session
            return answer
        raise none_answers(errors)

    def _forget_session(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None


def none_answers(errors: Sequence[WalInputError]) -> WalInputError:
    reasons = "; ".join(dict.fromkeys(map(str, errors)))
    hints = [error.hint for error in errors if error.hint]
    return WalInputError(
        f"no safekeeper answers: {reasons}",
        hint=hints[0] if hints else "One running safekeeper is enough. Check addresses and users.",
    )


class _Stream:
    """Reads a range, from whichever safekeeper serves it."""

    def __init__(
        self,
        addresses: Sequence[SafekeeperAddress],
        lsn: int,
        end_lsn: int | None,
        wait_seconds: float,
    ) -> None:
        self._addresses = addresses
        self._wait_seconds = wait_seconds
        self._lsn = lsn
        self._end_lsn = end_lsn
        self._server: ServerFacts | None = None
        self._heard_at = time.monotonic()

    def pieces(self) -> Generator[tuple[str, bytes], None, None]:
        """(safekeeper, bytes). Raises WalInputError, or LostWal if all have removed the WAL."""
        while not self._is_done():
            before_lsn, errors = self._lsn, dict[str, WalInputError]()
            for address in self._addresses:
                try:
                    with closing(SafekeeperSession(address)) as session:
                        yield from self._of_one(session)
                except LostWal:
                    raise
                except WalInputError as error:
                    errors[address.name] = error
                if self._lsn > before_lsn or self._is_done():
                    break
            if self._lsn == before_lsn and not self._is_done():
                self._check_failures(errors)
                time.sleep(RETRY_SECONDS)

    def _is_done(self) -> bool:
        return self._end_lsn is not None and self._lsn >= self._end_lsn

    def _of_one(self, session: SafekeeperSession) -> Iterator[tuple[str, bytes]]:
        position = session.position()
        self._check(position, session.name)
        if self._lsn < position.timeline_start_lsn:
            raise LostWal(
                self._lsn,
                f"no safekeeper has WAL from {format_lsn(self._lsn)} on: the log begins at "
                f"{format_lsn(position.timeline_start_lsn)}",
            )
        if self._end_lsn is None:
            self._end_lsn = max(position.commit_lsn, self._lsn)
        tli = position.history.tli_at(self._lsn)
        while not self._is_done():
            tli = position.history.tli_at(self._lsn)
            began_lsn = self._lsn
            for piece in session.stream(self._lsn, tli):
                if piece:
                    self._heard_at = time.monotonic()
                    wanted = piece[: self._end_lsn - self._lsn]
                    self._lsn += len(wanted)
                    yield session.name, wanted
                elif time.monotonic() - self._heard_at > self._wait_seconds / 4:
                    return  # it is disconnected from the proposer; another one may have the WAL
                if self._is_done():
                    return
            if self._lsn == began_lsn:
                return
            position = session.position()  # the timeline ended; the history may be longer now

    def _check(self, position: Position, name: str) -> None:
        server = self._server = self._server or position.server
        found = position.server
        if (found.system_id, found.wal_seg_size) != (server.system_id, server.wal_seg_size):
            raise WalInputError(
                f"safekeeper {name} has WAL of another server: expected system "
                f"{server.system_id}, found {found.system_id}",
                hint="Name the safekeepers of one cluster.",
            )

    def _check_failures(self, errors: Mapping[str, WalInputError]) -> None:
        """Raises an error unless a safekeeper that is unavailable or behind may have the WAL."""
        removed = {name: error for name, error in errors.items() if _is_removed(error)}
        missing = f"WAL from {format_lsn(self._lsn)} on"
        if all(address.name in removed for address in self._addresses):
            error = next(iter(removed.values()))
            raise LostWal(
                self._lsn,
                f"no safekeeper has {missing}: {error}",
                hint=error.hint or "Also name the archive with option path.",
            )
        if time.monotonic() - self._heard_at <= self._wait_seconds:
            return
        if removed:
            raise WalInputError(
                f"no safekeeper that answers has {missing}, but another one may have it: "
                + "; ".join(self._others(errors)),
                hint="Start it, or let it catch up. If it is lost for good, remove it from option "
                "safekeepers.",
            )
        if errors:
            raise none_answers(list(errors.values()))
        raise WalInputError(
            f"no safekeeper has {missing}, expected up to {format_lsn(self._end_lsn or 0)}"
        )

    def _others(self, errors: Mapping[str, WalInputError]) -> Iterator[str]:
        """Why the safekeepers that have not removed the WAL do not serve it."""
        for address in self._addresses:
            error = errors.get(address.name)
            if error is None:
                yield f"safekeeper {address.name} has not received it yet"
            elif not _is_removed(error):
                yield str(error)


def _is_removed(error: WalInputError) -> bool:
    return isinstance(error, SafekeeperRefused) and error.sqlstate == UNDEFINED_FILE
