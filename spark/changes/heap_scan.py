"""The changes of heaps and the ends of transactions in a `RecordIndex`, as arrays, uninterpreted.

    record | header 24 | block headers | main header | block 0: prefix, suffix, tuple | main: old |
    tuple  | infomask2 2 | infomask 2 | hoff 1 | bitmap, padding, values |

A tuple is given by the offset of its infomask2 and by its length; on a page the same bytes follow
the 18 bytes that the WAL omits. The CRC of the records must have been checked. A record with an
invalid format is refused all the same; an invalid tuple is marked DAMAGED. Source: Postgres
`access/heapam_xlog.h`, `heapam.c`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit

from quorum_wal.pgwal.block_ref import RecordBody, decode_body
from quorum_wal.pgwal.errors import WalFormatError
from quorum_wal.pgwal.lsn import Lsn, format_lsn
from quorum_wal.pgwal.record import HEADER, Record, RecordHeader
from quorum_wal.pgwal.versions import WalVersion
from quorum_wal.spark.changes.heap_fields import (
    ABORT,
    BLOCK,
    CHANGE_FIELDS,
    CHECKPOINT_ONLINE,
    CHECKPOINT_SHUTDOWN,
    COMMIT,
    COMMIT_PREPARED,
    CREATE_FILE,
    DAMAGED,
    DATABASE,
    DELETE,
    DROPPED,
    DROPPED_AT,
    EMPTY_FILE,
    FLAGS,
    HAS_IMAGE,
    HAS_OLD_IMAGE,
    INSERT,
    INVALIDATIONS,
    INVALIDATIONS_AT,
    IS_HOT,
    IS_LOGICAL,
    IS_SUPER,
    LSN,
    MARK_FIELDS,
    MARK_KIND,
    MARK_LSN,
    MARK_RECORD,
    MARK_TIME_US,
    MARK_XID,
    NEW_AT,
    NEW_LENGTH,
    NEW_PAGE,
    OFFSET,
    OLD_AT,
    OLD_BLOCK,
    OLD_IS_KEY,
    OLD_LENGTH,
    OLD_OFFSET,
    OPERATION,
    PAGE_IMAGE,
    PREFIX,
    RECORD,
    RELFILENODE,
    RUNNING_XACTS,
    SEQ,
    SUBXIDS,
    SUBXIDS_AT,
    SUFFIX,
    TRUNCATE,
    UPDATE,
    XID,
)
from quorum_wal.spark.changes.heap_headers import (
    B_AT,
    B_BLOCK,
    B_DATABASE,
    B_FIELDS,
    B_FORK,
    B_IMAGE,
    B_LENGTH,
    B_RELFILENODE,
    BLOCK_COUNT,
    BODY_FIELDS,
    DELETE_SIZE,
    FIRST_BLOCK,
    HEAP_HEADER,
    MAIN_AT,
    MAIN_LENGTH,
    MAX_BLOCKS,
    MULTI_SIZE,
    RM_HEAP2,
    UPDATE_SIZE,
    has_main_data,
    parse_headers,
)
from quorum_wal.walrecords.loads import Bytes, Int, Numbers, lent, load_u16, load_u32
from quorum_wal.walrecords.pool_array import pool_array
from quorum_wal.walrecords.record_index import Array, RecordIndex
from quorum_wal.walrecords.transaction import (
    ENDS,
    RELATIONS,
    RELATIONS_AT,
    TIME_US,
    TOP_XID,
    XactFormat,
    read_end,
    xact_format,
)
from quorum_wal.walrecords.transaction import INVALIDATIONS as ENDS_INVALIDATIONS
from quorum_wal.walrecords.transaction import INVALIDATIONS_AT as ENDS_INVALIDATIONS_AT
from quorum_wal.walrecords.transaction import SUBXIDS as ENDS_SUBXIDS
from quorum_wal.walrecords.transaction import SUBXIDS_AT as ENDS_AT

_RM_XLOG, _RM_XACT, _RM_SMGR, _RM_STANDBY, _RM_HEAP = 0, 1, 2, 8, 10
#: the end of the year 9999, as in `datetime`
_TIME_US_MAX = 253_402_300_799_999_999

#: of a scan so far: rows of both arrays, and the record to go on with
_CHANGES, _MARKS, _NEXT_RECORD, _COUNTS = range(4)
#: room for records with several changes; if it is not enough, the array grows
_MORE_CHANGES = 1 << 10

_NOTHING: Array = np.empty((0, 0), np.int64)


@dataclass(frozen=True, slots=True)
class HeapScan:
    """Both arrays have the shape (fields, rows), in the order of the WAL."""

    index: RecordIndex
    version_major: int
    changes: Array  # int64
    marks: Array  # int64

    @property
    def size_bytes(self) -> int:
        """Of memory."""
        index = self.index
        arrays = (index.data, index.at, index.start_lsn, index.end_lsn, index.tli)
        return sum(each.nbytes for each in (*arrays, self.changes, self.marks))

    def body(self, number: int) -> RecordBody:
        """The body of a record, given by its number in `changes[RECORD]` or `marks[MARK_RECORD]`.
        Raises WalFormatError."""
        index = self.index
        at = int(index.at[number])
        length = int.from_bytes(index.data[at : at + 4].tobytes(), "little")
        data = index.data[at : at + length].tobytes()
        header = RecordHeader(*HEADER.unpack_from(data))
        record = Record(
            Lsn(index.start_lsn[number]), Lsn(index.end_lsn[number]), length,
            Lsn(header.prev_lsn), header.xid, header.rmgr_id, header.info, data,
        )  # fmt: skip
        return decode_body(record, self.version_major)


def scan_heap(index: RecordIndex, version: WalVersion, *, with_images: bool) -> HeapScan:
    """`with_images` adds a PAGE_IMAGE for every page image of a record without a change.
    Raises WalFormatError."""
    counts = np.zeros(_COUNTS, np.int64)
    body, end_of = np.zeros(BODY_FIELDS, np.int64), np.zeros(ENDS, np.int64)
    changes = _room(CHANGE_FIELDS, len(index) + _MORE_CHANGES)
    marks = _room(MARK_FIELDS, len(index))
    while counts[_NEXT_RECORD] < len(index):
        is_valid = _scan(
            index.data, index.at, index.start_lsn, version.image_apply, xact_format(version),
            with_images, body, end_of, changes, marks, counts,
        )  # fmt: skip
        if not is_valid:
            raise _damaged(index, version, int(counts[_NEXT_RECORD]))
        if counts[_NEXT_RECORD] < len(index):
            larger = _room(CHANGE_FIELDS, 2 * changes.shape[1] + _MORE_CHANGES)
            larger[:, : counts[_CHANGES]] = changes[:, : counts[_CHANGES]]
            changes = larger
    return HeapScan(
        index,
        version.major,
        changes[:, : counts[_CHANGES]].copy(),
        marks[:, : counts[_MARKS]].copy(),
    )


def _room(fields: int, rows: int) -> Array:
    room: Array = pool_array(fields * rows, np.int64).reshape(fields, rows)
    return room


def _damaged(index: RecordIndex, version: WalVersion, number: int) -> WalFormatError:
    """The error of a record whose CRC is right."""
    lsn = int(index.start_lsn[number])
    try:
        HeapScan(index, version.major, _NOTHING, _NOTHING).body(number)
    except WalFormatError as error:
        return error
    return WalFormatError(lsn, f"record at {format_lsn(lsn)} does not have the format of its kind")


@njit(cache=True, nogil=True)
def _scan(
    data: Bytes, at: Numbers, start_lsn: Numbers, image_apply: Int, form: XactFormat,
    with_images: bool, body: Numbers, end_of: Numbers, changes: Numbers, marks: Numbers,
    counts: Numbers,
) -> bool:  # fmt: skip
    """Adds the rows of the records from counts[_NEXT_RECORD] on, as far as there is room. Returns
    False if that record does not have its format."""
    data, body, end_of = lent(data), lent(body), lent(end_of)
    changes, marks, counts = lent(changes), lent(marks), lent(counts)
    for i in range(counts[_NEXT_RECORD], len(at)):
        counts[_NEXT_RECORD] = i
        info, rmgr = data[at[i] + 16] & 0xF0, data[at[i] + 17]
        before = counts[_CHANGES]
        if rmgr == _RM_HEAP or (rmgr == RM_HEAP2 and info & 0x70 == 0x50):
            is_whole = parse_headers(data, at[i], image_apply, body)
            if not is_whole or not has_main_data(data, rmgr, info, body):
                return False
            if before + _changes_max(data, rmgr, body) > changes.shape[1]:
                return True
            if rmgr == _RM_HEAP:
                _heap(data, info & 0x70, body, changes, counts)
            else:
                _multi_insert(data, info, body, changes, counts)
            if with_images and before == counts[_CHANGES]:
                _images(body, changes, counts)
            _identify(data, at[i], i, start_lsn[i], before, changes, counts)
        elif rmgr == _RM_XLOG and info in (0x00, 0x10):
            kind = CHECKPOINT_ONLINE if info else CHECKPOINT_SHUTDOWN
            _mark(i, kind, start_lsn[i], marks, counts)
        elif rmgr in (_RM_SMGR, _RM_XLOG) or (rmgr == RM_HEAP2 and with_images):
            if not parse_headers(data, at[i], image_apply, body):
                return False
            if before + MAX_BLOCKS > changes.shape[1]:
                return True
            _files_and_pages(data, rmgr, info, with_images, body, changes, counts)
            _identify(data, at[i], i, start_lsn[i], before, changes, counts)
        elif rmgr == _RM_XACT:
            if not _ending(data, at[i], i, start_lsn[i], form, body, end_of, marks, counts):
                return False
        elif rmgr == _RM_STANDBY and info == 0x10:
            _mark(i, RUNNING_XACTS, start_lsn[i], marks, counts)
    counts[_NEXT_RECORD] = len(at)
    return True


@njit(cache=True, nogil=True)
def _changes_max(data: Bytes, rmgr: Int, body: Numbers) -> Int:
    """Of one record of a heap: a row for each tuple, or for each page image."""
    tuples = np.int64(load_u16(data, body[MAIN_AT] + 2)) if rmgr == RM_HEAP2 else np.int64(1)
    return max(tuples, np.int64(MAX_BLOCKS))


@njit(cache=True, nogil=True)
def _identify(
    data: Bytes, at: Int, number: Int, lsn: Int, before: Int, changes: Numbers, counts: Numbers
) -> None:
    """Sets LSN, xid and record of all rows that the record has added, and numbers them."""
    for row in range(before, counts[_CHANGES]):
        changes[LSN, row], changes[XID, row] = lsn, load_u32(data, at + 4)
        changes[RECORD, row], changes[SEQ, row] = number, row - before


@njit(cache=True, nogil=True)
def _new_row(operation: Int, changes: Numbers, counts: Numbers) -> Int:
    row = counts[_CHANGES]
    counts[_CHANGES] += 1
    for field in range(CHANGE_FIELDS):
        changes[field, row] = 0
    changes[OPERATION, row] = operation
    return row


@njit(cache=True, nogil=True)
def _add(operation: Int, body: Numbers, block: Int, changes: Numbers, counts: Numbers) -> Int:
    """Adds a row with the block's relation and number."""
    row, at = _new_row(operation, changes, counts), FIRST_BLOCK + block * B_FIELDS
    changes[DATABASE, row] = body[at + B_DATABASE]
    changes[RELFILENODE, row] = body[at + B_RELFILENODE]
    changes[BLOCK, row] = changes[OLD_BLOCK, row] = body[at + B_BLOCK]
    if body[at + B_IMAGE]:
        changes[FLAGS, row] = HAS_IMAGE
    return row


@njit(cache=True, nogil=True)
def _heap(data: Bytes, operation: Int, body: Numbers, changes: Numbers, counts: Numbers) -> None:
    if operation == 0x30:
        row = _new_row(TRUNCATE, changes, counts)
        changes[DATABASE, row] = load_u32(data, body[MAIN_AT])
    elif operation not in (0x00, 0x10, 0x20, 0x40) or body[BLOCK_COUNT] == 0:
        return
    elif operation == 0x00:
        _insert(data, body, changes, counts)
    elif operation == 0x10:
        _delete(data, body, changes, counts)
    else:
        _update(data, operation, body, changes, counts)


@njit(cache=True, nogil=True)
def _insert(data: Bytes, body: Numbers, changes: Numbers, counts: Numbers) -> None:
    row, main = _add(INSERT, body, 0, changes, counts), body[MAIN_AT]
    changes[OFFSET, row] = load_u16(data, main)
    flags = data[main + 2]
    if flags & 0x08:
        changes[FLAGS, row] |= IS_LOGICAL
    changes[NEW_AT, row] = body[FIRST_BLOCK + B_AT]
    changes[NEW_LENGTH, row] = body[FIRST_BLOCK + B_LENGTH]


@njit(cache=True, nogil=True)
def _delete(data: Bytes, body: Numbers, changes: Numbers, counts: Numbers) -> None:
    row, main = _add(DELETE, body, 0, changes, counts), body[MAIN_AT]
    changes[OLD_OFFSET, row] = load_u16(data, main + 4)
    flags = data[main + 7]
    if flags & 0x08:
        changes[FLAGS, row] |= IS_SUPER
    if flags & 0x04:
        changes[FLAGS, row] |= OLD_IS_KEY
    if changes[FLAGS, row] & HAS_IMAGE:
        changes[FLAGS, row] ^= HAS_IMAGE | HAS_OLD_IMAGE
    if flags & 0x06:
        changes[OLD_AT, row] = main + DELETE_SIZE
        changes[OLD_LENGTH, row] = body[MAIN_LENGTH] - DELETE_SIZE


@njit(cache=True, nogil=True)
def _update(data: Bytes, operation: Int, body: Numbers, changes: Numbers, counts: Numbers) -> None:
    row, main = _add(UPDATE, body, 0, changes, counts), body[MAIN_AT]
    changes[OLD_OFFSET, row], changes[OFFSET, row] = (
        load_u16(data, main + 4), load_u16(data, main + 12),
    )  # fmt: skip
    flags = data[main + 7]
    if body[BLOCK_COUNT] > 1:
        old = FIRST_BLOCK + B_FIELDS
        changes[OLD_BLOCK, row] = body[old + B_BLOCK]
        if body[old + B_IMAGE]:
            changes[FLAGS, row] |= HAS_OLD_IMAGE
    elif changes[FLAGS, row] & HAS_IMAGE:
        changes[FLAGS, row] |= HAS_OLD_IMAGE
    if operation == 0x40:
        changes[FLAGS, row] |= IS_HOT
    if flags & 0x10:
        changes[FLAGS, row] |= IS_LOGICAL
    if flags & 0x08:
        changes[FLAGS, row] |= OLD_IS_KEY
    if flags & 0x0C:
        changes[OLD_AT, row] = main + UPDATE_SIZE
        changes[OLD_LENGTH, row] = body[MAIN_LENGTH] - UPDATE_SIZE
    at, length = body[FIRST_BLOCK + B_AT], body[FIRST_BLOCK + B_LENGTH]
    if flags & 0x20 and length >= 2:
        changes[PREFIX, row] = load_u16(data, at)
        at, length = at + 2, length - 2
    if flags & 0x40 and length >= 2:
        changes[SUFFIX, row] = load_u16(data, at)
        at, length = at + 2, length - 2
    changes[NEW_AT, row], changes[NEW_LENGTH, row] = at, length


@njit(cache=True, nogil=True)
def _multi_insert(data: Bytes, info: Int, body: Numbers, changes: Numbers, counts: Numbers) -> None:
    if body[BLOCK_COUNT] == 0:
        return
    main, tuples = body[MAIN_AT], np.int64(load_u16(data, body[MAIN_AT] + 2))
    at = body[FIRST_BLOCK + B_AT]
    end = at + body[FIRST_BLOCK + B_LENGTH]
    for i in range(tuples):
        row = _add(INSERT, body, 0, changes, counts)
        changes[OFFSET, row] = i + 1 if info & 0x80 else load_u16(data, main + MULTI_SIZE + 2 * i)
        if data[main] & 0x08:
            changes[FLAGS, row] |= IS_LOGICAL
        if at == end:  # only in the page image
            continue
        at += at - body[FIRST_BLOCK + B_AT] & 1
        length = np.int64(load_u16(data, at)) + HEAP_HEADER if at + 7 <= end else end - at + 1
        if at + 2 + length > end:
            changes[OPERATION, row] = DAMAGED
            at = end
            continue
        changes[NEW_AT, row], changes[NEW_LENGTH, row] = at + 2, length
        at += 2 + length
    if at != end:  # there are more tuples than the record counts
        changes[OPERATION, row] = DAMAGED


@njit(cache=True, nogil=True)
def _files_and_pages(
    data: Bytes, rmgr: Int, info: Int, with_images: bool, body: Numbers, changes: Numbers,
    counts: Numbers,
) -> None:  # fmt: skip
    if rmgr == _RM_SMGR:
        _file(data, info, body, changes, counts)
    elif rmgr == _RM_XLOG and info == 0xB0:
        _new_pages(body, changes, counts)
    elif with_images and (rmgr == RM_HEAP2 or info == 0xA0):
        _images(body, changes, counts)


@njit(cache=True, nogil=True)
def _file(data: Bytes, info: Int, body: Numbers, changes: Numbers, counts: Numbers) -> None:
    """XLOG_SMGR_CREATE: tablespace, database, relfilenode, fork. XLOG_SMGR_TRUNCATE: first block to
    remove, tablespace, database, relfilenode, flags; it counts if all blocks are removed."""
    main, is_new = body[MAIN_AT], info == 0x10
    if info not in (0x10, 0x20) or body[MAIN_LENGTH] < 16:
        return
    if load_u32(data, main + (12 if is_new else 0)) != 0:
        return
    row = _new_row(CREATE_FILE if is_new else EMPTY_FILE, changes, counts)
    at = main + (4 if is_new else 8)
    changes[DATABASE, row] = load_u32(data, at)
    changes[RELFILENODE, row] = load_u32(data, at + 4)


@njit(cache=True, nogil=True)
def _new_pages(body: Numbers, changes: Numbers, counts: Numbers) -> None:
    for block in range(body[BLOCK_COUNT]):
        if body[FIRST_BLOCK + block * B_FIELDS + B_FORK] == 0:
            _add(NEW_PAGE, body, block, changes, counts)


@njit(cache=True, nogil=True)
def _images(body: Numbers, changes: Numbers, counts: Numbers) -> None:
    for block in range(body[BLOCK_COUNT]):
        at = FIRST_BLOCK + block * B_FIELDS
        if body[at + B_FORK] == 0 and body[at + B_IMAGE]:
            _add(PAGE_IMAGE, body, block, changes, counts)


@njit(cache=True, nogil=True)
def _ending(
    data: Bytes, at: Int, number: Int, lsn: Int, form: XactFormat, body: Numbers, end_of: Numbers,
    marks: Numbers, counts: Numbers,
) -> bool:  # fmt: skip
    """Returns False if the record does not have its format: its transaction would be lost."""
    operation = data[at + 16] & 0x70
    if operation not in (0x00, 0x20, 0x30, 0x40):
        return True
    kind = COMMIT if operation == 0x00 else COMMIT_PREPARED if operation == 0x30 else ABORT
    row = counts[_MARKS]
    _mark(number, kind, lsn, marks, counts)
    end = at + np.int64(load_u32(data, at))
    if not parse_headers(data, at, 0, body):
        return False
    if not read_end(data, at, body[MAIN_AT], end, form, end_of):
        return False
    if end_of[TIME_US] < 0 or end_of[TIME_US] > _TIME_US_MAX:
        return False
    xid = end_of[TOP_XID] if operation != 0x20 else np.int64(load_u32(data, at + 4))
    marks[MARK_XID, row], marks[MARK_TIME_US, row] = xid, end_of[TIME_US]
    marks[SUBXIDS_AT, row], marks[SUBXIDS, row] = end_of[ENDS_AT], end_of[ENDS_SUBXIDS]
    marks[INVALIDATIONS_AT, row] = end_of[ENDS_INVALIDATIONS_AT]
    marks[INVALIDATIONS, row] = end_of[ENDS_INVALIDATIONS]
    marks[DROPPED_AT, row], marks[DROPPED, row] = end_of[RELATIONS_AT], end_of[RELATIONS]
    return True


@njit(cache=True, nogil=True)
def _mark(number: Int, kind: Int, lsn: Int, marks: Numbers, counts: Numbers) -> None:
    row = counts[_MARKS]
    counts[_MARKS] += 1
    for field in range(MARK_FIELDS):
        marks[field, row] = 0
    marks[MARK_LSN, row], marks[MARK_KIND, row], marks[MARK_RECORD, row] = lsn, kind, number
