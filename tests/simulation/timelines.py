"""Postgres timelines as the log itself has them: the TLI in the header of every page of WAL.

A ballot has one primary, and so one timeline history, which every safekeeper that follows it has.
"""

from __future__ import annotations

import struct

from quorum_wal.pgwal.history import TimelineHistory

from .log import PAGE_SIZE, START_LSN, Log

#: Magic, info, and the timeline of a page.
_TLI = struct.Struct("<H2xI")


def tli_at(history: TimelineHistory, lsn: int) -> int:
    """The timeline that wrote the byte at `lsn`."""
    left = [entry.tli for entry in history.entries if lsn < entry.switch_lsn]
    return left[0] if left else history.tli


def foreign_page(history: TimelineHistory, log: Log, begin_lsn: int, end_lsn: int) -> str:
    """The first page that begins in [begin_lsn, end_lsn) and names another timeline than `history`;
    "" if there is none."""
    for page_lsn in range(begin_lsn + -begin_lsn % PAGE_SIZE, end_lsn - _TLI.size + 1, PAGE_SIZE):
        magic, tli = _TLI.unpack_from(log.wal, page_lsn - START_LSN)
        expected = tli_at(history, page_lsn)
        if magic and tli != expected:  # the zeros after an XLOG_SWITCH have no header
            return f"the page at {page_lsn:X} is of timeline {tli}, expected {expected}"
    return ""
