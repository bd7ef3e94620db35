"""Arrow columns on top of arrays that compiled loops have filled, without a copy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numba import njit

from quorum_wal.walrecords.byte_copy import copy_bytes
from quorum_wal.walrecords.loads import Bytes, Int, Numbers
from quorum_wal.walrecords.pool_array import pool_array

#: the room for each name; copying a fixed length is as fast as copying the shortest name
_NAME_ROOM = 32


def number_column(values: Numbers, arrow_type: pa.DataType) -> pa.Array:
    """A column without nulls. The array has the width of the type."""
    return pa.Array.from_buffers(arrow_type, len(values), [None, pa.py_buffer(values)])


def nullable_column(values: Numbers, valid_bits: pa.Buffer, arrow_type: pa.DataType) -> pa.Array:
    """A column with null where the bit is 0."""
    return pa.Array.from_buffers(arrow_type, len(values), [valid_bits, pa.py_buffer(values)])


def bool_column(values: Numbers) -> pa.Array:
    """`values` has one byte for each value."""
    return pa.Array.from_buffers(pa.bool_(), len(values), [None, bit_buffer(values)])


def bytes_column(
    offsets: Numbers, values: Bytes, arrow_type: pa.DataType, is_there: Numbers | None = None
) -> pa.Array:
    """A column of `utf8` or `binary`: value i is values[offsets[i] : offsets[i + 1]], or null."""
    valid_bits = None if is_there is None else bit_buffer(is_there)
    return pa.Array.from_buffers(
        arrow_type, len(offsets) - 1, [valid_bits, pa.py_buffer(offsets), pa.py_buffer(values)]
    )


def printed_column(
    offsets: Numbers, room: Bytes, arrow_type: pa.DataType, is_there: Numbers | None = None
) -> pa.Array:
    """`bytes_column` of values that were printed into more room than they needed; frees the
    rest."""
    return bytes_column(offsets, room[: int(offsets[-1])].copy(), arrow_type, is_there)


def bit_buffer(values: Numbers) -> pa.Buffer:
    """One bit for each byte of `values`, set if the byte is not 0."""
    return pa.py_buffer(np.packbits(values, bitorder="little"))


class NameTable(NamedTuple):
    """Names by their code, a small number."""

    lengths: Numbers  # int32
    letters: Bytes  # name i is at i * 32

    @classmethod
    def of(cls, names: Sequence[str]) -> NameTable:
        encoded = [name.encode() for name in names]
        assert max(map(len, encoded)) <= _NAME_ROOM
        return cls(
            np.array([len(name) for name in encoded], np.int32),
            np.frombuffer(b"".join(name.ljust(_NAME_ROOM) for name in encoded), np.uint8),
        )


def name_column(codes: Numbers, table: NameTable) -> pa.Array:
    """The names of these codes as plain strings."""
    offsets = pool_array(len(codes) + 1, np.int32)
    letters = pool_array((len(codes) + 1) * _NAME_ROOM, np.uint8)
    length = _copy_names(codes, table, offsets, letters)
    return bytes_column(offsets, letters[:length], pa.string())


@njit(cache=True, nogil=True)
def _copy_names(codes: Numbers, table: NameTable, offsets: Numbers, letters: Bytes) -> Int:
    """Copies the whole room of each name; the next name overwrites the excess."""
    end = np.int64(0)
    offsets[0] = 0
    for i in range(len(codes)):
        code = np.int64(codes[i])
        copy_bytes(letters, end, table.letters, code * _NAME_ROOM, _NAME_ROOM)
        end += table.lengths[code]
        offsets[i + 1] = end
    return end
