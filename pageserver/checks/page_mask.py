"""Masks the parts of a page that its WAL does not determine, so that pages can be compared. Pure.

    all          checksum, LSN, hints of pd_flags, prune xid, the hole between lower and upper
    heap         hint bits, command ids, speculative tokens, padding after tuples
    index        LP_DEAD of leaves; hints and cycle ids in the special area
    sequence     the value: 32 values are logged at once, and assigned without WAL
    SP-GiST      the cache of pages with free space; GIN, hash: unused pages
    VM           not masked: `visibility_bits.py` judges its bits

A primary sets these without WAL, or replay sets them differently. Queries on a standby set their
own hints. The masks are those of wal_consistency_checking, with two differences that detect more
damage: of a heap tuple's visibility bits only the hints are masked, and of line pointers only
LP_DEAD. The LSN is masked because HEAP2_VISIBLE sets it or not, depending on a setting of the
replaying server. `page_comparison.py` compares it separately.

The special area shows the access method of a page, as in `pg_filedump`.
Sources: Postgres `access/bufmask.c`, heap_mask, btree_mask, hash_mask, gin_mask, gist_mask,
spg_mask, brin_mask, seq_mask; `storage/bufpage.h`, `access/htup_details.h`, `commands/sequence.c`.
"""

from __future__ import annotations

import struct
from enum import Enum

from quorum_wal.pageserver.layers.fork import PAGE_BYTES

_HEADER_BYTES = 24
_LSN_AND_CHECKSUM_BYTES = 10
_FLAGS_AT, _LOWER_AT, _PRUNE_XID_AT = 10, 12, 20
#: PD_HAS_FREE_LINES, PD_PAGE_FULL, PD_ALL_VISIBLE
_FLAG_HINTS = 0x7

_U16, _U32 = struct.Struct("<H"), struct.Struct("<I")
_BOUNDS = struct.Struct("<HHH")
_LINE_POINTER = _U32
_LP_NORMAL, _LP_DEAD = 1, 3

_XMIN_COMMITTED, _XMIN_INVALID = 0x0100, 0x0200
_COMBO_CID, _XMAX_HINTS = 0x0020, 0x0C00
_SPECULATIVE_OFFSET = 0xFFFE
_CTID = struct.Struct("<HHH")
_TUPLE_HEADER_BYTES = 23
_CID_AT, _CTID_AT, _INFOMASK_AT, _HOFF_AT = 8, 12, 20, 22

_SEQUENCE_MAGIC = 0x1717
_SEQUENCE_BYTES = 17  # last_value, log_cnt, is_called

_BTREE_LEAF, _BTREE_DELETED, _BTREE_HINTS = 0x1, 0x4, 0x60  # SPLIT_END, HAS_GARBAGE
_HASH_ID, _HASH_TYPE, _HASH_ITEMS, _HASH_HINTS = 0xFF80, 0xF, (1, 2), 0x80
_GIST_ID, _GIST_LEAF, _GIST_FOLLOW_RIGHT, _GIST_GARBAGE = 0xFF81, 0x1, 0x8, 0x10
_SPGIST_ID, _SPGIST_META = 0xFF82, 0x1
_BRIN_EVACUATE, _BRIN_META, _BRIN_REVMAP, _BRIN_REGULAR = 0x1, 0xF091, 0xF092, 0xF093
_GIN_DELETED = 0x4


class PageKind(Enum):
    """The access method that wrote the page, derived from its special area."""

    HEAP = "heap"
    BTREE = "btree"
    HASH = "hash"
    GIST = "gist"
    GIN = "gin"
    SPGIST = "spgist"
    BRIN = "brin"
    SEQUENCE = "sequence"
    OTHER = "other"


def page_kind(page: bytes | bytearray) -> PageKind:
    """OTHER: the page is not initialised, or of an unknown kind."""
    lower, upper, special = _BOUNDS.unpack_from(page, _LOWER_AT)
    size = PAGE_BYTES - special
    if not _has_bounds(page) or upper == 0:
        return PageKind.OTHER
    if size == 0:
        return PageKind.HEAP
    (last,) = _U16.unpack_from(page, PAGE_BYTES - 2)
    if size == 16:
        return {_HASH_ID: PageKind.HASH, _GIST_ID: PageKind.GIST}.get(last, PageKind.BTREE)
    if size != 8:
        return PageKind.OTHER
    is_one = lower == _HEADER_BYTES + 4  # a right link of GIN may be the same number
    if is_one and _U32.unpack_from(page, special) == (_SEQUENCE_MAGIC,):
        return PageKind.SEQUENCE
    if last == _SPGIST_ID:
        return PageKind.SPGIST
    return PageKind.BRIN if last in (_BRIN_META, _BRIN_REVMAP, _BRIN_REGULAR) else PageKind.GIN


def masked(page: bytes, block: int) -> bytes:
    """Masks a page of a main or init fork. If its header is invalid, only the LSN and the checksum
    are masked."""
    found = bytearray(page)
    kind = page_kind(found)
    found[:_LSN_AND_CHECKSUM_BYTES] = bytes(_LSN_AND_CHECKSUM_BYTES)
    if not _has_bounds(found):
        return bytes(found)
    found[_FLAGS_AT] &= ~_FLAG_HINTS & 0xFF
    found[_PRUNE_XID_AT:_HEADER_BYTES] = bytes(4)
    lower, upper, special = _BOUNDS.unpack_from(found, _LOWER_AT)
    if _has_hole(kind, found, lower):
        found[lower:upper] = bytes(upper - lower)
    match kind:
        case PageKind.HEAP:
            _mask_tuples(found, block, lower, special)
        case PageKind.SEQUENCE:
            _mask_tuples(found, block, lower, special)
            _mask_sequence(found, upper)
        case PageKind.BTREE:
            _mask_btree(found, lower, special)
        case PageKind.HASH:
            _mask_hash(found, lower, special)
        case PageKind.GIST:
            _mask_gist(found, lower, special)
        case PageKind.GIN:
            if found[special + 6] & _GIN_DELETED:
                _mask_content(found, special)
        case PageKind.SPGIST:
            if found[special] & _SPGIST_META:  # except the magic number
                found[_HEADER_BYTES + 4 : special] = bytes(special - _HEADER_BYTES - 4)
        case PageKind.BRIN:
            found[special + 4] &= ~_BRIN_EVACUATE & 0xFF
        case PageKind.OTHER:
            pass
    return bytes(found)


def is_blank(page: bytes) -> bool:
    """All zeros, or initialised and empty without WAL: relations are extended without WAL."""
    if page.count(0) == PAGE_BYTES:
        return True
    lower, upper, special = _BOUNDS.unpack_from(page, _LOWER_AT)
    return (
        page[:8] == bytes(8)
        and lower == _HEADER_BYTES
        and upper == special
        and page.count(0, _HEADER_BYTES) == PAGE_BYTES - _HEADER_BYTES
    )


def _has_bounds(page: bytes | bytearray) -> bool:
    lower, upper, special = _BOUNDS.unpack_from(page, _LOWER_AT)
    return bool(_HEADER_BYTES <= lower <= upper <= special <= PAGE_BYTES)


def _has_hole(kind: PageKind, page: bytearray, lower: int) -> bool:
    """Whether pd_lower marks the start of the hole."""
    if kind in (PageKind.GIN, PageKind.SPGIST):
        return lower > _HEADER_BYTES
    if kind is PageKind.BRIN:
        (page_type,) = _U16.unpack_from(page, PAGE_BYTES - 2)
        return page_type == _BRIN_REGULAR or (page_type == _BRIN_META and lower > _HEADER_BYTES)
    return kind is not PageKind.OTHER or lower > _HEADER_BYTES


def _mask_content(page: bytearray, special: int) -> None:
    """Masks the contents of an unused page."""
    page[_LOWER_AT : _LOWER_AT + 4] = bytes(4)
    page[_HEADER_BYTES:special] = bytes(special - _HEADER_BYTES)


def _mask_tuples(page: bytearray, block: int, lower: int, special: int) -> None:
    for number, at in enumerate(range(_HEADER_BYTES, lower - 3, 4), start=1):
        (pointer,) = _LINE_POINTER.unpack_from(page, at)
        offset, flags, length = pointer & 0x7FFF, pointer >> 15 & 3, pointer >> 17
        if length == 0 or offset < lower or offset + length > special:
            continue
        padded = min(-(-length // 8) * 8, special - offset)
        page[offset + length : offset + padded] = bytes(padded - length)
        if flags == _LP_NORMAL and length >= _TUPLE_HEADER_BYTES:
            _mask_tuple(page, offset, block, number)


def _mask_tuple(page: bytearray, at: int, block: int, number: int) -> None:
    (infomask,) = _U16.unpack_from(page, at + _INFOMASK_AT)
    frozen = _XMIN_COMMITTED | _XMIN_INVALID
    if infomask & frozen != frozen:
        infomask &= ~frozen
    _U16.pack_into(page, at + _INFOMASK_AT, infomask & ~(_COMBO_CID | _XMAX_HINTS) & 0xFFFF)
    page[at + _CID_AT : at + _CID_AT + 4] = bytes(4)
    if _U16.unpack_from(page, at + _CTID_AT + 4) == (_SPECULATIVE_OFFSET,):
        _CTID.pack_into(page, at + _CTID_AT, block >> 16, block & 0xFFFF, number)


def _mask_sequence(page: bytearray, upper: int) -> None:
    """Masks its only tuple."""
    if upper + _TUPLE_HEADER_BYTES > PAGE_BYTES:
        return
    at = upper + page[upper + _HOFF_AT]
    end = min(at + _SEQUENCE_BYTES, PAGE_BYTES)
    page[at:end] = bytes(max(0, end - at))


def _mask_dead(page: bytearray, lower: int) -> None:
    """Masks LP_DEAD, which scans set without WAL."""
    for at in range(_HEADER_BYTES, lower - 3, 4):
        (pointer,) = _LINE_POINTER.unpack_from(page, at)
        if pointer >> 15 & 3 == _LP_DEAD and pointer >> 17:
            _LINE_POINTER.pack_into(page, at, pointer & ~(3 << 15) | _LP_NORMAL << 15)


def _mask_btree(page: bytearray, lower: int, special: int) -> None:
    (flags,) = _U16.unpack_from(page, special + 12)
    if flags & _BTREE_LEAF and not flags & _BTREE_DELETED:
        _mask_dead(page, lower)
    _U16.pack_into(page, special + 12, flags & ~_BTREE_HINTS)
    page[special + 14 : special + 16] = bytes(2)


def _mask_hash(page: bytearray, lower: int, special: int) -> None:
    (flags,) = _U16.unpack_from(page, special + 12)
    if not flags & _HASH_TYPE:
        _mask_content(page, special)
    elif flags & _HASH_TYPE in _HASH_ITEMS:
        _mask_dead(page, lower)
    _U16.pack_into(page, special + 12, flags & ~_HASH_HINTS)


def _mask_gist(page: bytearray, lower: int, special: int) -> None:
    page[special : special + 8] = bytes(8)  # the NSN: an LSN, too
    (flags,) = _U16.unpack_from(page, special + 12)
    if flags & _GIST_LEAF:
        _mask_dead(page, lower)
    _U16.pack_into(page, special + 12, (flags | _GIST_FOLLOW_RIGHT) & ~_GIST_GARBAGE)
