"""WAL pages of 8 KiB: their headers, the checks of a header, and positions without headers.

    offset  0        2       4      8              16         20      24
            +--------+-------+------+--------------+----------+-------+
    short   | magic  | info  | tli  | pageaddr     | rem_len  | pad   |   every page, 24 bytes
            +--------+-------+------+--------------+----------+-------+
            24                    32               36                40
            +---------------------+----------------+-----------------+
    long    | system identifier   | segment size   | page size       |   the first page of a segment
            +---------------------+----------------+-----------------+


All fields are little-endian, as on the servers that we read from. A record that does not fit
continues behind the next page's header. That header has CONTRECORD set and holds the number of
bytes still to come. Source: Postgres `access/xlog_internal.h`, `xlogreader.c`, `xlog.c`.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntFlag

from quorum_wal.pgwal.errors import WalFormatError
from quorum_wal.pgwal.lsn import format_lsn
from quorum_wal.pgwal.versions import WalVersion

WAL_PAGE_SIZE = 8192

_SHORT = struct.Struct("<HHIQI4x")
_LONG = struct.Struct("<QII")

SHORT_HEADER_SIZE = _SHORT.size
LONG_HEADER_SIZE = _SHORT.size + _LONG.size
assert (SHORT_HEADER_SIZE, LONG_HEADER_SIZE) == (24, 40)


class PageFlag(IntFlag):
    """Bits of `xlp_info`."""

    #: The page begins with the rest of a record that started on an earlier page.
    CONTRECORD = 0x0001
    LONG_HEADER = 0x0002
    #: Page images that start here may be stripped when archiving; no program reads it.
    BKP_REMOVABLE = 0x0004
    #: The rest of a record was lost in a crash: that record is void, and a new one starts here.
    OVERWRITE_CONTRECORD = 0x0008


# Plain ints for the code that runs once per page.
XLP_CONTRECORD = int(PageFlag.CONTRECORD)
XLP_LONG_HEADER = int(PageFlag.LONG_HEADER)
XLP_OVERWRITE_CONTRECORD = int(PageFlag.OVERWRITE_CONTRECORD)
_ALL_FLAGS = 0x000F


@dataclass(frozen=True, slots=True)
class PageHeader:
    """A page header as read, unchecked; the last three fields are None in a short one."""

    magic: int
    info: int
    tli: int
    page_lsn: int
    #: Bytes of the continued record still to come, including this page; 0 if none.
    remaining_length: int
    system_id: int | None = None
    wal_seg_size: int | None = None
    page_size: int | None = None

    def encode(self) -> bytes:
        short = _SHORT.pack(self.magic, self.info, self.tli, self.page_lsn, self.remaining_length)
        if self.system_id is None:
            return short
        return short + _LONG.pack(self.system_id, self.wal_seg_size, self.page_size)

    @property
    def size(self) -> int:
        return SHORT_HEADER_SIZE if self.system_id is None else LONG_HEADER_SIZE

    @property
    def is_contrecord(self) -> bool:
        return self.info & XLP_CONTRECORD != 0

    @property
    def is_overwrite_contrecord(self) -> bool:
        return self.info & XLP_OVERWRITE_CONTRECORD != 0


def page_header_size(page_lsn: int, wal_seg_size: int) -> int:
    """The size of the header at `page_lsn`: long on a segment's first page only."""
    return SHORT_HEADER_SIZE if page_lsn % wal_seg_size else LONG_HEADER_SIZE


def parse_page_header(page: bytes, offset: int = 0) -> PageHeader | None:
    """The header at `offset`, unchecked; None if there are too few bytes to hold it."""
    if len(page) - offset < SHORT_HEADER_SIZE:
        return None
    short = _SHORT.unpack_from(page, offset)
    if not short[1] & XLP_LONG_HEADER:
        return PageHeader(*short)
    if len(page) - offset < LONG_HEADER_SIZE:
        return None
    return PageHeader(*short, *_LONG.unpack_from(page, offset + SHORT_HEADER_SIZE))


def check_page_header(
    header: PageHeader,
    page_lsn: int,
    *,
    version: WalVersion,
    wal_seg_size: int,
    system_id: int | None,
    tli_min: int = 0,
) -> None:
    """The checks of XLogReaderValidatePageHeader, in its order. Raises WalFormatError.

    `system_id` None leaves the system identifier unchecked. `tli_min` is the timeline of the page
    before: children have greater ids than their parents, so timelines never decrease. One check is
    our own: a long header behind a segment's first page is refused. No Postgres writes one, and
    positions are computed without reading headers (`usable_position`).
    """

    def damaged(message: str) -> WalFormatError:
        return WalFormatError(page_lsn, f"{message} in WAL page at {format_lsn(page_lsn)}")

    if header.magic != version.page_magic:
        raise damaged(
            f"invalid magic number {header.magic:04X} (expected {version.page_magic:04X})"
        )
    is_long = header.info & XLP_LONG_HEADER != 0
    if header.info & ~_ALL_FLAGS or is_long != (page_lsn % wal_seg_size == 0):
        raise damaged(f"invalid info bits {header.info:04X}")
    if is_long:
        if system_id is not None and header.system_id != system_id:
            raise damaged(
                f"WAL is from a different database system: system identifier {header.system_id} "
                f"(expected {system_id})"
            )
        if header.wal_seg_size != wal_seg_size:
            raise damaged(f"segment size {header.wal_seg_size} (expected {wal_seg_size})")
        if header.page_size != WAL_PAGE_SIZE:
            raise damaged(f"page size {header.page_size} (expected {WAL_PAGE_SIZE})")
    # Typically fails where a recycled segment is not overwritten yet.
    if header.page_lsn != page_lsn:
        raise damaged(f"unexpected pageaddr {format_lsn(header.page_lsn)}")
    if header.tli < tli_min:
        raise damaged(f"out-of-sequence timeline ID {header.tli} (after {tli_min})")
    if header.is_contrecord != (header.remaining_length > 0):
        raise damaged(
            f"remaining length {header.remaining_length} disagrees with info bits {header.info:04X}"
        )


def check_continuation(page: PageHeader, missing: int) -> None:
    """Checks that the page continues a record with `missing` bytes to come. Raises
    WalFormatError."""
    at = format_lsn(page.page_lsn)
    if not page.is_contrecord:
        raise WalFormatError(page.page_lsn, f"there is no contrecord flag at {at}")
    if page.remaining_length != missing:
        raise WalFormatError(
            page.page_lsn,
            f"invalid contrecord length {page.remaining_length} (expected {missing}) at {at}",
        )


def usable_position(lsn: int, wal_seg_size: int) -> int:
    """The number of record bytes before `lsn`, without page headers (XLogRecPtrToBytePos).

    On this scale a record is one contiguous run of bytes, even across pages and segments.
    """
    segno, segment_offset = divmod(lsn, wal_seg_size)
    page_number, page_offset = divmod(segment_offset, WAL_PAGE_SIZE)
    position = segno * _usable_per_segment(wal_seg_size)
    if page_number > 0:
        position += (WAL_PAGE_SIZE - LONG_HEADER_SIZE) + (page_number - 1) * _USABLE_PER_PAGE
    if page_offset > 0:
        position += page_offset - page_header_size(lsn - page_offset, wal_seg_size)
    return position


def end_lsn_of_position(position: int, wal_seg_size: int) -> int:
    """The LSN of a record that ends at `position` (XLogBytePosToEndRecPtr).

    On a page boundary it is the page's own address, not the address behind its header.
    """
    segno, rest = divmod(position, _usable_per_segment(wal_seg_size))
    lsn = segno * wal_seg_size
    if rest <= WAL_PAGE_SIZE - LONG_HEADER_SIZE:
        return lsn + (rest + LONG_HEADER_SIZE if rest else 0)
    page_number, rest = divmod(rest - (WAL_PAGE_SIZE - LONG_HEADER_SIZE), _USABLE_PER_PAGE)
    return lsn + (page_number + 1) * WAL_PAGE_SIZE + (rest + SHORT_HEADER_SIZE if rest else 0)


_USABLE_PER_PAGE = WAL_PAGE_SIZE - SHORT_HEADER_SIZE


def _usable_per_segment(wal_seg_size: int) -> int:
    pages = wal_seg_size // WAL_PAGE_SIZE
    return pages * _USABLE_PER_PAGE - (LONG_HEADER_SIZE - SHORT_HEADER_SIZE)
