"""A log for archives: real pages and records, cut into segments; always the same."""

from __future__ import annotations

from functools import cache

from wal_log import PG_VERSION, SYSTEM_ID, WAL_SEG_SIZE, WalLog

from quorum_wal.consensus.ids import TimelineId
from quorum_wal.objectstore.archive import ArchivedTimeline

SEG_SIZE = WAL_SEG_SIZE
TIMELINE = TimelineId(b"tenant".ljust(16), b"timeline".ljust(16))
FIRST_SEGNO = 3
LAST_SEGNO = 12
RECORD_BYTES = 5000


@cache
def log() -> WalLog:
    """From FIRST_SEGNO on; it ends inside the segment after LAST_SEGNO."""
    builder = WalLog(FIRST_SEGNO * SEG_SIZE)
    number = 0
    while builder.lsn <= (LAST_SEGNO + 1) * SEG_SIZE:
        builder.append(f"r{number}", RECORD_BYTES)
        number += 1
    return builder


@cache
def log_of(segno: int) -> bytes:
    """A whole segment."""
    return log().read(segno * SEG_SIZE, (segno + 1) * SEG_SIZE)


def log_facts(start_segno: int = FIRST_SEGNO) -> ArchivedTimeline:
    return ArchivedTimeline(SYSTEM_ID, PG_VERSION, SEG_SIZE, 1, start_segno * SEG_SIZE)
