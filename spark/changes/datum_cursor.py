"""`DatumCursor`: reads the values inside of an array, a range or a composite value in their order.

    | length 4 | head of the container | value | padding | value | ...

The container's own length is not in `data`, but alignment counts from it. A value of variable
length begins with a header of one or four bytes (`datum_varlena.py`); one with a header of one byte
has no padding before it, and padding consists of zeros. Law: no value reaches beyond the data, and
each takes at least one byte. Source: Postgres `tupmacs.h` (att_align_pointer, att_addlength).
"""

from __future__ import annotations

import struct

from quorum_wal.spark.changes.datum_varlena import DatumError, plain_varlena

#: of the container's own length
LENGTH_SIZE = 4
#: `pg_type.typlen` of types without a fixed length
VARLENA, CSTRING = -1, -2

_U32 = struct.Struct("<I")
_EXTERNAL, _EXTERNAL_SIZE = 1, 18


class DatumCursor:
    """A position in `data`, which is a container without its own length."""

    def __init__(self, data: bytes, at: int) -> None:
        """Raises DatumError if `at` is outside of the data."""
        if not 0 <= at <= len(data):
            raise DatumError(f"values begin at byte {at} of {len(data)}")
        self._data = data
        self._at = at

    def align(self, align: int) -> None:
        self._at += -(self._at + LENGTH_SIZE) % align

    def value(self, length: int, align: int) -> bytes:
        """The next value without its header, decompressed. Raises DatumError."""
        stored = self.stored(length, align)
        if length == VARLENA:
            return plain_varlena(stored)
        return stored[:-1] if length == CSTRING else stored

    def stored(self, length: int, align: int) -> bytes:
        """The next value as it is stored, with its header. Raises DatumError."""
        if length != VARLENA or self._data[self._at : self._at + 1] == b"\0":
            self.align(align)
        size = self._size(length)
        value = self._data[self._at : self._at + size]
        if size < 1 or len(value) != size:
            raise DatumError(
                f"a value of {size} bytes begins at byte {self._at} of {len(self._data)}"
            )
        self._at += size
        return value

    def _size(self, length: int) -> int:
        if length == CSTRING:
            return self._data.find(b"\0", self._at) + 1 - self._at
        if length != VARLENA:
            return length
        head = self._data[self._at : self._at + LENGTH_SIZE]
        if head and head[0] & 1:
            return _EXTERNAL_SIZE if head[0] == _EXTERNAL else head[0] >> 1
        if len(head) < LENGTH_SIZE:
            raise DatumError(f"the data ends at byte {len(self._data)}, inside of a length")
        size = int(_U32.unpack(head)[0]) >> 2
        return size if size >= LENGTH_SIZE else 0
