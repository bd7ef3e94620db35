"""Values of variable length: their headers, and decompression of values inside the tuple.

    ......00 4 bytes   length << 2, with them    | value
    ......10 4 bytes   length << 2, with them    | raw length 30 bits, method 2 | compressed value
    .......1 1 byte    length << 1, with it      | value
    00000001 1 byte    18: out of line | raw length 4 | stored length 30, method 2 | id 4 | toast 4

Source: Postgres `varatt.h`, `toast_compression.c`, `pg_lzcompress.c`.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numba import njit

from quorum_wal.walrecords.loads import Bytes, Int

_EXTERNAL = 1
_ON_DISK = 18
_SIZE_MASK = 0x3FFFFFFF
_PGLZ, _LZ4 = 0, 1
#: of lz4, whose longest match is coded in a byte for each 255; of pglz it is 273 / 3
_RATIO_MAX = 255
_U32 = struct.Struct("<I")
_POINTER = struct.Struct("<iIII")


class DatumError(ValueError):
    """A value does not have the format of its type, or cannot be read."""


@dataclass(frozen=True, slots=True)
class ToastPointer:
    """A pointer to an out-of-line value; `stored_length` is the total length of its chunks."""

    raw_length: int
    stored_length: int
    value_id: int
    toast_oid: int

    @property
    def is_compressed(self) -> bool:
        return self.stored_length < self.raw_length - _U32.size


def parse_pointer(value: bytes) -> ToastPointer:
    """Raises DatumError if it does not point to a value on disk."""
    if len(value) < 2 + _POINTER.size or value[1] != _ON_DISK:
        raise DatumError(f"out-of-line value of kind {value[1] if len(value) > 1 else 'none'}")
    raw_length, info, value_id, toast_oid = _POINTER.unpack_from(value, 2)
    return ToastPointer(raw_length, info & _SIZE_MASK, value_id, toast_oid)


def plain_varlena(value: bytes) -> bytes:
    """The value without its header, decompressed. Raises DatumError."""
    if value[0] & 1:
        if value[0] == _EXTERNAL:
            raise DatumError("a value is out of line where that is not possible")
        return value[1 : value[0] >> 1]
    if value[0] & 2:
        return decompress_datum(value[4:])
    return value[4:]


def decompress_datum(data: bytes) -> bytes:
    """`data` begins with its raw length and method. Raises DatumError."""
    (info,) = _U32.unpack_from(data)
    length, method = info & _SIZE_MASK, info >> 30
    if length > _RATIO_MAX * len(data):
        raise DatumError(f"{len(data)} compressed bytes cannot be a value of {length} bytes")
    if method == _PGLZ:
        return decompress_pglz(data[4:], length)
    if method == _LZ4:
        return decompress("lz4_raw", data[4:], length)
    raise DatumError(f"value compressed with method {method}")


def decompress(codec: str, data: bytes, length: int) -> bytes:
    """Decompresses with one of Arrow's codecs. Raises DatumError."""
    try:
        plain: bytes = pa.decompress(data, length, codec=codec, asbytes=True)
    except (OSError, ValueError) as error:
        raise DatumError(f"{codec} data is damaged: {error}") from error
    return plain


def decompress_pglz(data: bytes, length: int) -> bytes:
    """Raises DatumError."""
    plain = np.empty(length, np.uint8)
    written = _decompress_pglz(np.frombuffer(data, np.uint8), plain)
    if written != length:
        raise DatumError(f"pglz data is damaged: expected {length} bytes, got {written}")
    return plain.tobytes()


@njit(cache=True, nogil=True)
def _decompress_pglz(data: Bytes, plain: Bytes) -> Int:
    """Returns the number of bytes written. A control byte describes the eight items after it: each
    is a byte, or a match of 3 to 273 bytes at most 4095 bytes before."""
    at = written = np.int64(0)
    while at < len(data) and written < len(plain):
        control = data[at]
        at += 1
        for bit in range(8):
            if at >= len(data) or written >= len(plain):
                break
            if control >> bit & 1 == 0:
                plain[written] = data[at]
                at += 1
                written += 1
                continue
            if at + 1 >= len(data):
                return -1
            length = np.int64(data[at] & 0x0F) + 3
            distance = np.int64(data[at] & 0xF0) << 4 | np.int64(data[at + 1])
            at += 2
            if length == 18:
                if at >= len(data):
                    return -1
                length += np.int64(data[at])
                at += 1
            if distance == 0 or distance > written:
                return -1
            length = min(length, len(plain) - written)
            for i in range(length):
                plain[written + i] = plain[written - distance + i]
            written += length
    return written
