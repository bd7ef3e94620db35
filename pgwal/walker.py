"""`RecordWalker`: takes WAL bytes and returns whole, checked records; sans-IO, forwards only.

    feed(bytes)      the bytes that follow those fed before
    next()           -> Record | NEED_DATA; raises WalFormatError where the WAL is not valid
    skip_records()   the same without building records: only the positions advance

A record is returned when all of its bytes have been fed. For XLOG_SWITCH that includes the rest of
its segment, whatever it contains: Postgres writes zeros there, but after a crash stale pages may be
left. After an error the walker stops, and raises the same error again.

Law: a record is returned only if xlogreader.c would accept its page headers, record header,
prev-link and CRC. Its content is decoded elsewhere (`block_ref.py`).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator
from enum import Enum, auto
from typing import Literal

from crc32c import crc32c

from quorum_wal.pgwal.errors import WalFormatError
from quorum_wal.pgwal.lsn import Lsn, format_lsn
from quorum_wal.pgwal.page import (
    WAL_PAGE_SIZE,
    PageHeader,
    check_continuation,
    check_page_header,
    parse_page_header,
)
from quorum_wal.pgwal.record import (
    CRC_OFFSET,
    HEADER,
    RECORD_HEADER_SIZE,
    XLOG_SWITCH,
    Record,
    RecordHeader,
    SummedRecord,
    aligned,
    check_overwriting,
    check_record_crc,
    check_record_header,
    check_record_length,
    check_record_offset,
)
from quorum_wal.pgwal.rmgr import RM_MAX_BUILTIN_ID
from quorum_wal.pgwal.segment import check_wal_seg_size
from quorum_wal.pgwal.versions import wal_version

_LENGTH = struct.Struct("<I")


class NeedData(Enum):
    """The type of NEED_DATA: the bytes fed contain no further whole record."""

    NEED_DATA = auto()


NEED_DATA: Literal[NeedData.NEED_DATA] = NeedData.NEED_DATA


_Walk = Generator[Record | Literal[NeedData.NEED_DATA], None, None]


class RecordWalker:
    """Decodes the records from `start_lsn` on.

    `start_lsn` is the position of the first byte fed: a record boundary (a page address counts) or
    the start of a record. With `skip_continuation` it may be a page address inside a record, whose
    rest is then skipped unchecked (XLogFindNextRecord).
    `prev_lsn` is the start of the record before `start_lsn`, None if unknown. `system_id` None
    leaves the system identifier unchecked. `tli_at` returns the timeline that a page must have;
    None allows every timeline that does not decrease. `check_crc` False trusts records unchecked.
    `keeps_records` False keeps no record in memory, which may be large; then only skip_records() is
    allowed.
    """

    def __init__(
        self,
        start_lsn: int,
        *,
        wal_seg_size: int,
        version_major: int,
        system_id: int | None = None,
        tli_at: Callable[[int], int] | None = None,
        prev_lsn: int | None = None,
        skip_continuation: bool = False,
        check_crc: bool = True,
        keeps_records: bool = True,
    ) -> None:
        check_wal_seg_size(wal_seg_size)
        check_record_offset(start_lsn, wal_seg_size)
        self._version = wal_version(version_major)
        self._wal_seg_size = wal_seg_size
        self._system_id = system_id
        self._tli_at = tli_at
        self._check_crc = check_crc
        self._keeps_records = keeps_records

        #: Invariant: the end of the last whole record, or `start_lsn`; a record boundary.
        self.record_end_lsn = start_lsn
        #: Start of the last whole record; None before the first, if `prev_lsn` was unknown.
        self.last_record_lsn = prev_lsn

        #: The bytes fed; those before `_lsn` are finished. `_lsn` may be ahead of them in padding.
        self._buffer = b""
        self._buffer_lsn = start_lsn
        self._lsn = start_lsn
        self._page_tli = 0
        self._builds_records = True
        #: Set while the record that replaces a lost continuation is due: start of the void record.
        self._overwritten_lsn: int | None = None
        self._failure: WalFormatError | None = None
        self._walk = self._walk_wal(skip_continuation)

    @property
    def fed_lsn(self) -> int:
        """The position of the next byte to feed."""
        return self._buffer_lsn + len(self._buffer)

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        """Takes the bytes at `fed_lsn`; any length."""
        unread = self.fed_lsn - self._lsn
        if unread > 0:
            self._buffer = self._buffer[-unread:] + data
            self._buffer_lsn = self._lsn
        else:
            self._buffer_lsn = self.fed_lsn
            self._buffer = bytes(data)

    def next(self) -> Record | Literal[NeedData.NEED_DATA]:
        """The next whole record, or NEED_DATA. Raises WalFormatError, and again after that."""
        assert self._keeps_records
        self._builds_records = True
        return self._resume()

    def skip_records(self) -> None:
        """Skips all whole records in the bytes fed; checks them like next()."""
        self._builds_records = False
        self._resume()

    def _resume(self) -> Record | Literal[NeedData.NEED_DATA]:
        if self._failure is not None:
            raise self._failure
        try:
            return next(self._walk)
        except WalFormatError as error:
            self._failure = error
            raise

    # The walk is one generator, so that it can request more bytes at any depth. It yields records
    # (not while skipping) and NEED_DATA; `self._lsn` is the current position.

    def _walk_wal(self, skip_continuation: bool) -> _Walk:
        if skip_continuation and self._lsn % WAL_PAGE_SIZE == 0:
            yield from self._skip_continuation()
        while True:
            if self._lsn % WAL_PAGE_SIZE == 0:
                header = yield from self._read_page_header()
                if header.is_contrecord:
                    raise WalFormatError(
                        self._lsn, f"contrecord is requested by {format_lsn(self._lsn)}"
                    )
            yield from self._pass_whole_records()
            if self._lsn % WAL_PAGE_SIZE:
                yield from self._read_record()

    def _pass_whole_records(self) -> _Walk:
        """The fast path: valid records that lie whole in the page and in the buffer.

        It stops at anything else, which _read_record() then reads, waits for, or refuses.
        """
        prev_lsn = self.last_record_lsn
        if prev_lsn is None or self._overwritten_lsn is not None:
            return
        buffer, buffer_lsn = self._buffer, self._buffer_lsn
        offset = self._lsn - buffer_lsn
        limit = min(_page_end(self._lsn) - buffer_lsn, len(buffer))
        builds_records, check_crc = self._builds_records, self._check_crc
        unpack = HEADER.unpack_from
        while offset + RECORD_HEADER_SIZE < limit:
            total_length, xid, link, info, rmgr_id, crc = unpack(buffer, offset)
            end = offset + total_length
            if end > limit or total_length <= RECORD_HEADER_SIZE:
                break
            if link != prev_lsn or rmgr_id > RM_MAX_BUILTIN_ID:
                break
            if check_crc and crc != crc32c(
                buffer[offset : offset + CRC_OFFSET],
                crc32c(buffer[offset + RECORD_HEADER_SIZE : end]),
            ):
                break
            prev_lsn = buffer_lsn + offset
            if builds_records:
                self._pass(prev_lsn, aligned(buffer_lsn + end))
                header = RecordHeader(total_length, xid, link, info, rmgr_id, crc)
                yield _record(prev_lsn, self._lsn, header, buffer[offset:end])
                builds_records = self._builds_records
            offset += total_length + 7 & ~7  # aligned(), without the call
        if prev_lsn != self.last_record_lsn:
            self._pass(prev_lsn, buffer_lsn + offset)

    def _pass(self, start_lsn: int, end_lsn: int) -> None:
        """The record is whole; everything before its end is finished."""
        self.last_record_lsn = start_lsn
        self.record_end_lsn = end_lsn
        self._lsn = end_lsn

    def _read_record(self) -> _Walk:
        """Reads one record of any length, across pages and segments."""
        start_lsn = self._lsn
        begin = yield from self._take(_LENGTH.size)
        (total_length,) = _LENGTH.unpack(begin)
        check_record_length(total_length, start_lsn)
        data = bytearray(begin) if self._keeps_records else SummedRecord(begin)
        is_whole = yield from self._gather(data, RECORD_HEADER_SIZE, total_length)
        if is_whole:
            head = data.head if isinstance(data, SummedRecord) else data
            header = RecordHeader(*HEADER.unpack(head))
            check_record_header(header, start_lsn, self.last_record_lsn, self._version)
            is_whole = yield from self._gather(data, total_length, total_length)
        if is_whole:
            yield from self._finish_record(start_lsn, header, data)
        else:
            self._overwritten_lsn = start_lsn

    def _gather(
        self, data: bytearray | SummedRecord, length: int, total_length: int
    ) -> Generator[Literal[NeedData.NEED_DATA], None, bool]:
        """Appends to the start of a record until it has `length` of its `total_length` bytes.

        Returns False, at the page's start again, if a page shows that the rest was lost.
        """
        while len(data) < length:
            if self._lsn % WAL_PAGE_SIZE == 0:
                page = yield from self._read_page_header()
                if page.is_overwrite_contrecord:
                    self._lsn = page.page_lsn
                    return False
                check_continuation(page, total_length - len(data))
            room = _page_end(self._lsn) - self._lsn
            part = yield from self._take(min(length - len(data), room))
            data.extend(part)
        return True

    def _finish_record(
        self, start_lsn: int, header: RecordHeader, gathered: bytearray | SummedRecord
    ) -> _Walk:
        if isinstance(gathered, SummedRecord):
            data = gathered.head
            if self._check_crc:
                gathered.check_crc(header.crc, start_lsn)
        else:
            data = bytes(gathered)
            if self._check_crc:
                check_record_crc(data, header.crc, start_lsn)
        self._check_overwritten(start_lsn, header, data)
        end_lsn = aligned(self._lsn)
        if header.is_xlog(XLOG_SWITCH):
            end_lsn = -(-end_lsn // self._wal_seg_size) * self._wal_seg_size
            self._lsn = end_lsn
            while self.fed_lsn < end_lsn:
                yield NEED_DATA
        self._pass(start_lsn, end_lsn)
        if self._builds_records:
            yield _record(start_lsn, end_lsn, header, data)

    def _check_overwritten(self, start_lsn: int, header: RecordHeader, data: bytes) -> None:
        """The record that replaces a lost continuation must name the void record."""
        expected_lsn, self._overwritten_lsn = self._overwritten_lsn, None
        if expected_lsn is not None:
            check_overwriting(header, data, start_lsn, expected_lsn)

    def _skip_continuation(self) -> _Walk:
        """Skips the rest of a record that began before the start (XLogFindNextRecord)."""
        page = yield from self._read_page_header()
        missing = page.remaining_length
        if missing == 0:
            return
        while True:
            data = yield from self._take(min(missing, _page_end(self._lsn) - self._lsn))
            missing -= len(data)
            if missing == 0:
                break
            page = yield from self._read_page_header()
            if page.is_overwrite_contrecord:
                break  # the rest was lost: a record begins here
            check_continuation(page, missing)
        self._lsn = self.record_end_lsn = aligned(self._lsn)

    def _read_page_header(self) -> Generator[Literal[NeedData.NEED_DATA], None, PageHeader]:
        page_lsn = self._lsn
        while (header := parse_page_header(self._buffer, page_lsn - self._buffer_lsn)) is None:
            yield NEED_DATA
        check_page_header(
            header,
            page_lsn,
            version=self._version,
            wal_seg_size=self._wal_seg_size,
            system_id=self._system_id,
            tli_min=self._page_tli,
        )
        if self._tli_at is not None and header.tli != self._tli_at(page_lsn):
            raise WalFormatError(
                page_lsn,
                f"unexpected timeline ID {header.tli} (expected {self._tli_at(page_lsn)}) in WAL "
                f"page at {format_lsn(page_lsn)}",
            )
        self._page_tli = header.tli
        self._lsn += header.size
        return header

    def _take(self, length: int) -> Generator[Literal[NeedData.NEED_DATA], None, bytes]:
        """Returns the next `length` bytes, once they were fed."""
        while self.fed_lsn - self._lsn < length:
            yield NEED_DATA
        offset = self._lsn - self._buffer_lsn
        self._lsn += length
        return self._buffer[offset : offset + length]


def _record(start_lsn: int, end_lsn: int, header: RecordHeader, data: bytes) -> Record:
    return Record(
        start_lsn=Lsn(start_lsn),
        end_lsn=Lsn(end_lsn),
        total_length=header.total_length,
        prev_lsn=Lsn(header.prev_lsn),
        xid=header.xid,
        rmgr_id=header.rmgr_id,
        info=header.info,
        data=data,
    )


def _page_end(lsn: int) -> int:
    return lsn - lsn % WAL_PAGE_SIZE + WAL_PAGE_SIZE
