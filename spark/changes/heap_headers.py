"""Where the parts of one record lie: its main data and the data of its blocks.

    record | header 24 | block headers | main header | images and data of blocks | main data |

Compiled, because it reads every record of a heap. The lengths must fit the record exactly, and the
main data of a heap's record must be as long as its operation says. Source: Postgres
`access/xlogrecord.h`, `access/heapam_xlog.h`.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from quorum_wal.walrecords.loads import Bytes, Int, Numbers, load_u16, load_u32

RM_HEAP2 = 9

HEAP_HEADER = 5
INSERT_SIZE, DELETE_SIZE, UPDATE_SIZE, TRUNCATE_SIZE, MULTI_SIZE = 3, 8, 14, 12, 4

MAX_BLOCKS = 33

#: the headers of one record: these fields, followed by BLOCK_COUNT rows of BLOCK_FIELDS
MAIN_AT, MAIN_LENGTH, BLOCK_COUNT, FIRST_BLOCK = range(4)
B_FORK, B_IMAGE, B_DATABASE, B_RELFILENODE, B_BLOCK, B_AT, B_LENGTH, B_FIELDS = range(8)
BODY_FIELDS = FIRST_BLOCK + MAX_BLOCKS * B_FIELDS


@njit(cache=True, nogil=True)
def parse_headers(data: Bytes, record_at: Int, image_apply: Int, body: Numbers) -> bool:
    """Parses a record's headers: the positions of its main data and of each block's data. Returns
    False if they are incomplete."""
    end = record_at + np.int64(load_u32(data, record_at))
    at, payload, blocks = record_at + 24, np.int64(0), np.int64(0)
    database = relfilenode = np.int64(0)
    body[MAIN_LENGTH] = 0
    while end - at > payload and at + 2 <= end:
        kind = data[at]
        at += 1
        if kind == 255:
            body[MAIN_LENGTH] = data[at]
            at += 1
            break
        if kind == 254 and at + 4 <= end:
            body[MAIN_LENGTH] = load_u32(data, at)
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
        if kind >= MAX_BLOCKS or blocks >= MAX_BLOCKS or at + size > end:
            return False
        length = np.int64(load_u16(data, at + 1))
        at += 3
        row = FIRST_BLOCK + blocks * B_FIELDS
        body[row + B_IMAGE] = 0
        image_length = np.int64(0)
        if flags & 0x10:
            image_length = np.int64(load_u16(data, at))
            image_info = data[at + 4]
            body[row + B_IMAGE] = 1 if image_info & image_apply else 0
            at += 5
            if image_info & 1 and image_info & ~(np.uint8(image_apply) | np.uint8(1)):
                at += 2
        if not flags & 0x80:
            database, relfilenode = (
                np.int64(load_u32(data, at + 4)),
                np.int64(load_u32(data, at + 8)),
            )
            at += 12
        body[row + B_FORK], body[row + B_BLOCK] = flags & 0x0F, load_u32(data, at)
        at += 4
        body[row + B_DATABASE], body[row + B_RELFILENODE] = database, relfilenode
        body[row + B_AT], body[row + B_LENGTH] = payload + image_length, length
        payload += image_length + length
        blocks += 1
    body[BLOCK_COUNT] = blocks
    for block in range(blocks):
        body[FIRST_BLOCK + block * B_FIELDS + B_AT] += at
    body[MAIN_AT] = at + payload
    return bool(at + payload + body[MAIN_LENGTH] == end)


@njit(cache=True, nogil=True)
def has_main_data(data: Bytes, rmgr: Int, info: Int, body: Numbers) -> bool:
    """Whether a heap record's main data is as long as its operation, its flags and its count say.
    True for operations that are not decoded."""
    main, length = body[MAIN_AT], body[MAIN_LENGTH]
    if rmgr == RM_HEAP2:
        if length < MULTI_SIZE:
            return False
        tuples = np.int64(load_u16(data, main + 2))
        return bool(tuples > 0 and length == MULTI_SIZE + (0 if info & 0x80 else 2 * tuples))
    operation = np.int64(info & 0x70)
    if operation == 0x00:
        return bool(length == INSERT_SIZE)
    if operation == 0x10:
        return bool(length >= DELETE_SIZE) and _has_old(data[main + 7] & 0x06, length, DELETE_SIZE)
    if operation in (0x20, 0x40):
        return bool(length >= UPDATE_SIZE) and _has_old(data[main + 7] & 0x0C, length, UPDATE_SIZE)
    if operation == 0x30:
        size = np.int64(TRUNCATE_SIZE)
        return bool(length >= size and length == size + 4 * np.int64(load_u32(data, main + 4)))
    return True


@njit(cache=True, nogil=True)
def _has_old(flags: Int, length: Int, size: Int) -> bool:
    """Whether the old tuple follows `size` bytes of main data exactly if the flags say so."""
    return bool(length > size + HEAP_HEADER if flags else length == size)
