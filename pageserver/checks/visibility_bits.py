"""Finds wrong visibility map bits: set on the server, but not by its WAL. Pure.

    header 24 | 2 bits for each heap page: all-visible 1, all-frozen 2 | ...

A missing bit costs a visit of the heap page. A wrong bit makes index-only scans return wrong
results, or keeps a tuple beyond the wraparound of its transaction ID. But a server may have more
valid bits than its WAL: CREATE DATABASE with strategy `wal_log` (15 and later) logs pages of the
map as standard pages, whose contents are in the hole, so that replay creates an empty map. So
additional bits are compared with the heap page itself.

Law: all-visible is valid only if the heap page has PD_ALL_VISIBLE; all-frozen only if in addition
none of its tuples has a transaction ID that must be frozen.
Sources: Postgres `visibilitymap.h`, RelationCopyStorageUsingBuffer in `bufmgr.c`,
heap_tuple_needs_eventual_freeze in `heapam.c`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from quorum_wal.pageserver.layers.fork import PAGE_BYTES

ALL_VISIBLE, ALL_FROZEN = 1, 2
_HEADER_BYTES = 24
_HEAP_PAGES = (PAGE_BYTES - _HEADER_BYTES) * 4  # covered by one page of the map

_FLAGS = struct.Struct("<HHHH")
_FLAGS_AT, _PD_ALL_VISIBLE = 10, 0x4
_TUPLE = struct.Struct("<II")
_INFOMASK = struct.Struct("<H")
_TUPLE_HEADER_BYTES, _INFOMASK_AT = 23, 20
_FROZEN, _IS_MULTI = 0x0300, 0x1000
_NORMAL, _FIRST_XID = 1, 3


def extra_bits(block: int, page: bytes, expected: bytes) -> Iterator[tuple[int, int]]:
    """(heap block, bits) for each heap page with a bit in page `block` of a map that `expected`
    does not have. `bits` are all its bits in the map."""
    for at in range(_HEADER_BYTES, PAGE_BYTES):
        extra = page[at] & ~expected[at]
        for number in range(4 if extra else 0):
            if extra >> 2 * number & 3:
                heap_block = block * _HEAP_PAGES + (at - _HEADER_BYTES) * 4 + number
                yield heap_block, page[at] >> 2 * number & 3


def bits_of(page: bytes, heap_block: int) -> int:
    """The bits of a heap page. `page` is the map page that covers it."""
    place, number = divmod(heap_block % _HEAP_PAGES, 4)
    return page[_HEADER_BYTES + place] >> 2 * number & 3


def are_bits_valid(bits: int, heap_page: bytes | None) -> bool:
    """`heap_page` is None if it does not exist."""
    if not bits:
        return True
    if heap_page is None or not bits & ALL_VISIBLE:
        return False
    (flags, *_) = _FLAGS.unpack_from(heap_page, _FLAGS_AT)
    return bool(flags & _PD_ALL_VISIBLE) and (not bits & ALL_FROZEN or _is_frozen(heap_page))


def _is_frozen(page: bytes) -> bool:
    _, lower, _, special = _FLAGS.unpack_from(page, _FLAGS_AT)
    for at in range(_HEADER_BYTES, min(lower, PAGE_BYTES) - 3, 4):
        pointer = int.from_bytes(page[at : at + 4], "little")
        offset, state, length = pointer & 0x7FFF, pointer >> 15 & 3, pointer >> 17
        if state != _NORMAL:
            continue
        if length < _TUPLE_HEADER_BYTES or offset + length > special or special > PAGE_BYTES:
            return False
        xmin, xmax = _TUPLE.unpack_from(page, offset)
        (infomask,) = _INFOMASK.unpack_from(page, offset + _INFOMASK_AT)
        if xmin >= _FIRST_XID and infomask & _FROZEN != _FROZEN:
            return False
        if xmax if infomask & _IS_MULTI else xmax >= _FIRST_XID:
            return False
    return True
