"""A physical slot on each safekeeper, so that WAL stays there until a stream has committed it.

    slot's restart_lsn     committed offset         end of the running batch
           |---------------------|---------------------------|------> commit_lsn
           may lag, as long as a segment or a safekeeper that is away; never leads

Law: it is moved to where a batch begins, never to where one ends: Spark plans a batch when the one
before has been committed, and after any crash it reads from there again. Safekeepers keep whole
segments, so it is moved when the segment changes.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing

import structlog

from pgclient.errors import UNDEFINED_FILE
from pgwal.lsn import format_lsn
from pgwire.commands import quote_name
from spark.errors import WalInputError
from spark.inputs.joined_input import JoinedInput
from spark.inputs.safekeeper_input import SafekeeperInput, none_answers
from spark.inputs.safekeeper_session import (
    SafekeeperAddress,
    SafekeeperRefused,
    SafekeeperSession,
)
from spark.sources.input_options import InputOptions

log = structlog.get_logger()

UNDEFINED_OBJECT = "42704"
#: a safekeeper that is away must not keep the stream waiting at every batch
RETRY_SECONDS = 30.0


class StreamSlot:
    """One stream's; two streams with one slot would lose WAL of the slower one."""

    def __init__(self, name: str, addresses: Sequence[SafekeeperAddress]) -> None:
        self._name = name
        self._addresses = tuple(addresses)
        self._held_segno: dict[SafekeeperAddress, int] = {}
        self._retry_at: dict[SafekeeperAddress, float] = {}

    def hold(self, lsn: int, wal_seg_size: int) -> None:
        """WAL from `lsn` on is needed, and nothing below. Slots that are missing are made; a
        safekeeper that is away is told later. Raises WalInputError if none was ever told."""
        segno, now = lsn // wal_seg_size, time.monotonic()
        errors = []
        for address in self._addresses:
            if self._held_segno.get(address) == segno or now < self._retry_at.get(address, now):
                continue
            try:
                with closing(SafekeeperSession(address)) as session:
                    self._move(session, lsn)
                self._held_segno[address] = segno
            except WalInputError as error:
                log.warning("slot not moved", slot=self._name, reason=str(error))
                self._retry_at[address] = time.monotonic() + RETRY_SECONDS
                errors.append(error)
        if errors and not self._held_segno:
            raise none_answers(errors)

    def drop(self) -> None:
        """On every safekeeper that can be reached; what does not exist is dropped already."""
        for address in self._addresses:
            with closing(SafekeeperSession(address)) as session:
                try:
                    session.execute(f"DROP_REPLICATION_SLOT {quote_name(self._name)}")
                except SafekeeperRefused as error:
                    if error.sqlstate != UNDEFINED_OBJECT:
                        raise

    def _move(self, session: SafekeeperSession, lsn: int) -> None:
        position = session.position()
        if position.commit_lsn < lsn:
            raise WalInputError(
                f"safekeeper {session.name} is behind: {format_lsn(position.commit_lsn)} is "
                f"committed there, {format_lsn(lsn)} has been read"
            )
        try:
            session.tell_flushed(self._name, lsn, position.history.tli_at(lsn))
        except SafekeeperRefused as error:
            if error.sqlstate == UNDEFINED_FILE:
                return  # read from the archive as yet; there is nothing here to hold
            if error.sqlstate != UNDEFINED_OBJECT:
                raise
            # Without RESERVE_WAL, which would begin at the newest WAL instead of at `lsn`.
            session.execute(f"CREATE_REPLICATION_SLOT {quote_name(self._name)} PHYSICAL")
            self._move(session, lsn)


def slot_of(options: InputOptions) -> StreamSlot | None:
    """That of option `slot`."""
    if options.slot is None:
        return None
    wal_input = options.wal_input
    safekeepers = wal_input.safekeepers if isinstance(wal_input, JoinedInput) else wal_input
    assert isinstance(safekeepers, SafekeeperInput)
    return StreamSlot(options.slot, safekeepers.addresses)
