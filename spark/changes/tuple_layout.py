"""The positions of the values of many tuples of one table: arrays of columns and tuples.

    | infomask2 2 | infomask 2 | hoff 1 | bitmap of values not NULL | padding | values, aligned |

The padding ends `hoff` bytes after the start of the whole tuple, which is 18 bytes before the data
here. A value of variable length with a one-byte header is not aligned. Padding is zero, and the
last value ends where the tuple ends. If this does not hold, the tuple is damaged, or the columns
are not those of its table; all its values are then in doubt. Source: Postgres `htup_details.h`,
`heap_form_tuple` and `heap_deform_tuple` in `heaptuple.c`, `varatt.h`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numba import njit

from quorum_wal.spark.changes.catalog import Column
from quorum_wal.walrecords.loads import Bytes, Int, Numbers, lent, load_u16, load_u32
from quorum_wal.walrecords.record_index import Array

#: states of a value: PLAIN without its header; PACKED (compressed) and EXTERNAL (out of line) with
#: their header; MISSING: the tuple is older than the column; DAMAGED: the tuple ends before the
#: value
PLAIN, NULL, MISSING, PACKED, EXTERNAL, DAMAGED = range(6)

_LEFT_OUT = 18
_HEADER_SIZE = 5
_HAS_NULL = 0x0001
_COUNT_MASK = 0x07FF


class Values(NamedTuple):
    """Arrays of shape (columns, tuples). A tuple may have more columns than the catalog."""

    state: Array  # uint8
    at: Array  # int64
    length: Array  # int64
    #: the number of columns of each tuple
    columns: Array  # int16
    #: whether the values fill the tuple exactly, with zeros between them; if the tuple has more
    #: columns than the catalog, its end is not checked
    fits: Array  # bool


def lay_out(data: Array, at: Array, length: Array, columns: Sequence[Column]) -> Values:
    """The positions in the tuples data[at : at + length]."""
    shape = len(columns), len(at)
    values = Values(
        np.empty(shape, np.uint8),
        np.empty(shape, np.int64),
        np.empty(shape, np.int64),
        np.empty(len(at), np.int16),
        np.empty(len(at), np.bool_),
    )
    lengths = np.array([column.length for column in columns], np.int64)
    aligns = np.array([column.align for column in columns], np.int64)
    _lay_out(data, at, length, lengths, aligns, *values)
    return values


@njit(cache=True, nogil=True)
def _lay_out(
    data: Bytes, at: Numbers, length: Numbers, column_length: Numbers, column_align: Numbers,
    state: Numbers, value_at: Numbers, value_length: Numbers, counts: Numbers, fits: Numbers,
) -> None:  # fmt: skip
    data = lent(data)
    for i in range(len(at)):
        begin = at[i]
        end = begin + length[i]
        count = np.int64(load_u16(data, begin) & _COUNT_MASK)
        has_null = load_u16(data, begin + 2) & _HAS_NULL != 0
        base = begin + data[begin + 4] - _LEFT_OUT
        counts[i] = count
        offset = np.int64(0)
        bitmap = (count + 7) // 8 if has_null else np.int64(0)
        header_size = _LEFT_OUT + _HEADER_SIZE + bitmap + 7 & ~7
        if data[begin + 4] != header_size or begin + header_size - _LEFT_OUT > end:
            state[:, i], value_at[:, i], value_length[:, i] = DAMAGED, 0, 0
            fits[i] = False
            continue
        is_padded = True
        for column in range(len(column_length)):
            value_at[column, i] = value_length[column, i] = 0
            if column >= count:
                state[column, i] = MISSING
                continue
            if has_null and data[begin + 5 + (column >> 3)] >> (column & 7) & 1 == 0:
                state[column, i] = NULL
                continue
            size = column_length[column]
            if size < 0 and base + offset >= end:
                state[column, i] = DAMAGED
                continue
            if size != -1 or data[base + offset] == 0:
                for _ in range(-offset & (column_align[column] - 1)):
                    is_padded &= base + offset < end and data[base + offset] == 0
                    offset += 1
            header = np.int64(0)
            state[column, i] = PLAIN
            if size == -1:
                size, header, state[column, i] = _varlena(data, base + offset, end)
            elif size == -2:
                size = np.int64(0)
                while base + offset + size < end and data[base + offset + size] != 0:
                    size += 1
                value_length[column, i] = size
                size += 1
            if size < header or base + offset + size > end:
                state[column, i] = DAMAGED
                offset = end - base
                continue
            value_at[column, i] = base + offset + header
            if column_length[column] != -2:
                value_length[column, i] = size - header
            offset += size
        fits[i] = is_padded and (count > len(column_length) or base + offset == end)


@njit(cache=True, nogil=True)
def _varlena(data: Bytes, at: Int, end: Int) -> tuple[Int, Int, Int]:
    """(length including the header, length of the header to skip, state)"""
    first = np.int64(data[at]) if at < end else np.int64(0)
    if first == 1:
        return np.int64(18), np.int64(0), EXTERNAL
    if first & 1:
        return first >> 1, np.int64(1), PLAIN
    if at + 4 > end:
        return np.int64(-1), np.int64(0), DAMAGED
    size = np.int64(load_u32(data, at)) >> 2
    if first & 2:
        return size, np.int64(0), PACKED
    return size, np.int64(4), PLAIN
