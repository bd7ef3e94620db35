"""The header of a page, and its checksum. Pure.

    lsn: high u32, low u32 | checksum u16 | flags u16 | lower u16 | upper u16 | special u16 |
    size and version u16 | prune xid u32

Source: Postgres `storage/bufpage.h`, `storage/checksum_impl.h`.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np

from quorum_wal.pageserver.errors import LayerDamaged
from quorum_wal.pageserver.layers.fork import PAGE_BYTES
from quorum_wal.pageserver.layers.touches import Numbers

_HEADER = struct.Struct("<IIHHHHHHI")
_CHECKSUM_AT = 8
_SUMS = 32
_PRIME = np.uint32(16777619)
_OFFSETS = np.array([
    0x5B1F36E9, 0xB8525960, 0x02AB50AA, 0x1DE66D2A, 0x79FF467A, 0x9BB9F8A3, 0x217E7CD2, 0x83E13D2C,
    0xF8D4474F, 0xE39EB970, 0x42C6AE16, 0x993216FA, 0x7B093B5D, 0x98DAFF3C, 0xF718902A, 0x0B1C9CDB,
    0xE58F764B, 0x187636BC, 0x5D7B3BB1, 0xE73DE7DE, 0x92BEC979, 0xCCA6C0B2, 0x304A0979, 0x85AA43D4,
    0x783125BB, 0x6CA8EAA2, 0xE407EAC6, 0x4B5CFC3E, 0x9FBF8C76, 0x15CA20BE, 0xF2CA9FD3, 0x959BD756,
], np.uint32)  # fmt: skip


@dataclass(frozen=True, slots=True)
class PageHeader:
    """The fields of the header. `checksum` is 0 if the page has none."""

    lsn: int
    checksum: int
    flags: int
    lower: int
    upper: int
    special: int
    page_size: int
    layout_version: int
    prune_xid: int

    @classmethod
    def parse(cls, page: bytes) -> PageHeader:
        """Raises LayerDamaged if the length is not PAGE_BYTES."""
        if len(page) != PAGE_BYTES:
            raise LayerDamaged(f"expected a page of {PAGE_BYTES} bytes, found {len(page)}")
        high, low, checksum, flags, lower, upper, special, size, prune = _HEADER.unpack_from(page)
        return cls(
            high << 32 | low, checksum, flags, lower, upper, special,
            size & 0xFF00, size & 0xFF, prune,
        )  # fmt: skip

    @property
    def is_new(self) -> bool:
        """Whether the page was added to the file but never initialised: all zeros."""
        return self.upper == 0


def page_checksum(page: bytes, block: int) -> int:
    """The checksum of the page as block `block` of its fork. Never 0."""
    assert len(page) == PAGE_BYTES
    return int(page_checksums(page, np.array([block], np.uint32))[0])


def page_checksums(pages: bytes | memoryview, blocks: Numbers) -> Numbers:
    """The checksums of many pages at once, which takes a hundredth of the time."""
    words = np.frombuffer(pages, "<u4").reshape(len(blocks), -1, _SUMS)
    sums = np.broadcast_to(_OFFSETS, (len(blocks), _SUMS))
    none = np.zeros((len(blocks), _SUMS), np.uint32)
    first = words[:, 0].copy()
    first[:, _CHECKSUM_AT // 4] &= np.uint32(0xFFFF0000)
    for row in (first, *(words[:, number] for number in range(1, words.shape[1])), none, none):
        mixed = sums ^ row
        sums = mixed * _PRIME ^ mixed >> np.uint32(17)
    folded = np.bitwise_xor.reduce(sums, axis=1) ^ blocks.astype(np.uint32)
    found: Numbers = folded % np.uint32(65535) + np.uint32(1)
    return found
