"""A heap page of 8 KiB, restored from a full-page image, and the tuples on it.

    header 24: …, lower 2 at 12, upper 2, special 2 | line pointers 4 each | hole | tuples | special
    line pointer   offset 15 bits, flags 2: 1 in use, length 15 bits

Source: Postgres `bufpage.h`, `itemid.h`, `htup_details.h`.
"""

from __future__ import annotations

import struct

from quorum_wal.pgwal.block_ref import BLOCK_SIZE, PageImage
from quorum_wal.spark.changes.datum_varlena import DatumError, decompress, decompress_pglz

_HEADER_SIZE = 24
_BOUNDS = struct.Struct("<HHH")
_BOUNDS_AT = 12
_LINE = struct.Struct("<I")
_IN_USE = 1
#: the part of a tuple's header that the WAL omits: xmin, xmax, command, ctid
_LEFT_OUT = 18
#: infomask2, infomask, hoff
_TUPLE_HEADER = 5


def restore_page(image: PageImage) -> bytes:
    """The whole page, as the server would restore it. Raises DatumError."""
    data = image.data
    if image.compression is not None:
        length = BLOCK_SIZE - image.hole_length
        if image.compression == "pglz":
            data = decompress_pglz(data, length)
        else:
            codec = "lz4_raw" if image.compression == "lz4" else image.compression
            data = decompress(codec, data, length)
    hole = bytes(image.hole_length)
    return data[: image.hole_offset] + hole + data[image.hole_offset :]


def is_heap_page(page: bytes) -> bool:
    """Indexes and sequences use the special space; heaps do not have one."""
    _, _, special = _BOUNDS.unpack_from(page, _BOUNDS_AT)
    return bool(special == BLOCK_SIZE)


def tuple_on_page(page: bytes, offset: int) -> bytes | None:
    """The tuple from infomask2 on, as in the WAL; None if the line pointer has no tuple."""
    lower, _, _ = _BOUNDS.unpack_from(page, _BOUNDS_AT)
    at = _HEADER_SIZE + _LINE.size * (offset - 1)
    if offset < 1 or at + _LINE.size > min(lower, BLOCK_SIZE):
        return None
    (line,) = _LINE.unpack_from(page, at)
    begin, flags, length = line & 0x7FFF, line >> 15 & 3, line >> 17
    if flags != _IN_USE or begin + length > BLOCK_SIZE or length < _LEFT_OUT + _TUPLE_HEADER:
        return None
    return page[begin + _LEFT_OUT : begin + length]


def joined_tuple(wal: bytes, old: bytes, prefix: int, suffix: int) -> bytes:
    """A new tuple whose first and last bytes of values are those of the old one.

    `wal` has the header, bitmap and padding, and the values in between. Raises DatumError.
    """
    # hoff counts the 18 bytes that the WAL omits.
    bitmap = wal[4] - _LEFT_OUT
    values_at = old[4] - _LEFT_OUT
    if len(old) - values_at < max(prefix, suffix) or bitmap < _TUPLE_HEADER:
        raise DatumError(
            f"an update takes {prefix} and {suffix} bytes of an old row with "
            f"{max(0, len(old) - values_at)}"
        )
    tail = old[len(old) - suffix :] if suffix else b""
    return wal[:bitmap] + old[values_at : values_at + prefix] + wal[bitmap:] + tail
