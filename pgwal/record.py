"""WAL records: the header, its checks, the checksum, and where a record ends.

    offset  0         4      8                16     17     18     20       24
            +---------+------+----------------+------+------+------+--------+------------------
            | tot_len | xid  | prev           | info | rmid | pad  | crc    | block headers, data
            +---------+------+----------------+------+------+------+--------+------------------


`tot_len` counts the header. Records start on 8-byte boundaries, so `tot_len` never crosses a page;
the rest of the header may. As Postgres counts, a record ends at the next 8-byte boundary; on a page
boundary that is the page's own address. XLOG_SWITCH, the only record without data, ends with its
segment.

No field of a record is trusted before the CRC is checked. Source: Postgres `access/xlogrecord.h`,
`xlogreader.c`, `xlog.c`.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from crc32c import crc32c

from quorum_wal.pgwal.errors import WalFormatError
from quorum_wal.pgwal.lsn import Lsn, format_lsn
from quorum_wal.pgwal.page import (
    WAL_PAGE_SIZE,
    end_lsn_of_position,
    page_header_size,
    usable_position,
)
from quorum_wal.pgwal.rmgr import RM_XLOG_ID, is_rmgr_id, rmgr_name
from quorum_wal.pgwal.versions import WalVersion

HEADER = struct.Struct("<IIQBB2xI")
RECORD_HEADER_SIZE = HEADER.size
assert RECORD_HEADER_SIZE == 24

#: The CRC covers the data behind the header, then the header up to the CRC itself.
CRC_OFFSET = 20

#: A reader needs each record in one allocation (MaxAllocSize); since 16 writers stop 4 MiB earlier.
RECORD_LENGTH_MAX = 0x3FFFFFFF

XLOG_SWITCH = 0x40
XLOG_OVERWRITE_CONTRECORD = 0xD0
#: Block id 255 and a length byte precede the data of a short record; its first field is an LSN.
_OVERWRITTEN_LSN = struct.Struct("<26xQ")
#: The upper bits of `info` belong to the resource manager, the lower ones to the WAL code.
_RMGR_INFO_MASK = 0xF0


@dataclass(slots=True)
class RecordHeader:
    """The fixed part of a record, as found."""

    total_length: int
    xid: int
    prev_lsn: int
    info: int
    rmgr_id: int
    crc: int

    def is_xlog(self, operation: int) -> bool:
        """Whether it is a record of the WAL code itself (RM_XLOG_ID) with this operation code."""
        return self.rmgr_id == RM_XLOG_ID and self.info & _RMGR_INFO_MASK == operation


@dataclass(slots=True)
class Record:
    """One whole, checked record; `data` includes its header, but no page headers."""

    start_lsn: Lsn
    end_lsn: Lsn
    total_length: int
    prev_lsn: Lsn
    xid: int
    rmgr_id: int
    info: int
    data: bytes

    def rmgr_name(self, version_major: int) -> str:
        return rmgr_name(self.rmgr_id, version_major)


def check_record_offset(lsn: int, wal_seg_size: int) -> None:
    """Raises WalFormatError unless `lsn` is a page's start, or a record can start there."""
    page_offset = lsn % WAL_PAGE_SIZE
    offset_min = page_header_size(lsn - page_offset, wal_seg_size)
    if page_offset % 8 or 0 < page_offset < offset_min:
        raise WalFormatError(
            lsn,
            f"invalid record offset at {format_lsn(lsn)}: "
            f"expected a multiple of 8 of at least {offset_min}, got {page_offset}",
        )


def check_record_length(total_length: int, start_lsn: int) -> None:
    """The first check; the only one possible before the whole header is read."""
    if total_length < RECORD_HEADER_SIZE:
        raise WalFormatError(
            start_lsn,
            f"invalid record length at {format_lsn(start_lsn)}: "
            f"expected at least {RECORD_HEADER_SIZE}, got {total_length}",
        )
    if total_length > RECORD_LENGTH_MAX:
        raise WalFormatError(
            start_lsn,
            f"invalid record length at {format_lsn(start_lsn)}: "
            f"expected at most {RECORD_LENGTH_MAX}, got {total_length}",
        )


def check_record_header(
    header: RecordHeader, start_lsn: int, prev_lsn: int | None, version: WalVersion
) -> None:
    """The checks of ValidXLogRecordHeader, in its order. Raises WalFormatError.

    `prev_lsn` is the start of the record before. It detects a torn page, where a stale record
    starts exactly where the new one should. None if unknown: then the link must only point back.
    """
    check_record_length(header.total_length, start_lsn)
    if not is_rmgr_id(header.rmgr_id, version):
        raise WalFormatError(
            start_lsn, f"invalid resource manager ID {header.rmgr_id} at {format_lsn(start_lsn)}"
        )
    if prev_lsn is None:
        if header.prev_lsn >= start_lsn:
            raise WalFormatError(
                start_lsn,
                f"record with incorrect prev-link {format_lsn(header.prev_lsn)} "
                f"at {format_lsn(start_lsn)}",
            )
    elif header.prev_lsn != prev_lsn:
        raise WalFormatError(
            start_lsn,
            f"record with incorrect prev-link {format_lsn(header.prev_lsn)} "
            f"(expected {format_lsn(prev_lsn)}) at {format_lsn(start_lsn)}",
        )


def record_crc(record: bytes) -> int:
    """The CRC-32C that the header of these bytes should have."""
    return crc32c(record[:CRC_OFFSET], crc32c(record[RECORD_HEADER_SIZE:]))


def check_record_crc(record: bytes, expected_crc: int, start_lsn: int) -> None:
    """Raises WalFormatError unless the bytes have this CRC."""
    _check_crc(record_crc(record), expected_crc, start_lsn)


def _check_crc(found_crc: int, expected_crc: int, start_lsn: int) -> None:
    if found_crc != expected_crc:
        raise WalFormatError(
            start_lsn,
            f"incorrect resource manager data checksum in record at {format_lsn(start_lsn)}",
        )


class SummedRecord:
    """A record read in parts: the checksum of all of it, but only its first bytes are kept, because
    a record may have a gibibyte."""

    #: Bytes kept: the header, and the data of XLOG_OVERWRITE_CONTRECORD.
    HEAD_BYTES = 64

    def __init__(self, begin: bytes) -> None:
        self.head = b""
        self._length = 0
        self._body_crc = 0
        self.extend(begin)

    def __len__(self) -> int:
        return self._length

    def extend(self, part: bytes) -> None:
        self.head += part[: max(0, self.HEAD_BYTES - self._length)]
        self._body_crc = crc32c(part[max(0, RECORD_HEADER_SIZE - self._length) :], self._body_crc)
        self._length += len(part)

    def check_crc(self, expected_crc: int, start_lsn: int) -> None:
        """Raises WalFormatError."""
        _check_crc(crc32c(self.head[:CRC_OFFSET], self._body_crc), expected_crc, start_lsn)


def check_overwriting(
    header: RecordHeader, record: bytes, start_lsn: int, expected_lsn: int
) -> None:
    """Checks the record that replaces a lost continuation: it must name the void record, which
    began at `expected_lsn`. Raises WalFormatError."""
    found_lsn = None
    if header.is_xlog(XLOG_OVERWRITE_CONTRECORD) and len(record) >= _OVERWRITTEN_LSN.size:
        (found_lsn,) = _OVERWRITTEN_LSN.unpack_from(record)
    if found_lsn != expected_lsn:
        found = "no such record" if found_lsn is None else format_lsn(found_lsn)
        raise WalFormatError(
            start_lsn,
            f"mismatching overwritten LSN at {format_lsn(start_lsn)}: "
            f"expected {format_lsn(expected_lsn)}, got {found}",
        )


def aligned(length: int) -> int:
    """`length` rounded up to the 8 bytes that records are aligned to (MAXALIGN)."""
    return (length + 7) & ~7


def record_end_lsn(start_lsn: int, total_length: int, wal_seg_size: int) -> int:
    """Where a record ends unless its continuation is overwritten; only by arithmetic."""
    if total_length == RECORD_HEADER_SIZE:
        # Only XLOG_SWITCH is a bare header (ReserveXLogInsertLocation asserts it). Its own end may
        # lie on the segment boundary; then no further segment is skipped.
        bare_end_lsn = start_lsn + RECORD_HEADER_SIZE
        return -(-bare_end_lsn // wal_seg_size) * wal_seg_size
    position = usable_position(start_lsn, wal_seg_size) + aligned(total_length)
    return end_lsn_of_position(position, wal_seg_size)
