"""A physical slot on each safekeeper, which keeps WAL until a stream has committed it.

    slot's restart_lsn     committed offset         end of the running batch
           |---------------------|---------------------------|------> commit_lsn
           may lag by a segment, or while a safekeeper is unavailable; never ahead

Law: the slot moves to the start of a batch, never to its end. Spark plans a batch after the one
before is committed, and after any crash it reads from there again. Safekeepers keep whole segments,
so the slot moves only when the segment changes.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing

import structlog

from quorum_wal.pgclient.errors import UNDEFINED_FILE
from quorum_wal.pgwal.lsn import format_lsn
from quorum_wal.pgwire.commands import quote_name
from quorum_wal.spark.errors import WalInputError
from quorum_wal.spark.inputs.safekeeper_input import none_answers
from quorum_wal.spark.inputs.safekeeper_session import (
    SafekeeperAddress,
    SafekeeperRefused,
    SafekeeperSession,
)

log = structlog.get_logger()

UNDEFINED_OBJECT = "42704"
#: an unavailable safekeeper must not delay every batch of the stream
RETRY_SECONDS = 30.0


class StreamSlot:
    """The slot of one stream. Two streams must not share one: the slower one would lose WAL."""

    def __init__(self, name: str, addresses: Sequence[SafekeeperAddress]) -> None:
        self._name = name
        self._addresses = tuple(addresses)
        self._held_segno: dict[SafekeeperAddress, int] = {}
        self._retry_at: dict[SafekeeperAddress, float] = {}

    def hold(self, lsn: int, wal_seg_size: int) -> None:
        """Keeps WAL from `lsn` on, and none below. Creates missing slots; an unavailable safekeeper
        is retried later. Raises WalInputError if it has never succeeded on any safekeeper."""
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
        """Drops it on every safekeeper. A missing slot is not an error. Raises WalInputError."""
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
                f"safekeeper {session.name} is behind: it has committed up to "
                f"{format_lsn(position.commit_lsn)}, but {format_lsn(lsn)} has been read"
            )
        try:
            session.report_flushed(self._name, lsn, position.history.tli_at(lsn))
        except SafekeeperRefused as error:
            if error.sqlstate == UNDEFINED_FILE:
                return  # the WAL is read from the archive; there is nothing to keep here
            if error.sqlstate != UNDEFINED_OBJECT:
                raise
            # Without RESERVE_WAL, which would reserve from the newest WAL instead of from `lsn`.
            session.execute(f"CREATE_REPLICATION_SLOT {quote_name(self._name)} PHYSICAL")
            self._move(session, lsn)
