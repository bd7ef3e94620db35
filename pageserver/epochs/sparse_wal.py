"""Writes WAL that has only some records of a range, each at its position.

    range     |R1|R2 |R3 |R4  |R5  ..  |  ..  R7  ..  |  ..  R8|R9 |R10|
    written   |NOOP  |R3 |FPI |SWITCH| |SWITCH|       |NOOP    |R9 |NOOP|
              segment                  segment        segment

Between two records, XLOG_SWITCH leads to the next segment, so that Postgres does not read the rest,
and XLOG NOOP, which has no effect, to the next record within a segment. All pages have headers that
fit. The records keep their bytes, but for the pointer to the previous record and the CRC.

A record may also write other pages as a whole, with an image or from nothing. Records that are left
out would have changed them, so a later record might not fit. XLOG_FPI with images of zeros makes
them pages that do not exist, which replay ignores as all others (`ignore_invalid_pages`).

Law: Postgres replays the given records, at the positions that they had, and no others that change a
page which one of them reads.
Sources: Postgres `access/xlog_internal.h`, `access/xlogrecord.h`, `XLogDecodeNextRecord` and
`RestoreBlockImage` in `xlogreader.c`, `XLogReadBufferForRedoExtended` in `xlogutils.c`,
`xlog_redo`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from quorum_wal.consensus.messages import ServerFacts
from quorum_wal.pgwal.block_ref import (
    BLOCK_ID_MAX,
    HAS_IMAGE,
    ID_DATA_LONG,
    ID_DATA_SHORT,
    IMAGE_HAS_HOLE,
)
from quorum_wal.pgwal.page import (
    WAL_PAGE_SIZE,
    XLP_CONTRECORD,
    XLP_LONG_HEADER,
    PageHeader,
    end_lsn_of_position,
    page_header_size,
    usable_position,
)
from quorum_wal.pgwal.record import (
    CRC_OFFSET,
    HEADER,
    RECORD_HEADER_SIZE,
    XLOG_SWITCH,
    aligned,
    record_crc,
)
from quorum_wal.pgwal.rmgr import RM_XLOG_ID
from quorum_wal.pgwal.segment import format_segment_name
from quorum_wal.pgwal.versions import wal_version

XLOG_NOOP, XLOG_FPI = 0x20, 0xB0
#: Postgres reads a whole record into memory.
NOOP_BYTES_MAX = 1 << 20

_PREV_OFFSET, _INFO_OFFSET = 8, 16
_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")
#: A block id that precedes the main data, and its length, in one byte or four.
_SHORT_DATA = struct.Struct("<BB")
_LONG_DATA = struct.Struct("<BI")
#: A block with an image: id, fork and flags, length of data; length of the image, offset of its
#: hole, flags; tablespace, database, file; block number.
_IMAGE = struct.Struct("<BBHHHBIIII")
ZEROED_MAX = BLOCK_ID_MAX + 1


class PageRef(NamedTuple):
    """A page, by the numbers that WAL has."""

    tablespace: int
    database: int
    number: int
    fork: int
    block: int


@dataclass(frozen=True, slots=True)
class WalRecord:
    """A record at `start_lsn`, with its header. `zeroed`: at most ZEROED_MAX pages that must not
    exist when it is replayed. Between it and the record before is room for zeroing_bytes()."""

    start_lsn: int
    content: bytes
    zeroed: tuple[PageRef, ...] = ()


def zeroing_bytes(count: int) -> int:
    """The least length of a record that makes so many pages ones that do not exist."""
    return RECORD_HEADER_SIZE + count * (_IMAGE.size + 1)


class SparseWal:
    """The WAL of `server` on timeline `tli` from a record's position on, written into `folder`.
    `give` is called with each new segment."""

    def __init__(
        self,
        server: ServerFacts,
        tli: int,
        begin_lsn: int,
        folder: Path,
        give: Callable[[Path], None],
    ) -> None:
        self._server = server
        self._tli = tli
        self._folder = folder
        self._give = give
        #: without page headers, see usable_position()
        self._position = usable_position(begin_lsn, server.wal_seg_size)
        self._last_lsn = 0
        self._page_lsn = self._segno = -1
        #: of the current segment: offsets and bytes
        self._parts: list[tuple[int, bytes]] = []

    def append(self, record: WalRecord) -> None:
        """Records must be in order, and must not overlap."""
        target = usable_position(record.start_lsn, self._server.wal_seg_size)
        if record.zeroed:
            self._put(self._zeroing(record.zeroed, target - self._position))
        self._fill(target)
        self._put(record.content)

    def finish(self, end_lsn: int) -> int:
        """The WAL ends there, which is the end of a record of the range. Returns the position of
        the last record."""
        self._fill(usable_position(end_lsn, self._server.wal_seg_size))
        self._flush()
        return self._last_lsn

    # ---- other records

    def _zeroing(self, pages: Sequence[PageRef], room: int) -> bytes:
        """A record that makes these pages ones that do not exist. It leaves no room, or enough for
        another record."""
        needed = zeroing_bytes(len(pages))
        length = aligned(needed)
        if 0 < room - length < RECORD_HEADER_SIZE:
            length = room
        assert length <= room, "the caller has checked the room"
        flags = IMAGE_HAS_HOLE | wal_version(self._server.pg_major).image_apply
        heads = [
            # The first image has the bytes that fill the record, too.
            _IMAGE.pack(number, page.fork | HAS_IMAGE, 0, 1 if number else 1 + length - needed,
                        1, flags, page.tablespace, page.database, page.number, page.block)
            for number, page in enumerate(pages)
        ]  # fmt: skip
        return _record(XLOG_FPI, b"".join(heads).ljust(length - RECORD_HEADER_SIZE, b"\0"))

    def _fill(self, target: int) -> None:
        while self._position != target:
            landing = self._after_switch()
            room = target - landing
            if room == 0 or room >= RECORD_HEADER_SIZE:
                self._put(_record(XLOG_SWITCH))
                self._position = landing
            else:
                gap = target - self._position
                self._put(_noop(gap if gap <= 2 * NOOP_BYTES_MAX else NOOP_BYTES_MAX))

    def _after_switch(self) -> int:
        """The position after a switch: the end of the segment that has its last byte."""
        seg_size = self._server.wal_seg_size
        end_lsn = end_lsn_of_position(self._position + RECORD_HEADER_SIZE, seg_size)
        return usable_position(-(-end_lsn // seg_size) * seg_size, seg_size)

    # ---- layout

    def _put(self, content: bytes) -> None:
        """Writes a record over as many pages as it needs."""
        record = content[:_PREV_OFFSET] + _U64.pack(self._last_lsn) + content[_INFO_OFFSET:]
        crc = _U32.pack(record_crc(record))
        record = record[:CRC_OFFSET] + crc + record[RECORD_HEADER_SIZE:]
        written = 0
        while written < len(record):
            lsn = self._start_page(len(record) - written if written else 0)
            if not written:
                self._last_lsn = lsn
            part = record[written : written + WAL_PAGE_SIZE - lsn % WAL_PAGE_SIZE]
            self._write(lsn, part)
            written += len(part)
            self._position += len(part)
        self._position = aligned(self._position)

    def _start_page(self, remaining_length: int) -> int:
        """The address of the next byte. Writes the header of its page, if this is the first byte of
        the page; the record before needs that many bytes of it."""
        seg_size = self._server.wal_seg_size
        lsn = end_lsn_of_position(self._position, seg_size)
        page_lsn = lsn - lsn % WAL_PAGE_SIZE
        if page_lsn != self._page_lsn:
            self._page_lsn = page_lsn
            self._start_segment(page_lsn)
            self._write(page_lsn, self._page_header(page_lsn, remaining_length))
        return max(lsn, page_lsn + page_header_size(page_lsn, seg_size))

    def _start_segment(self, page_lsn: int) -> None:
        """Postgres reads the first page of each segment."""
        segno, offset = divmod(page_lsn, self._server.wal_seg_size)
        if segno == self._segno:
            return
        self._flush()
        self._segno = segno
        if offset:
            self._write(page_lsn - offset, self._page_header(page_lsn - offset, 0))

    def _page_header(self, page_lsn: int, remaining_length: int) -> bytes:
        server = self._server
        is_first = page_lsn % server.wal_seg_size == 0
        return PageHeader(
            magic=wal_version(server.pg_major).page_magic,
            info=(remaining_length > 0) * XLP_CONTRECORD | is_first * XLP_LONG_HEADER,
            tli=self._tli,
            page_lsn=page_lsn,
            remaining_length=remaining_length,
            system_id=server.system_id if is_first else None,
            wal_seg_size=server.wal_seg_size if is_first else None,
            page_size=WAL_PAGE_SIZE if is_first else None,
        ).encode()

    def _write(self, lsn: int, data: bytes) -> None:
        """The file has holes instead of zeros."""
        if data.count(0) < len(data):
            self._parts.append((lsn % self._server.wal_seg_size, data))

    def _flush(self) -> None:
        if not self._parts:
            return
        seg_size = self._server.wal_seg_size
        path = self._folder / format_segment_name(self._tli, self._segno, seg_size)
        with path.open("xb") as file:
            for offset, data in self._parts:
                file.seek(offset)
                file.write(data)
            file.truncate(seg_size)
        self._give(path)
        self._parts.clear()


def _record(info: int, data: bytes = b"") -> bytes:
    """A record of the WAL code itself, without a transaction."""
    return HEADER.pack(RECORD_HEADER_SIZE + len(data), 0, 0, info, RM_XLOG_ID, 0) + data


def _noop(length: int) -> bytes:
    size = length - RECORD_HEADER_SIZE
    assert size == 0 or size >= 8, "records are aligned, and none is shorter than a header"
    if size == 0:
        return _record(XLOG_NOOP)
    if size - _SHORT_DATA.size <= 0xFF:
        head = _SHORT_DATA.pack(ID_DATA_SHORT, size - _SHORT_DATA.size)
    else:
        head = _LONG_DATA.pack(ID_DATA_LONG, size - _LONG_DATA.size)
    return _record(XLOG_NOOP, head.ljust(size, b"\0"))
