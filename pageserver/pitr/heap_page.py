"""The tuples of a heap page, in all versions: also of open, aborted and old transactions.

    0  lsn u64 | checksum u16 | flags u16 | lower u16 | upper u16 | special u16 | size u16 | u32
    24 line pointers u32, up to `lower`:  offset 15 bits | state 2 bits | length 17 bits
    ..
       a tuple:  23 bytes | hoff u8 at 22 | null bits | row at `hoff`

Visibility is not checked: the callers must not miss a row, and accept too many. Pure.
Source: Postgres `storage/bufpage.h`, `storage/itemid.h`, `access/htup_details.h`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from quorum_wal.pageserver.errors import LayerDamaged
from quorum_wal.pageserver.layers.fork import PAGE_BYTES

_BOUNDS = struct.Struct("<HH")
_BOUNDS_AT = 12
_ITEMS_AT = 24
_ITEM_BYTES = 4
_NORMAL = 1
_HOFF_AT = 22
_TUPLE_HEADER_BYTES = 23


def heap_rows(page: bytes) -> Iterator[bytes]:
    """The columns of every tuple as stored. A page of zeros has none.

    Raises LayerDamaged if the page cannot be a heap page.
    """
    if len(page) != PAGE_BYTES:
        raise LayerDamaged(f"expected a page of {PAGE_BYTES} bytes, found {len(page)}")
    lower, upper = _BOUNDS.unpack_from(page, _BOUNDS_AT)
    if upper == 0:
        return
    if not _ITEMS_AT <= lower <= upper <= PAGE_BYTES:
        raise LayerDamaged(f"a heap page has invalid free space [{lower}, {upper})")
    count = (lower - _ITEMS_AT) // _ITEM_BYTES
    for number, item in enumerate(struct.unpack_from(f"<{count}I", page, _ITEMS_AT), 1):
        offset, state, length = item & 0x7FFF, item >> 15 & 3, item >> 17
        if state != _NORMAL:
            continue
        if length <= _TUPLE_HEADER_BYTES or offset < upper or offset + length > PAGE_BYTES:
            raise LayerDamaged(f"tuple {number} has invalid offset {offset} or length {length}")
        header_bytes = page[offset + _HOFF_AT]
        if not _TUPLE_HEADER_BYTES <= header_bytes <= length:
            raise LayerDamaged(f"tuple {number} has an invalid header of {header_bytes} bytes")
        yield page[offset + header_bytes : offset + length]
