"""The end of the WAL: how far a log on disk is valid, found by decoding it.

Anything may follow the last whole record: the torn rest of a record, zeros, pages of a recycled
segment, or no file. The first bytes that do not continue the log end it.

Laws. The end is a record boundary, and every byte below it can be read (but for the padding to 8).
An XLOG_SWITCH counts only if its segment can be read to its end. If the start lies inside a record
(a log may begin with a segment in the middle of one), only the page headers of the record's rest
are checked: its CRC cannot be computed, because its head is missing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from quorum_wal.pgwal.errors import WalFormatError
from quorum_wal.pgwal.lsn import Lsn, format_lsn
from quorum_wal.pgwal.walker import RecordWalker

#: Large enough that the cost of calls is negligible, small enough for the processor's cache.
READ_LENGTH = 256 * 1024


@dataclass(frozen=True, slots=True)
class EndOfWal:
    """The end of the log; `last_record_lsn` is 0 if there is no record; `reason` is a message."""

    end_lsn: Lsn
    last_record_lsn: Lsn
    reason: str


def find_end_of_wal(
    read: Callable[[int, int], bytes],
    start_lsn: int,
    *,
    wal_seg_size: int,
    version_major: int,
    system_id: int | None = None,
    tli_at: Callable[[int], int] | None = None,
) -> EndOfWal:
    """Decodes from `start_lsn`, with CRC and prev-link, to the first invalid byte.

    `start_lsn` is a record boundary, or the start of a segment, where the rest of an older record
    is skipped. `read(lsn, length)` returns up to `length` bytes of one segment, and fewer only
    where no more exist. The first record's prev-link cannot be checked, as the record before is not
    known. `tli_at(page_lsn)` is the timeline that a page must name, which no checksum covers; None
    leaves it unchecked.
    """
    walker = RecordWalker(
        start_lsn,
        wal_seg_size=wal_seg_size,
        version_major=version_major,
        system_id=system_id,
        tli_at=tli_at,
        skip_continuation=start_lsn % wal_seg_size == 0,
        keeps_records=False,
    )
    reason = ""
    while not reason:
        length = min(READ_LENGTH, wal_seg_size - walker.fed_lsn % wal_seg_size)
        data = read(walker.fed_lsn, length)
        walker.feed(data)
        try:
            walker.skip_records()
        except WalFormatError as error:
            reason = str(error)
        else:
            if len(data) < length:
                reason = f"there is no WAL at {format_lsn(walker.fed_lsn)}"
    return EndOfWal(Lsn(walker.record_end_lsn), Lsn(walker.last_record_lsn or 0), reason)
