"""Checking whole segments by their records: CRC, prev-links, page headers and their timelines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from quorum_wal.pgwal.errors import WalFormatError
from quorum_wal.pgwal.walker import RecordWalker
from quorum_wal.safekeeper.errors import WalDamaged

#: Bytes decoded at a time: about 0.4 ms in which no other thread runs.
SLICE_BYTES = 64 * 1024

Read = Callable[[int, int], bytes]


@dataclass(frozen=True, slots=True)
class WalFacts:
    """The properties that all WAL of a log must have, and where the log begins here."""

    wal_seg_size: int
    pg_major: int
    system_id: int
    tli_at: Callable[[int], int]
    first_lsn: int


class RecordCheck:
    """Decodes a log from a segment's start, a slice at a time. If the first record begins before
    that, its rest is checked by its page headers only."""

    def __init__(self, read: Read, begin_lsn: int, facts: WalFacts) -> None:
        self._read = read
        self._seg_size = facts.wal_seg_size
        self._walker = RecordWalker(
            begin_lsn,
            wal_seg_size=facts.wal_seg_size,
            version_major=facts.pg_major,
            system_id=facts.system_id,
            tli_at=facts.tli_at,
            skip_continuation=True,
            keeps_records=False,
        )

    @property
    def record_end_lsn(self) -> int:
        """Every record below is valid."""
        return self._walker.record_end_lsn

    @property
    def fed_lsn(self) -> int:
        return self._walker.fed_lsn

    def step(self) -> int:
        """Checks the next slice, of one segment; returns its length. Raises WalDamaged,
        StorageError."""
        walker = self._walker
        length = min(SLICE_BYTES, self._seg_size - walker.fed_lsn % self._seg_size)
        data = self._read(walker.fed_lsn, length)
        walker.feed(data)
        try:
            walker.skip_records()
        except WalFormatError as error:
            raise WalDamaged(walker.record_end_lsn, str(error), walker.fed_lsn) from error
        return len(data)


def check_records(read: Read, begin_lsn: int, end_lsn: int, facts: WalFacts) -> None:
    """Checks all records that begin in [begin_lsn, end_lsn), both starts of segments, as far as
    `read` has their bytes. Raises WalDamaged, StorageError."""
    check = RecordCheck(read, begin_lsn, facts)
    while check.record_end_lsn < end_lsn:
        try:
            length = check.step()
        except WalDamaged as damage:
            if damage.lsn >= end_lsn:
                return  # above the records to check
            raise
        if not length:
            if check.fed_lsn < end_lsn:
                raise WalDamaged(check.fed_lsn, "it is missing")
            return
