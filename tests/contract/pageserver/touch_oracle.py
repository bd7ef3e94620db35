"""A second survey of touched pages, record by record in plain Python, to verify the compiled one.
It was written independently from Postgres' sources, and shares only `pgwal`, which has its own
tests.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from pathlib import Path

from quorum_wal.pageserver.epochs.wal_folder import WalFolder
from quorum_wal.pageserver.layers.fork import Fork, ForkKind
from quorum_wal.pgwal.block_ref import BlockRef, RecordBody, decode_body
from quorum_wal.pgwal.record import Record
from quorum_wal.pgwal.walker import NEED_DATA, RecordWalker

WILL_INIT = 0x40
VM_BITS_HEAP_PAGES = 32672
HEAP2, HEAP = 9, 10


@dataclass
class PlainTouches:
    """Page -> whether redo needs it before the WAL replaces it."""

    pages: dict[tuple[Fork, int], bool] = field(default_factory=dict)
    checkpoints: list[int] = field(default_factory=list)


def plain_survey(wal: WalFolder, begin_lsn: int, end_lsn: int, tli: int) -> PlainTouches:
    """Surveys the records that begin in [begin_lsn, end_lsn)."""
    found = PlainTouches()
    major = wal.server.pg_major
    walker = RecordWalker(
        begin_lsn, wal_seg_size=wal.server.wal_seg_size, version_major=major, prev_lsn=None
    )
    offset = begin_lsn % wal.server.wal_seg_size
    for path in wal.segments(begin_lsn, end_lsn, tli):
        walker.feed(Path(path).read_bytes()[offset:])
        offset = 0
        while (record := walker.next()) is not NEED_DATA:
            assert isinstance(record, Record)
            if record.start_lsn >= end_lsn:
                return found
            _note(found, record, decode_body(record, major))
    return found


def _note(found: PlainTouches, record: Record, body: RecordBody) -> None:
    inits = _initialised(record)
    for block in body.blocks:
        if block.fork != ForkKind.FSM:
            has_image = block.image is not None and block.image.is_applied
            _touch(
                found, block, block.fork, block.block_number, has_image or block.block_id in inits
            )
    for block in _cleared(record, body):
        _touch(found, block, ForkKind.VM, block.block_number // VM_BITS_HEAP_PAGES, False)
    operation = record.info & 0xF0
    if record.rmgr_id == 0 and operation in (0x00, 0x10):
        found.checkpoints.append(int(record.start_lsn))
    if record.rmgr_id == 2 and operation == 0x20:
        blocks, tablespace, database, number, flags = struct.unpack_from("<IIIIi", body.main_data)
        if flags & 2 and blocks % VM_BITS_HEAP_PAGES:
            fork = Fork(tablespace, database, number, ForkKind.VM)
            found.pages.setdefault((fork, blocks // VM_BITS_HEAP_PAGES), True)


def _touch(found: PlainTouches, block: BlockRef, kind: int, number: int, is_whole: bool) -> None:
    relation = block.relation
    fork = Fork(relation.tablespace, relation.database, relation.number, ForkKind(kind))
    found.pages.setdefault((fork, number), not is_whole)


def _initialised(record: Record) -> set[int]:
    """Ids of the blocks whose headers have WILL_INIT, found by walking over the headers."""
    found, at, payload = set(), 24, 0
    data = record.data
    while len(data) - at > payload:
        block_id = data[at]
        if block_id in (254, 255):
            break
        if block_id == 253:
            at += 3
        elif block_id == 252:
            at += 5
        else:
            flags, length = data[at + 1], int.from_bytes(data[at + 2 : at + 4], "little")
            at, payload = at + 4, payload + length
            if flags & 0x10:
                image, _, info = struct.unpack_from("<HHB", data, at)
                payload += image
                at += 5 + (2 if info & 0x1 and image_is_packed(info, data, at, image) else 0)
            at += 4 if flags & 0x80 else 16
            if flags & WILL_INIT:
                found.add(block_id)
    return found


def image_is_packed(info: int, data: bytes, at: int, image: int) -> bool:
    """Whether the header of an image with a hole has the hole's length, which means compression.
    Without compression the image and its hole fill a page, and no method bit is set. In 13 and 14
    the bit of `apply` is one of these bits, so call it for versions since 15 only."""
    return bool(info & 0x1C)


def _cleared(record: Record, body: RecordBody) -> list[BlockRef]:
    """Heap blocks whose visibility map bits the record clears."""
    if not body.blocks or record.rmgr_id not in (HEAP, HEAP2):
        return []
    operation, main = record.info & 0x70, body.main_data
    first, last = body.blocks[0], body.blocks[-1]
    if record.rmgr_id == HEAP2:
        if operation == 0x50:
            return [first] if main[0] & 1 else []
        if operation == 0x60:
            return [first] if main[7] & 1 else []
        return []
    if operation == 0x00:
        return [first] if main[2] & 1 else []
    if operation in (0x10, 0x60):
        return [first] if main[7] & 1 else []
    if operation in (0x20, 0x40):
        return [first] * bool(main[7] & 2) + [last] * bool(main[7] & 1)
    return []
