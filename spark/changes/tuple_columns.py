"""The values of many tuples as typed Arrow columns.

    fixed length   copied as they are stored; the epoch of dates and times is changed
    others         printed as text, which Arrow parses unless the column is text

Dates and times outside of the years 1 to 9999, the limits of Spark and Python, and the infinities
become NULL, with a note in the cells.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numba import njit

from quorum_wal.spark.changes import datum
from quorum_wal.spark.changes.change_schema import arrow_type as arrow_type_of
from quorum_wal.spark.changes.tuple_cells import STORED, Cells
from quorum_wal.spark.changes.tuple_print import (
    BYTEA,
    COPY,
    DAY_MAX,
    DAY_MIN,
    PRINT,
    RAW,
    print_texts,
    room_of,
)
from quorum_wal.spark.records.arrow_columns import printed_column
from quorum_wal.walrecords.byte_copy import copy_bytes
from quorum_wal.walrecords.loads import Bytes, Int, Numbers
from quorum_wal.walrecords.record_index import Array

#: Postgres counts from 2000-01-01
_EPOCH_DAYS = 10_957
_EPOCH_US = 946_684_800_000_000

_DAY_US = 86_400_000_000
#: the epoch, and the length of a day, in the type's unit
_EPOCHS = {
    datum.DATE: (_EPOCH_DAYS, 1),
    datum.TIMESTAMP: (_EPOCH_US, _DAY_US),
    datum.TIMESTAMPTZ: (_EPOCH_US, _DAY_US),
}


def struct_of(cells: Cells, columns: Sequence[int], row_type: pa.StructType) -> pa.Array:
    """One struct for each tuple, with these columns. Omitted values are NULL.

    A tuple may be older or newer than the row type: a column can be missing or have another type.
    """
    arrays = [
        _column(cells, number, field.type) for number, field in zip(columns, row_type, strict=True)
    ]
    return pa.StructArray.from_arrays(arrays, fields=list(row_type))


def _column(cells: Cells, number: int, wanted: pa.DataType) -> pa.Array:
    form = cells.format
    if number not in form.live_columns:
        return pa.nulls(cells.state.shape[1], wanted)
    arrow_type = arrow_type_of(form.table.columns[number], form.datums)
    read = _stored if form.base(number) in STORED else _printed
    array = read(cells, number, arrow_type)
    return array if arrow_type == wanted else array.cast(wanted)


def _stored(cells: Cells, number: int, arrow_type: pa.DataType) -> pa.Array:
    base, state = cells.format.base(number), cells.state[number]
    dtype = np.dtype(STORED[base])
    values = np.zeros(len(state) * dtype.itemsize, np.uint8)
    is_there = state == PRINT
    _gather(cells.data, cells.at[number], is_there, dtype.itemsize, values)
    numbers = values.view(dtype)
    if base in _EPOCHS:
        numbers, is_held = _moved(numbers, *_EPOCHS[base])
        for row in np.flatnonzero(is_there & ~is_held).tolist():
            cells.note(row, f"column {cells.format.table.columns[number].name}: "
                            f"its value is outside of the range of {arrow_type}")  # fmt: skip
        is_there &= is_held
    array = pa.array(numbers, mask=~is_there).cast(arrow_type)
    copied = state == COPY
    if copied.any():
        missing = pa.array([cells.missing(number).decode()]).cast(arrow_type)[0]
        array = pc.if_else(pa.array(copied), missing, array)
    return array


def _moved(numbers: Array, epoch: int, day: int) -> tuple[Array, Array]:
    """The numbers counted from 1970, and whether each is in the range."""
    is_held = (numbers >= DAY_MIN * day) & (numbers < (DAY_MAX + 1) * day)
    return np.where(is_held, numbers, 0) + numbers.dtype.type(epoch), is_held


def _printed(cells: Cells, number: int, arrow_type: pa.DataType) -> pa.Array:
    state, at, length = cells.state[number], cells.at[number], cells.length[number]
    kind, count = int(cells.format.kinds[number]), len(state)
    if kind == BYTEA:
        kind = RAW
    is_there = (state == PRINT) | (state == COPY)
    room = room_of(
        np.array([kind]), np.zeros(1, np.int64), state[None], length[None], 0, count
    )  # fmt: skip
    out, offsets = np.empty(room, np.uint8), np.empty(count + 1, np.int32)
    print_texts(kind, cells.data, cells.texts, state, at, length, 0, count, out, offsets)
    stored = pa.binary() if pa.types.is_binary(arrow_type) else pa.string()
    texts = printed_column(offsets, out, stored, is_there)
    return texts.cast(arrow_type) if pa.types.is_decimal(arrow_type) else texts


@njit(cache=True, nogil=True)
def _gather(data: Bytes, at: Numbers, is_there: Numbers, size: Int, values: Bytes) -> None:
    for i in range(len(at)):
        if is_there[i]:
            copy_bytes(values, i * size, data, at[i], size)
