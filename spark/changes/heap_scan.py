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
from quorum_wal.walrecords.loads import Bytes, Int, Numbers, load_u16, load_u32
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

#: rows of `HeapScan.changes`
(
    LSN, XID, OPERATION, DATABASE, RELFILENODE, BLOCK, OFFSET, OLD_BLOCK, OLD_OFFSET,
    FLAGS, NEW_AT, NEW_LENGTH, OLD_AT, OLD_LENGTH, PREFIX, SUFFIX, RECORD, SEQ, CHANGE_FIELDS,
) = range(19)  # fmt: skip

#: operations of changes
(
    INSERT, UPDATE, DELETE, TRUNCATE, CREATE_FILE, NEW_PAGE, PAGE_IMAGE, DAMAGED, DROP_FILE,
    EMPTY_FILE,
) = range(1, 11)  # fmt: skip

#: flags of changes
OLD_IS_KEY = 1  #: the old tuple has only the columns that identify the row
HAS_IMAGE = 2  #: the record has the image of the new tuple's page
HAS_OLD_IMAGE = 4  #: the record has the image of the old tuple's page
IS_LOGICAL = 8  #: written for logical decoding
IS_SUPER = 16  #: cancels a speculative insertion
IS_HOT = 32

#: rows of `HeapScan.marks`: ends of transactions, and records that list open ones, in order
(
    MARK_LSN, MARK_XID, MARK_KIND, MARK_TIME_US, SUBXIDS_AT, SUBXIDS, INVALIDATIONS_AT,
    INVALIDATIONS, DROPPED_AT, DROPPED, MARK_RECORD, MARK_FIELDS,
) = range(12)  # fmt: skip

#: kinds of marks
COMMIT, COMMIT_PREPARED, ABORT, RUNNING_XACTS, CHECKPOINT_SHUTDOWN, CHECKPOINT_ONLINE = range(1, 7)

_RM_XLOG, _RM_XACT, _RM_SMGR, _RM_STANDBY, _RM_HEAP2, _RM_HEAP = 0, 1, 2, 8, 9, 10
_MAX_BLOCKS = 33
#: the end of the year 9999, as in `datetime`
_TIME_US_MAX = 253_402_300_799_999_999

#: the headers of one record: these fields, followed by BLOCK_COUNT rows of BLOCK_FIELDS
_MAIN_AT, _MAIN_LENGTH, _BLOCK_COUNT, _FIRST_BLOCK = range(4)
_B_FORK, _B_IMAGE, _B_DATABASE, _B_RELFILENODE, _B_BLOCK, _B_AT, _B_LENGTH, _B_FIELDS = range(8)
_BODY_FIELDS = _FIRST_BLOCK + _MAX_BLOCKS * _B_FIELDS

_HEAP_HEADER = 5
_INSERT_SIZE, _DELETE_SIZE, _UPDATE_SIZE, _TRUNCATE_SIZE, _MULTI_SIZE = 3, 8, 14, 12, 4

_NOTHING: Array = np.empty((0, 0), np.int64)


@dataclass(frozen=True, slots=True)
class HeapScan:
    """Both arrays have the shape (fields, rows), in the order of the WAL."""

    index: RecordIndex
    version_major: int
    changes: Array  # int64
    marks: Array  # int64

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
    counts = np.zeros(3, np.int64)
    nothing = np.empty((CHANGE_FIELDS, 0), np.int64), np.empty((MARK_FIELDS, 0), np.int64)
    arguments = (
        index.data, index.at, index.start_lsn, version.image_apply, xact_format(version),
        with_images,
    )  # fmt: skip
    _scan(*arguments, *nothing, counts, False)
    if counts[2]:
        raise _damaged(index, version, int(counts[2]) - 1)
    changes = np.empty((CHANGE_FIELDS, counts[0]), np.int64)
    marks = np.empty((MARK_FIELDS, counts[1]), np.int64)
    _scan(*arguments, changes, marks, counts, True)
    return HeapScan(index, version.major, changes, marks)


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
    with_images: bool, changes: Numbers, marks: Numbers, counts: Numbers, fills: bool,
) -> None:  # fmt: skip
    """Counts rows, or fills them; counts[2] is the number of the first damaged record plus 1."""
    end_of = np.zeros(ENDS, np.int64)
    counts[:] = 0
    body = np.zeros(_BODY_FIELDS, np.int64)
    for i in range(len(at)):
        info, rmgr = data[at[i] + 16] & 0xF0, data[at[i] + 17]
        if rmgr == _RM_HEAP or (rmgr == _RM_HEAP2 and info & 0x70 == 0x50):
            is_whole = _parse(data, at[i], image_apply, body)
            if not is_whole or not _has_main_data(data, rmgr, info, body):
                counts[2] = i + 1
                return
            before = counts[0]
            if rmgr == _RM_HEAP:
                _heap(data, info & 0x70, body, changes, counts, fills)
            else:
                _multi_insert(data, info, body, changes, counts, fills)
            if with_images and before == counts[0]:
                _images(body, changes, counts, fills)
            _identify(data, at[i], i, start_lsn[i], before, changes, counts, fills)
        elif rmgr in (_RM_SMGR, _RM_XLOG) or (rmgr == _RM_HEAP2 and with_images):
            before = counts[0]
            if rmgr == _RM_XLOG and info in (0x00, 0x10):
                kind = CHECKPOINT_ONLINE if info else CHECKPOINT_SHUTDOWN
                _mark(i, kind, start_lsn[i], marks, counts, fills)
                continue
            if not _parse(data, at[i], image_apply, body):
                counts[2] = i + 1
                return
            if rmgr == _RM_SMGR:
                _file(data, info, body, changes, counts, fills)
            elif rmgr == _RM_XLOG and info == 0xB0:
                _new_pages(body, changes, counts, fills)
            elif with_images and (rmgr == _RM_HEAP2 or info == 0xA0):
                _images(body, changes, counts, fills)
            _identify(data, at[i], i, start_lsn[i], before, changes, counts, fills)
        elif rmgr == _RM_XACT:
            if not _ending(data, at[i], i, start_lsn[i], form, body, end_of, marks, counts, fills):
                counts[2] = i + 1
                return
        elif rmgr == _RM_STANDBY and info == 0x10:
            _mark(i, RUNNING_XACTS, start_lsn[i], marks, counts, fills)


@njit(cache=True, nogil=True)
def _identify(
    data: Bytes, at: Int, number: Int, lsn: Int, before: Int, changes: Numbers, counts: Numbers,
    fills: bool,
) -> None:  # fmt: skip
    """Sets LSN, xid and record of all rows that the record has added, and numbers them."""
    if fills:
        for row in range(before, counts[0]):
            changes[LSN, row], changes[XID, row] = lsn, load_u32(data, at + 4)
            changes[RECORD, row], changes[SEQ, row] = number, row - before


@njit(cache=True, nogil=True)
def _parse(data: Bytes, record_at: Int, image_apply: Int, body: Numbers) -> bool:
    """Parses a record's headers: the positions of its main data and of each block's data. Returns
    False if they are incomplete."""
    end = record_at + np.int64(load_u32(data, record_at))
    at, payload, blocks = record_at + 24, np.int64(0), np.int64(0)
    database = relfilenode = np.int64(0)
    body[_MAIN_LENGTH] = 0
    while end - at > payload and at + 2 <= end:
        kind = data[at]
        at += 1
        if kind == 255:
            body[_MAIN_LENGTH] = data[at]
            at += 1
            break
        if kind == 254 and at + 4 <= end:
            body[_MAIN_LENGTH] = load_u32(data, at)
            at += 4
            break
        if kind == 253:
            at += 2
            continue
        if kind == 252:
            at += 4
            continue
        flags = data[at]
        size = 7 + (7 if flags & 0x10 else 0) + (0 if flags & 0x80 else 12)
        if kind >= _MAX_BLOCKS or blocks >= _MAX_BLOCKS or at + size > end:
            return False
        length = np.int64(load_u16(data, at + 1))
        at += 3
        row = _FIRST_BLOCK + blocks * _B_FIELDS
        body[row + _B_IMAGE] = 0
        image_length = np.int64(0)
        if flags & 0x10:
            image_length = np.int64(load_u16(data, at))
            image_info = data[at + 4]
            body[row + _B_IMAGE] = 1 if image_info & image_apply else 0
            at += 5
            if image_info & 1 and image_info & ~(np.uint8(image_apply) | np.uint8(1)):
                at += 2
        if not flags & 0x80:
            database, relfilenode = (
                np.int64(load_u32(data, at + 4)),
                np.int64(load_u32(data, at + 8)),
            )
            at += 12
        body[row + _B_FORK], body[row + _B_BLOCK] = flags & 0x0F, load_u32(data, at)
        at += 4
        body[row + _B_DATABASE], body[row + _B_RELFILENODE] = database, relfilenode
        body[row + _B_AT], body[row + _B_LENGTH] = payload + image_length, length
        payload += image_length + length
        blocks += 1
    body[_BLOCK_COUNT] = blocks
    for block in range(blocks):
        body[_FIRST_BLOCK + block * _B_FIELDS + _B_AT] += at
    body[_MAIN_AT] = at + payload
    return bool(at + payload + body[_MAIN_LENGTH] == end)


@njit(cache=True, nogil=True)
def _has_main_data(data: Bytes, rmgr: Int, info: Int, body: Numbers) -> bool:
    """Whether a heap record's main data is as long as its operation, its flags and its count say.
    True for operations that are not decoded."""
    main, length = body[_MAIN_AT], body[_MAIN_LENGTH]
    if rmgr == _RM_HEAP2:
        if length < _MULTI_SIZE:
            return False
        tuples = np.int64(load_u16(data, main + 2))
        return bool(tuples > 0 and length == _MULTI_SIZE + (0 if info & 0x80 else 2 * tuples))
    operation = np.int64(info & 0x70)
    if operation == 0x00:
        return bool(length == _INSERT_SIZE)
    if operation == 0x10:
        return bool(length >= _DELETE_SIZE) and _has_old(
            data[main + 7] & 0x06, length, _DELETE_SIZE
        )
    if operation in (0x20, 0x40):
        return bool(length >= _UPDATE_SIZE) and _has_old(
            data[main + 7] & 0x0C, length, _UPDATE_SIZE
        )
    if operation == 0x30:
        size = np.int64(_TRUNCATE_SIZE)
        return bool(length >= size and length == size + 4 * np.int64(load_u32(data, main + 4)))
    return True


@njit(cache=True, nogil=True)
def _has_old(flags: Int, length: Int, size: Int) -> bool:
    """Whether the old tuple follows `size` bytes of main data exactly if the flags say so."""
    return bool(length > size + _HEAP_HEADER if flags else length == size)


@njit(cache=True, nogil=True)
def _add(operation: Int, body: Numbers, block: Int, changes: Numbers, counts: Numbers) -> Int:
    """Adds a row with the block's relation and number."""
    row, at = counts[0], _FIRST_BLOCK + block * _B_FIELDS
    counts[0] += 1
    changes[:, row] = 0
    changes[OPERATION, row] = operation
    changes[DATABASE, row], changes[RELFILENODE, row] = (
        body[at + _B_DATABASE],
        body[at + _B_RELFILENODE],
    )
    changes[BLOCK, row] = changes[OLD_BLOCK, row] = body[at + _B_BLOCK]
    if body[at + _B_IMAGE]:
        changes[FLAGS, row] = HAS_IMAGE
    return row


@njit(cache=True, nogil=True)
def _heap(
    data: Bytes, operation: Int, body: Numbers, changes: Numbers, counts: Numbers, fills: bool
) -> None:
    if operation == 0x30:
        counts[0] += 1
        if fills:
            row = counts[0] - 1
            changes[:, row] = 0
            changes[OPERATION, row] = TRUNCATE
            changes[DATABASE, row] = load_u32(data, body[_MAIN_AT])
        return
    if operation not in (0x00, 0x10, 0x20, 0x40) or body[_BLOCK_COUNT] == 0:
        return
    if not fills:
        counts[0] += 1
    elif operation == 0x00:
        _insert(data, body, changes, counts)
    elif operation == 0x10:
        _delete(data, body, changes, counts)
    else:
        _update(data, operation, body, changes, counts)


@njit(cache=True, nogil=True)
def _insert(data: Bytes, body: Numbers, changes: Numbers, counts: Numbers) -> None:
    row, main = _add(INSERT, body, 0, changes, counts), body[_MAIN_AT]
    changes[OFFSET, row] = load_u16(data, main)
    flags = data[main + 2]
    if flags & 0x08:
        changes[FLAGS, row] |= IS_LOGICAL
    changes[NEW_AT, row] = body[_FIRST_BLOCK + _B_AT]
    changes[NEW_LENGTH, row] = body[_FIRST_BLOCK + _B_LENGTH]


@njit(cache=True, nogil=True)
def _delete(data: Bytes, body: Numbers, changes: Numbers, counts: Numbers) -> None:
    row, main = _add(DELETE, body, 0, changes, counts), body[_MAIN_AT]
    changes[OLD_OFFSET, row] = load_u16(data, main + 4)
    flags = data[main + 7]
    if flags & 0x08:
        changes[FLAGS, row] |= IS_SUPER
    if flags & 0x04:
        changes[FLAGS, row] |= OLD_IS_KEY
    if changes[FLAGS, row] & HAS_IMAGE:
        changes[FLAGS, row] ^= HAS_IMAGE | HAS_OLD_IMAGE
    if flags & 0x06:
        changes[OLD_AT, row] = main + _DELETE_SIZE
        changes[OLD_LENGTH, row] = body[_MAIN_LENGTH] - _DELETE_SIZE


@njit(cache=True, nogil=True)
def _update(data: Bytes, operation: Int, body: Numbers, changes: Numbers, counts: Numbers) -> None:
    row, main = _add(UPDATE, body, 0, changes, counts), body[_MAIN_AT]
    changes[OLD_OFFSET, row], changes[OFFSET, row] = (
        load_u16(data, main + 4), load_u16(data, main + 12),
    )  # fmt: skip
    flags = data[main + 7]
    if body[_BLOCK_COUNT] > 1:
        old = _FIRST_BLOCK + _B_FIELDS
        changes[OLD_BLOCK, row] = body[old + _B_BLOCK]
        if body[old + _B_IMAGE]:
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
        changes[OLD_AT, row] = main + _UPDATE_SIZE
        changes[OLD_LENGTH, row] = body[_MAIN_LENGTH] - _UPDATE_SIZE
    at, length = body[_FIRST_BLOCK + _B_AT], body[_FIRST_BLOCK + _B_LENGTH]
    if flags & 0x20 and length >= 2:
        changes[PREFIX, row] = load_u16(data, at)
        at, length = at + 2, length - 2
    if flags & 0x40 and length >= 2:
        changes[SUFFIX, row] = load_u16(data, at)
        at, length = at + 2, length - 2
    changes[NEW_AT, row], changes[NEW_LENGTH, row] = at, length


@njit(cache=True, nogil=True)
def _multi_insert(
    data: Bytes, info: Int, body: Numbers, changes: Numbers, counts: Numbers, fills: bool
) -> None:
    if body[_BLOCK_COUNT] == 0:
        return
    main, tuples = body[_MAIN_AT], np.int64(load_u16(data, body[_MAIN_AT] + 2))
    if not fills:
        counts[0] += tuples
        return
    at = body[_FIRST_BLOCK + _B_AT]
    end = at + body[_FIRST_BLOCK + _B_LENGTH]
    for i in range(tuples):
        row = _add(INSERT, body, 0, changes, counts)
        changes[OFFSET, row] = i + 1 if info & 0x80 else load_u16(data, main + _MULTI_SIZE + 2 * i)
        if data[main] & 0x08:
            changes[FLAGS, row] |= IS_LOGICAL
        if at == end:  # only in the page image
            continue
        at += at - body[_FIRST_BLOCK + _B_AT] & 1
        length = np.int64(load_u16(data, at)) + _HEAP_HEADER if at + 7 <= end else end - at + 1
        if at + 2 + length > end:
            changes[OPERATION, row] = DAMAGED
            at = end
            continue
        changes[NEW_AT, row], changes[NEW_LENGTH, row] = at + 2, length
        at += 2 + length
    if at != end:  # there are more tuples than the record counts
        changes[OPERATION, row] = DAMAGED


@njit(cache=True, nogil=True)
def _file(
    data: Bytes, info: Int, body: Numbers, changes: Numbers, counts: Numbers, fills: bool
) -> None:
    """XLOG_SMGR_CREATE: tablespace, database, relfilenode, fork. XLOG_SMGR_TRUNCATE: first block to
    remove, tablespace, database, relfilenode, flags; it counts if all blocks are removed."""
    main, is_new = body[_MAIN_AT], info == 0x10
    if info not in (0x10, 0x20) or body[_MAIN_LENGTH] < 16:
        return
    if load_u32(data, main + (12 if is_new else 0)) != 0:
        return
    counts[0] += 1
    if fills:
        row, at = counts[0] - 1, main + (4 if is_new else 8)
        changes[:, row] = 0
        changes[OPERATION, row] = CREATE_FILE if is_new else EMPTY_FILE
        changes[DATABASE, row] = load_u32(data, at)
        changes[RELFILENODE, row] = load_u32(data, at + 4)


@njit(cache=True, nogil=True)
def _new_pages(body: Numbers, changes: Numbers, counts: Numbers, fills: bool) -> None:
    for block in range(body[_BLOCK_COUNT]):
        if body[_FIRST_BLOCK + block * _B_FIELDS + _B_FORK] == 0:
            if fills:
                _add(NEW_PAGE, body, block, changes, counts)
            else:
                counts[0] += 1


@njit(cache=True, nogil=True)
def _images(body: Numbers, changes: Numbers, counts: Numbers, fills: bool) -> None:
    for block in range(body[_BLOCK_COUNT]):
        at = _FIRST_BLOCK + block * _B_FIELDS
        if body[at + _B_FORK] == 0 and body[at + _B_IMAGE]:
            if fills:
                _add(PAGE_IMAGE, body, block, changes, counts)
            else:
                counts[0] += 1


@njit(cache=True, nogil=True)
def _ending(
    data: Bytes, at: Int, number: Int, lsn: Int, form: XactFormat, body: Numbers, end_of: Numbers,
    marks: Numbers, counts: Numbers, fills: bool,
) -> bool:  # fmt: skip
    """Returns False if the record does not have its format: its transaction would be lost."""
    operation = data[at + 16] & 0x70
    if operation not in (0x00, 0x20, 0x30, 0x40):
        return True
    kind = COMMIT if operation == 0x00 else COMMIT_PREPARED if operation == 0x30 else ABORT
    row = counts[1]
    _mark(number, kind, lsn, marks, counts, fills)
    end = at + np.int64(load_u32(data, at))
    if not _parse(data, at, 0, body):
        return False
    if not read_end(data, at, body[_MAIN_AT], end, form, end_of):
        return False
    if end_of[TIME_US] < 0 or end_of[TIME_US] > _TIME_US_MAX:
        return False
    if fills:
        xid = end_of[TOP_XID] if operation != 0x20 else np.int64(load_u32(data, at + 4))
        marks[MARK_XID, row], marks[MARK_TIME_US, row] = xid, end_of[TIME_US]
        marks[SUBXIDS_AT, row], marks[SUBXIDS, row] = end_of[ENDS_AT], end_of[ENDS_SUBXIDS]
        marks[INVALIDATIONS_AT, row] = end_of[ENDS_INVALIDATIONS_AT]
        marks[INVALIDATIONS, row] = end_of[ENDS_INVALIDATIONS]
        marks[DROPPED_AT, row], marks[DROPPED, row] = end_of[RELATIONS_AT], end_of[RELATIONS]
    return True


@njit(cache=True, nogil=True)
def _mark(number: Int, kind: Int, lsn: Int, marks: Numbers, counts: Numbers, fills: bool) -> None:
    row = counts[1]
    counts[1] += 1
    if fills:
        marks[:, row] = 0
        marks[MARK_LSN, row], marks[MARK_KIND, row], marks[MARK_RECORD, row] = lsn, kind, number
