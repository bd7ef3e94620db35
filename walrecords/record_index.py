"""`RecordIndexer`: reads WAL bytes and returns whole, checked records as arrays.

    page  |h|  payload  |h|  payload  |h|  payload  |        the input
             |  payload  |  payload  |  payload  |           `data`: without the page headers
             ^     ^   ^      ^                              `at`: the offset of each record

Law: it accepts what `pgwal.walker` accepts, and refuses the rest with the same error. When the
compiled loop stops, the checks of `pgwal` find the error. A test compares both. A loop that builds
an object for each record is thirty times slower.
Source: Postgres `xlogreader.c`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from quorum_wal.pgwal.errors import WalFormatError
from quorum_wal.pgwal.lsn import format_lsn
from quorum_wal.pgwal.page import (
    LONG_HEADER_SIZE,
    WAL_PAGE_SIZE,
    check_continuation,
    check_page_header,
    page_header_size,
    parse_page_header,
)
from quorum_wal.pgwal.record import (
    HEADER,
    RECORD_HEADER_SIZE,
    RecordHeader,
    check_overwriting,
    check_record_crc,
    check_record_header,
    check_record_length,
)
from quorum_wal.pgwal.segment import check_wal_seg_size
from quorum_wal.pgwal.versions import wal_version
from quorum_wal.walrecords.pool_array import pool_array
from quorum_wal.walrecords.record_walk import (
    AT,
    BAD_PAGE,
    BAD_RECORD,
    CHECKS_CRC,
    COUNT,
    DONE,
    FIRST_PAGE_LSN,
    FROM_LSN,
    HAS_CUSTOM_RMGRS,
    HAS_SYSTEM_ID,
    IS_INSIDE_RECORD,
    LIMITS,
    MAGIC,
    MISSING,
    OVERWRITTEN_LSN,
    PAGE,
    PREV_LSN,
    RESUME_LSN,
    STATES,
    SYSTEM_ID,
    TLI,
    TO_LSN,
    UNKNOWN,
    WAL_SEG_SIZE,
    WRONG_PAGE,
    take_headers_out,
    walk_records,
)

Array: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"


def as_boundary(lsn: int, wal_seg_size: int) -> int:
    """The form in which Postgres writes a position: on a page boundary the page's address, not the
    address after the page header."""
    page_lsn = lsn - lsn % WAL_PAGE_SIZE
    return page_lsn if lsn == page_lsn + page_header_size(page_lsn, wal_seg_size) else lsn


@dataclass(frozen=True, slots=True)
class RecordIndex:
    """Records in order. All arrays but `data` have one element for each record.

    `data[at[i] : at[i] + n]` is record i with its header; n is the u32 at `at[i]`.
    """

    data: Array  # uint8
    at: Array  # int64
    start_lsn: Array  # int64
    end_lsn: Array  # int64
    #: Postgres's timeline of the page on which the record starts
    tli: Array  # int32

    def __len__(self) -> int:
        return len(self.at)

    def before(self, lsn: int) -> RecordIndex:
        """The records that start before `lsn`."""
        count = np.searchsorted(self.start_lsn, lsn)
        return RecordIndex(
            self.data, self.at[:count], self.start_lsn[:count], self.end_lsn[:count],
            self.tli[:count],
        )  # fmt: skip


class RecordIndexer:
    """The records that start in [start_lsn, end_lsn), wherever they end.

    The input is the WAL from `fed_lsn` on, in whole pages; only the last page may be shorter.
    `fed_lsn` is the start of the segment of `start_lsn`, because only the segment shows whether
    zeros follow an XLOG_SWITCH or are damage. With `is_boundary`, which says that `start_lsn` is
    the start or the end of a record, it is the page of `start_lsn`. `end_lsn` None means no limit.
    `system_id` None is not checked.
    """

    def __init__(
        self,
        start_lsn: int,
        end_lsn: int | None = None,
        *,
        wal_seg_size: int,
        version_major: int,
        system_id: int | None = None,
        is_boundary: bool = False,
        check_crc: bool = True,
    ) -> None:
        check_wal_seg_size(wal_seg_size)
        self._version = wal_version(version_major)
        self._wal_seg_size = wal_seg_size
        self._system_id = system_id
        #: the position of the next byte to be fed
        self.fed_lsn = start_lsn - start_lsn % (WAL_PAGE_SIZE if is_boundary else wal_seg_size)
        #: the boundary at the end of the last whole record, or the address of the first page. It
        #: stays there while a record whose rest is lost waits for its replacement
        self.next_lsn = self.fed_lsn
        #: all records of the range have been returned
        self.is_done = False
        #: the WAL is not valid after the returned records; feed() raises it from then on
        self.failure: WalFormatError | None = None

        # The page in which the next record begins, and all later pages; headers are separate.
        self._data = np.empty(0, np.uint8)
        self._page_at = np.empty(0, np.int64)
        self._page_headers = np.empty(0, np.uint8)
        self._limits = np.zeros(LIMITS, np.int64)
        self._limits[[FROM_LSN, WAL_SEG_SIZE, MAGIC, HAS_CUSTOM_RMGRS, CHECKS_CRC]] = (
            start_lsn, wal_seg_size, self._version.page_magic,
            self._version.has_custom_rmgrs, check_crc,
        )  # fmt: skip
        self._limits[TO_LSN] = np.iinfo(np.int64).max if end_lsn is None else end_lsn
        self._limits[HAS_SYSTEM_ID] = system_id is not None
        self._limits[SYSTEM_ID] = np.uint64(system_id or 0).astype(np.int64)
        self._walk = np.zeros(STATES, np.int64)
        self._walk[[PAGE, PREV_LSN, OVERWRITTEN_LSN]] = UNKNOWN
        self._walk[IS_INSIDE_RECORD] = True

    def feed(self, wal: bytes | bytearray | memoryview) -> RecordIndex:
        """The records that these bytes complete. An error is stored in `failure` at first; the next
        call raises it as WalFormatError, when all records before it have been returned."""
        if self.failure is not None:
            raise self.failure
        self._append(np.frombuffer(wal, np.uint8))
        most = len(self._data) // RECORD_HEADER_SIZE
        at, start_lsn, end_lsn = (pool_array(most, np.int64) for _ in range(3))
        tli = pool_array(most, np.int32)
        outcome = walk_records(
            self._data, self._page_at, self._page_headers, self._limits, self._walk,
            at, start_lsn, end_lsn, tli,
        )  # fmt: skip
        count = self._walk[COUNT]
        index = RecordIndex(self._data, at[:count], start_lsn[:count], end_lsn[:count], tli[:count])
        self.is_done = outcome == DONE
        void_lsn = int(self._walk[OVERWRITTEN_LSN])
        self.next_lsn = as_boundary(
            self._lsn() if void_lsn == UNKNOWN else void_lsn, self._wal_seg_size
        )
        if outcome in (BAD_PAGE, BAD_RECORD):
            self.failure = self._explain(outcome)
        self._drop_finished()
        return index

    def _append(self, wal: Array) -> None:
        """Appends to the kept bytes. Bytes that an XLOG_SWITCH skips are dropped unread."""
        lsn = self.fed_lsn
        assert lsn % WAL_PAGE_SIZE == 0, "only the last input may end inside a page"
        self.fed_lsn += len(wal)
        resume_lsn = int(self._walk[RESUME_LSN])
        if resume_lsn > lsn:
            wal, lsn = wal[resume_lsn - lsn :], resume_lsn
        if len(self._page_at) == 0:
            self._limits[FIRST_PAGE_LSN] = lsn
            self._walk[[AT, PAGE]] = 0, UNKNOWN
        pages, rest = divmod(len(wal), WAL_PAGE_SIZE)
        if rest >= page_header_size(lsn + pages * WAL_PAGE_SIZE, self._wal_seg_size):
            pages += 1
        kept = len(self._data)
        data = pool_array(kept + len(wal), np.uint8)
        data[:kept] = self._data
        page_at = np.empty(pages, np.int64)
        headers = np.zeros(pages * LONG_HEADER_SIZE, np.uint8)
        length = take_headers_out(wal, lsn, self._wal_seg_size, data, kept, page_at, headers)
        self._data = data[:length]
        self._page_at = np.concatenate((self._page_at, page_at))
        self._page_headers = np.concatenate((self._page_headers, headers))

    def _lsn(self) -> int:
        """The position of the walk; before a page, the address of that page."""
        page = int(self._walk[PAGE])
        page_lsn = int(self._limits[FIRST_PAGE_LSN]) + page * WAL_PAGE_SIZE
        if not 0 <= page < len(self._page_at):
            return page_lsn + WAL_PAGE_SIZE
        offset = int(self._walk[AT] - self._page_at[page])
        return page_lsn + (page_header_size(page_lsn, self._wal_seg_size) + offset)

    def _drop_finished(self) -> None:
        """Keeps the page in which the next record begins, and the data from that record on."""
        first, keep_from = max(0, int(self._walk[PAGE])), int(self._walk[AT])
        self._data = self._data[keep_from:]
        self._page_at = self._page_at[first:] - keep_from
        self._page_headers = self._page_headers[first * LONG_HEADER_SIZE :]
        self._limits[FIRST_PAGE_LSN] += first * WAL_PAGE_SIZE
        self._walk[AT] = 0
        self._walk[PAGE] -= first

    def _explain(self, outcome: int) -> WalFormatError:
        """The error that `pgwal` raises at the place where the compiled loop stopped."""
        try:
            if outcome == BAD_PAGE:
                self._check_page(int(self._walk[WRONG_PAGE]), int(self._walk[MISSING]))
            else:
                self._check_record()
        except WalFormatError as error:
            return error
        raise AssertionError(f"the loop refused valid WAL at {format_lsn(self._lsn())}")

    def _check_page(self, page: int, missing: int) -> None:
        page_lsn = int(self._limits[FIRST_PAGE_LSN]) + page * WAL_PAGE_SIZE
        header = parse_page_header(self._header_of(page))
        assert header is not None
        check_page_header(
            header,
            page_lsn,
            version=self._version,
            wal_seg_size=self._wal_seg_size,
            system_id=self._system_id,
            tli_min=self._tli_before(page),
        )
        if missing:
            check_continuation(header, missing)
        lsn = page_lsn + header.size
        raise WalFormatError(lsn, f"contrecord is requested by {format_lsn(lsn)}")

    def _tli_before(self, page: int) -> int:
        """The timeline of the last accepted page before `page`."""
        if page == self._walk[PAGE] + 1:
            return int(self._walk[TLI])
        before = parse_page_header(self._header_of(page - 1))
        assert before is not None
        return before.tli

    def _header_of(self, page: int) -> bytes:
        begin = page * LONG_HEADER_SIZE
        return self._page_headers[begin : begin + LONG_HEADER_SIZE].tobytes()

    def _check_record(self) -> None:
        at, start_lsn = int(self._walk[AT]), self._lsn()
        length = int.from_bytes(self._data[at : at + 4].tobytes(), "little")
        check_record_length(length, start_lsn)
        record = self._data[at : at + length].tobytes()
        header = RecordHeader(*HEADER.unpack_from(record))
        prev_lsn, overwritten_lsn = map(int, self._walk[[PREV_LSN, OVERWRITTEN_LSN]])
        check_record_header(
            header, start_lsn, None if prev_lsn == UNKNOWN else prev_lsn, self._version
        )
        check_record_crc(record, header.crc, start_lsn)
        if overwritten_lsn != UNKNOWN:
            check_overwriting(header, record, start_lsn, overwritten_lsn)
