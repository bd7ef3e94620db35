"""`WalFiles`: segments of a real server, whose records a test changes and seals again.

    page header | record ... | page header | ... record | record |      a record skips page headers

The parts of a record are found here independently of the code under test. Source: Postgres
`access/xlogrecord.h`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from crc32c import crc32c

from quorum_wal.pgwal.segment import format_segment_name
from quorum_wal.spark.inputs.folder_input import FolderInput
from quorum_wal.spark.inputs.wal_reader import WalRange, read_indexes
from quorum_wal.walrecords.record_index import RecordIndex

PAGE = 8192
HEADER = 24
_CRC_AT = 20
_HAS_IMAGE, _SAME_RELATION = 0x10, 0x80


@dataclass(frozen=True, slots=True)
class Block:
    """Offsets in the record. `image_at` is 0 without an image."""

    header_at: int
    relfilenode: int
    relation_at: int
    image_header_at: int
    image_at: int
    image_length: int
    data_at: int
    data_length: int


@dataclass(slots=True)
class Record:
    """`data` may be changed, except for its length."""

    lsn: int
    data: bytearray
    blocks: list[Block]
    main_at: int

    @property
    def kind(self) -> tuple[int, int]:
        """(resource manager, operation)"""
        return self.data[17], self.data[16] & 0x70

    @property
    def file(self) -> int:
        return self.blocks[0].relfilenode if self.blocks else 0

    @property
    def tuple_at(self) -> int:
        """Of an insert."""
        return self.blocks[0].data_at

    def add(self, at: int, form: str, amount: int) -> None:
        """Adds to the number at an offset."""
        (number,) = struct.unpack_from(form, self.data, at)
        size = struct.calcsize(form)
        self.data[at : at + size] = ((number + amount) % (1 << 8 * size)).to_bytes(size, "little")

    def flip(self, at: int, mask: int) -> None:
        self.data[at] ^= mask

    def seal(self) -> None:
        crc = crc32c(bytes(self.data[:_CRC_AT]), crc32c(bytes(self.data[HEADER:])))
        struct.pack_into("<I", self.data, _CRC_AT, crc)


class WalFiles:
    """A folder of segments. `put` and `put_segment` change it, and `restore` undoes all
    changes."""

    def __init__(self, folder: Path, tli: int = 1) -> None:
        self.folder = folder
        self.wal_input = FolderInput(str(folder))
        self._seg_size = self.wal_input.facts().wal_seg_size
        self._tli = tli
        self._saved: dict[Path, bytes] = {}

    def segment(self, lsn: int) -> Path:
        name = format_segment_name(self._tli, lsn // self._seg_size, self._seg_size)
        return self.folder / name

    def records(self, begin_lsn: int, end_lsn: int) -> Iterator[Record]:
        wal_range = WalRange(begin_lsn, end_lsn, end_lsn)
        for index in read_indexes(self.wal_input, self.wal_input.facts(), wal_range):
            assert isinstance(index, RecordIndex)
            for at, lsn in zip(index.at.tolist(), index.start_lsn.tolist(), strict=True):
                length = int.from_bytes(index.data[at : at + 4].tobytes(), "little")
                yield record_at(lsn, bytearray(index.data[at : at + length].tobytes()))

    def put(self, record: Record) -> None:
        """Writes the record over the one at its place."""
        lsn, rest = record.lsn, bytes(record.data)
        while rest:
            if lsn % PAGE == 0:
                lsn += HEADER if lsn % self._seg_size else 40
            room = PAGE - lsn % PAGE
            self.put_bytes(lsn, rest[:room])
            lsn, rest = lsn + len(rest[:room]), rest[room:]

    def put_bytes(self, lsn: int, data: bytes) -> None:
        path = self.segment(lsn)
        content = bytearray(path.read_bytes())
        content[lsn % self._seg_size : lsn % self._seg_size + len(data)] = data
        self.put_segment(path, bytes(content))

    def put_segment(self, path: Path, content: bytes | None) -> None:
        """None removes the file."""
        if path.exists():
            self._saved.setdefault(path, path.read_bytes())
        if content is None:
            path.unlink()
        else:
            path.write_bytes(content)

    def restore(self) -> None:
        for path, content in self._saved.items():
            path.write_bytes(content)
        self._saved.clear()


def record_at(lsn: int, data: bytearray) -> Record:
    """The parts of a record whose image is not compressed."""
    at, heads, relation, relation_at, payload = HEADER, [], 0, 0, 0
    while len(data) - at > payload:
        header_at, kind, flags = at, data[at], data[at + 1]
        if kind > 32:  # origin, top-level transaction, or the header of the main data
            at += {253: 3, 252: 5, 255: 2, 254: 5}[kind]
            if kind >= 254:
                break
            continue
        (length,) = struct.unpack_from("<H", data, at + 2)
        at += 4
        image_at, image_length = 0, 0
        if flags & _HAS_IMAGE:
            image_at, (image_length,) = at, struct.unpack_from("<H", data, at)
            at += 5
        if not flags & _SAME_RELATION:
            relation_at, (relation,) = at, struct.unpack_from("<I", data, at + 8)
            at += 12
        at += 4
        heads.append((header_at, relation, relation_at, image_at, image_length, length))
        payload += image_length + length
    blocks = []
    for header_at, file, relation_at, image_header_at, image_length, length in heads:
        image_at = at if image_header_at else 0
        data_at = at + image_length
        blocks.append(
            Block(
                header_at, file, relation_at, image_header_at, image_at, image_length,
                data_at, length,
            )
        )  # fmt: skip
        at = data_at + length
    return Record(lsn, data, blocks, at)
