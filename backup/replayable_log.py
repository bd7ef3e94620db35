"""The log that a restore can replay: where it ends, and which transactions end in it.

Segments are read one at a time from any source. Records are checked as in recovery.
Source: Postgres `access/xact.h`, `xactdesc.c`.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from quorum_wal.backup.errors import BackupError
from quorum_wal.backup.target import LogEnd, TransactionEnd
from quorum_wal.backup.wal_source import WalSource
from quorum_wal.consensus.messages import ServerFacts
from quorum_wal.pgwal.block_ref import decode_body
from quorum_wal.pgwal.errors import WalFormatError
from quorum_wal.pgwal.history import TimelineHistory
from quorum_wal.pgwal.lsn import format_lsn
from quorum_wal.pgwal.record import Record
from quorum_wal.pgwal.segment import format_segment_name
from quorum_wal.pgwal.walker import RecordWalker

RM_XACT_ID = 1
# xl_info of transaction records; the highest bit says that the record has more information
OPERATION_MASK = 0x70
XACT_COMMIT, XACT_ABORT, XACT_COMMIT_PREPARED, XACT_ABORT_PREPARED = 0x00, 0x20, 0x30, 0x40
ENDS = (XACT_COMMIT, XACT_ABORT, XACT_COMMIT_PREPARED, XACT_ABORT_PREPARED)
XACT_HAS_INFO = 0x80
# flags of that information, in the order in which their data follows
HAS_DATABASE, HAS_SUBXACTS, HAS_RELATIONS = 0x01, 0x02, 0x04
HAS_DROPPED_STATS, HAS_INVALIDATIONS, HAS_TWOPHASE = 0x100, 0x08, 0x10
TIME = struct.Struct("<q")
UINT = struct.Struct("<I")
POSTGRES_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class ReplayableLog:
    """[begin_lsn, end_lsn) of `history`. `sources` are tried in this order; begin_lsn is the start
    of a segment. Every method raises BackupError, ObjectStoreError, WalError."""

    server: ServerFacts
    sources: Sequence[WalSource]
    history: TimelineHistory
    begin_lsn: int
    end_lsn: int

    def end(self) -> LogEnd:
        """Searches the last commit backwards from the end, in ranges that double in length."""
        last_segno = (self.end_lsn - 1) // self._seg_size
        segments = 1
        while True:
            begin_lsn = max(self.begin_lsn, (last_segno + 1 - segments) * self._seg_size)
            walker = self._walker(begin_lsn)
            commits = (end for end in self._transaction_ends(walker) if end.is_commit)
            last = next(iter(deque(commits, maxlen=1)), None)
            if last is not None or begin_lsn == self.begin_lsn:
                return LogEnd(walker.record_end_lsn, last, walker.last_record_lsn or 0)
            segments *= 2

    def find_xid(self, xid: int, from_lsn: int) -> TransactionEnd | None:
        """The first end of that transaction after `from_lsn`. Reads the log up to that record."""
        ends = self._transaction_ends(self._walker(from_lsn - from_lsn % self._seg_size))
        return next((end for end in ends if end.xid == xid and end.end_lsn > from_lsn), None)

    @property
    def _seg_size(self) -> int:
        return self.server.wal_seg_size

    def _walker(self, begin_lsn: int) -> RecordWalker:
        return RecordWalker(
            begin_lsn,
            wal_seg_size=self._seg_size,
            version_major=self.server.pg_major,
            system_id=self.server.system_id,
            skip_continuation=True,
        )

    def _transaction_ends(self, walker: RecordWalker) -> Iterator[TransactionEnd]:
        """The transaction ends from the walker's position on, which is the start of a segment."""
        while walker.fed_lsn < self.end_lsn:
            walker.feed(self._read(walker.fed_lsn))
            while isinstance(record := walker.next(), Record):
                if record.rmgr_id == RM_XACT_ID and record.info & OPERATION_MASK in ENDS:
                    yield _transaction_end(record, self.server.pg_major)

    def _read(self, lsn: int) -> bytes:
        """The segment at `lsn`, up to the end of the log."""
        end_lsn = min(lsn + self._seg_size, self.end_lsn)
        tli = self.history.tli_at(end_lsn - 1)
        name = format_segment_name(tli, lsn // self._seg_size, self._seg_size)
        found = 0
        for source in self.sources:
            content = source.segment(name)
            if len(content) >= end_lsn - lsn:
                return content[: end_lsn - lsn]
            found = max(found, len(content))
        raise BackupError(
            f"WAL up to {format_lsn(end_lsn)} is expected, but segment {name} ends at "
            f"{format_lsn(lsn + found)}",
            hint="sk archive verify shows what is missing.",
        )


def _transaction_end(record: Record, version_major: int) -> TransactionEnd:
    main_data = decode_body(record, version_major).main_data
    try:
        (microseconds,) = TIME.unpack_from(main_data)
        xid = _ended_xid(record, main_data, version_major)
    except struct.error as error:
        start_lsn = int(record.start_lsn)
        raise WalFormatError(
            start_lsn, f"invalid end of a transaction at {format_lsn(start_lsn)}: {error}"
        ) from error
    return TransactionEnd(
        xid=xid,
        time=POSTGRES_EPOCH + timedelta(microseconds=microseconds),
        end_lsn=int(record.end_lsn),
        is_commit=record.info & OPERATION_MASK in (XACT_COMMIT, XACT_COMMIT_PREPARED),
    )


def _ended_xid(record: Record, main_data: bytes, version_major: int) -> int:
    """The transaction that ends. COMMIT PREPARED runs in another transaction, so the record has
    the xid of the prepared one after all its lists (ParseCommitRecord). Raises struct.error."""
    if record.info & OPERATION_MASK in (XACT_COMMIT, XACT_ABORT):
        return record.xid
    offset = TIME.size
    (flags,) = UINT.unpack_from(main_data, offset) if record.info & XACT_HAS_INFO else (0,)
    offset += UINT.size
    if flags & HAS_DATABASE:
        offset += 8
    for flag, item_bytes in (
        (HAS_SUBXACTS, 4),
        (HAS_RELATIONS, 12),
        (HAS_DROPPED_STATS, 16 if version_major >= 18 else 12),
        (HAS_INVALIDATIONS, 16),
    ):
        if flags & flag:
            (items,) = UINT.unpack_from(main_data, offset)
            offset += UINT.size + items * item_bytes
    if not flags & HAS_TWOPHASE:
        return 0
    return int(UINT.unpack_from(main_data, offset)[0])
