"""The content of a record: block references, page images, and data for its resource manager.

    header | block 0 | block 1 | origin | xid | main | image 0 | data 0 | image 1 .. | main data
    24     | headers, each begins with its id        | payload, in the order of the headers

    id 0-32   a block      fork and flags 1, data length 2
                           with an image:  image length 2, hole offset 2, info 1
                                           compressed, with a hole:  hole length 2
                           another relation than the block before:  RelFileLocator 12
                           block number 4
    id 252    top-level transaction 4         id 253    replication origin 2
    id 255    main data of length 1           id 254    main data of length 4

Only for records whose CRC has been checked. Source: Postgres `access/xlogrecord.h`,
DecodeXLogRecord in `xlogreader.c`.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from quorum_wal.pgwal.errors import WalFormatError
from quorum_wal.pgwal.lsn import format_lsn
from quorum_wal.pgwal.record import RECORD_HEADER_SIZE, Record
from quorum_wal.pgwal.versions import WalVersion, wal_version

BLOCK_SIZE = 8192
BLOCK_ID_MAX = 32

ID_DATA_SHORT = 255
ID_DATA_LONG = 254
_ID_ORIGIN = 253
_ID_TOPLEVEL_XID = 252

_FORK_MASK = 0x0F
HAS_IMAGE = 0x10
_HAS_DATA = 0x20
_SAME_RELATION = 0x80

IMAGE_HAS_HOLE = 0x01

_U8 = struct.Struct("<B")
_U16 = struct.Struct("<H")
_U32 = struct.Struct("<I")
_BLOCK = struct.Struct("<BH")
_IMAGE = struct.Struct("<HHB")
_RELATION = struct.Struct("<III")


@dataclass(frozen=True, slots=True)
class Relation:
    """RelFileLocator: the file of a table or an index."""

    tablespace: int
    database: int
    number: int

    def __str__(self) -> str:
        return f"{self.tablespace}/{self.database}/{self.number}"


@dataclass(frozen=True, slots=True)
class PageImage:
    """A full-page image as stored: without its hole, maybe compressed (by `compression`)."""

    data: bytes
    hole_offset: int
    hole_length: int
    compression: str | None
    #: Restored during replay; otherwise only for wal_consistency_checking.
    is_applied: bool


@dataclass(frozen=True, slots=True)
class BlockRef:
    """A block that the record changes. Forks: 0 main, 1 fsm, 2 vm, 3 init."""

    block_id: int
    relation: Relation
    fork: int
    block_number: int
    image: PageImage | None
    data: bytes


@dataclass(frozen=True, slots=True)
class RecordBody:
    """The parts of a record; `origin` and `toplevel_xid` are 0 if it does not have them."""

    blocks: tuple[BlockRef, ...]
    main_data: bytes
    origin: int
    toplevel_xid: int


def decode_body(record: Record, version_major: int) -> RecordBody:
    """Decodes the content of a record. Raises WalFormatError at the first invalid field."""
    return _BodyDecoder(record, wal_version(version_major)).decode()


@dataclass(slots=True)
class _BlockHeader:
    block_id: int
    fork: int
    data_length: int
    image: _ImageHeader | None
    relation: Relation
    block_number: int


@dataclass(slots=True)
class _ImageHeader:
    length: int
    hole_offset: int
    hole_length: int
    compression: str | None
    is_applied: bool


class _BodyDecoder:
    """Reads the headers up to the main data's, then cuts the payload by the lengths in them."""

    def __init__(self, record: Record, version: WalVersion) -> None:
        self._data = record.data
        self._start_lsn = record.start_lsn
        self._version = version
        self._offset = RECORD_HEADER_SIZE
        self._payload_length = 0
        self._blocks: list[_BlockHeader] = []
        self._main_length = 0
        self._origin = 0
        self._toplevel_xid = 0

    def decode(self) -> RecordBody:
        while len(self._data) - self._offset > self._payload_length:
            if not self._read_fragment_header():
                break
        if len(self._data) - self._offset != self._payload_length:
            raise self._damaged("record with invalid length")
        blocks = tuple(self._cut_block(header) for header in self._blocks)
        main_data = self._cut(self._main_length)
        return RecordBody(blocks, main_data, self._origin, self._toplevel_xid)

    def _read_fragment_header(self) -> bool:
        """Returns False after the main data's header, which is always the last."""
        (fragment_id,) = self._read(_U8)
        if fragment_id in (ID_DATA_SHORT, ID_DATA_LONG):
            (self._main_length,) = self._read(_U8 if fragment_id == ID_DATA_SHORT else _U32)
            self._payload_length += self._main_length
            return False
        if fragment_id == _ID_ORIGIN:
            (self._origin,) = self._read(_U16)
        elif fragment_id == _ID_TOPLEVEL_XID and self._version.has_toplevel_xid:
            (self._toplevel_xid,) = self._read(_U32)
        elif fragment_id <= BLOCK_ID_MAX:
            self._read_block_header(fragment_id)
        else:
            raise self._damaged(f"invalid block_id {fragment_id}")
        return True

    def _read_block_header(self, block_id: int) -> None:
        if self._blocks and block_id <= self._blocks[-1].block_id:
            raise self._damaged(f"out-of-order block_id {block_id}")
        flags, data_length = self._read(_BLOCK)
        if (data_length > 0) != (flags & _HAS_DATA != 0):
            raise self._damaged(
                f"block {block_id} has data length {data_length} and flags {flags:02X}"
            )
        image = self._read_image_header(block_id) if flags & HAS_IMAGE else None
        if not flags & _SAME_RELATION:
            relation = Relation(*self._read(_RELATION))
        elif self._blocks:
            relation = self._blocks[-1].relation
        else:
            raise self._damaged("BKPBLOCK_SAME_REL set but no previous rel")
        (block_number,) = self._read(_U32)
        self._payload_length += data_length + (image.length if image else 0)
        self._blocks.append(
            _BlockHeader(block_id, flags & _FORK_MASK, data_length, image, relation, block_number)
        )

    def _read_image_header(self, block_id: int) -> _ImageHeader:
        length, hole_offset, info = self._read(_IMAGE)
        compression = next(
            (name for bit, name in self._version.image_compression.items() if info & bit), None
        )
        has_hole = info & IMAGE_HAS_HOLE != 0
        if compression is None:
            hole_length = BLOCK_SIZE - length
        else:
            (hole_length,) = self._read(_U16) if has_hole else (0,)
        # A stored image is shorter than its page exactly if it has a hole or is compressed.
        is_possible = (
            (has_hole or compression is not None) == (length < BLOCK_SIZE)
            and length <= BLOCK_SIZE
            and has_hole == (hole_length > 0)
            and has_hole == (hole_offset > 0)
        )
        if not is_possible:
            raise self._damaged(
                f"block {block_id} has an image with info bits {info:02X}, "
                f"length {length}, hole offset {hole_offset}, hole length {hole_length}"
            )
        is_applied = info & self._version.image_apply != 0
        return _ImageHeader(length, hole_offset, hole_length, compression, is_applied)

    def _cut_block(self, header: _BlockHeader) -> BlockRef:
        image = None
        if header.image is not None:
            image = PageImage(
                data=self._cut(header.image.length),
                hole_offset=header.image.hole_offset,
                hole_length=header.image.hole_length,
                compression=header.image.compression,
                is_applied=header.image.is_applied,
            )
        return BlockRef(
            block_id=header.block_id,
            relation=header.relation,
            fork=header.fork,
            block_number=header.block_number,
            image=image,
            data=self._cut(header.data_length),
        )

    def _read(self, fields: struct.Struct) -> tuple[int, ...]:
        end = self._offset + fields.size
        if end > len(self._data):
            raise self._damaged("record with invalid length")
        values = fields.unpack_from(self._data, self._offset)
        self._offset = end
        return values

    def _cut(self, length: int) -> bytes:
        begin, self._offset = self._offset, self._offset + length
        return self._data[begin : self._offset]

    def _damaged(self, message: str) -> WalFormatError:
        return WalFormatError(self._start_lsn, f"{message} at {format_lsn(self._start_lsn)}")
