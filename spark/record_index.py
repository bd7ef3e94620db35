"""`RecordIndexer`: WAL bytes in, whole checked records out, as arrays instead of objects.

    page  |h|  payload  |h|  payload  |h|  payload  |        as fed
             |  payload  |  payload  |  payload  |           `data`: the page headers taken out
             ^     ^   ^      ^                              `at`: where each record begins

What `pgwal.walker` accepts is accepted here, what it refuses is refused with the same error (the
compiled loop stops; the pure checks of `pgwal` say why): that is the one law, and a test holds both
against each other. It exists because a loop that builds an object a record is thirty times slower.
Source: Postgres `xlogreader.c`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numba import njit

from pgwal.errors import WalFormatError
from pgwal.lsn import format_lsn
from pgwal.page import (
    LONG_HEADER_SIZE,
    SHORT_HEADER_SIZE,
    WAL_PAGE_SIZE,
    XLP_CONTRECORD,
    XLP_LONG_HEADER,
    XLP_OVERWRITE_CONTRECORD,
    check_continuation,
    check_page_header,
    page_header_size,
    parse_page_header,
)
from pgwal.record import (
    CRC_OFFSET,
    HEADER,
    RECORD_HEADER_SIZE,
    RECORD_LENGTH_MAX,
    XLOG_OVERWRITE_CONTRECORD,
    XLOG_SWITCH,
    RecordHeader,
    check_overwriting,
    check_record_crc,
    check_record_header,
    check_record_length,
)
from pgwal.rmgr import RM_MAX_BUILTIN_ID, RM_MIN_CUSTOM_ID, RM_XLOG_ID
from pgwal.segment import check_wal_seg_size
from pgwal.versions import wal_version
from spark.checksum import extend_crc
from spark.loads import Bytes, Int, Numbers, load_u16, load_u32, load_u64

Array: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"

UNKNOWN = -1
#: why the compiled loop came back, or that it goes on
GO_ON, NEED_DATA, DONE, BAD_PAGE, BAD_RECORD = range(5)

#: what the compiled loop is told, as indices of an array
FIRST_PAGE_LSN, FROM_LSN, TO_LSN, WAL_SEG_SIZE, MAGIC = range(5)
HAS_SYSTEM_ID, SYSTEM_ID, HAS_CUSTOM_RMGRS, CHECKS_CRC, LIMITS = range(5, 10)

#: where it stands: `PAGE` is the last page that it accepted, and the one that holds `AT` unless
#: `AT` is where the next one begins; IS_INSIDE_RECORD until the first page is accepted, which may
#: begin with the rest of a record; RESUME_LSN is where to go on behind an XLOG_SWITCH
AT, PAGE, PREV_LSN, OVERWRITTEN_LSN, IS_INSIDE_RECORD, RESUME_LSN, COUNT = range(7)
#: what is wrong with which page: bytes of a record that should be missing there
WRONG_PAGE, MISSING, STATES = range(7, 10)


@dataclass(frozen=True, slots=True)
class RecordIndex:
    """Records in their order; all arrays but `data` have one element a record.

    `data[at[i] : at[i] + n]` is record i, header included, where n is its u32 at `at[i]`.
    """

    data: Array  # uint8
    at: Array  # int64
    start_lsn: Array  # int64
    end_lsn: Array  # int64
    #: Postgres's timeline, of the page on which the record starts
    tli: Array  # int32

    def __len__(self) -> int:
        return len(self.at)


class RecordIndexer:
    """The records that start in [start_lsn, end_lsn), wherever they end.

    Fed is the WAL from `fed_lsn` on, the address of a page: whole pages, but the last may be
    shorter. That is where the segment of `start_lsn` begins, since nobody can tell the zeros behind
    an XLOG_SWITCH from damage; or the page that holds it, if it `is_boundary`: the end of a record,
    or its start. `end_lsn` None: as far as it goes. `system_id` None is left unchecked.
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
        #: where the next byte to be fed sits
        self.fed_lsn = start_lsn - start_lsn % (WAL_PAGE_SIZE if is_boundary else wal_seg_size)
        #: the end of the last whole record; the address of the first page before there is one
        self.next_lsn = self.fed_lsn
        #: no record of the range is missing any more
        self.is_done = False
        #: the WAL is not valid behind what was handed out; feed() raises it from then on
        self.failure: WalFormatError | None = None

        # What the next record begins in, and all pages behind, page headers apart.
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
        """The records that these bytes complete. Raises WalFormatError, but only when all records
        before the place have been handed out: until then it is in `failure`."""
        if self.failure is not None:
            raise self.failure
        self._append(np.frombuffer(wal, np.uint8))
        most = len(self._data) // RECORD_HEADER_SIZE
        at, start_lsn, end_lsn = (np.empty(most, np.int64) for _ in range(3))
        tli = np.empty(most, np.int32)
        outcome = _walk_records(
            self._data, self._page_at, self._page_headers, self._limits, self._walk,
            at, start_lsn, end_lsn, tli,
        )  # fmt: skip
        count = self._walk[COUNT]
        index = RecordIndex(self._data, at[:count], start_lsn[:count], end_lsn[:count], tli[:count])
        self.is_done = outcome == DONE
        self.next_lsn = self._lsn()
        if outcome in (BAD_PAGE, BAD_RECORD):
            self.failure = self._explain(outcome)
        self._drop_what_is_done()
        return index

    def _append(self, wal: Array) -> None:
        """Behind the bytes that are kept. What an XLOG_SWITCH passes over is dropped unread."""
        lsn = self.fed_lsn
        assert lsn % WAL_PAGE_SIZE == 0, "only what is fed last may end inside a page"
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
        data = np.empty(kept + len(wal), np.uint8)
        data[:kept] = self._data
        page_at = np.empty(pages, np.int64)
        headers = np.zeros(pages * LONG_HEADER_SIZE, np.uint8)
        length = _take_headers_out(wal, lsn, self._wal_seg_size, data, kept, page_at, headers)
        self._data = data[:length]
        self._page_at = np.concatenate((self._page_at, page_at))
        self._page_headers = np.concatenate((self._page_headers, headers))

    def _lsn(self) -> int:
        """Of the place the walk stands at; a page's own address where it stands before one."""
        page = int(self._walk[PAGE])
        page_lsn = int(self._limits[FIRST_PAGE_LSN]) + page * WAL_PAGE_SIZE
        if not 0 <= page < len(self._page_at):
            return page_lsn + WAL_PAGE_SIZE
        offset = int(self._walk[AT] - self._page_at[page])
        return page_lsn + (page_header_size(page_lsn, self._wal_seg_size) + offset)

    def _drop_what_is_done(self) -> None:
        """Keep from the next record on, and the page that it begins in."""
        first, keep_from = max(0, int(self._walk[PAGE])), int(self._walk[AT])
        self._data = self._data[keep_from:]
        self._page_at = self._page_at[first:] - keep_from
        self._page_headers = self._page_headers[first * LONG_HEADER_SIZE :]
        self._limits[FIRST_PAGE_LSN] += first * WAL_PAGE_SIZE
        self._walk[AT] = 0
        self._walk[PAGE] -= first

    def _explain(self, outcome: int) -> WalFormatError:
        """What the pure checks say of the place where the compiled loop stopped."""
        try:
            if outcome == BAD_PAGE:
                self._check_page(int(self._walk[WRONG_PAGE]), int(self._walk[MISSING]))
            else:
                self._check_record()
        except WalFormatError as error:
            return error
        raise AssertionError(f"the loop refused what is valid at {format_lsn(self.next_lsn)}")

    def _check_page(self, page: int, missing: int) -> None:
        page_lsn = int(self._limits[FIRST_PAGE_LSN]) + page * WAL_PAGE_SIZE
        header = parse_page_header(self._header_of(page))
        before = parse_page_header(self._header_of(page - 1)) if page > 0 else None
        assert header is not None
        check_page_header(
            header,
            page_lsn,
            version=self._version,
            wal_seg_size=self._wal_seg_size,
            system_id=self._system_id,
            tli_min=before.tli if before else 0,
        )
        if missing:
            check_continuation(header, missing)
        lsn = page_lsn + header.size
        raise WalFormatError(lsn, f"contrecord is requested by {format_lsn(lsn)}")

    def _header_of(self, page: int) -> bytes:
        begin = page * LONG_HEADER_SIZE
        return self._page_headers[begin : begin + LONG_HEADER_SIZE].tobytes()

    def _check_record(self) -> None:
        at, start_lsn = int(self._walk[AT]), self.next_lsn
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


@njit(cache=True, nogil=True)
def _take_headers_out(
    wal: Bytes,
    lsn: Int,
    wal_seg_size: Int,
    data: Bytes,
    length: Int,
    page_at: Numbers,
    headers: Bytes,
) -> Int:
    """Copy the payload of every page to data[length:]; its new length."""
    for page in range(len(page_at)):
        begin = page * WAL_PAGE_SIZE
        end = min(begin + WAL_PAGE_SIZE, len(wal))
        size = _header_size(lsn + begin, wal_seg_size)
        for i in range(size):
            headers[page * LONG_HEADER_SIZE + i] = wal[begin + i]
        page_at[page] = length
        payload = end - begin - size
        data[length : length + payload] = wal[begin + size : end]
        length += payload
    return length


@njit(cache=True, nogil=True)
def _header_size(page_lsn: Int, wal_seg_size: Int) -> Int:
    return SHORT_HEADER_SIZE if page_lsn % wal_seg_size else LONG_HEADER_SIZE


@njit(cache=True, nogil=True)
def _is_page(headers: Bytes, page: Int, limits: Numbers) -> bool:
    """The ladder of `pgwal.page.check_page_header`."""
    at, page_lsn = page * LONG_HEADER_SIZE, limits[FIRST_PAGE_LSN] + page * WAL_PAGE_SIZE
    info = load_u16(headers, at + 2)
    is_long = info & XLP_LONG_HEADER != 0
    if load_u16(headers, at) != limits[MAGIC] or info > 15:
        return False
    if is_long != (page_lsn % limits[WAL_SEG_SIZE] == 0):
        return False
    if is_long:
        if limits[HAS_SYSTEM_ID] and np.int64(load_u64(headers, at + 24)) != limits[SYSTEM_ID]:
            return False
        if load_u32(headers, at + 32) != limits[WAL_SEG_SIZE]:
            return False
        if load_u32(headers, at + 36) != WAL_PAGE_SIZE:
            return False
    if np.int64(load_u64(headers, at + 8)) != page_lsn:
        return False
    if page > 0 and _tli(headers, page) < _tli(headers, page - 1):
        return False
    return bool((info & XLP_CONTRECORD != 0) == (load_u32(headers, at + 16) > 0))


@njit(cache=True, nogil=True)
def _tli(headers: Bytes, page: Int) -> Int:
    return load_u32(headers, page * LONG_HEADER_SIZE + 4)


@njit(cache=True, nogil=True)
def _wrong_page(walk: Numbers, page: Int, missing: Int) -> Int:
    walk[WRONG_PAGE], walk[MISSING] = page, missing
    return BAD_PAGE


@njit(cache=True, nogil=True)
def _cross_pages(
    page: Int,
    limit: Int,
    end: Int,
    page_at: Numbers,
    headers: Bytes,
    limits: Numbers,
    walk: Numbers,
) -> tuple[Int, Int]:
    """Accept the pages behind `page` that begin before `limit`, with bytes that end at `end`: the
    last of them, and GO_ON; or BAD_PAGE; or DONE, if it says that the rest of the bytes is lost."""
    while page + 1 < len(page_at) and page_at[page + 1] < limit:
        page += 1
        missing = end - page_at[page]
        if not _is_page(headers, page, limits):
            return page, _wrong_page(walk, page, missing)
        if load_u16(headers, page * LONG_HEADER_SIZE + 2) & XLP_OVERWRITE_CONTRECORD:
            return page, DONE
        if load_u32(headers, page * LONG_HEADER_SIZE + 16) != missing:
            return page, _wrong_page(walk, page, missing)
    return page, GO_ON


@njit(cache=True, nogil=True)
def _is_record_header(data: Bytes, at: Int, start_lsn: Int, prev_lsn: Int, is_custom: bool) -> bool:
    """The ladder of `pgwal.record.check_record_header`, the length already accepted."""
    rmgr_id = data[at + 17]
    if rmgr_id > RM_MAX_BUILTIN_ID and not (is_custom and rmgr_id >= RM_MIN_CUSTOM_ID):
        return False
    link = np.int64(load_u64(data, at + 8))
    return bool(link == prev_lsn if prev_lsn != UNKNOWN else link < start_lsn)


@njit(cache=True, nogil=True)
def _has_its_crc(data: Bytes, at: Int, length: Int) -> bool:
    crc = extend_crc(np.uint32(0), data, at + RECORD_HEADER_SIZE, at + length)
    return bool(load_u32(data, at + CRC_OFFSET) == extend_crc(crc, data, at, at + CRC_OFFSET))


@njit(cache=True, nogil=True)
def _is_xlog(data: Bytes, at: Int, operation: Int) -> bool:
    return bool(data[at + 17] == RM_XLOG_ID and data[at + 16] & 0xF0 == operation)


@njit(cache=True, nogil=True)
def _overwrites(data: Bytes, at: Int, length: Int, overwritten_lsn: Int) -> bool:
    """Whether it is the record that says that the one at `overwritten_lsn` is void."""
    if not _is_xlog(data, at, XLOG_OVERWRITE_CONTRECORD) or length < RECORD_HEADER_SIZE + 10:
        return False
    return bool(np.int64(load_u64(data, at + RECORD_HEADER_SIZE + 2)) == overwritten_lsn)


@njit(cache=True, nogil=True)
def _enter_page(
    data: Bytes, page_at: Numbers, headers: Bytes, limits: Numbers, walk: Numbers
) -> Int:
    """Accept the page that begins here, and pass over the rest of a record of before the start."""
    page, at = walk[PAGE] + 1, walk[AT]
    rest = np.int64(load_u32(headers, page * LONG_HEADER_SIZE + 16))
    if not _is_page(headers, page, limits) or (rest > 0 and not walk[IS_INSIDE_RECORD]):
        return _wrong_page(walk, page, 0)
    if rest > 0:
        page, outcome = _cross_pages(
            page, at + rest, at + rest, page_at, headers, limits, walk
        )  # fmt: skip
        if outcome == BAD_PAGE:
            return BAD_PAGE
        if outcome == GO_ON and at + rest > len(data):
            return NEED_DATA
        at = page_at[page] if outcome == DONE else at + (rest + 7 & ~7)
    walk[PAGE], walk[AT], walk[IS_INSIDE_RECORD] = page, at, 0
    if 0 < rest < RECORD_HEADER_SIZE and at + 4 <= len(data) and load_u32(data, at) == 0:
        # The end of an XLOG_SWITCH, the only record without data: its padding is all there is.
        page_lsn = limits[FIRST_PAGE_LSN] + page * WAL_PAGE_SIZE
        if page_lsn % limits[WAL_SEG_SIZE] == 0:
            _pass_segment(data, page_at, limits, walk, page_lsn + WAL_PAGE_SIZE)
    return GO_ON


@njit(cache=True, nogil=True)
def _pass_segment(data: Bytes, page_at: Numbers, limits: Numbers, walk: Numbers, lsn: Int) -> Int:
    """Go on where the segment of the byte before `lsn` ends, whatever comes before; its LSN."""
    wal_seg_size = limits[WAL_SEG_SIZE]
    end_lsn = (lsn + wal_seg_size - 1) // wal_seg_size * wal_seg_size
    page = (end_lsn - limits[FIRST_PAGE_LSN]) // WAL_PAGE_SIZE
    walk[PAGE], walk[RESUME_LSN] = page - 1, end_lsn
    walk[AT] = page_at[page] if page < len(page_at) else len(data)
    return end_lsn


@njit(cache=True, nogil=True)
def _check_record(
    data: Bytes, page_at: Numbers, headers: Bytes, limits: Numbers, walk: Numbers, start_lsn: Int
) -> tuple[Int, Int, Int]:
    """(outcome, its length, the page that it ends in); the length is 0 if its rest was lost."""
    at, page = walk[AT], walk[PAGE]
    length = np.int64(load_u32(data, at))
    if length < RECORD_HEADER_SIZE or length > RECORD_LENGTH_MAX:
        return BAD_RECORD, 0, page
    for limit in (at + RECORD_HEADER_SIZE, at + length):
        page, outcome = _cross_pages(page, limit, at + length, page_at, headers, limits, walk)
        if outcome == BAD_PAGE:
            return BAD_PAGE, 0, page
        if outcome == DONE:
            return GO_ON, 0, page
        if limit == at + RECORD_HEADER_SIZE and not _is_record_header(
            data, at, start_lsn, walk[PREV_LSN], limits[HAS_CUSTOM_RMGRS]
        ):
            return BAD_RECORD, 0, page
    if at + length > len(data):
        return NEED_DATA, 0, page
    if limits[CHECKS_CRC] and not _has_its_crc(data, at, length):
        return BAD_RECORD, 0, page
    overwritten_lsn = walk[OVERWRITTEN_LSN]
    if overwritten_lsn != UNKNOWN and not _overwrites(data, at, length, overwritten_lsn):
        return BAD_RECORD, 0, page
    return GO_ON, length, page


@njit(cache=True, nogil=True)
def _walk_records(
    data: Bytes, page_at: Numbers, headers: Bytes, limits: Numbers, walk: Numbers,
    record_at: Numbers, record_start: Numbers, record_end: Numbers, record_tli: Numbers,
) -> Int:  # fmt: skip
    """Why it came back; walk[COUNT] records were found."""
    wal_seg_size, first_page_lsn = limits[WAL_SEG_SIZE], limits[FIRST_PAGE_LSN]
    count = walk[COUNT] = 0
    while True:
        page = walk[PAGE]
        if page + 1 < len(page_at) and page_at[page + 1] == walk[AT]:
            outcome = _enter_page(data, page_at, headers, limits, walk)
            if outcome != GO_ON:
                return outcome
            continue
        at, page_lsn = walk[AT], first_page_lsn + page * WAL_PAGE_SIZE
        if len(data) - at < RECORD_HEADER_SIZE:
            return NEED_DATA
        start_lsn = page_lsn + _header_size(page_lsn, wal_seg_size) + at - page_at[page]
        if start_lsn >= limits[TO_LSN]:
            return DONE
        outcome, length, last = _check_record(data, page_at, headers, limits, walk, start_lsn)
        if outcome != GO_ON:
            return outcome
        if length == 0:  # the page that says so is entered once more, as one a record begins on
            walk[OVERWRITTEN_LSN], walk[PAGE], walk[AT] = start_lsn, last - 1, page_at[last]
            continue
        walk[OVERWRITTEN_LSN], walk[PREV_LSN] = UNKNOWN, start_lsn
        walk[PAGE], walk[AT] = last, at + (length + 7 & ~7)
        page_lsn = first_page_lsn + last * WAL_PAGE_SIZE
        end_lsn = page_lsn + _header_size(page_lsn, wal_seg_size) + walk[AT] - page_at[last]
        if _is_xlog(data, at, XLOG_SWITCH):
            end_lsn = _pass_segment(data, page_at, limits, walk, end_lsn)
        if start_lsn >= limits[FROM_LSN]:
            record_at[count], record_start[count] = at, start_lsn
            record_end[count], record_tli[count] = end_lsn, _tli(headers, page)
            count += 1
            walk[COUNT] = count
