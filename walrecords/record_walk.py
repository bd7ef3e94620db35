"""The compiled walk over pages and records, used by `record_index.py`.

It only finds that something is not valid. The checks of `pgwal`, which it repeats, find the error.
The walk can stop and continue anywhere; its state is in the array `walk`.
Source: Postgres `xlogreader.c`.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from quorum_wal.pgwal.page import (
    LONG_HEADER_SIZE,
    SHORT_HEADER_SIZE,
    WAL_PAGE_SIZE,
    XLP_CONTRECORD,
    XLP_LONG_HEADER,
    XLP_OVERWRITE_CONTRECORD,
)
from quorum_wal.pgwal.record import (
    CRC_OFFSET,
    RECORD_HEADER_SIZE,
    RECORD_LENGTH_MAX,
    XLOG_OVERWRITE_CONTRECORD,
    XLOG_SWITCH,
)
from quorum_wal.pgwal.rmgr import RM_MAX_BUILTIN_ID, RM_MIN_CUSTOM_ID, RM_XLOG_ID
from quorum_wal.walrecords.byte_copy import copy_bytes
from quorum_wal.walrecords.checksum import extend_crc
from quorum_wal.walrecords.loads import Bytes, Int, Numbers, load_u16, load_u32, load_u64

UNKNOWN = -1
#: why the compiled loop returned, or that it continues
GO_ON, NEED_DATA, DONE, BAD_PAGE, BAD_RECORD = range(5)

#: the arguments of the compiled loop, as indices of an array
FIRST_PAGE_LSN, FROM_LSN, TO_LSN, WAL_SEG_SIZE, MAGIC = range(5)
HAS_SYSTEM_ID, SYSTEM_ID, HAS_CUSTOM_RMGRS, CHECKS_CRC, LIMITS = range(5, 10)

#: its state. `PAGE` is the last accepted or skipped page; it contains `AT`, unless `AT` is the
#: start of the next page. TLI is the timeline of the last accepted page. IS_INSIDE_RECORD is set
#: until the first page is accepted, which may begin with the rest of a record. RESUME_LSN is the
#: position to continue at after an XLOG_SWITCH
AT, PAGE, TLI, PREV_LSN, OVERWRITTEN_LSN, IS_INSIDE_RECORD, RESUME_LSN, COUNT = range(8)
#: the wrong page, and the number of bytes of a record that should still follow there
WRONG_PAGE, MISSING, STATES = range(8, 11)


@njit(cache=True, nogil=True)
def take_headers_out(
    wal: Bytes,
    lsn: Int,
    wal_seg_size: Int,
    data: Bytes,
    length: Int,
    page_at: Numbers,
    headers: Bytes,
) -> Int:
    """Copies the payload of every page to data[length:]. Returns the new length."""
    for page in range(len(page_at)):
        begin = page * WAL_PAGE_SIZE
        end = min(begin + WAL_PAGE_SIZE, len(wal))
        size = _header_size(lsn + begin, wal_seg_size)
        payload = end - begin - size
        copy_bytes(headers, page * LONG_HEADER_SIZE, wal, begin, size)
        copy_bytes(data, length, wal, begin + size, payload)
        page_at[page] = length
        length += payload
    return length


@njit(cache=True, nogil=True)
def _header_size(page_lsn: Int, wal_seg_size: Int) -> Int:
    return SHORT_HEADER_SIZE if page_lsn % wal_seg_size else LONG_HEADER_SIZE


@njit(cache=True, nogil=True)
def _is_page(headers: Bytes, page: Int, tli_min: Int, limits: Numbers) -> bool:
    """The same checks as `pgwal.page.check_page_header`."""
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
    if load_u32(headers, at + 4) < tli_min:
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
    """Accepts the pages after `page` that begin before `limit`, for bytes that end at `end`.
    Returns the last of them and GO_ON; or BAD_PAGE; or DONE if a page says the rest is lost."""
    while page + 1 < len(page_at) and page_at[page + 1] < limit:
        page += 1
        missing = end - page_at[page]
        if not _is_page(headers, page, _tli(headers, page - 1), limits):
            return page, _wrong_page(walk, page, missing)
        if load_u16(headers, page * LONG_HEADER_SIZE + 2) & XLP_OVERWRITE_CONTRECORD:
            return page, DONE
        if load_u32(headers, page * LONG_HEADER_SIZE + 16) != missing:
            return page, _wrong_page(walk, page, missing)
    return page, GO_ON


@njit(cache=True, nogil=True)
def _is_record_header(data: Bytes, at: Int, start_lsn: Int, prev_lsn: Int, is_custom: bool) -> bool:
    """The same checks as `pgwal.record.check_record_header`; the length is checked already."""
    rmgr_id = data[at + 17]
    if rmgr_id > RM_MAX_BUILTIN_ID and not (is_custom and rmgr_id >= RM_MIN_CUSTOM_ID):
        return False
    link = np.int64(load_u64(data, at + 8))
    # As signed numbers, the greatest links are negative.
    return bool(link == prev_lsn if prev_lsn != UNKNOWN else 0 <= link < start_lsn)


@njit(cache=True, nogil=True, forceinline=True)
def _has_its_crc(data: Bytes, at: Int, length: Int) -> bool:
    crc = extend_crc(np.uint32(0), data, at + RECORD_HEADER_SIZE, at + length)
    return bool(load_u32(data, at + CRC_OFFSET) == extend_crc(crc, data, at, at + CRC_OFFSET))


@njit(cache=True, nogil=True)
def _is_xlog(data: Bytes, at: Int, operation: Int) -> bool:
    return bool(data[at + 17] == RM_XLOG_ID and data[at + 16] & 0xF0 == operation)


@njit(cache=True, nogil=True)
def _overwrites(data: Bytes, at: Int, length: Int, overwritten_lsn: Int) -> bool:
    """Whether this record declares the one at `overwritten_lsn` void."""
    if not _is_xlog(data, at, XLOG_OVERWRITE_CONTRECORD) or length < RECORD_HEADER_SIZE + 10:
        return False
    return bool(np.int64(load_u64(data, at + RECORD_HEADER_SIZE + 2)) == overwritten_lsn)


@njit(cache=True, nogil=True)
def _enter_page(
    data: Bytes, page_at: Numbers, headers: Bytes, limits: Numbers, walk: Numbers
) -> Int:
    """Accepts the page that begins here, and skips the rest of a record from before the start."""
    page, at = walk[PAGE] + 1, walk[AT]
    rest = np.int64(load_u32(headers, page * LONG_HEADER_SIZE + 16))
    if not _is_page(headers, page, walk[TLI], limits) or (rest > 0 and not walk[IS_INSIDE_RECORD]):
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
    walk[PAGE], walk[TLI], walk[AT], walk[IS_INSIDE_RECORD] = page, _tli(headers, page), at, 0
    if 0 < rest < RECORD_HEADER_SIZE and at + 4 <= len(data) and load_u32(data, at) == 0:
        # The end of an XLOG_SWITCH, the only record without data: only padding follows.
        page_lsn = limits[FIRST_PAGE_LSN] + page * WAL_PAGE_SIZE
        if page_lsn % limits[WAL_SEG_SIZE] == 0:
            _pass_segment(data, page_at, limits, walk, page_lsn + WAL_PAGE_SIZE)
    return GO_ON


@njit(cache=True, nogil=True)
def _pass_segment(data: Bytes, page_at: Numbers, limits: Numbers, walk: Numbers, lsn: Int) -> Int:
    """Skips to the end of the segment that contains the byte before `lsn`. Returns its LSN."""
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
    """(outcome, length, the page in which it ends); the length is 0 if the rest is lost."""
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
def _pass_whole_records(
    data: Bytes, page_at: Numbers, headers: Bytes, start_lsn: Int, limits: Numbers, walk: Numbers,
    record_at: Numbers, record_start: Numbers, record_end: Numbers, record_tli: Numbers,
) -> None:  # fmt: skip
    """The fast path: valid records from `start_lsn` on that lie within the page.

    It stops at anything else, and _check_record() accepts it, waits for more, or refuses it.
    """
    at, page, prev_lsn, count = walk[AT], walk[PAGE], walk[PREV_LSN], walk[COUNT]
    if prev_lsn == UNKNOWN or walk[OVERWRITTEN_LSN] != UNKNOWN:
        return
    limit = page_at[page + 1] if page + 1 < len(page_at) else len(data)
    lsn_of_data, tli = start_lsn - at, _tli(headers, page)
    from_at, to_at = limits[FROM_LSN] - lsn_of_data, limits[TO_LSN] - lsn_of_data
    checks_crc = limits[CHECKS_CRC]
    while at + RECORD_HEADER_SIZE < limit and at < to_at:
        length = np.int64(load_u32(data, at))
        # The header of a switch without data is left to _check_record().
        if length <= RECORD_HEADER_SIZE or at + length > limit:
            break
        if data[at + 17] > RM_MAX_BUILTIN_ID or np.int64(load_u64(data, at + 8)) != prev_lsn:
            break
        if checks_crc and not _has_its_crc(data, at, length):
            break
        prev_lsn = lsn_of_data + at
        next_at = at + (length + 7 & ~7)
        if at >= from_at:
            record_at[count], record_start[count] = at, prev_lsn
            record_end[count], record_tli[count] = lsn_of_data + next_at, tli
            count += 1
        at = next_at
    walk[AT], walk[PREV_LSN], walk[COUNT] = at, prev_lsn, count


@njit(cache=True, nogil=True)
def walk_records(
    data: Bytes, page_at: Numbers, headers: Bytes, limits: Numbers, walk: Numbers,
    record_at: Numbers, record_start: Numbers, record_end: Numbers, record_tli: Numbers,
) -> Int:  # fmt: skip
    """Returns the outcome; walk[COUNT] records were found."""
    wal_seg_size, first_page_lsn = limits[WAL_SEG_SIZE], limits[FIRST_PAGE_LSN]
    walk[COUNT] = 0
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
        _pass_whole_records(
            data, page_at, headers, start_lsn, limits, walk,
            record_at, record_start, record_end, record_tli,
        )  # fmt: skip
        if walk[AT] != at:
            continue
        outcome, length, last = _check_record(data, page_at, headers, limits, walk, start_lsn)
        if outcome != GO_ON:
            return outcome
        if length == 0:  # the page that says so is entered again, as a page that begins a record
            walk[OVERWRITTEN_LSN], walk[PAGE], walk[AT] = start_lsn, last - 1, page_at[last]
            continue
        walk[OVERWRITTEN_LSN], walk[PREV_LSN] = UNKNOWN, start_lsn
        walk[PAGE], walk[TLI], walk[AT] = last, _tli(headers, last), at + (length + 7 & ~7)
        page_lsn = first_page_lsn + last * WAL_PAGE_SIZE
        end_lsn = page_lsn + _header_size(page_lsn, wal_seg_size) + walk[AT] - page_at[last]
        if _is_xlog(data, at, XLOG_SWITCH):
            end_lsn = _pass_segment(data, page_at, limits, walk, end_lsn)
        if start_lsn >= limits[FROM_LSN]:
            count = walk[COUNT]
            record_at[count], record_start[count] = at, start_lsn
            record_end[count], record_tli[count] = end_lsn, _tli(headers, page)
            walk[COUNT] = count + 1
