"""The columns about ends of transactions; null for all other records."""

from __future__ import annotations

from functools import cache

import numpy as np
import pyarrow as pa
from numba import njit

from quorum_wal.spark.records.arrow_columns import bit_buffer, nullable_column
from quorum_wal.spark.records.wal_schema import WAL_SCHEMA
from quorum_wal.walrecords.loads import Bytes, Int, Numbers, load_u32
from quorum_wal.walrecords.pool_array import pool_array
from quorum_wal.walrecords.transaction import (
    GID_AT,
    GID_LENGTH,
    ROW,
    SUBXIDS,
    SUBXIDS_AT,
    TIME_US,
    TOP_XID,
)

#: the columns that are made from ends of transactions
TRANSACTION_COLUMNS = frozenset({"top_xid", "xact_time", "subxids", "gid"})


def transaction_column(name: str, data: Bytes, ends: Numbers, top_xid: Numbers) -> pa.Array:
    """One of TRANSACTION_COLUMNS. `ends` comes from read_ends(). `top_xid` has the value of each
    row from the record's header; it becomes part of the column and is changed."""
    if name != "top_xid" and not len(ends):
        return _nulls(name, 1 << len(top_xid).bit_length()).slice(0, len(top_xid))
    match name:
        case "top_xid":
            _put(ends, TOP_XID, top_xid)
            return nullable_column(top_xid, bit_buffer(top_xid != 0), pa.int64())
        case "xact_time":
            times = pool_array(len(top_xid), np.int64)
            times[:] = 0
            _put(ends, TIME_US, times)
            return nullable_column(times, _bits(len(times), ends), WAL_SCHEMA.field(name).type)
        case "subxids":
            return _subxids(len(top_xid), data, ends)
        case _:
            return _gids(len(top_xid), data, ends[ends[:, GID_LENGTH] > 0])


@cache
def _nulls(name: str, count: int) -> pa.Array:
    """Most batches of a bulk load end no transaction, so they share this array."""
    return pa.nulls(count, WAL_SCHEMA.field(name).type)


def _subxids(count: int, data: Bytes, ends: Numbers) -> pa.Array:
    offsets = pool_array(count + 1, np.int32)
    _fill_offsets(ends, SUBXIDS, offsets)
    xids = pool_array(int(offsets[-1]), np.int64)
    _copy_xids(data, ends, xids)
    values = pa.Array.from_buffers(pa.int64(), len(xids), [None, pa.py_buffer(xids)])
    return pa.Array.from_buffers(
        WAL_SCHEMA.field("subxids").type,
        count,
        [_bits(count, ends), pa.py_buffer(offsets)],
        children=[values],
    )


def _gids(count: int, data: Bytes, named: Numbers) -> pa.Array:
    """A gid has the encoding of its database, which is unknown here. Bytes that are not UTF-8 are
    shown as `\\xE4`."""
    gids = [
        data[at : at + length].tobytes().decode("utf-8", "backslashreplace").encode()
        for at, length in named[:, [GID_AT, GID_LENGTH]].tolist()
    ]
    named[:, GID_LENGTH] = [len(gid) for gid in gids]
    offsets = pool_array(count + 1, np.int32)
    _fill_offsets(named, GID_LENGTH, offsets)
    buffers = [_bits(count, named), pa.py_buffer(offsets), pa.py_buffer(b"".join(gids))]
    return pa.Array.from_buffers(pa.string(), count, buffers)


def _bits(count: int, ends: Numbers) -> pa.Buffer:
    """`count` bits, set for the rows of these ends."""
    bits = np.zeros(count + 7 >> 3, np.uint8)
    _set_bits(ends, bits)
    return pa.py_buffer(bits)


@njit(cache=True, nogil=True)
def _set_bits(ends: Numbers, bits: Numbers) -> None:
    for i in range(len(ends)):
        row = ends[i, ROW]
        bits[row >> 3] |= np.uint8(1 << (row & 7))


@njit(cache=True, nogil=True)
def _put(ends: Numbers, column: Int, values: Numbers) -> None:
    """Copies `column` of each end to its row of `values`, unless it is 0."""
    for i in range(len(ends)):
        if ends[i, column] != 0:
            values[ends[i, ROW]] = ends[i, column]


@njit(cache=True, nogil=True)
def _fill_offsets(ends: Numbers, column: Int, offsets: Numbers) -> None:
    """Offsets of values whose length is in `column`; rows without an end have length 0."""
    begin = offset = np.int64(0)
    for i in range(len(ends)):
        row = ends[i, ROW]
        offsets[begin : row + 1] = offset
        begin, offset = row + 1, offset + ends[i, column]
    offsets[begin:] = offset


@njit(cache=True, nogil=True)
def _copy_xids(data: Bytes, ends: Numbers, xids: Numbers) -> Int:
    count = 0
    for i in range(len(ends)):
        for subxid in range(ends[i, SUBXIDS]):
            xids[count] = load_u32(data, ends[i, SUBXIDS_AT] + subxid * 4)
            count += 1
    return count
