"""The checksums of one segment's blocks, and their bytes on disk. Pure.

    0        4         8            12        12+4n       +4
    | "QSUM" | version | block size | CRC32Cs | CRC32C of all bytes before it |
      magic    u32 BE    u32 BE       u32 BE each

The checksums are computed from the received bytes before they are written. So a change on disk is
detected even where no record covers it (page headers, padding).
"""

from __future__ import annotations

import struct
import sys
from array import array

from crc32c import crc32c

MAGIC = b"QSUM"
FORMAT_VERSION = 1
#: Small enough to check the end of the log at each read, large enough that checking a block costs
#: little more than its bytes: 86 against 75 us a MiB.
BLOCK_BYTES = 32 * 1024

_HEAD = struct.Struct("!4sII")
_CRC = struct.Struct("!I")


class BlockSums:
    """Of a segment, from its start to `end_lsn`. One thread extends it, others may read it."""

    def __init__(self, begin_lsn: int) -> None:
        self.begin_lsn = begin_lsn
        #: CRCs of the full blocks.
        self.crcs: array[int] = array("I")
        #: The end, and the CRC of the partial block before it: one value, so that a reader never
        #: sees one without the other.
        self.end: tuple[int, int] = (begin_lsn, 0)

    @property
    def end_lsn(self) -> int:
        return self.end[0]

    def extend(self, data: bytes | memoryview) -> None:
        """Adds the bytes at `end_lsn`, which were written."""
        end_lsn, crc = self.end
        room = BLOCK_BYTES - end_lsn % BLOCK_BYTES
        if len(data) < room:  # nearly always
            self.end = (end_lsn + len(data), crc32c(data, crc))
            return
        view = memoryview(data)
        while len(view) >= room:
            self.crcs.append(crc32c(view[:room], crc))
            end_lsn, crc = end_lsn + room, 0
            view, room = view[room:], BLOCK_BYTES
        self.end = (end_lsn + len(view), crc32c(view))

    def cut(self, end_lsn: int) -> BlockSums:
        """A copy of the full blocks below `end_lsn`."""
        cut = BlockSums(self.begin_lsn)
        cut.crcs = self.crcs[: (end_lsn - self.begin_lsn) // BLOCK_BYTES]
        cut.end = (self.begin_lsn + len(cut.crcs) * BLOCK_BYTES, 0)
        return cut

    def find_damage(self, lsn: int, data: memoryview, end: tuple[int, int]) -> int | None:
        """Returns the lsn of the first damaged block in `data`, or None. `data` begins at a block
        and ends at one, or at the lsn of `end`, which was read before the data was."""
        end_lsn, tail_crc = end
        index = (lsn - self.begin_lsn) // BLOCK_BYTES
        for offset in range(0, len(data), BLOCK_BYTES):
            block = data[offset : offset + BLOCK_BYTES]
            is_full = lsn + offset + BLOCK_BYTES <= end_lsn
            if crc32c(block) != (self.crcs[index] if is_full else tail_crc):
                return lsn + offset
            index += 1
        return None


def encode_block_sums(sums: BlockSums) -> bytes:
    """Encodes the checksums of a whole segment."""
    assert sums.end_lsn % BLOCK_BYTES == 0
    content = _HEAD.pack(MAGIC, FORMAT_VERSION, BLOCK_BYTES) + _swapped(sums.crcs).tobytes()
    return content + _CRC.pack(crc32c(content))


def decode_block_sums(data: bytes, begin_lsn: int, wal_seg_size: int) -> BlockSums | None:
    """Returns None for damaged data or another version: then the records themselves are checked."""
    count = wal_seg_size // BLOCK_BYTES
    if len(data) != _HEAD.size + 4 * count + _CRC.size:
        return None
    if _HEAD.unpack_from(data) != (MAGIC, FORMAT_VERSION, BLOCK_BYTES):
        return None
    if _CRC.unpack_from(data, len(data) - _CRC.size) != (crc32c(data[: -_CRC.size]),):
        return None
    sums = BlockSums(begin_lsn)
    crcs = array("I", data[_HEAD.size : -_CRC.size])
    sums.crcs, sums.end = _swapped(crcs), (begin_lsn + wal_seg_size, 0)
    return sums


def _swapped(crcs: array[int]) -> array[int]:
    """Converts to and from big-endian."""
    swapped = crcs[:]
    if sys.byteorder == "little":
        swapped.byteswap()
    return swapped
